"""Recover: a new task goes on from where another one failed, without what killed it, and repeats nothing."""

import re
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, JsonValue

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
    Step,
    TaskState,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    table,
    tool,
)
from refold.core.authoring.skill import Live
from refold.core.chat import UserSaid
from refold.core.commands import CallSkill, CallTool
from refold.core.events import ChildAsked, DependencyResolved, Event
from refold.core.fold.apply import advance, planned
from refold.core.fold.snapshot import Given
from refold.core.fold.wanted import Perform, finished, wanted
from refold.core.waits import Wait
from refold.lineage.recover import lacks, may_lack, recover
from refold.record import record_of, with_entry
from refold.testing import histories
from refold.testing.play import START
from refold.testing.strategies import OWNER, Happening
from tests.core.byhand import ByHand, busy, refused, unknown
from tests.core.test_laws import StubbornReducer
from tests.records.skills import Gated, take

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


@tool(effect="idempotent")
def refund(cents: int, result: JsonValue) -> None: ...


@tool(effect="compensate", undo=refund)
def charge(cents: int) -> JsonValue:
    return cents


@tool(effect="idempotent")
def release(result: JsonValue) -> None: ...


@tool(effect="compensate", undo=release)
def reserve(item: str) -> str:
    return item


@tool(effect="idempotent")
def give_back(reservation: str, result: JsonValue) -> None: ...


@tool(effect="compensate", undo=give_back)
def buy(reservation: str) -> str:
    return reservation


def skill(function: Any, *more: Step) -> Any:
    return table("pays", Step("begin", function).start(), *more)


async def three(ctx: Ctx, content: Content) -> Transition:
    a = await ctx.tool("a")
    b, c = await ctx.gather(ctx.tool("b"), ctx.tool("c"))
    return ctx.complete(f"{a} {b} {c}")


async def pays(ctx: Ctx, content: Content) -> Transition:
    paid = await ctx.tool(charge, cents=50, key="order-1")
    mailed = await ctx.tool("mail")
    return ctx.complete(f"{paid} {mailed}")


async def gated(ctx: Ctx, content: Content) -> Transition:
    paid = await ctx.tool(charge, cents=50)
    await ctx.approve("sure", "Sure?", policy=GatePolicy(approvers=("Ann", "Bob"), needed=2))
    mailed = await ctx.tool("mail")
    return ctx.complete(f"{paid} {mailed}")


def started(function: Any, *, cut: bool = False) -> ByHand:
    task = ByHand(skill(function), cut=cut)
    task.say()
    return task


def asked(task: ByHand) -> set[str]:
    return set(task.task.pending)


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


class Names(BaseModel):
    names: list[str] = []


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


# --- bugs


BROKEN: list[str] = []


def buggy(event: str) -> None:
    if BROKEN:
        raise KeyError(event)


@pytest.fixture(autouse=True)
def _broken() -> Any:
    BROKEN.append("yes")
    yield
    BROKEN.clear()


def fixed(task: ByHand) -> ByHand:
    """The task recovered with the bug out of the code."""
    assert task.reason.startswith("bug: KeyError"), task.reason
    BROKEN.clear()
    return task.recovered()


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


def test_a_given_outcome_whose_release_met_a_bug() -> None:
    """
    What was held met the bug; what the operator said of the other command still holds.
    """

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
                case ToolResult():
                    return Transition.complete(state).message(",".join(state.names))
                case _:
                    return Transition.ignore(state)

    task = ByHand(Pays)
    task.say()
    task.fail("a", busy())
    task.give("b")
    task.ring("a")

    new = fixed(task)

    assert asked(new) == {"T/1.1"}
    new.give("a")
    assert new.said == ["b"]


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


# --- effects


@BOTH
def test_a_finished_charge_is_not_repeated(cut: bool) -> None:
    """
    A task that fails after it, and undoes nothing, goes on with its receipt.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool("charge")
        mailed = await ctx.tool("mail")
        return ctx.complete(f"{paid} {mailed}")

    task = started(begin, cut=cut)
    task.give("charge", 50)
    task.fail("mail")

    new = task.recovered()

    assert new.out == ["mail"]
    new.give("mail", "sent")
    assert new.said == ["50 sent"]


@BOTH
def test_what_was_undone_is_done_again_once(cut: bool) -> None:
    """
    Under an id of the new task, before anything else is sent and before the skill goes on.
    """
    task = started(pays, cut=cut)
    task.give("charge", 50)
    task.fail("mail")
    task.give("undo charge")

    new = task.recovered()

    assert new.out == ["charge"]
    assert new.pending("charge").command.key == "order-1"  # type: ignore[union-attr]  # its receipt tells it apart
    new.give("charge", "anew")
    assert (new.out, asked(new)) == (["mail"], {"T/2.1"})
    new.give("mail", "sent")
    assert (new.status, new.said) == (Status.COMPLETED, ["anew sent"])
    assert new.folded() == new.task


@BOTH
def test_a_first_outcome_that_lies_too_far_back_stays(cut: bool) -> None:
    """
    Where the journal is folded from a later entry on, the state keeps the first outcome, and a note says so.
    """
    task = started(pays, cut=cut)
    task.give("charge", 50)
    task.base, task.journal = task.task, []
    task.fail("mail")
    task.give("undo charge")

    new = task.recovered()
    new.give("charge", "anew")
    new.give("mail", "sent")

    assert (new.status, new.said) == (Status.COMPLETED, ["50 sent"])
    assert "the first outcome of what was performed again: it is too far back" in new.journal[1].note


@BOTH
def test_an_effect_whose_result_met_a_bug_was_undone_too(cut: bool) -> None:
    """
    It took place before the bug; the new task does it again before it reads the result.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=50)
        buggy("charge")
        mailed = await ctx.tool("mail")
        return ctx.complete(f"{paid} {mailed}")

    task = started(begin, cut=cut)
    task.give("charge", 50)
    task.give("undo charge")

    new = fixed(task)

    assert asked(new) == {"T2/1.1"}
    new.give("charge", "anew")
    assert new.out == ["mail"]
    new.fail("mail")
    assert new.out == ["undo charge"]
    assert new.pending("undo charge").invocation_id == "T2/1.1~undo"
    new.give("undo charge")
    assert finished(new.task), "it is undone once"


@BOTH
def test_a_recovered_task_recovers(cut: bool) -> None:
    """
    An effect undone twice is done a third time, under an id of the third task.
    """
    task = started(pays, cut=cut)
    task.give("charge", 50)
    task.fail("mail")
    task.give("undo charge")
    second = task.recovered()
    second.give("charge", "anew")
    second.fail("mail")
    assert second.pending("undo charge").command.args["result"] == "anew"  # type: ignore[union-attr,call-overload]
    second.give("undo charge")

    third = second.recovered("T3")

    assert asked(third) == {"T/2.1", "T3/1.1"}
    third.give("charge", "again")
    third.give("mail", "sent")
    assert third.said == ["again sent"]


@BOTH
def test_a_reply_that_met_a_bug_is_in_its_thread_after_a_new_outcome(cut: bool) -> None:
    """
    The model is shown what was said with the new outcome, and its own reply, which came before the bug.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=50)
        await ctx.chat("think", f"charged {paid}")
        buggy("think")
        await ctx.chat("more", "go on")
        return ctx.complete()

    task = started(begin, cut=cut)
    task.give("charge", "c-1")
    task.give("think", "a reply")
    task.give("undo charge")

    new = fixed(task)
    new.give("charge", "c-2")

    said, reply = new.task.threads["main"].said
    assert isinstance(said, UserSaid)
    assert (said.content.text, getattr(reply, "text", "")) == ("charged c-2", "a reply")


# --- new outcomes that do not fit what was decided


async def priced(ctx: Ctx, content: Content) -> Transition:
    price = await ctx.tool(charge, cents=10)
    decision = await ctx.approve("pay", "Pay?", show={"price": price, "to": "A1"}, editable=["to"])
    found = await ctx.tool("look")
    buggy("look")
    await ctx.tool("send", price=price, found=found, shown=decision.shown)
    return ctx.complete()


def sent(task: ByHand) -> JsonValue:
    """The price that the task sends."""
    command = task.pending("send").command
    assert isinstance(command, CallTool)
    return command.args["price"]


@BOTH
@pytest.mark.parametrize("changes", [{}, {"to": "B2"}], ids=["as shown", "changed"])
def test_a_grant_is_not_used_for_what_an_effect_returns_when_it_is_performed_again(cut: bool, changes: Any) -> None:
    """
    The gate is opened again with the first price, and granted; then the effect returns another price. The task sends
    what was granted, and the journal says so.
    """
    BROKEN.clear()
    task = started(priced, cut=cut)
    task.give("charge", 10)
    task.clock("~timeout")
    task.clock("~grace")
    task.give("undo charge")

    new = task.recovered()
    new.decide("pay", changes=changes)
    note = new.give("charge", 9000).note
    new.give("look")

    assert sent(new) == 10
    assert note.endswith("performed again: with the new one 'pay' would have shown something else than was decided on")


@BOTH
@pytest.mark.parametrize("changes", [{}, {"to": "B2"}], ids=["as shown", "changed"])
def test_a_grant_is_used_where_the_effect_returns_the_same_again(cut: bool, changes: Any) -> None:
    """
    What the gate shows has not changed, so that the grant is for it.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=10)
        decision = await ctx.approve("pay", "Pay?", show={"to": "A1"}, editable=["to"])
        await ctx.tool("send", price=paid, shown=decision.shown)
        return ctx.complete()

    task = started(begin, cut=cut)
    task.give("charge", 10)
    task.cancel()
    task.give("undo charge")

    new = task.recovered()
    new.decide("pay", changes=changes)
    note = new.give("charge", 11).note

    assert (sent(new), note) == (11, "")


@BOTH
def test_a_late_grant_is_not_used_for_another_price(cut: bool) -> None:
    """
    It came after the timeout, for the price that was shown then.
    """
    BROKEN.clear()
    task = started(priced, cut=cut)
    task.give("charge", 10)
    gate, digest = task.gate("pay"), task.task.waits[0].ask.digest  # type: ignore[union-attr]  # a gate
    task.clock("~timeout")
    task.decide("pay", gate=gate, digest=digest, second=1900)
    task.give("undo charge")

    new = task.recovered()
    note = new.give("charge", 9000).note
    new.give("look")

    assert (sent(new), note.count("something else than was decided on")) == (10, 1)


@BOTH
def test_a_grant_from_before_a_bug_is_not_used_for_another_price(cut: bool) -> None:
    """
    The failed task had passed the gate; with the new price it would not have.
    """
    task = started(priced, cut=cut)
    task.give("charge", 10)
    task.decide("pay")
    task.give("look", "it")
    task.give("undo charge")

    new = fixed(task)
    note = new.give("charge", 9000).note

    assert sent(new) == 10
    assert note.endswith("with the new one the task would have refused an event that it took")


@BOTH
def test_a_grant_that_waited_for_another_one_stays(cut: bool) -> None:
    """
    It was taken before the other gate timed out; what it is for has not changed, and the new outcome is used.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=10)
        await ctx.gather(ctx.approve("one", "?"), ctx.approve("two", "?"))
        await ctx.tool("send", price=paid)
        return ctx.complete()

    task = started(begin, cut=cut)
    task.give("charge", 10)
    task.decide("one")
    task.cancel()
    task.give("undo charge")

    new = task.recovered()
    new.decide("two")
    note = new.give("charge", 11).note

    assert (sent(new), note) == (11, "")


@BOTH
def test_a_new_outcome_with_which_the_skill_would_ask_for_more_is_not_used(cut: bool) -> None:
    """
    The failed task mailed one ticket; with the new outcome it would mail two, and nobody sends the second mail.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        tickets = await ctx.tool(charge, cents=10)
        assert isinstance(tickets, list)
        await ctx.gather(*(ctx.tool(f"mail {ticket}") for ticket in tickets))
        return ctx.complete("mailed")

    task = started(begin, cut=cut)
    task.give("charge", [1])
    task.fail("mail 1")
    task.give("undo charge")

    new = task.recovered()
    note = new.give("charge", [1, 2]).note
    new.give("mail 1")

    assert (new.status, new.said) == (Status.COMPLETED, ["mailed"])
    assert note.endswith("performed again: with the new one it would have asked for 'mail 2', too")


@BOTH
def test_a_new_outcome_with_which_the_skill_would_open_a_gate_is_not_used(cut: bool) -> None:
    """
    Nobody would be asked at that gate.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        price = await ctx.tool(charge, cents=10)
        assert isinstance(price, int)
        await ctx.gather(ctx.tool("mail"), *([ctx.approve("much", "So much?")] if price > 100 else []))
        return ctx.complete("mailed")

    task = started(begin, cut=cut)
    task.give("charge", 10)
    task.cancel()
    task.give("undo charge")

    new = task.recovered()
    note = new.give("charge", 9000).note
    new.give("mail")

    assert (new.status, new.said) == (Status.COMPLETED, ["mailed"])
    assert note.endswith("with the new one it would have asked for 'much', too")


@BOTH
def test_a_held_result_is_not_that_of_another_command(cut: bool) -> None:
    """
    The result that met a bug is that of the first lookup; with the new outcome the skill would look something else up.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=10)
        found = await ctx.tool(f"look {paid}")
        buggy("look")
        return ctx.complete(f"{paid} {found}")

    task = started(begin, cut=cut)
    task.give("charge", 1)
    task.give("look 1", "one")
    task.give("undo charge")

    new = fixed(task)
    new.give("charge", 2)

    assert (new.status, new.said) == (Status.COMPLETED, ["1 one"])


# --- effects that fail when they are performed again


def test_an_effect_that_cannot_be_done_again_fails_the_new_task() -> None:
    """
    After its retries, as any command; nothing was built on it yet.
    """
    task = started(pays)
    task.give("charge", 50)
    task.fail("mail")
    task.give("undo charge")
    new = task.recovered()

    new.fail("charge", busy())
    assert new.state is TaskState.RETRYING
    new.ring("charge")
    new.fail("charge", refused())

    assert (new.status, new.journal[-1].cause) == (Status.FAILED, "T2/1.1")
    third = new.recovered("T3")
    assert asked(third) == {"T/2.1", "T2/1.1"}


@BOTH
@pytest.mark.parametrize("how", ["forked", "recovered"])
def test_a_timeout_while_an_effect_is_done_again_is_taken_over(cut: bool, how: str) -> None:
    """
    The skill gets it once the effect is performed, also in a task that is recovered or forked before.
    """

    async def asks(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=50)
        try:
            answer = (await ctx.ask("size", "Which size?", timeout_s=60)).text
        except CommandError as error:
            answer = error.failure.type
        return ctx.complete(f"{paid} {answer}")

    task = started(asks, cut=cut)
    task.give("charge", 1)
    task.cancel()
    task.give("undo charge")
    second = task.recovered()
    second.clock("timeout")
    assert (second.out, [event.kind for event in second.task.held]) == (["charge"], ["command_failed"])

    if how == "recovered":
        second.fail("charge")
        third = second.recovered("T3")
    else:
        third = second.forked(second.task.seq, live=True)
    third.give("charge", 2)

    assert (third.status, third.said[1:]) == (Status.COMPLETED, ["2 timeout"])


async def books(ctx: Ctx, content: Content) -> Transition:
    reserved = await ctx.tool(reserve, item="seat")
    paid = await ctx.tool(buy, reservation=reserved)
    mailed = await ctx.tool("mail", of=[reserved, paid])
    return ctx.complete(f"{reserved} {paid} {mailed}")


def unbooked(*, cut: bool = False) -> ByHand:
    """A task that failed, and whose reservation and payment were undone."""
    task = started(books, cut=cut)
    task.give("reserve", "r-1")
    task.give("buy", "c-1")
    task.fail("mail")
    task.give("undo buy")
    task.give("undo reserve")
    return task


def args(task: ByHand, id: str) -> JsonValue:
    """The arguments of the tool call of this id."""
    command = task.pending(id).command
    assert isinstance(command, CallTool)
    return dict(command.args)


@BOTH
def test_effects_are_performed_again_one_after_the_other(cut: bool) -> None:
    """
    The oldest first; a later one has the arguments that follow from the new outcomes of the earlier ones.
    """
    new = unbooked(cut=cut).recovered()
    assert new.out == ["reserve"]

    new.give("reserve", "r-2")

    assert (new.out, args(new, "buy")) == (["buy"], {"reservation": "r-2"})
    new.give("buy", "c-2")
    assert (new.out, args(new, "mail")) == (["mail"], {"of": ["r-2", "c-2"]})
    assert new.folded() == new.task
    new.cancel()
    assert args(new, "undo buy") == {"reservation": "r-2", "result": "c-2"}


@BOTH
def test_effects_are_performed_again_in_their_order_by_the_third_task_too(cut: bool) -> None:
    """
    The second one had made the reservation again, and not the payment.
    """
    second = unbooked(cut=cut).recovered()
    second.give("reserve", "r-2")
    second.fail("buy")
    second.give("undo reserve")

    third = second.recovered("T3")

    assert third.out == ["reserve"]
    third.give("reserve", "r-3")
    assert (third.out, args(third, "buy")) == (["buy"], {"reservation": "r-3"})
    third.give("buy", "c-3")
    third.give("mail", "sent")
    assert third.said == ["r-3 c-3 sent"]


@BOTH
def test_an_effect_that_does_not_follow_from_the_new_outcomes_is_performed_as_it_was(cut: bool) -> None:
    """
    With the new reservation the skill would pay nothing: it goes on with the first outcomes, and the journal says so.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        reserved = await ctx.tool(reserve, item="seat")
        if reserved == "r-2":
            return ctx.complete("nothing to pay")
        paid = await ctx.tool(buy, reservation=reserved)
        mailed = await ctx.tool("mail")
        return ctx.complete(f"{paid} {mailed}")

    task = started(begin, cut=cut)
    task.give("reserve", "r-1")
    task.give("buy", "c-1")
    task.fail("mail")
    task.give("undo buy")
    task.give("undo reserve")

    new = task.recovered()
    new.give("reserve", "r-2")

    assert (new.out, args(new, "buy")) == (["buy"], {"reservation": "r-1"})
    assert "with the new one the task would have ended" in new.give("buy", "c-2").note
    assert new.out == ["mail"]


def test_while_an_effect_fails_to_be_performed_again_the_next_one_waits() -> None:
    """
    It is neither sent while the first one waits to be tried again, nor after that one failed.
    """
    new = unbooked().recovered()

    new.fail("reserve", busy())
    assert (new.state, new.out) == (TaskState.RETRYING, [])
    new.ring("reserve")
    assert new.out == ["reserve"]
    new.fail("reserve")

    assert (new.status, new.reason, new.out) == (Status.FAILED, "reserve: forbidden", [])


def test_two_effects_that_were_undone_and_one_fails() -> None:
    """
    In a task that an earlier release began, both are performed again at once. A failure that comes while the other one
    waits to be tried again is met when it does not any more.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(charge, cents=1, id="one")
        await ctx.tool(charge, cents=2, id="two")
        await ctx.tool("mail")
        return ctx.complete()

    task = started(begin)
    task.give("one", 1)
    task.give("two", 2)
    task.fail("mail")
    task.give("undo two")
    task.give("undo one")
    new = task.recovered(in_turn=False)
    new.fail("one", busy())
    assert new.fail("two").held

    new.ring("one")

    assert (new.status, new.reason) == (Status.FAILED, "two: forbidden")


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

    with pytest.raises(InputRejected, match="ends without what killed it, too: no more of these; change the skill"):
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
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
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


# --- what must not happen twice


@BOTH
def test_two_tasks_that_recover_one_task_begin_no_work_under_one_id(cut: bool) -> None:
    """
    Each performs the compensated charge under an id of its own, since the first one may have performed it before it was
    canceled. The mail, which may have been sent before, keeps its id and with it its idempotency key.
    """
    task = started(pays, cut=cut)
    task.give("charge", 50)
    task.fail("mail")
    task.give("undo charge")

    first = task.recovered("T.r1")
    first.give("charge", 50)
    first.cancel()
    second = task.recovered("T.r2")

    assert asked(first) == {"T.r1/1.1~undo"}
    assert asked(second) == {"T.r2/1.1", "T/2.1"}


@BOTH
def test_a_part_is_continued_under_an_id_of_each_task_that_recovers_its_parent(cut: bool) -> None:
    """
    A part is a task of its own, and no two tasks have one id.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        found = await ctx.skill("part", "other", "go")
        return ctx.complete(found.text)

    task = started(begin, cut=cut)
    task.fail("part")

    first, second = task.recovered("T.r1"), task.recovered("T.r2")
    first.fail("part")
    third = first.recovered("T.r1.r1")

    assert [asked(one) for one in (second, third)] == [{"T.r2/1.1"}, {"T.r1.r1/1.1"}]
    third.give("part", "it")
    assert third.said == ["it"]


@BOTH
def test_a_new_outcome_reaches_commands_of_a_task_that_was_recovered_twice(cut: bool) -> None:
    """
    The second task was canceled before the charge was performed again; the third starts the part with its own charge.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=50)
        found = await ctx.skill("part", "other", str(paid))
        return ctx.complete(found.text)

    task = started(begin, cut=cut)
    task.give("charge", "c-1")
    task.cancel()
    task.give("undo charge")
    second = task.recovered("T2")
    second.cancel()
    second.fail("charge")

    third = second.recovered("T3")
    third.give("charge", "c-3")

    part = third.pending("part").command
    assert isinstance(part, CallSkill)
    assert (part.input.text, third.journal[-1].note) == ("c-3", "")


def test_an_effect_that_was_compensated_in_a_recovered_task_is_not_compensated_again() -> None:
    """
    The charge of the second task was refunded there; the third task refunds its own charge alone.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=50)
        if paid == "bad":
            raise ValueError("a bug")
        await ctx.tool("mail")
        return ctx.complete()

    task = started(begin)
    task.give("charge", "bad")
    task.give("undo charge")
    second = task.recovered("T2")
    second.give("charge", "bad")
    assert second.state is TaskState.FAILED
    second.give("undo charge")
    third = second.recovered("T3")
    third.give("charge", "good")
    third.fail("mail")

    assert third.reason == "mail: forbidden"
    assert third.out == ["undo charge"]
    third.give("undo charge")
    assert finished(third.task)


def test_the_result_that_met_a_bug_is_replaced_by_the_new_one() -> None:
    """
    The charge was refunded; the skill is given the outcome of the charge that stands.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        paid = await ctx.tool(charge, cents=50)
        if paid == "bad":
            raise ValueError("a bug")
        return ctx.complete(str(paid))

    task = started(begin)
    task.give("charge", "bad")
    task.give("undo charge")
    new = task.recovered()
    new.give("charge", "good")

    assert (new.status, new.said) == (Status.COMPLETED, ["good"])


def test_a_task_does_not_recover_along_a_way_that_it_did_not_take() -> None:
    """
    The failure that killed it had let another branch begin: without it that branch would begin later, under the ids of
    other commands.
    """

    async def one(ctx: Ctx, name: str) -> None:
        await ctx.gather(ctx.tool(name), ctx.tool(f"{name}2"))

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.parallel(one(ctx, "a"), one(ctx, "b"), limit=2)
        return ctx.complete()

    task = started(begin)
    task.fail("a")
    task.give("a2")
    task.give("b")
    task.give("b2")
    assert task.state is TaskState.FAILED

    with pytest.raises(InputRejected, match="took another way than its skill takes without what killed it"):
        task.recovered()


def test_what_parts_ask_is_shown_in_the_order_of_the_parts() -> None:
    """
    Whichever of them asked first; to those who read the journal, and to those who read the task.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(ctx.skill("one", "s", "go"), ctx.skill("two", "s", "go"))
        return ctx.complete()

    task = started(begin)
    record = record_of(task.task)
    for part in ("T/1.2", "T/1.1"):
        asked = Wait(gate=f"{part}/1.1", ask=Cmd.ask_user("q", "?"), since=START)
        record = with_entry(record, task.feed(ChildAsked(invocation_id=part, waits=(asked,))))

    assert [wait.gate for wait in record.waits] == ["T/1.1/1.1", "T/1.2/1.1"]
    assert record.waits == task.task.open_waits
