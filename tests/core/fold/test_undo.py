"""Undoing: what took place and must not stand alone is undone, newest first, when a task does not complete."""

from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from refold import (
    Cmd,
    Content,
    Ctx,
    DecisionMade,
    DefinitionError,
    Event,
    GatePolicy,
    InputRejected,
    Status,
    Step,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    table,
    tool,
)
from refold.core.commands import CallTool
from refold.core.fold.snapshot import ReceiptStatus
from refold.core.fold.wanted import Perform, finished, wanted
from refold.record import receipts
from tests.core.byhand import ByHand, busy, refused, unknown

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


@tool(effect="idempotent")
def release() -> None: ...


@tool(effect="compensate", undo=release)
def reserve(seat: int) -> None: ...


@tool(effect="idempotent")
def refund(cents: int, result: JsonValue) -> None: ...


@tool(effect="compensate", undo=refund)
def charge(cents: int, currency: str = "EUR") -> dict[str, str]:
    return {}


def test_an_undo_has_the_defaults_of_its_effect() -> None:
    """
    A call that leaves out an argument does what the default says, and so does its undo: another default, or none, is
    refused at the definition.
    """

    @tool(effect="idempotent")
    def free(room: str) -> None: ...

    @tool(effect="idempotent")
    def free_b(room: str = "B", nights: int = 1) -> None: ...

    @tool(effect="idempotent")
    def free_a(room: str = "A", why: str = "", result: JsonValue = None) -> None: ...

    def rent(guest: str, room: str = "A", nights: int = 2, result: str = "x") -> None: ...

    with pytest.raises(DefinitionError, match="its undo, 'free', must give room the same default as the tool"):
        tool(effect="compensate", undo=free)(rent)
    with pytest.raises(DefinitionError, match="'free_b', must give room, nights the same default as the tool"):
        tool(effect="compensate", undo=free_b)(rent)
    tool(effect="compensate", undo=free_a)(rent)


async def book(ctx: Ctx, content: Content) -> Transition:
    await ctx.tool(reserve, seat=7)
    await ctx.tool(charge, cents=50, queue="money")
    await ctx.tool("mail")
    return ctx.complete("booked")


class Left(BaseModel):
    """What a hurried booking still waits for."""

    charge: bool = True
    sure: bool = True


@flow_skill(id="hurries")
class Hurries:
    """Reserves; then charges and writes a mail at once, and asks as soon as the mail is out."""

    @staticmethod
    def initial() -> Left:
        return Left()

    def on_event(self, state: Left, event: Event, ctx: Ctx) -> Transition:
        match event:
            case UserMessage():
                return Transition.to(state).cmd(Cmd.tool("reserve", reserve, seat=7))
            case ToolResult(id="reserve"):
                return Transition.to(state).cmd(Cmd.tool("charge", charge, cents=50)).cmd(Cmd.tool("mail", "mail"))
            case ToolResult(id="mail"):
                return Transition.await_approval("sure", "Sure?", state, policy=GatePolicy(reminder_s=None))
            case ToolResult(id="charge"):
                state = Left(charge=False, sure=state.sure)
            case DecisionMade():
                state = Left(charge=state.charge, sure=False)
            case _:
                return Transition.ignore(state)
        return Transition.to(state) if state.charge or state.sure else Transition.complete(state).message("booked")


def hurried(*, cut: bool = False) -> ByHand:
    """A task that has reserved, and whose charge and mail are under way."""
    task = ByHand(Hurries, cut=cut)
    task.say()
    task.give("reserve")
    return task


async def ask(ctx: Ctx, content: Content) -> Transition:
    await ctx.tool(charge, cents=50)
    await ctx.approve("sure", "Sure?", policy=GatePolicy(reminder_s=None))
    return ctx.complete("booked")


def booked(*, cut: bool = False) -> ByHand:
    """A task that has reserved and charged, and has yet to write a mail."""
    task = ByHand(table("books", Step("begin", book).start()), cut=cut)
    task.say()
    task.give("reserve")
    task.give("charge", {"id": "c1"})
    return task


def performed(task: ByHand) -> list[tuple[str, str, dict[str, Any]]]:
    commands = [(one.invocation_id, one.command) for one in wanted(task.task).values() if isinstance(one, Perform)]
    return [(id, command.name, command.args) for id, command in commands if isinstance(command, CallTool)]


@BOTH
@pytest.mark.parametrize("how", ["failure", "cancel"])
def test_effects_are_undone_newest_first(cut: bool, how: str) -> None:
    """
    One at a time, with the arguments and the result that each undo takes; the task is over when all is undone.
    """
    task = booked(cut=cut)

    task.fail("mail") if how == "failure" else task.cancel("enough")

    assert task.status is (Status.FAILED if how == "failure" else Status.CANCELED)
    assert performed(task) == [("T/2.1~undo", "refund", {"cents": 50, "result": {"id": "c1"}})]
    assert not finished(task.task)
    task.give("undo charge", "gone")
    assert [(id, args) for id, _, args in performed(task)] == [("T/1.1~undo", {})]
    entry = task.give("undo reserve")
    assert entry.note == "undone: reserve"
    assert finished(task.task)
    assert task.task.undone == ("T/2.1", "T/1.1")
    assert task.folded() == task.task


def test_the_undo_runs_where_the_effect_ran() -> None:
    """
    On the effect's task queue.
    """
    task = booked()

    task.cancel()

    (undo,) = task.task.pending.values()
    assert undo.command.queue == "money"  # type: ignore[union-attr]  # a tool


def test_what_completes_stays() -> None:
    """
    Nothing is undone after completion.
    """
    task = booked()

    task.give("mail")

    assert (task.status, task.task.done, finished(task.task)) == (Status.COMPLETED, (), True)


def test_what_did_not_take_place_is_not_undone() -> None:
    """
    A charge that failed leaves only the reservation to be undone.
    """
    task = ByHand(table("books", Step("begin", book).start()))
    task.say()
    task.give("reserve")

    task.fail("charge")

    assert [id for id, _, _ in performed(task)] == ["T/1.1~undo"]


def test_an_outcome_that_an_operator_gives_is_undone_too() -> None:
    """
    The operator said that it took place.
    """
    task = ByHand(table("books", Step("begin", book).start()))
    task.say()
    task.give("reserve")
    task.fail("charge", unknown())
    task.resolve(outcome={"id": "c9"})

    task.cancel()

    assert performed(task) == [("T/2.1~undo", "refund", {"cents": 50, "result": {"id": "c9"}})]


@BOTH
@pytest.mark.parametrize("how", ["failure", "cancel", "denial"])
def test_what_takes_place_too_late_is_undone(cut: bool, how: str) -> None:
    """
    It is not stopped halfway. Nothing else is undone before it is back, for it is the newest.
    """
    task = hurried(cut=cut)

    match how:
        case "failure":
            task.fail("mail")
        case "cancel":
            task.cancel()
        case _:
            task.give("mail")
            task.decide("sure", approved=False)
    assert (task.status is Status.INPUT_REQUIRED, task.out, finished(task.task)) == (False, ["charge"], False)
    entry = task.give("charge", {"id": "c1"})

    assert entry.note == "charge took place, too late: to be undone"
    assert performed(task) == [("T/2.1~undo", "refund", {"cents": 50, "result": {"id": "c1"}})]
    task.give("undo charge")
    task.give("undo reserve")
    assert finished(task.task)
    assert task.folded() == task.task


def test_recover_asks_anew_for_what_took_place_too_late() -> None:
    """
    Once, and under another id; while it is under way nothing recovers.
    """
    task = hurried()
    task.cancel()
    with pytest.raises(InputRejected, match="which is under way"):
        task.recovered()
    task.give("charge", {"id": "c1"})
    task.give("undo charge")
    task.give("undo reserve")

    new = task.recovered()

    assert set(new.task.pending) == {"T2/2.1", "T/2.2", "T2/1.1"}
    new.give("reserve")
    new.give("charge", {"id": "c2"})
    new.give("mail")
    new.decide("sure")
    assert (new.status, new.said[-1]) == (Status.COMPLETED, "booked")


@pytest.mark.parametrize(
    ("failure", "note"),
    [
        pytest.param(refused(), "charge: did not take place: forbidden", id="surely not"),
        pytest.param(busy(), "charge: did not take place: busy", id="not for now"),
        pytest.param(unknown(), "charge: NOT known whether it took place: the response was lost", id="nobody knows"),
    ],
)
def test_what_fails_too_late_is_not_undone(failure: Any, note: str) -> None:
    """
    The journal says what is known of it, and the rest is undone.
    """
    task = hurried()
    task.cancel()

    assert task.fail("charge", failure).note == note

    assert [id for id, _, _ in performed(task)] == ["T/1.1~undo"]


def test_a_doubt_outlives_the_task() -> None:
    """
    Who cancels a task that is blocked on an unknown outcome reads in the journal that it may have taken place.
    """
    task = ByHand(table("books", Step("begin", book).start()))
    task.say()
    task.give("reserve")
    task.fail("charge", unknown())

    entry = task.cancel()

    assert "NOT known whether charge took place: the response was lost" in entry.note


def test_a_doubt_between_two_probes_outlives_the_task() -> None:
    """
    The journal names an effect that may have taken place, also if its next probe is still to come.
    """
    task = ByHand(table("books", Step("begin", book).start()))
    task.say()
    task.give("reserve")
    task.fail("charge", unknown().model_copy(update={"again_s": 3600.0}))

    entry = task.cancel()

    assert "NOT known whether charge took place: the response was lost" in entry.note


def test_in_grace_a_late_effect_waits_to_be_undone() -> None:
    """
    Until the time for a late grant is over.
    """

    task = hurried()
    task.give("mail")
    task.clock("~timeout")
    task.give("charge", {"id": "c1"})
    assert performed(task) == []

    task.clock("~grace")

    assert [id for id, _, _ in performed(task)] == ["T/2.1~undo"]


@BOTH
def test_undoing_is_tried_again(cut: bool) -> None:
    """
    After 1, 2, 4 s and so on; the lifecycle does not move any more.
    """
    task = booked(cut=cut)
    task.cancel()

    waits = []
    for _ in range(3):
        entry = task.fail("undo charge", busy())
        waits.append((entry.backoffs[0].due_at - entry.at).total_seconds())
        assert entry.moves == ()
        alarm = task.alarm("undo charge").event
        task.ring("undo charge")
        assert task.feed(alarm).refused, "an alarm rings once"
        assert task.out == ["undo charge"]
    task.give("undo charge")
    task.give("undo reserve")

    assert waits == [1, 2, 4]
    assert finished(task.task)
    assert task.folded() == task.task


def test_undoing_goes_on_where_its_workers_were_lost() -> None:
    """
    It is tried again as after any passing failure, and not given up.
    """
    task = booked()
    task.cancel()

    task.fail("undo charge", unknown().model_copy(update={"again_s": 60.0}))
    task.ring("undo charge")

    assert task.out == ["undo charge"]


@pytest.mark.parametrize("failure", [refused(), unknown()])
def test_an_undo_that_fails_for_good_does_not_stop_the_others(failure: Any) -> None:
    """
    It is noted loudly, and the next one goes on.
    """
    task = booked()
    task.cancel()

    entry = task.fail("undo charge", failure)

    assert entry.note.startswith("NOT undone: charge: ")
    assert task.out == ["undo reserve"]
    task.give("undo reserve")
    assert (task.task.undone, finished(task.task)) == (("T/1.1",), True)


def test_undoing_waits_for_a_late_grant() -> None:
    """
    In the time for one nothing is undone; then it is.
    """
    task = ByHand(table("asks", Step("begin", ask).start()))
    task.say()
    task.give("charge", {})
    task.clock("~timeout")
    assert task.out == []

    task.clock("~grace")

    assert task.out == ["undo charge"]


def test_a_denial_undoes_at_once() -> None:
    """
    There is no grace without a timeout.
    """
    task = ByHand(table("asks", Step("begin", ask).start()))
    task.say()
    task.give("charge", {})

    task.decide("sure", False)

    assert task.out == ["undo charge"]


def test_the_skill_never_hears_of_it() -> None:
    """
    Its state, and what it said, are those of the end.
    """
    task = booked()
    task.cancel()
    state, said = task.task.state, task.said

    task.give("undo charge", "gone")
    task.give("undo reserve", "gone")

    assert (task.task.state, task.said, task.task.receipts) == (state, said, {})


def test_what_nobody_waits_for_is_refused_while_undoing() -> None:
    """
    Results of what was stopped, and of what is undone already.
    """
    task = booked()
    task.cancel()
    undo = ToolResult(id="undo charge", invocation_id="T/2.1~undo")

    assert task.feed(ToolResult(id="mail", invocation_id="T/3.1")).refused
    task.feed(undo)
    assert task.feed(undo).refused
    assert task.cancel().refused
    assert task.out == ["undo reserve"]


def test_the_receipts_tell_undoing_from_what_was_canceled() -> None:
    """
    What was in flight at the end is canceled; an undo that is out has no outcome yet.
    """
    task = booked()
    task.cancel()
    before = {receipt.invocation_id: receipt.status for receipt in receipts(task.journal)}
    task.give("undo charge")
    after = {receipt.invocation_id: receipt.status for receipt in receipts(task.journal)}

    assert before == {"T/1.1": ReceiptStatus.OK, "T/2.1": ReceiptStatus.OK, "T/3.1": ReceiptStatus.CANCELED}
    assert after["T/2.1~undo"] is ReceiptStatus.OK


def test_a_tool_given_by_name_cannot_be_undone() -> None:
    """
    Only the function knows its undo: `Cmd.tool(id, charge)`, not `Cmd.tool(id, "charge")`.
    """
    assert Cmd.tool("charge", charge, cents=1).undo is not None
    assert Cmd.tool("charge", "charge", cents=1).undo is None
