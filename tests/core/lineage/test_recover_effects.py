"""Recovery and effects: what is done stays done, and what was compensated is performed again, once and in order."""

from collections.abc import Callable

import pytest
from pydantic import JsonValue

from refold import (
    Cmd,
    CommandError,
    Content,
    Ctx,
    InputRejected,
    Status,
    TaskState,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    tool,
)
from refold.core.chat import UserSaid
from refold.core.commands import CallTool
from refold.core.events import DependencyResolved, Event
from refold.core.fold.wanted import finished
from tests.core.byhand import ByHand, busy, refused, unknown
from tests.core.lineage.recovering import BOTH, Names, asked, buggy, charge, fixed, pays, started


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


def given_again(cut: bool = False, patched: Callable[[str], bool] | None = None) -> ByHand:
    """A recovered task whose operator gave the outcome of the charge; the receipt is not written yet."""
    task = started(pays, cut=cut)
    task.give("charge", 50)
    task.fail("mail")
    task.give("undo charge")
    new = task.recovered()
    new.patched = patched
    new.fail("charge", unknown())
    new.feed(DependencyResolved(outcome="c-2"))
    new.fail("charge", busy())
    return new


@BOTH
def test_an_outcome_that_an_operator_gave_when_an_effect_was_performed_again_is_undone(cut: bool) -> None:
    """
    Also while its receipt cannot be written.
    """
    new = given_again(cut)

    entry = new.cancel()

    assert "charge took place, as an operator says: to be undone" in entry.note
    assert new.out == ["undo charge"]
    assert new.folded() == new.task


def test_an_end_that_an_earlier_release_took_compensates_as_it_did_then() -> None:
    """
    Its journal and its history say what was performed.
    """
    new = given_again(patched=lambda _: False)

    entry = new.cancel()

    assert (entry.note, new.out) == ("canceled on request", [])


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


@flow_skill(id="both")
class Both:
    """Sends two effects, and handles no failure of either."""

    @staticmethod
    def initial() -> Names:
        return Names()

    def on_event(self, state: Names, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage():
                both = [Cmd.tool(name, charge, {"cents": 1}) for name in ("a", "b")]
                return Transition.to(state).cmd(both[0]).cmd(both[1])
            case ToolResult(id=id) if id in state.names or len(state.names) == 1:
                return Transition.complete(state)
            case ToolResult(id=id):
                return Transition.to(Names(names=[id]))
            case _:
                return Transition.ignore(state)


def test_an_effect_that_was_never_sent_again_is_not_under_way() -> None:
    """
    It waited to be tried again when a failure of another one ended the task; the new task sends both.
    """
    task = ByHand(Both, cut=True)
    task.say()
    task.fail("b", busy())
    assert task.fail("a").held
    task.ring("b")
    assert (task.status, task.reason) == (Status.FAILED, "a: forbidden")

    new = task.recovered()

    assert new.out == ["a", "b"]
    new.give("a")
    new.give("b")
    assert new.status is Status.COMPLETED


@BOTH
def test_an_effect_that_failed_beside_another_one_is_not_under_way(cut: bool) -> None:
    """
    The skill had both failures, and one of them was raised; the new task sends both effects again.
    """

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.gather(ctx.tool(charge, cents=1, id="a"), ctx.tool(charge, cents=2, id="b"))
        return ctx.complete("paid")

    task = started(begin, cut=cut)
    task.fail("b")
    task.fail("a")

    new = task.recovered()

    assert sorted(new.out) == ["a", "b"]


def test_an_effect_that_is_under_way_is_waited_for() -> None:
    """
    It was sent before the task ended: only when it has come back is it known what the new task performs again.
    """
    task = ByHand(Both, cut=True)
    task.say()
    task.fail("a")
    with pytest.raises(InputRejected, match=r"still waits for T/1\.2, which is under way and has to be undone"):
        task.recovered()

    task.fail("b")

    assert task.recovered().out == ["a", "b"]
