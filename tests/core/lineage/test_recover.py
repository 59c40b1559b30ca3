"""Recover: a new task goes on from where another one failed, without what killed it, and repeats nothing."""

import re
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from refold import (
    Cmd,
    CommandError,
    CommandFailed,
    Content,
    Ctx,
    DecisionMade,
    GatePolicy,
    InputRejected,
    RetryPolicy,
    Status,
    TaskState,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
)
from refold.core.authoring.skill import Live
from refold.core.events import Event
from refold.core.fold.apply import advance, planned
from refold.lineage.recover import lacks, may_lack, recover
from refold.record import record_of, with_entry
from refold.testing import histories
from refold.testing.plausible import OWNER
from refold.testing.play import START
from refold.testing.strategies import Happening
from tests.core.byhand import ByHand, busy, unknown
from tests.core.lineage.recovering import BOTH, Names, asked, buggy, charge, fixed, pays, skill, started
from tests.core.test_laws import StubbornReducer
from tests.records.skills import Gated, take
from tests.sweeps import examples


async def three(ctx: Ctx, content: Content) -> Transition:
    a = await ctx.tool("a")
    b, c = await ctx.gather(ctx.tool("b"), ctx.tool("c"))
    return ctx.complete(f"{a} {b} {c}")


async def gated(ctx: Ctx, content: Content) -> Transition:
    paid = await ctx.tool(charge, cents=50)
    await ctx.approve("sure", "Sure?", policy=GatePolicy(approvers=("Ann", "Bob"), needed=2))
    mailed = await ctx.tool("mail")
    return ctx.complete(f"{paid} {mailed}")


# --- what killed it is left out


@BOTH
def test_a_failed_command_is_asked_for_again(cut: bool) -> None:
    """
    Under the id it had; what had come back is not asked for again, and numbers go on.
    """
    task = started(three, cut=cut)
    task.give("a", 1)
    task.give("b", 2)
    task.fail("c")
    assert task.status is Status.FAILED

    new = task.recovered()

    assert (new.state, asked(new), new.out) == (TaskState.RUNNING, {"T/2.2"}, ["c"])
    assert new.journal[0].seq == task.task.seq + 1
    assert (new.task.task_id, new.task.recovered_from) == ("T2", "T")
    assert new.moves == ["start"]
    new.give("c", 3)
    assert new.said == ["1 2 3"]
    assert new.folded() == new.task
    assert task.status is Status.FAILED, "the failed task stays as it is"


@BOTH
@pytest.mark.parametrize("first", ["b", "c"])
def test_a_failure_inside_gather(cut: bool, first: str) -> None:
    """
    It is raised when the last sibling is back; recovered, the sibling's result is kept, whichever came first.
    """
    task = started(three, cut=cut)
    task.give("a", 1)
    if first == "b":
        task.fail("b")
        task.give("c", 3)
    else:
        task.give("c", 3)
        task.fail("b")
    assert task.reason == "b: forbidden"

    new = task.recovered()

    assert asked(new) == {"T/2.1"}
    new.give("b", 2)
    assert new.said == ["1 2 3"]


def test_two_failures_inside_gather() -> None:
    """
    Only the first is raised, but both are asked for again: else the new task would meet the second one.
    """
    task = started(three)
    task.give("a", 1)
    task.fail("b")
    task.fail("c")

    new = task.recovered()

    assert asked(new) == {"T/2.1", "T/2.2"}
    new.give("c", 3)
    new.give("b", 2)
    assert new.said == ["1 2 3"]


def test_a_failure_inside_gather_that_was_canceled_meanwhile() -> None:
    """
    The failure was not raised yet, and would be when the sibling is back: it is asked for again, too.
    """
    task = started(three)
    task.give("a", 1)
    task.fail("b")
    task.cancel()

    new = task.recovered()

    assert asked(new) == {"T/2.1", "T/2.2"}
    new.give("c", 3)
    new.give("b", 2)
    assert new.said == ["1 2 3"]


@pytest.mark.parametrize("canceled", [False, True])
def test_failures_of_earlier_runs(canceled: bool) -> None:
    """
    Wherever a new run of the task began: from all of the journal that recovery needs, it follows what follows from the
    whole.
    """
    task = started(three)
    bases = [task.base, task.task]
    busy_then_refused = [partial(task.fail, "b", busy()), partial(task.ring, "b"), partial(task.fail, "b")]
    for happens in [partial(task.give, "a", 1), partial(task.fail, "c"), *busy_then_refused[: 1 if canceled else None]]:
        happens()
        bases.append(task.task)
    if canceled:
        task.cancel()
    assert asked(task.recovered()) == {"T/2.1", "T/2.2"}

    for base in bases[: len(task.journal)]:
        end = task.journal[base.seq :]
        snapshot, _ = recover(task.skill, base, end, "T2", task.task.at)
        assert lacks(end) or may_lack(base) or set(snapshot.pending) == {"T/2.1", "T/2.2"}


async def gathered(ctx: Ctx) -> str:
    b, c = await ctx.gather(ctx.tool("b"), ctx.tool("c"))
    return f"{b} {c}"


async def nested(ctx: Ctx) -> str:
    async def only(name: str) -> str:
        return str(await ctx.tool(name))

    return " ".join(await ctx.parallel(only("b"), only("c")))


@BOTH
@pytest.mark.parametrize("canceled", [False, True])
@pytest.mark.parametrize("branch", [gathered, nested])
def test_failures_inside_a_branch(branch: Any, canceled: bool, cut: bool) -> None:
    """
    A branch of `ctx.parallel` that gathers, or has branches itself, is no other: all its failures are asked for again,
    those that were raised at once and those that were not raised yet.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        async def beside() -> None:
            await ctx.tool("a")
            await ctx.tool("d")

        (said, _) = await ctx.parallel(branch(ctx), beside())
        return ctx.complete(said)

    task = started(begin, cut=cut)
    task.fail("b")
    task.give("a", 1)
    if canceled:
        task.cancel()
    else:
        task.fail("c")
        task.give("d", 4)
    assert task.reason == ("canceled on request" if canceled else "b: forbidden")

    new = task.recovered()

    assert {"b", "c"} <= set(new.out)
    new.give("c", 3)
    new.give("b", 2)
    if canceled:
        new.give("d", 4)
    assert new.said == ["2 3"]
    assert new.folded() == new.task


@BOTH
def test_a_part_whose_outcome_met_a_bug(cut: bool) -> None:
    """
    Its outcome is delivered again, under the id that the part had.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        found = await ctx.skill("part", "other", "go")
        buggy("part")
        return ctx.complete(f"found {found.text}")

    task = started(begin, cut=cut)
    task.give("part", "it")
    assert task.reason.startswith("bug")

    new = fixed(task)

    assert new.said == ["found it"]


def test_what_came_while_it_was_tried_again_keeps_its_ids() -> None:
    """
    What a held result led to has the number of the entry that released it, in the new task too.
    """

    @flow_skill(id="pays", retry=RetryPolicy(max_retries=1))
    class Pays:
        @staticmethod
        def initial() -> Names:
            return Names()

        def on_event(self, state: Names, event: Event, ctx: Ctx) -> Transition:
            match event:
                case UserMessage():
                    return Transition.to(state).cmd(Cmd.tool("a", "a")).cmd(Cmd.tool("b", "b"))
                case ToolResult(id=id):
                    went_on = Transition.to(Names(names=[*state.names, id]))
                    return went_on.cmd(Cmd.tool("c", charge, cents=1)) if id == "b" else went_on
                case _:
                    return Transition.ignore(state)

    task = ByHand(Pays)
    task.say()
    task.fail("a", busy())
    assert task.give("b").held
    task.ring("a")
    charged = task.pending("c").invocation_id
    assert charged == "T/4.1"
    task.give("c")
    task.fail("a", busy())
    assert task.status is Status.FAILED

    task.give("undo c")
    new = task.recovered()

    assert asked(new) == {"T/1.1", "T2/4.1"}, "nothing is asked for under another number"


@BOTH
def test_tries_are_counted_anew(cut: bool) -> None:
    """
    The new task has all its retries before it.
    """
    task = started(three, cut=cut)
    for _ in range(3):
        task.fail("a", busy())
        task.ring("a")
    task.fail("a", busy())
    assert task.moves[-2:] == ["transient_error", "max_retries_exceeded"]

    new = task.recovered()

    assert task.journal[-1].cause == "T/1.1"
    assert new.pending("a").attempt == 1
    new.fail("a", busy())
    assert new.state is TaskState.RETRYING


@BOTH
def test_a_handled_failure_stays_handled(cut: bool) -> None:
    """
    Only what killed the task is left out.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        try:
            a = await ctx.tool("a")
        except CommandError:
            a = "no a"
        b = await ctx.tool("b")
        return ctx.complete(f"{a}, {b}")

    task = started(begin, cut=cut)
    task.fail("a")
    task.fail("b")

    new = task.recovered()

    assert asked(new) == {"T/2.1"}
    new.give("b", 2)
    assert new.said == ["no a, 2"]


@BOTH
def test_a_canceled_task_goes_on(cut: bool) -> None:
    """
    What was in flight is asked for again, under its id.
    """
    task = started(three, cut=cut)
    task.give("a", 1)
    task.give("b", 2)
    task.cancel("by mistake")

    new = task.recovered()

    assert asked(new) == {"T/2.2"}
    new.give("c", 3)
    assert new.said == ["1 2 3"]


def test_a_task_that_was_canceled_while_blocked() -> None:
    """
    An unknown outcome stays unknown: it is performed under the same id, and nobody's word stands for it.
    """
    task = started(three)
    task.fail("a", unknown())
    task.resolve(retry=True)
    task.cancel()

    new = task.recovered()

    assert (new.out, new.pending("a").decided, new.pending("a").blocked) == (["a"], False, False)


# --- gates


@BOTH
def test_after_a_denial_the_gate_is_open_again(cut: bool) -> None:
    """
    With the grants it had; an earlier denial that the skill was told of stays.
    """
    task = started(gated, cut=cut)
    task.give("charge", 50)
    task.decide("sure", by="Ann")
    gate = task.gate("sure")
    task.decide("sure", False, by="Bob")
    task.give("undo charge")

    new = task.recovered()

    assert (new.state, new.waiting, new.gate("sure")) == (TaskState.PAUSED, ["sure"], gate)
    assert new.moves == ["start", "pause_for_approval"]
    assert new.out == [], "while paused nothing starts"
    new.decide("sure", by="Bob")
    assert new.out == ["charge"], "what was undone is done again before anything else"
    new.give("charge", "anew")
    new.give("mail", "sent")
    assert new.said[-1] == "anew sent"


def test_an_earlier_denial_stays() -> None:
    """
    One that the skill was told of did not kill the task.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        first = await ctx.approve("first", "?", policy=GatePolicy(on_denied="continue"))
        second = await ctx.approve("second", "?")
        return ctx.complete(f"{first.decision} {second.decision}")

    task = started(begin)
    task.decide("first", False)
    task.decide("second", False)

    new = task.recovered()

    assert new.waiting == ["second"]
    new.decide("second")
    assert new.said[-1] == "denied approved"


def test_after_a_timeout_the_gate_waits_anew() -> None:
    """
    With all its time, and a reminder of its own; reminders of the failed task are gone.
    """
    task = started(gated)
    task.give("charge", 50)
    task.clock("~remind")
    task.clock("~timeout")
    task.clock("~grace")
    task.give("undo charge")

    new = task.recovered()

    now = (new.task.at - START).total_seconds()
    assert new.alarms == [now + 900, now + 1800]
    assert new.out == []


def test_a_late_grant_counts() -> None:
    """
    Who granted too late need not be asked again; where two must, the other one must still.
    """
    task = started(gated)
    task.give("charge", 50)
    gate, digest = task.gate("sure"), task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate
    task.clock("~timeout")
    task.decide("sure", by="Ann", gate=gate, digest=digest, second=1900)
    task.give("undo charge")

    new = task.recovered()

    assert [grant.approver for grant in new.task.waits[0].grants] == ["Ann"]
    assert with_entry(record_of(new.base), new.journal[0]).waits == new.task.waits  # what the outside is shown
    assert new.decide("sure", by="Ann").refused
    new.decide("sure", by="Bob")
    assert new.out == ["charge"]


def test_a_late_grant_passes_the_gate() -> None:
    """
    Where one is enough, the new task goes on at once.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        decision = await ctx.approve("sure", "Sure?")
        return ctx.complete(decision.approver)

    task = started(begin)
    gate, digest = task.gate("sure"), task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate
    task.clock("~timeout")
    task.decide("sure", gate=gate, digest=digest, second=1900)

    new = task.recovered()

    assert (new.status, new.said[-1]) == (Status.COMPLETED, "Ann")
    assert new.moves == ["start", "pause_for_approval", "approval_granted", "complete"]


# --- what does not recover


def test_only_what_failed_recovers() -> None:
    """
    Neither an open task nor one that is done.
    """
    task = started(three)
    with pytest.raises(InputRejected, match="task 'T' is open; only a task that failed or was canceled recovers"):
        task.recovered()
    task.give("a")
    task.give("b")
    task.give("c")
    with pytest.raises(InputRejected, match="task 'T' is done"):
        task.recovered()


def test_while_effects_may_be_undone_nothing_recovers() -> None:
    """
    The new task would rely on what the old one is about to undo.
    """
    task = started(gated)
    task.give("charge", 50)
    task.clock("~timeout")
    with pytest.raises(InputRejected, match="waits for a late grant, before its effects are undone"):
        task.recovered()
    task.clock("~grace")
    with pytest.raises(InputRejected, match=r"still undoing T/1\.1~undo"):
        task.recovered()
    task.fail("undo charge", busy())
    task.ring("undo charge")
    with pytest.raises(InputRejected, match="still undoing"):
        task.recovered()

    task.give("undo charge")

    assert task.recovered().state is TaskState.PAUSED


def test_what_could_not_be_undone_stands() -> None:
    """
    It is not done again.
    """
    task = started(pays)
    task.give("charge", 50)
    task.fail("mail")
    task.fail("undo charge")

    new = task.recovered()

    assert asked(new) == {"T/2.1"}
    new.cancel()
    assert new.out == ["undo charge"], "and is undone if the new task fails"


def test_what_ends_all_the_same_does_not_recover() -> None:
    """
    Today's code fails before it comes to where the task was.
    """

    async def gone(ctx: Ctx, content: Content) -> Transition:
        return ctx.fail("no more of these")

    task = started(three)
    task.give("a")
    task.cancel()

    with pytest.raises(InputRejected, match="ends without the failure, too: no more of these; change the skill"):
        task.recovered(author=skill(gone))


def test_what_would_end_again_at_once_does_not_recover() -> None:
    """
    The bug is still in the code: a new task would only meet it again.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("a")
        raise KeyError("still there")

    task = started(begin)
    task.give("a", 1)

    with pytest.raises(InputRejected, match="'T' would end again at once: bug: KeyError: 'still there'; change the"):
        task.recovered()


@pytest.mark.parametrize("author", [Gated, StubbornReducer])
@settings(max_examples=examples(100), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_whatever_failed_recovers_or_says_why_not(author: Any, data: st.DataObject) -> None:
    """
    After any history: the new task is running or paused, its numbers go on, it asks again for nothing that came back,
    and it goes on whatever happens.
    """
    compiled = skill_of(author)
    history: list[Happening] = data.draw(histories(author, tools=[take], max_events=30))
    base = planned(compiled, "T", START, owner=OWNER)
    snapshot, entries, live = base, [], Live()
    for happening in history:
        snapshot, entry = advance(compiled, snapshot, happening.event, happening.at, live=live)
        entries.append(entry)
    recovers = snapshot.status in (Status.FAILED, Status.CANCELED)
    try:
        new, first = recover(compiled, base, entries, "T2", snapshot.at)
    except InputRejected as error:
        event(error.reason[:40])
        if recovers and not re.search("undo|ends without|would end again|canceled before it began", error.reason):
            raise
        return
    assert recovers
    came_back = {
        entry.event.invocation_id for entry in entries if isinstance(entry.event, ToolResult) and not entry.refused
    }
    assert not came_back & set(new.pending) or first.again is not None
    task, entry = advance(compiled, new, first, snapshot.at)
    assert (entry.refused, entry.seq) == ("", snapshot.seq + 1)
    assert entry.moves[0].event == "start"
    redone = [id.rpartition("/")[2] for id in new.pending if id.startswith("T2/")]
    assert {f"T/{place}~undo" for place in redone} <= came_back
    for invocation_id, pending in list(task.pending.items()):
        if pending.started and task.ending is None:
            failed = CommandFailed(id=pending.command.id, invocation_id=invocation_id, failure=busy())
            task, entry = advance(compiled, task, failed, snapshot.at)
            assert not entry.refused or isinstance(entry.event, DecisionMade) or task.ending
