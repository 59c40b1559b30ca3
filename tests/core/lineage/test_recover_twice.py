"""What recovery must not do twice: begin work under one id, compensate an effect, take a way not taken."""

from refold import (
    Cmd,
    Content,
    Ctx,
    Status,
    TaskState,
    Transition,
)
from refold.core.commands import CallSkill
from refold.core.events import ChildAsked
from refold.core.fold.wanted import finished
from refold.core.waits import Wait
from refold.record import record_of, with_entry
from refold.testing.play import START
from tests.core.lineage.recovering import BOTH, asked, charge, pays, started


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


def test_a_task_recovers_along_the_way_that_it_took() -> None:
    """
    The failure that killed it had let another branch begin: the new task has what came of that branch, and makes the
    call that failed again.
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

    new = task.recovered()
    assert [one.command.id for one in new.task.pending.values()] == ["a"]
    new.give("a")

    assert new.status is Status.COMPLETED


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
