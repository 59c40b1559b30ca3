"""Fork: a new task branches off from any entry of another one, dry or live, and the other one never notices."""

from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel

from refold import (
    Callback,
    Cmd,
    CommandError,
    Content,
    Ctx,
    GatePolicy,
    InputRejected,
    Status,
    Step,
    TaskState,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    table,
    tool,
)
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK, CallSkill, CallTool
from refold.core.events import Event, Unreadable
from refold.core.fold.wanted import DRY_RUN, Alarm, Perform, finished, wanted
from refold.lineage.fork import fork
from tests.core.byhand import ByHand

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


@tool(effect="idempotent")
def refund(cents: int) -> None: ...


@tool(effect="compensate", undo=refund)
def charge(cents: int) -> str:
    return ""


async def buys(ctx: Ctx, content: Content) -> Transition:
    await ctx.tool(charge, cents=50, key="order-1")
    a, b = await ctx.gather(ctx.tool("a"), ctx.llm("b", "Which?"))
    size = await ctx.ask("size", "Which size?")
    await ctx.skill("parcel", "sends", size.text)
    return ctx.complete(f"{a} {b} {size.text}")


async def careful(ctx: Ctx, content: Content) -> Transition:
    try:
        await ctx.tool("a")
    except CommandError as error:
        return ctx.complete(error.failure.type)
    return ctx.complete("a took place")


def skill(function: Any) -> Any:
    return table("buys", Step("begin", function).start())


def bought(*, cut: bool = False) -> ByHand:
    """A task that was asked (1), has charged (2), has heard a (3) and b (4), and waits for a size."""
    task = ByHand(skill(buys), cut=cut)
    task.say()
    task.give("charge", "c1")
    task.give("a", "A")
    task.give("b", "B")
    return task


def performs(task: ByHand) -> list[Perform]:
    return [one for one in wanted(task.task).values() if isinstance(one, Perform)]


def dry(task: ByHand) -> None:
    """What a dry branch is told at once."""
    for one in wanted(task.task).values():
        if isinstance(one, Alarm):
            assert one.due_at <= task.task.at
            task.feed(one.event)


@BOTH
def test_a_branch_goes_on_from_the_entry(cut: bool) -> None:
    """
    With the state, the receipts and the questions of that moment; numbers go on, and the other task stays as it is.
    """
    task = bought(cut=cut)
    before = task.task

    branch = task.forked(4)

    assert (branch.state, branch.waiting, branch.journal[0].seq) == (TaskState.PAUSED, ["size"], 5)
    assert branch.task.messages == before.messages
    assert (branch.task.task_id, branch.task.fork.task_id, branch.task.fork.seq) == ("F", "T", 4)  # type: ignore[union-attr]
    assert task.task == before
    assert branch.folded() == branch.task


@BOTH
def test_a_dry_branch_performs_nothing(cut: bool) -> None:
    """
    What was open, and what is asked for later, fails at once, for good, as `DryRun`; the journal says what was asked.
    """
    branch = bought(cut=cut).forked(3)

    assert performs(branch) == []
    dry(branch)

    failed = branch.journal[-1]
    assert (branch.status, failed.event.failure.type) == (Status.FAILED, DRY_RUN)  # type: ignore[union-attr]
    assert branch.reason.endswith('dry run: llm \'b\' was not performed; asked for: {"prompt":"Which?"}')
    assert finished(branch.task), "nothing is undone: nothing took place"


async def sells(ctx: Ctx, content: Content) -> Transition:
    address = await ctx.callback("address")
    try:
        paid = await ctx.ask("paid", "Paid?", callback=address)
    except CommandError as error:
        return ctx.complete(error.failure.message)
    return ctx.complete(f"paid {paid.text}")


def sold() -> ByHand:
    """A task that waits for a call to its address, which is valid for an hour."""
    task = ByHand(skill(sells))
    task.say()
    address = Callback(digest=text_hash(f"{CALLBACK}T"), until=task.task.at + timedelta(hours=1, seconds=1))
    task.give("address", address.model_dump(mode="json"))
    return task


@BOTH
def test_a_message_answers_a_dry_branch_in_the_place_of_a_call(cut: bool) -> None:
    """
    No call reaches the branch, since its address is the other task's. The question has its full time.
    """
    branch = sold().forked(2)
    branch.cut = cut
    wait = branch.task.waits[0]

    assert wait.timeout_at == wait.since + timedelta(hours=1)
    branch.say("5", slot="paid")

    assert branch.said[-1] == "paid 5"
    assert branch.folded().changed({"patches": {}}) == branch.task.changed({"patches": {}})


@pytest.mark.parametrize("of", ["live", "earlier release"])
def test_in_no_other_branch_does_a_message_answer_in_the_place_of_a_call(of: str) -> None:
    """
    Effects may follow in a live one; and a dry one that an earlier release began goes on as it began.
    """
    branch = sold().forked(2, live=of == "live", patched=lambda _: of == "live")

    entry = branch.say("5", slot="paid")

    assert entry.refused == "'paid' waits for a call to its own address, not for a message"
    branch.clock("~timeout")
    assert branch.said[-1] == "nobody has called its address"


def test_a_skill_meets_a_dry_run_as_any_failure() -> None:
    """
    One that handles failures goes on.
    """
    task = ByHand(skill(careful))
    task.say()
    branch = task.forked(1)

    dry(branch)

    assert (branch.status, branch.said) == (Status.COMPLETED, [DRY_RUN])


@BOTH
def test_a_live_branch_asks_under_ids_and_keys_of_its_own(cut: bool) -> None:
    """
    No receiver takes what it asks for, for what the other task asked for; answers find their way all the same.
    """
    task = bought(cut=cut)

    early = task.forked(1, live=True)
    (paying,) = performs(early)
    assert (paying.invocation_id, paying.command.key) == ("F/1.1", "order-1@F")  # type: ignore[union-attr]
    later = task.forked(3, live=True)
    assert [one.invocation_id for one in performs(later)] == ["F/2.2"]
    later.give("b", "B")
    later.say("large")
    (parcel,) = performs(later)
    assert isinstance(parcel.command, CallSkill)
    assert parcel.invocation_id == "F/6.1"


def test_a_branch_leaves_the_effects_of_the_other_task_alone() -> None:
    """
    They are not undone when it fails; its own are.
    """
    old = bought().forked(4, live=True)
    old.cancel()
    assert finished(old.task)

    own = bought().forked(1, live=True)
    own.give("charge", "c2")
    own.cancel()
    (undo,) = performs(own)
    assert isinstance(undo.command, CallTool)
    assert (undo.invocation_id, undo.command.name) == ("F/1.1~undo", "refund")


def test_a_branch_that_failed_recovers_with_its_own_keys() -> None:
    """
    And stays what it is: a branch of that entry, under its first id's keys.
    """
    branch = bought().forked(1, live=True)
    branch.fail("charge")

    new = branch.recovered("F2")

    (paying,) = performs(new)
    assert (paying.invocation_id, paying.command.key) == ("F/1.1", "order-1@F")  # type: ignore[union-attr]
    assert new.task.recovered_from == "F"


def test_a_branch_of_a_branch_has_keys_of_its_own() -> None:
    """
    Each branch is told from all others.
    """
    branch = bought().forked(1, "F", live=True)

    (paying,) = performs(branch.forked(2, "G", live=True))

    assert (paying.invocation_id, paying.command.key) == ("G/1.1", "order-1@G")  # type: ignore[union-attr]


def test_a_gate_is_decided_at_the_branch() -> None:
    """
    It keeps its id and what it shows; its time begins again.
    """

    async def gated(ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("sure", "Sure?", policy=GatePolicy(timeout_s=60, reminder_s=None, on_denied="continue"))
        return ctx.complete("done")

    task = ByHand(skill(gated))
    task.say()
    task.feed(next(iter(wanted(task.task).values())).event, second=60)  # type: ignore[union-attr]

    branch = task.forked(1)

    (wait,) = branch.task.waits
    assert (wait.gate, wait.asked_by, wait.since) == ("T/1.1", "F", task.task.at)
    branch.decide("sure", approved=False)
    assert branch.said[-1] == "done"


class Log(BaseModel):
    """What came."""

    log: list[str] = []


@flow_skill(id="two_questions")
class TwoQuestions:
    """Asks two questions at once, and completes when it has an outcome of both."""

    @staticmethod
    def initial() -> Log:
        """Nothing came."""
        return Log()

    def on_event(self, state: Log, event: Event, ctx: Ctx) -> Transition:
        """Ask, then wait for both."""
        if isinstance(event, UserMessage) and event.slot is None:
            return Transition.to(state).cmd(Cmd.ask_user("a", "A?", timeout_s=5)).cmd(Cmd.ask_user("b", "B?"))
        after = Log(log=[*state.log, event.kind])
        return Transition.to(after) if len(after.log) < 2 else Transition.complete(after)


@BOTH
@pytest.mark.parametrize("how", ["forked", "recovered"])
def test_a_timeout_that_the_skill_has_not_had_is_taken_over(cut: bool, how: str) -> None:
    """
    A question that timed out beside an open one is closed in the new task too, so the skill gets its failure there.
    """
    task = ByHand(TwoQuestions, cut=cut)
    task.say()
    task.clock("timeout")
    assert [event.kind for event in task.task.held] == ["command_failed"]
    if how == "recovered":
        task.cancel()

    new = task.recovered() if how == "recovered" else task.forked(2)
    new.say("yes", slot="b")

    assert (new.status, new.reason) == (Status.COMPLETED, "")
    assert new.folded() == new.task


@pytest.mark.parametrize(
    ("seq", "why"),
    [
        pytest.param(0, "task 'T' has the entries 1 to 4, not 0", id="before the first"),
        pytest.param(5, "task 'T' has the entries 1 to 4, not 5", id="after the last"),
    ],
)
def test_an_entry_that_is_not_there(seq: int, why: str) -> None:
    """
    The error says which there are.
    """
    with pytest.raises(InputRejected, match=why):
        bought().forked(seq)


def test_nothing_branches_off_from_the_end() -> None:
    """
    The error says where it can.
    """
    task = bought()
    task.cancel()

    with pytest.raises(InputRejected, match=r"ended with entry 5.*branch off at entry 4 or earlier, or recover it"):
        task.forked(5)
    assert task.forked(4).waiting == ["size"]


def test_what_came_after_the_end_is_no_place_either() -> None:
    """
    An undo is not the skill's.
    """
    task = bought()
    task.cancel()
    task.give("undo charge")

    with pytest.raises(InputRejected, match="ended with entry 5, so that nothing follows from entry 6"):
        task.forked(6)


def test_today_s_code_may_end_earlier() -> None:
    """
    The error says why.
    """

    async def declines(ctx: Ctx, content: Content) -> Transition:
        return ctx.reject("never again")

    with pytest.raises(InputRejected, match=r"with today's code.*never again"):
        bought().forked(3, author=skill(declines))


def test_code_that_takes_another_way_makes_no_branch() -> None:
    """
    Code that no longer takes what the task has heard would charge again: the error says so, and no branch is made.
    """

    async def asks_first(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool("a")
        return ctx.complete(await ctx.tool(charge, cents=50))

    task = bought()
    before = task.forked(1, live=True, author=skill(asks_first))
    assert [one.command.id for one in performs(before)] == ["a"]

    with pytest.raises(InputRejected, match=r"with today's code.*refuses what it took up to entry 2"):
        task.forked(2, live=True, author=skill(asks_first))


def asks_for(kind: type[float]) -> Any:
    async def begin(ctx: Ctx, content: Content) -> Transition:
        number = await ctx.ask("number", "How many?", expect=kind)
        await ctx.tool("buy", number=number)
        return ctx.complete("bought")

    return skill(begin)


def answered_twice() -> ByHand:
    """A task that refused a number with a fraction (2), and then took another one (3)."""
    task = ByHand(asks_for(int))
    task.say()
    assert task.feed(UserMessage(content=Content.from_data(2.5))).refused
    task.feed(UserMessage(content=Content.from_data(3)))
    return task


@pytest.mark.parametrize("seq", [2, 3])
def test_what_the_task_refused_its_branch_does_not_take(seq: int) -> None:
    """
    Not even where today's code would take it; the branch counts it among the refused, and its numbers go on.
    """
    task = answered_twice()

    branch = task.forked(seq, live=True, author=asks_for(float))

    assert (branch.waiting, branch.out) == ((["number"], []) if seq == 2 else ([], ["buy"]))
    assert [one.command.args for one in branch.task.pending.values()] == ([] if seq == 2 else [{"number": 3.0}])  # type: ignore[union-attr]
    assert (branch.journal[0].seq, branch.task.refused) == (seq + 1, 1)
    assert branch.folded() == branch.task


def test_a_branch_of_an_earlier_release_took_what_the_task_refused() -> None:
    """
    The history of such a branch has no mark of the patch, and it goes on as it began.
    """
    task, today = answered_twice(), skill_of(asks_for(float))

    branch, _ = fork(today, task.base, task.journal, "F", task.task.at, seq=3, live=True, patched=lambda _: False)

    assert [one.command.args for one in branch.pending.values()] == [{"number": 2.5}]  # type: ignore[union-attr]


def test_nothing_branches_off_before_a_task_began() -> None:
    """
    A task that only refused something has nothing to go on from.
    """
    task = ByHand(skill(buys))
    task.feed(Unreadable(sent_as="start", why="no JSON"))

    with pytest.raises(InputRejected, match="task 'T' had not begun by entry 1, having refused what came"):
        task.forked(1)
