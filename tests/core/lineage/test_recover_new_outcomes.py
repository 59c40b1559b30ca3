"""Recovery with new outcomes: a repeated effect returns something else than what people decided on."""

from typing import Any

import pytest
from pydantic import JsonValue

from refold import (
    Content,
    Ctx,
    Status,
    Transition,
)
from refold.core.commands import CallTool
from tests.core.byhand import ByHand
from tests.core.lineage.recovering import BOTH, BROKEN, buggy, charge, fixed, started


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
