"""Hypothesis strategies: whole histories of a skill, and lineages.

A *lineage* is a task, and tasks that are recovered or forked from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from hypothesis import strategies as st

from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import Live, Skill
from refold.core.errors import RefoldError
from refold.core.events import (
    EVENT,
    CancelRequested,
    Event,
)
from refold.core.fold.apply import advance, planned
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, finished, wanted
from refold.engine.arguments import takes
from refold.lineage.fork import fork
from refold.lineage.recover import recover
from refold.testing.answers import ScriptError
from refold.testing.plausible import OWNER, plausible_event, strategies_of
from refold.testing.play import START
from refold.testing.values import Values


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of a history, and its time."""

    event: Event
    at: datetime

    def __str__(self) -> str:
        return f"{self.at.isoformat()} {self.event!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """How a task is made from the previous task of a lineage.

    Attributes:
        how: Whether it is recovered or forked.
        task_id: Its id.
        at: When it is made.
        seq: The entry that a fork begins at.
        live: Whether the effects of a fork take place.
    """

    how: Literal["recovered", "forked"]
    task_id: str
    at: datetime
    seq: int = 0
    live: bool = False

    def of(self, skill: Skill, base: Snapshot, entries: Sequence[Entry]) -> tuple[Snapshot, Event]:
        """The task and its first event, made from the previous task's base and journal.

        Raises:
            InputRejected: The previous task cannot be recovered, or forked there.
        """
        if self.how == "recovered":
            return recover(skill, base, entries, self.task_id, self.at, by="Ops")
        return fork(skill, base, entries, self.task_id, self.at, seq=self.seq, live=self.live)

    def __str__(self) -> str:
        where = f" at entry {self.seq}{', live' if self.live else ''}" if self.how == "forked" else ""
        return f"{self.at.isoformat()} {self.how} as {self.task_id!r}{where}"


@dataclass(frozen=True, slots=True)
class Life:
    """One task of a lineage: how it is made from the previous task, None for the first; and its history."""

    made: Made | None
    history: list[Happening]


# A worker's clock may be behind that of the previous worker; and after an outage, timers fire late.
_PASSED = st.sampled_from([0, 1, 7, -3] * 5 + [4000])


@st.composite
@takes(ScriptError)
def histories(
    draw: st.DrawFn,
    skill: Any,
    *,
    values: Mapping[str, Any] | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    max_events: int = 20,
    task_id: str = "T",
    honest: bool = False,
) -> list[Happening]:
    """A history of one task of a skill, from its first message on, with up to two events after its end.

    Args:
        draw: From Hypothesis.
        skill: A skill's class, a table, or a compiled skill.
        values: Results of commands, by their id or by what they call: a type or a strategy of JSON values.
        tools: Tools, whose declared return types say the same.
        max_events: Length of the longest history.
        task_id: The task's id.
        honest: Every result fits what its command expects, as workers ensure for models.
    """
    compiled = skill_of(skill)
    base = first_of(compiled, task_id)
    return _history(draw, compiled, base, None, strategies_of(values, tools), max_events, honest=honest)[0]


def first_of(skill: Skill, task_id: str = "T") -> Snapshot:
    """A new task of the skill, as every history and lineage begins with."""
    return planned(skill, task_id, START, owner=OWNER)


@st.composite
def lineages(
    draw: st.DrawFn,
    skill: Any,
    *,
    values: Mapping[str, Any] | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    max_events: int = 20,
) -> list[Life]:
    """A task's history, and sometimes the histories of tasks recovered or forked from it, at most three in all.

    The arguments are those of `histories`; `max_events` is the limit for all histories together.
    """
    compiled = skill_of(skill)
    known = strategies_of(values, tools)
    base, first, made = first_of(compiled), None, None
    lives: list[Life] = []
    tasks = draw(st.sampled_from([1, 1, 2, 3]))
    share = max(1, max_events // tasks)
    for number in range(1, tasks + 1):
        # Half of the tasks that another one follows are canceled, so that it can be recovered from them.
        cancel_at = share // 2 if number < tasks and draw(st.booleans()) else None
        history, entries = _history(draw, compiled, base, first, known, share, cancel_at=cancel_at)
        lives.append(Life(made, history))
        if len(entries) < len(history):
            break
        made = _making(draw, entries, f"T{number + 1}")
        try:
            base, first = made.of(compiled, base, entries)
        except RefoldError:
            break
    return lives


def _making(draw: st.DrawFn, entries: Sequence[Entry], task_id: str) -> Made:
    last = entries[-1]
    if any(entry.ends for entry in entries) and draw(st.integers(0, 3)):
        return Made(how="recovered", task_id=task_id, at=last.at)
    seq = draw(st.integers(entries[0].seq, last.seq))
    return Made(how="forked", task_id=task_id, at=last.at, seq=seq, live=draw(st.booleans()))


def _history(
    draw: st.DrawFn,
    skill: Skill,
    snapshot: Snapshot,
    first: Event | None,
    known: Mapping[str, Values],
    max_events: int,
    *,
    honest: bool = False,
    cancel_at: int | None = None,
) -> tuple[list[Happening], list[Entry]]:
    """A history of one task, which begins with `first`; and its journal, which is shorter where an event raised."""
    history: list[Happening] = []
    entries: list[Entry] = []
    at, after_end, live = snapshot.at, 0, Live()
    while len(history) < max_events and after_end < 2:
        past = [happening.event for happening in history]
        event = plausible_event(draw, skill, snapshot, known, past, honest) if first is None else first
        if len(history) == cancel_at and first is None:
            event = CancelRequested()
        first = None
        due = [want.due_at for want in wanted(snapshot).values() if isinstance(want, Alarm) and want.event == event]
        at = max([at + timedelta(seconds=draw(_PASSED)), *due])
        # Events reach a task through JSON.
        event = EVENT.validate_json(EVENT.dump_json(event))
        history.append(Happening(event, at))
        try:
            # A copy, so that the skill cannot change the history by writing into an event.
            snapshot, entry = advance(skill, snapshot, event.model_copy(deep=True), at, live=live)
        except Exception:  # noqa: BLE001 - the law says that this never happens, and its check is who tells of it
            break
        entries.append(entry)
        after_end += finished(snapshot)
    return history, entries
