"""What an eval found: as data, as text for people, and as JUnit's XML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import BaseModel, ConfigDict

from refold.core.values import lean
from refold.engine.arguments import takes
from refold.junit import Case
from refold.junit import junit as junit_of

CONTEXT = 2
"""How many equal steps are shown before and after one that differs."""

COLUMN = 56


class _Found(BaseModel):
    model_config = ConfigDict(frozen=True)


class Row(_Found):
    """A step of the record beside the step of the run at hand; one side is empty where the other has no such step.

    Attributes:
        recorded_seq, now_seq: The entries' numbers.
        recorded, now: What happened, and what it caused, line by line.
    """

    recorded_seq: int | None = None
    now_seq: int | None = None
    recorded: tuple[str, ...] = ()
    now: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both sides say the same."""
        return self.recorded == self.now


class Cost(_Found):
    """What the model calls of a run cost.

    Attributes:
        calls: How many replies there were, those of no use included.
        usd: In US dollars; None where a price is not known.
        seconds: The time that they took together: in the record, from the entry that asked to the entry with the reply.
        asked: How many of them were asked anew.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float | None = 0.0
    seconds: float = 0.0
    asked: int = 0


class Evaluation(_Found):
    """What an eval of one exported task found.

    Attributes:
        task_id: The task.
        skill: Its skill.
        diverged: The run at hand is not the recorded one, or a rule of `tools` is broken.
        first: The first divergence, in words; empty if there is none.
        rows: All steps side by side.
        drift: Calls that a recorded call of other arguments answered.
        unrecorded: Calls that the record has no answer to; they failed as `NotRecorded`.
        unused: Recorded calls that nobody asked for.
        live: Calls of read-only tools that were made.
        old_paths: The changes to which `ctx.patched` answered False, so that their new code did not run.
        status, status_now: How the recorded run stood at its end, and the run at hand.
        recorded, now: What the models cost.
    """

    task_id: str
    skill: str
    diverged: bool
    first: str = lean("")
    rows: tuple[Row, ...] = ()
    drift: tuple[str, ...] = ()
    unrecorded: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    live: tuple[str, ...] = ()
    old_paths: tuple[str, ...] = ()
    status: str
    status_now: str
    recorded: Cost
    now: Cost

    def lines(self) -> Iterator[str]:
        """The result for people: the verdict, what differs side by side, what drifted, what it cost."""
        verdict = f"differs: {self.first}" if self.diverged else f"as recorded: {len(self.rows)} steps"
        yield f"{self.task_id}  {self.skill}  {verdict}"
        if any(not row.equal for row in self.rows):
            yield f"  {'RECORDED':<{COLUMN}}   NOW"
        yield from (f"  {line}" for line in _side_by_side(self.rows))
        for what, calls in (
            ("other arguments", self.drift),
            ("not recorded", self.unrecorded),
            ("never asked for", self.unused),
            ("called", self.live),
            ("old path, not the new code of ctx.patched", self.old_paths),
        ):
            yield from (f"  {what}: {one}" for one in calls)
        if self.recorded.calls or self.now.calls:
            yield f"  models, recorded: {_cost(self.recorded)}"
            yield f"  models, now:      {_cost(self.now)}"

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _side_by_side(rows: Sequence[Row]) -> Iterator[str]:
    near = {
        place + offset for place, row in enumerate(rows) if not row.equal for offset in range(-CONTEXT, CONTEXT + 1)
    }
    skipped = False
    for place, row in enumerate(rows):
        if place not in near:
            skipped = True
            continue
        if skipped:
            yield "…"
        skipped = False
        mark = " " if row.equal else "|" if row.recorded and row.now else "<" if row.recorded else ">"
        left, right = _cells(row.recorded_seq, row.recorded), _cells(row.now_seq, row.now)
        for number in range(max(len(left), len(right))):
            one = left[number] if number < len(left) else ""
            other = right[number] if number < len(right) else ""
            yield f"{one:<{COLUMN}} {mark} {other}".rstrip()


def _cells(seq: int | None, lines: Sequence[str]) -> list[str]:
    cells = []
    for number, line in enumerate(lines):
        text = f"#{seq} {line}" if number == 0 else f"   {line}"
        flat = " ".join(text.split()) if number == 0 else "   " + " ".join(text.split())
        cells += [flat[start : start + COLUMN] for start in range(0, min(len(flat), 4 * COLUMN), COLUMN)]
    return cells


def _cost(cost: Cost) -> str:
    usd = "" if not cost.usd else f", ${cost.usd:.4f}"
    anew = f", {cost.asked} asked anew" if cost.asked else ""
    replies = "1 reply" if cost.calls == 1 else f"{cost.calls} replies"
    return f"{replies}{anew}, {cost.input_tokens:,} + {cost.output_tokens:,} tokens{usd}, {cost.seconds:.1f} s"


def case(file: str, found: Evaluation) -> Case:
    """A test case, by the name of the export's file; the time is that of the models."""
    failure = f"{found.first}\n{found}" if found.diverged else ""
    return Case(name=file, group=found.skill, failure=failure, seconds=found.now.seconds)


@takes()
def junit(found: Iterable[tuple[str, Evaluation]]) -> str:
    """JUnit's XML: a test case for each export, by the name of its file."""
    return junit_of("refold eval", [case(file, one) for file, one in found])
