"""What a journal's entries count: told by every recorded journal, and by tasks that are played."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from refold import Content, Ctx, GatePolicy, TaskState, Transition, flow_skill, step, tool
from refold.core.authoring.skill import Live
from refold.core.chat import Reply, Usage
from refold.core.events import EVENT
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.retry_policy import Failure
from refold.cost import model_calls, total
from refold.seen.entries import blocked_by, entered, family, why_refused
from refold.seen.metrics import FAMILIES, REFUSED_FOR
from refold.testing import Played, approve, deny, fails, passes, play, reply, transient
from tests.records import tapes
from tests.seen.recorded import InMemory, counting

JOURNALS = sorted(tapes.JOURNALS.glob("*.jsonl"))


def told(played: Played) -> InMemory:
    """What the entries of a played task count."""
    with counting() as kept:
        since = played.snapshots[0].at
        for before, entry, after in zip(played.snapshots[:-1], played.entries, played.snapshots[1:], strict=True):
            entered(before, entry, after, since)
            since = entry.at if after.lifecycle is not before.lifecycle else since
    return kept


def of_tape(tape: tapes.Tape) -> list[tuple[Snapshot, Entry, Snapshot]]:
    """What happened in a recorded task."""
    skill, live, now, found = tape.compiled, Live(), Snapshot.model_validate_json(tape.planned), []
    for event, at in tape.events:
        after, entry = advance(
            skill, now, EVENT.validate_json(event), datetime.fromisoformat(at), live=live, patched=tape.answer()
        )
        found.append((now, entry, after))
        now = after
    return found


def test_every_recorded_journal_is_counted() -> None:
    """
    Moves, ends and refusals are as many as the journals have, whatever happened in them; and no label is unheard of.
    """
    moves, ended, refused = Counter[tuple[str, ...]](), Counter[str](), 0
    with counting() as kept:
        for path in JOURNALS:
            for before, entry, after in of_tape(tapes.read(path)[0]):
                entered(before, entry, after, before.at)
                refused += bool(entry.refused)
                if entry.refused:
                    continue
                moves.update((one.event.value, one.from_state.value, one.to_state.value) for one in entry.moves)
                if after.ending is not None and before.ending is None:
                    ended[after.ending.value] += 1
                    if after.ending == "canceled":
                        moves["canceled", before.lifecycle.value, "failed"] += 1

    counted = Counter[tuple[str, ...]]()
    for (event, was, _, became), times in kept.all_of("refold_transitions").items():
        counted[event, was, became] += int(times)
    assert counted == moves
    assert len({event for event, _, _ in moves}) == 13  # every event of the table, and cancel
    for ending, times in ended.items():
        assert kept.of("refold_tasks_ended", ending=ending) == times
    assert kept.of("refold_refusals") == refused > 0
    assert "other" not in {
        value for name, has in kept.values for label, value in has if label not in ("skill", "failure")
    }


def test_ten_thousand_tasks_have_few_series() -> None:
    """
    No metric has a task's id, so ten thousand tasks of five skills, of each of which everything happened that can, have
    less than a thousand series.
    """
    happened = [entry for path in JOURNALS for entry in of_tape(tapes.read(path)[0])]
    with counting() as kept:
        for number in range(10_000):
            before, entry, after = happened[number % len(happened)]
            skill = f"skill-{number // len(happened) % 5}"
            own = {"task_id": f"task-{number}", "owner": f"owner-{number}", "skill": skill}
            entered(before.model_copy(update=own), entry, after.model_copy(update=own), before.at)

    assert kept.series() < 1_000


BOSS = GatePolicy(approvers=("Ann",))


@tool(effect="idempotent")
def refund(cents: int) -> None: ...


@tool(effect="compensate", undo=refund)
def charge(cents: int) -> int:
    return cents


@flow_skill(id="shop")
class Shop:
    """Charges, asks a person, and writes a mail."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(charge, cents=50)
        await ctx.approve("send", "Send it?", show={}, policy=BOSS)
        await ctx.tool("mail")
        return ctx.complete("sent")


def test_a_task_with_a_gate_and_retries() -> None:
    """
    Retries, the third of them as a high one, a gate that opened and was decided, and the end are counted once each.
    """
    down = fails("charge", transient("it is down"))
    kept = told(
        play(Shop, "a book", down, down, down, reply("charge", 50), approve("send", by="Ann"), reply("mail")),
    )

    assert sum(kept.all_of("refold_retries").values()) == 3
    assert kept.all_of("refold_high_retries") == {("shop",): 1}
    assert kept.all_of("refold_waits_opened") == {("approval", "shop"): 1}
    assert kept.times["refold_wait_seconds", (("outcome", "approved"),)] == 1
    assert kept.all_of("refold_tasks_ended") == {("completed", "shop"): 1}
    assert kept.of("refold_state_seconds", state="retrying") == 1 + 2 + 4


@flow_skill(id="asks")
class Asks:
    """Asks a model, and looks something up."""

    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        """Ask twice."""
        await ctx.chat("first", ["Say it."], model="openai:gpt-4o")
        await ctx.chat("second", ["Say it again."], model="openai:gpt-4o")
        await ctx.tool("look")
        return ctx.complete("done")


def paid(usage: Usage, model: str = "openai:gpt-4o") -> Failure:
    """A model's answer that was of no use."""
    details: JsonValue = {"usage": usage.model_dump(mode="json"), "model": model}
    return transient("it broke off").model_copy(update={"details": details})


USAGES = st.builds(
    Usage,
    input_tokens=st.integers(0, 9_000),
    output_tokens=st.integers(0, 9_000),
    usd=st.none() | st.integers(0, 10**9).map(lambda micro: micro / 1_000_000),
    cached_tokens=st.integers(0, 9),
    reasoning_tokens=st.integers(0, 9),
)
MODELS = st.sampled_from(["openai:gpt-4o", "anthropic:claude", ""])
ANSWERS = st.lists(st.tuples(USAGES, MODELS), min_size=1, max_size=3)


@given(first=ANSWERS, second=ANSWERS)
def test_tokens_and_cost_are_those_of_the_journal(
    first: list[tuple[Usage, str]], second: list[tuple[Usage, str]]
) -> None:
    """
    What the metrics add up is what `refold cost` adds up, answers of no use included; a tool's own details are not
    counted, nor is an answer from a cache, which has no model.
    """
    script: list[Any] = []
    for name, (*cut, (usage, model)) in (("first", first), ("second", second)):
        script += [*(fails(name, paid(*one)) for one in cut), reply(name, Reply(text="ok", model=model, usage=usage))]
    story = play(Asks, "go", *script, fails("look", paid(Usage(output_tokens=7, usd=7.0))), unfinished=True)
    kept, cost = told(story), total(model_calls("t", story.entries))

    assert kept.of("refold_tokens", kind="input") == cost.input_tokens
    assert kept.of("refold_tokens", kind="output") == cost.output_tokens
    assert kept.of("refold_tokens", kind="input_cached") == cost.cached_tokens
    assert kept.of("refold_tokens", kind="output_reasoning") == cost.reasoning_tokens
    recorded = sum(one.usd for one in model_calls("t", story.entries) if one.priced == "recorded" and one.usd)
    assert kept.of("refold_cost_micro_usd") == pytest.approx(recorded * 1e6, abs=len(first) + len(second))


def test_a_denied_task_is_compensated() -> None:
    """
    A denial closes the gate and fails the task, and the compensation is counted when it is done.
    """
    kept = told(play(Shop, "a book", reply("charge", 50), deny("send", by="Ann"), reply("undo charge")))

    assert kept.all_of("refold_compensations") == {("done", "shop"): 1}
    assert kept.all_of("refold_tasks_ended") == {("failed", "shop"): 1}
    assert kept.times["refold_wait_seconds", (("outcome", "denied"),)] == 1


def test_an_effect_that_stays_is_counted() -> None:
    """
    A compensation that fails for good leaves an effect behind, which a person must look at.
    """
    kept = told(play(Shop, "a book", reply("charge", 50), deny("send", by="Ann"), fails("undo charge", "refused")))

    assert kept.all_of("refold_compensations") == {("not_done", "shop"): 1}


def test_a_gate_that_nobody_decides() -> None:
    """
    A gate that timed out counts as that.
    """
    kept = told(play(Shop, "a book", reply("charge", 50), passes(1800), unfinished=True))

    assert kept.times["refold_wait_seconds", (("outcome", "timeout"),)] == 1


@pytest.mark.parametrize(
    ("type", "found"),
    [
        ("http_429", "http_429"),
        ("http_404", "http_4xx"),
        ("http_503", "http_5xx"),
        ("TimeoutError", "timeout"),
        ("connection", "connection"),
        ("worker_lost", "worker_lost"),
        ("unknown_tool", "another_release"),
        ("KeyError", "other"),
        ("http_4", "http_4xx"),
    ],
)
def test_the_family_of_a_failure(type: str, found: str) -> None:
    """
    Whatever a library calls its exceptions, there are a handful of families.
    """
    assert family(type) == found
    assert found in (*FAMILIES, "other")


def test_every_refusal_of_the_recorded_journals_has_a_reason() -> None:
    """
    Each is one of the listed reasons, and those that the state of the task gives are told from those of the input.
    """
    found = Counter[str]()
    for path in JOURNALS:
        for before, entry, _ in of_tape(tapes.read(path)[0]):
            if entry.refused:
                found[why_refused(before, entry.event)] += 1

    assert set(found) <= set(REFUSED_FOR)
    assert {"state", "unfit", "stale", "duplicate"} <= set(found), found


def test_what_blocks_is_told_apart() -> None:
    """
    A blocked command is blocked by an outage, by lost workers, by workers of another release, or by not knowing.
    """
    found = Counter[str]()
    for path in JOURNALS:
        for before, entry, after in of_tape(tapes.read(path)[0]):
            if after.lifecycle is TaskState.BLOCKED and before.lifecycle is not TaskState.BLOCKED:
                found[blocked_by(entry.event)] += 1

    assert {"dependency", "outcome_unknown"} <= set(found), found
