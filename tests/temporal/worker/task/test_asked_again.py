"""A question with an address that was called before: a history in which the task waits for it is replayed as it was."""

from __future__ import annotations

from temporalio.bridge.proto.workflow_commands import WorkflowCommand

from refold import Callback, Content, Ctx, Step, Transition, table
from refold.core.chat import text_hash
from refold.core.commands import CALLBACK, CALLED
from refold.core.fold.delivery import ASKS_ONCE
from refold.core.fold.snapshot import Snapshot
from refold.temporal import workflow_for
from refold.temporal.data.wire import TaskStart
from tests.core.byhand import START, ByHand, message
from tests.temporal.worker.activated import Activated, signaled


async def begin(ctx: Ctx, content: Content) -> Transition:
    address = await ctx.callback("address")
    await ctx.ask("paid", "?", callback=address)
    return ctx.goto("again", address=address)


async def again(ctx: Ctx, address: Callback) -> Transition:
    while True:
        await ctx.ask("more", "?", callback=address, timeout_s=1)


WORKFLOW = workflow_for(table("pays_twice", Step("begin", begin).start(), Step("again", again)))


def waiting() -> Snapshot:
    """A task that waits for a call."""
    task = ByHand(WORKFLOW.skill)
    task.feed(message(), second=0)
    until = START.replace(year=2030).isoformat()
    task.give("address", {"digest": text_hash(f"{CALLBACK}T"), "until": until}, second=0)
    return task.task


def answered(*, replaying: bool) -> list[WorkflowCommand]:
    """What comes of the call, after which the task asks once more with its address."""
    task = waiting()
    run = Activated(WORKFLOW, task.task_id)
    begun = run.activated(3, run.initialized(TaskStart(snapshot=task).model_dump(mode="json")), replaying=replaying)
    assert not begun.HasField("failed")
    call = message("yes", slot=f"{CALLBACK}T", delivery_id=f"{CALLED}T/1.1", early=True)
    done = run.activated(6, signaled("message", call.model_dump(mode="json", exclude={"kind"})), replaying=replaying)
    return list(done.successful.commands)


def kinds(commands: list[WorkflowCommand]) -> list[str | None]:
    return [one.WhichOneof("variant") for one in commands]


async def test_a_task_that_an_earlier_release_asked_with_waits_on_in_a_replay() -> None:
    """
    History has no marker: the question is open, and its timeout is set.
    """
    commands = answered(replaying=True)

    assert "start_timer" in kinds(commands)
    assert not {"set_patch_marker", "fail_workflow_execution"} & set(kinds(commands))


async def test_a_task_that_asks_now_fails_with_one_marker() -> None:
    commands = answered(replaying=False)

    assert [one.set_patch_marker.patch_id for one in commands if one.HasField("set_patch_marker")] == [ASKS_ONCE]
    failed = next(one.fail_workflow_execution for one in commands if one.HasField("fail_workflow_execution"))
    assert "question 'more' has the address of a callback that was answered before" in failed.failure.message
