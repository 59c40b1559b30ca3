"""Every cell of the failure table: a task stands there, the failure comes, and what the table says is done."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from refold import (
    Cmd,
    CommandError,
    Content,
    Ctx,
    Event,
    Failure,
    FailureKind,
    GatePolicy,
    RetryPolicy,
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
from refold.core.events import CommandFailed, DependencyResolved
from refold.core.fold.apply import advance, fold
from refold.core.fold.failures import TABLE, UNDO_RETRIES, Action, Cause, Cell, Role, Stage
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, Perform, finished, wanted
from refold.testing import coverage
from tests.core.byhand import ByHand, busy, refused, unknown


@tool(effect="idempotent")
def give_back(result: JsonValue) -> None: ...


@tool(effect="compensate", undo=give_back)
def charge() -> JsonValue: ...


ONCE = RetryPolicy(max_retries=1)
OFTEN = RetryPolicy(max_retries=5)
NEVER = RetryPolicy(max_retries=0)
PATIENT = RetryPolicy(max_retries=0, on_exhausted="block")
POLICIES = {Cause.RETRYABLE: OFTEN, Cause.EXHAUSTED: NEVER, Cause.DOWN: PATIENT}
LOST = Failure(kind=FailureKind.UNKNOWN, type="worker_lost", message="its worker was lost", again_s=600)
FAILURES = {
    Cause.RETRYABLE: busy, Cause.EXHAUSTED: busy, Cause.DOWN: busy, Cause.PERMANENT: refused,
    Cause.UNKNOWN: unknown, Cause.GIVEN: refused, Cause.SKIPPED: refused,
}  # fmt: skip


class Heard(BaseModel):
    events: list[str] = []


def skill(policy: RetryPolicy) -> Any:
    """Charges twice, `x` and `y`; `x` is retried as the skill's policy says. Asks when `look` comes back."""

    @flow_skill(id="stands", retry=policy)
    class Stands:
        @staticmethod
        def initial() -> Heard:
            return Heard()

        def on_event(self, state: Heard, event: Event, ctx: Ctx) -> Transition:
            id = getattr(event, "id", "message")
            value = getattr(event, "value", "failed")
            after = Transition.to(Heard(events=[*state.events, f"{id} {value}"]))
            match event:
                case UserMessage(slot=None):
                    both = after.cmd(Cmd.tool("x", charge)).cmd(Cmd.tool("y", charge, retry=ONCE))
                    return both.cmd(Cmd.tool("look", "look", retry=ONCE)).cmd(Cmd.tool("end", "end"))
                case ToolResult(id="look"):
                    return after.cmd(Cmd.ask_user("q", "?", timeout_s=60))
                case CommandFailed(id="end"):
                    return Transition.ignore(state)  # the task fails
                case _:
                    return after

    return Stands


def running(policy: RetryPolicy, role: Role) -> ByHand:
    """A task whose `x` is out, for this."""
    task = ByHand(skill(policy))
    task.say()
    if role is Role.SKILL:
        return task
    task.give("x", "c-1")
    if role is Role.UNDO:
        task.fail("y")
        task.cancel()
        return task
    task.give("y", "c-2")
    task.fail("end")
    task.give("undo y")
    task.give("undo x")
    return task.recovered(in_turn=False)  # both at once, so that `x` can fail while `y` waits


def given(task: ByHand) -> None:
    """Nobody knew whether `x` took place, and an operator has said so."""
    task.fail("x", unknown())
    task.feed(DependencyResolved(outcome="c-9"))


STAGES: dict[Stage, Callable[[ByHand], object]] = {
    Stage.RUNNING: lambda task: None,
    Stage.REDOING: lambda task: None,
    Stage.RETRYING: lambda task: task.fail("y", busy()),
    Stage.PAUSED: lambda task: task.give("look"),
    Stage.BLOCKED: lambda task: task.fail("y", unknown()),
    Stage.PROBED: lambda task: (task.fail("x", LOST if task.pending("x").given else busy()), task.ring("x")),
    Stage.ENDED: lambda task: None if task.task.ended else task.cancel(),
}


def standing(stage: Stage, role: Role, cause: Cause) -> ByHand:
    """A task that stands there with `x`, which can fail from this cause."""
    if role is Role.QUESTION:
        return asking(stage)
    if role is Role.REMINDER:
        return reminding(cause)
    policy = POLICIES.get(cause, NEVER)
    task = running(PATIENT if stage is Stage.PROBED else policy, role)
    if cause is Cause.GIVEN:
        given(task)
    STAGES[stage](task)
    if stage is Stage.PROBED and cause in POLICIES:
        task.skill = skill_of(skill(policy))  # a deployment has changed the policy meanwhile
    if role is Role.UNDO and cause is Cause.EXHAUSTED:
        for _ in range(UNDO_RETRIES.max_retries):
            task.fail("undo x", busy())
            task.ring("undo x")
    return task


def asking(stage: Stage) -> ByHand:
    """A task with a question that nobody answers in time."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        question = ctx.ask("x", "?", timeout_s=60)
        try:
            await (ctx.first(question, ctx.ask("other", "?")) if stage is Stage.PAUSED else question)
        except CommandError as error:
            return ctx.complete(error.failure.type)
        return ctx.fail("answered")

    async def paid(ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(charge)
        return await begin(ctx, content)

    task = ByHand(table("asks", Step("begin", paid if stage is Stage.REDOING else begin).start()))
    task.say()
    if stage is not Stage.REDOING:
        return task
    task.give("charge", "c-1")
    task.cancel()
    task.give("undo charge")
    return task.recovered()


def reminding(cause: Cause) -> ByHand:
    """A task whose approvers are being reminded."""

    async def begin(ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("sure", "Sure?", policy=GatePolicy(reminder_s=5))
        return ctx.complete()

    task = ByHand(table("reminds", Step("begin", begin).start(), retry=POLICIES.get(cause, NEVER)))
    task.say()
    task.clock("~remind")
    return task


NAMES = {Role.SKILL: "x", Role.REDO: "x", Role.UNDO: "undo x", Role.REMINDER: "remind sure"}


# --- what each action promises


def _retried(task: ByHand, after: Snapshot, cell: Cell) -> None:
    assert after.lifecycle is TaskState.RETRYING
    assert [one.invocation_id for one in task.journal[-1].backoffs] == [task.pending("x").invocation_id]
    assert "x" not in task.out


def _held(task: ByHand, after: Snapshot, cell: Cell) -> None:
    failed = after.held[-1]
    assert (isinstance(failed, CommandFailed), task.journal[-1].held) == (True, True)
    assert "x" not in task.out
    assert after.lifecycle == (TaskState.RUNNING if cell[0] is Stage.REDOING else cell[0])


def _blocked(task: ByHand, after: Snapshot, cell: Cell) -> None:
    x = task.pending("x")
    assert (after.lifecycle, x.blocked, "x" in task.out) == (TaskState.BLOCKED, True, False)
    assert (x.due_at is None) == (cell[2] is Cause.UNKNOWN)  # a probe is due, or a person must decide


def _released(task: ByHand, after: Snapshot, cell: Cell) -> None:
    if cell[2] is Cause.SKIPPED:
        _sent_again(task, after, cell)
    elif cell[2] is Cause.GIVEN:
        _accepted(task, after, cell)
    elif cell[1] is Role.REDO:
        _ended(task, after, cell)
    else:
        _delivered(task, after, cell)
        assert after.lifecycle is TaskState.RUNNING


def _delivered(task: ByHand, after: Snapshot, cell: Cell) -> None:
    if cell[1] is Role.QUESTION:
        assert task.said[-1] == "timeout"
    else:
        assert heard(after) == "x failed"


def _accepted(task: ByHand, after: Snapshot, cell: Cell) -> None:
    assert "no receipt says what came of it" in task.journal[-1].note
    assert all(one.command.id != "x" for one in after.pending.values())
    assert cell[1] is Role.REDO or heard(after) == "x c-9"


def _sent_again(task: ByHand, after: Snapshot, cell: Cell) -> None:
    x = next(one for one in after.pending.values() if one.command.id == "x")
    assert (x.started, x.blocked, x.due_at, after.ended) == (True, False, None, False)


def _ended(task: ByHand, after: Snapshot, cell: Cell) -> None:
    assert (after.lifecycle, task.journal[-1].cause) == (TaskState.FAILED, "T2/1.1")
    assert after.reason.startswith("x: ")


def _noted(task: ByHand, after: Snapshot, cell: Cell) -> None:
    notes = {Cause.GIVEN: "x took place, as an operator says", Cause.UNKNOWN: "NOT known whether it took place"}
    assert notes.get(cell[2], "x: did not take place") in task.journal[-1].note
    assert all(one.command.id != "x" for one in after.pending.values())


def _undone_later(task: ByHand, after: Snapshot, cell: Cell) -> None:
    assert (after.lifecycle, task.out, len(task.alarms)) == (TaskState.FAILED, [], 1)


def _given_up(task: ByHand, after: Snapshot, cell: Cell) -> None:
    assert task.journal[-1].note.startswith("NOT undone: x: ")
    assert finished(after)


def _dropped(task: ByHand, after: Snapshot, cell: Cell) -> None:
    assert task.journal[-1].note.startswith("not reminded: ")
    assert (after.lifecycle, task.waiting, after.pending) == (TaskState.PAUSED, ["sure"], {})


def heard(task: Snapshot) -> str:
    """What the skill was told last."""
    assert isinstance(task.state, dict)
    events = task.state["events"]
    assert isinstance(events, list)
    return str(events[-1])


EFFECTS: dict[Action, Callable[[ByHand, Snapshot, Cell], None]] = {
    Action.RETRY: _retried,
    Action.HOLD: _held,
    Action.BLOCK: _blocked,
    Action.PROBE: _blocked,
    Action.RELEASE: _released,
    Action.DELIVER: _delivered,
    Action.ACCEPT: _accepted,
    Action.REISSUE: _sent_again,
    Action.END: _ended,
    Action.NOTE: _noted,
    Action.RETRY_UNDO: _undone_later,
    Action.GIVE_UP: _given_up,
    Action.DROP: _dropped,
}


@pytest.mark.parametrize(("cell", "action"), TABLE.items(), ids=[" ".join(cell) for cell in TABLE])
def test_a_failure_leads_to_what_the_table_says(cell: Cell, action: Action) -> None:
    """
    And the effect is the one that the action's description promises.
    """
    _, role, cause = cell
    task = standing(*cell)
    before = task.task
    with coverage() as seen:
        if role is Role.QUESTION:
            task.clock("~timeout")
        else:
            task.fail(NAMES[role], FAILURES[cause]())
        after = task.task
        if cause is Cause.SKIPPED:
            seen.cells.clear()
            failed = task.journal[-1].event
            assert isinstance(failed, CommandFailed)
            after = fold(task.skill, before, task.journal[-1:], skipped={failed.invocation_id})

    assert cell in seen.cells
    EFFECTS[action](task, after, cell)


def next_of(task: Snapshot) -> Iterator[Event]:
    """What can come next of `x`, `y` and their compensation: a failure, an alarm, or an operator's decision."""
    for want in wanted(task).values():
        if isinstance(want, Alarm):
            yield want.event
        elif isinstance(want, Perform) and want.command.subject != want.command.id:
            for failure in (busy(), refused(), unknown(), LOST):
                yield CommandFailed(id=want.command.id, invocation_id=want.invocation_id, failure=failure)
    for id, one in task.pending.items():
        if one.blocked:
            yield DependencyResolved(invocation_id=id, retry=True)
            yield DependencyResolved(invocation_id=id, outcome="c-9")


def stand(task: Snapshot) -> tuple[object, ...]:
    """Where a task stands, without times; numbers above one count as one."""
    pending = (
        (id, one.started, one.due_at is None, one.blocked, one.given, *(min(n, 1) for n in (one.retries, one.looks)))
        for id, one in task.pending.items()
    )
    return task.lifecycle, *pending, *(getattr(one, "invocation_id", "") for one in task.held)


@pytest.mark.parametrize("role", [Role.SKILL, Role.REDO, Role.UNDO])
@pytest.mark.parametrize("policy", [ONCE, NEVER, PATIENT], ids=["once", "never", "patient"])
def test_no_failure_comes_to_an_empty_cell(role: Role, policy: RetryPolicy) -> None:
    """
    Whatever fails, and whatever an operator decides, one after the other: the table says what is done.
    """
    begun = running(policy, role)
    todo = [begun.task]
    met = {stand(begun.task)}
    while todo:
        task = todo.pop()
        for event in next_of(task):
            after, entry = advance(begun.skill, task, event, task.at)
            assert "bug: " not in entry.note + after.reason, entry
            if stand(after) not in met:
                met.add(stand(after))
                todo.append(after)
