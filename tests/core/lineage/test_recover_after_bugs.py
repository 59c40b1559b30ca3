"""Recovery after a bug: what met the bug is delivered again to the corrected code."""

from typing import Any

import pytest

from refold import (
    Cmd,
    Content,
    Ctx,
    GatePolicy,
    Status,
    Step,
    TaskState,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
)
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK
from refold.core.events import DependencyResolved, Event
from refold.core.fold.apply import fold
from refold.core.fold.snapshot import Given
from refold.core.fold.wanted import Perform, wanted
from refold.record import record_of, with_entries
from tests.core.byhand import ByHand, at, busy, message, unknown
from tests.core.lineage.recovering import BOTH, BROKEN, Names, asked, buggy, fixed, skill, started


@BOTH
def test_the_result_that_met_a_bug_is_delivered_again(cut: bool) -> None:
    """
    To the fixed code, without asking for it again.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        a = await ctx.tool("a")
        buggy("a")
        b = await ctx.tool("b", a=a)
        return ctx.complete(f"{a} {b}")

    task = started(begin, cut=cut)
    task.give("a", 1)

    new = fixed(task)

    assert new.out == ["b"]
    assert new.pending("b").invocation_id == "T2/3.1"
    new.give("b", 2)
    assert new.said == ["1 2"]
    assert new.folded() == new.task


def test_the_first_message_that_met_a_bug() -> None:
    """
    The new task begins with it, and it is among its messages.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        buggy("first")
        await ctx.tool("a")
        return ctx.complete(ctx.messages[0].text)

    task = started(begin)

    new = fixed(task)
    new.give("a")

    assert new.said == ["go"]


@BOTH
def test_the_answer_that_met_a_bug(cut: bool) -> None:
    """
    It answers the question in the new task, too; nobody is asked again.
    """

    def begin(ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("why", "Why?")

    async def answered(ctx: Ctx, content: Content) -> Transition:
        buggy("answer")
        await ctx.tool("a")
        return ctx.complete(content.text)

    task = ByHand(skill(begin, Step("answered", answered).resume_from("begin")), cut=cut)
    task.say()
    task.say("because")

    new = fixed(task)

    assert (new.state, new.waiting, new.out) == (TaskState.RUNNING, [], ["a"])
    new.give("a")
    assert new.said[-1] == "because"


@BOTH
@pytest.mark.parametrize("second", [7_200, 260_000], ids=["before", "after"])
def test_the_call_that_met_a_bug(second: float, cut: bool) -> None:
    """
    A call that came before its address expired answers the question in the new task, too, whenever that begins.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        address = await ctx.callback("address", expires_s=86_400)
        said = await ctx.ask("paid", "?", callback=address)
        buggy("call")
        return ctx.complete(said.text)

    task = started(begin, cut=cut)
    called = f"{CALLBACK}T"
    task.give("address", {"digest": text_hash(called), "until": at(86_400).isoformat()})
    task.feed(message("paid", slot=called, early=True), second=3_600)
    assert task.reason.startswith("bug: KeyError")
    BROKEN.clear()

    new = task.recovered(second=second)

    assert (new.status, new.said[-1], new.journal[0].closed) == (Status.COMPLETED, "paid", ("T/2.1",))


@BOTH
def test_the_decision_that_met_a_bug(cut: bool) -> None:
    """
    It passes the gate in the new task, too.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        decision = await ctx.approve("sure", "Sure?")
        buggy("decision")
        return ctx.complete(decision.approver)

    task = started(begin, cut=cut)
    task.decide("sure")

    assert fixed(task).said[-1] == "Ann"


@pytest.mark.parametrize("approved", [True, False], ids=["granted", "denied"])
@BOTH
def test_a_decision_counts_only_for_what_its_gate_shows(cut: bool, approved: bool) -> None:
    """
    Where the fixed code's gate shows something else, the gate is open again, and the journal says why. Who reads the
    journal without the code finds no decision there, either.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        cents = 500 if BROKEN else 90_000
        decision = await ctx.approve("sure", "Pay?", show={"cents": cents}, policy=GatePolicy(on_denied="continue"))
        buggy("sure")
        await ctx.tool("pay" if decision.approved else "drop", cents=cents)
        return ctx.complete("done")

    task = started(begin, cut=cut)
    task.decide("sure", approved)

    new = fixed(task)

    assert (new.waiting, new.out, new.state) == (["sure"], [], TaskState.PAUSED)
    assert new.journal[0].note.startswith("the decision of Ann at gate T/1.1 does not count: the decision is for")
    assert new.folded() == new.task
    assert with_entries(record_of(new.base), new.journal).waits == new.task.waits
    new.decide("sure", approved, by="Bob")
    assert new.out == ["pay" if approved else "drop"]


def test_a_late_grant_counts_only_for_what_its_gate_shows() -> None:
    """
    One that came after the timeout is for what the gate showed then, too.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("sure", "Pay?", show={"cents": 500 if BROKEN else 90_000})
        return ctx.complete("paid")

    task = started(begin)
    gate, digest = task.gate("sure"), task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate
    task.clock("~timeout")
    task.decide("sure", gate=gate, digest=digest, second=1900)
    BROKEN.clear()

    new = task.recovered()

    assert (new.waiting, new.status) == (["sure"], Status.INPUT_REQUIRED)


def test_recovery_of_an_earlier_release_delivered_any_decision_again() -> None:
    """
    Its journal has no answer to the patch of the check, and folds as it did then.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("sure", "Pay?", show={"cents": 500 if BROKEN else 90_000})
        buggy("sure")
        await ctx.tool("pay")
        return ctx.complete("paid")

    task = started(begin)
    task.decide("sure")
    new = fixed(task)

    entry = new.journal[0].changed({"patches": {}})

    assert list(fold(new.skill, new.base, [entry]).pending) == ["T2/3.1"]


def test_the_outcome_of_an_operator_that_met_a_bug() -> None:
    """
    It is the command's result in the new task, too.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        a = await ctx.tool("a")
        buggy("outcome")
        return ctx.complete(str(a))

    task = started(begin)
    task.fail("a", unknown())
    task.resolve(outcome=5)

    assert fixed(task).said == ["5"]


@flow_skill(id="pays")
class Pays:
    @staticmethod
    def initial() -> Names:
        return Names()

    def on_event(self, state: Names, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage():
                return Transition.to(state).cmd(Cmd.tool("a", "a")).cmd(Cmd.tool("b", "b"))
            case ToolResult(id="b"):
                buggy("b")
                return Transition.to(Names(names=["b"]))
            case ToolResult(value=value):
                return Transition.complete(state).message(f"{value} {','.join(state.names)}")
            case _:
                return Transition.ignore(state)


def test_a_given_outcome_whose_release_met_a_bug() -> None:
    """
    What was held met the bug; what the operator said of the other command still holds.
    """

    task = ByHand(Pays)
    task.say()
    task.fail("a", unknown())
    task.give("b")
    task.feed(DependencyResolved(outcome=5))
    assert task.reason.startswith("bug")

    new = fixed(task)

    (told,) = wanted(new.task).values()
    assert isinstance(told, Perform)
    assert told.given == Given(outcome=5)
    new.give("a", 5)
    assert new.said == ["5 b"]


def test_a_held_result_that_met_a_bug() -> None:
    """
    An alarm released it; in the new task it is delivered at once.
    """

    task = ByHand(Pays)
    task.say()
    task.fail("a", busy())
    task.give("b")
    task.ring("a")

    new = fixed(task)

    assert asked(new) == {"T/1.1"}
    new.give("a", 5)
    assert new.said == ["5 b"]


def test_a_value_that_did_not_fit_is_read_again() -> None:
    """
    By better code; the command is not asked for again.
    """
    fits: list[Any] = [Names]

    async def reads(ctx: Ctx, content: Content) -> Transition:
        value = await ctx.activity("names", "names", expect=fits[-1])
        return ctx.complete(str(value))

    task = started(reads)
    task.give("names", {"names": 5})
    assert task.status is Status.FAILED
    assert task.journal[-1].cause is None
    fits.append(dict[str, int])

    assert task.recovered().said == ["{'names': 5}"]
