"""What Temporal's own verbs do to a task, over refold's head; `docs/operate.md` has the table."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TypeVar
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleSpec,
    WorkflowFailureError,
    WorkflowHistoryEventFilterType,
)
from temporalio.testing import TimeSkipper
from temporalio.worker import Worker

from refold import Content, InputRejected, Status, TaskState
from refold.core.fold.journal import Entry
from refold.engine import NoWorker, TaskNotFound, TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal import changed_after, changed_before
from tests.temporal.conftest import PATIENT
from tests.waiting import a_moment

T = TypeVar("T")


async def collected(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


async def paused(engine: TemporalEngine) -> TaskView:
    """A research loop that waits for a person."""
    view = await engine.start("research_loop", Content.from_text("Tides"))
    await collected(engine.watch(view.task_id))
    return await engine.look(view.task_id)


async def kinds(engine: TemporalEngine, task_id: str) -> list[str]:
    """What happened, by kind."""
    return [entry.event.kind for entry in await collected(engine.journal(task_id))]


async def reset(engine: TemporalEngine, task_id: str, workflow_task: int) -> None:
    """Set a task back to the end of its n-th workflow task (1 is the first)."""
    history = await engine.client.get_workflow_handle(task_id).fetch_history()
    ends = [one.event_id for one in history.events if one.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED]
    await engine.client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=engine.client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=task_id),
            reason="tried",
            workflow_task_finish_event_id=ends[workflow_task - 1],
            request_id=uuid4().hex,
        )
    )


async def test_cancel_ends_as_canceled_with_its_last_words(engine: TemporalEngine) -> None:
    """
    `temporal workflow cancel` is a cancel like any other: the task writes its last entry, and keeps its messages.
    """
    view = await paused(engine)

    await engine.client.get_workflow_handle(view.task_id).cancel()
    await collected(engine.watch(view.task_id, follow=True))
    after = await engine.look(view.task_id)

    assert (after.status, after.lifecycle, after.reason) == (
        Status.CANCELED,
        TaskState.FAILED,
        "canceled on request",
    )
    assert after.messages == view.messages
    assert (await kinds(engine, view.task_id))[-1] == "cancel_requested"


async def test_terminate_leaves_no_last_words(engine: TemporalEngine) -> None:
    """
    `temporal workflow terminate` ends a task as canceled at once: its journal stops before, and needs a worker.
    """
    view = await paused(engine)

    await engine.client.get_workflow_handle(view.task_id).terminate(reason="stuck")
    after = await engine.look(view.task_id)

    assert (after.status, after.lifecycle) == (Status.CANCELED, TaskState.FAILED)
    assert after.note == "Temporal ended it from outside: stuck"
    assert len(await kinds(engine, view.task_id)) == view.seq
    assert (await engine.at(view.task_id, view.seq)).status is Status.INPUT_REQUIRED
    with pytest.raises(InputRejected, match="has ended"):
        await engine.send(view.task_id, Content.from_text("For sailors"))


async def test_a_timeout_fails_the_task_without_last_words(engine: TemporalEngine) -> None:
    """
    A timeout that Temporal was given at the start fails a task as terminate cancels it. refold itself sets none.
    """
    task_id = f"timed-{uuid4().hex[:8]}"
    handle = await engine.client.start_workflow(
        "talk", "hello", id=task_id, task_queue="tests", execution_timeout=timedelta(hours=1)
    )
    await collected(engine.watch(task_id))
    await TimeSkipper(engine.client).fast_forward(handle, timedelta(hours=1, seconds=1))
    with pytest.raises(WorkflowFailureError):
        await handle.result()

    after = await engine.look(task_id)

    assert (after.status, after.lifecycle) == (Status.FAILED, TaskState.FAILED)
    assert after.note == "Temporal ended it from outside: Workflow timed out"
    assert await kinds(engine, task_id) == ["user_message"]


async def test_reset_of_an_open_task_takes_entries_back_and_makes_effects_again(engine: TemporalEngine) -> None:
    """
    `temporal workflow reset` makes what came after the point unhappen: entries, and receipts of effects that were made.
    """
    view = await paused(engine)

    await reset(engine, view.task_id, 3)  # after the second model call has come back
    await collected(engine.watch(view.task_id))
    after = await engine.look(view.task_id)

    assert (after.status, after.seq) == (Status.INPUT_REQUIRED, view.seq)
    assert after.updated_at is not None
    assert view.updated_at is not None
    assert after.updated_at > view.updated_at  # the later entries were made anew
    await engine.send(view.task_id, Content.from_text("For sailors"))
    await collected(engine.watch(view.task_id))
    assert (await engine.look(view.task_id)).status is Status.COMPLETED


@pytest.mark.parametrize("by_signal", [pytest.param(True, id="signal"), pytest.param(False, id="update")])
async def test_reset_revives_an_ended_task(engine: TemporalEngine, by_signal: bool) -> None:
    """
    A task that was done is open again after a reset. Its answers come before what they answer is asked anew.
    """
    view = await paused(engine)
    if by_signal:
        await engine.client.get_workflow_handle(view.task_id).signal("message", "For sailors")
    else:
        await engine.send(view.task_id, Content.from_text("For sailors"))
    await collected(engine.watch(view.task_id, follow=True))
    assert (await engine.look(view.task_id)).status is Status.COMPLETED

    await reset(engine, view.task_id, 5)  # before the answer
    await collected(engine.watch(view.task_id))
    again = await engine.look(view.task_id)

    assert again.status is Status.INPUT_REQUIRED
    assert again.refused == (1 if by_signal else 0)  # the server repeats both; an update is refused before its entry
    await engine.send(view.task_id, Content.from_text("For sailors, again"))
    await collected(engine.watch(view.task_id, follow=True))
    assert (await engine.look(view.task_id)).status is Status.COMPLETED


async def test_code_that_does_not_fit_is_named(
    hasty_client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A task whose code was changed under it stands still. Who looks at it or answers it is told why, and what to do;
    with the right code it goes on.
    """
    monkeypatch.setattr("refold.temporal.client.updates.UPDATE_PATIENCE", timedelta(seconds=1))
    engine = TemporalEngine(hasty_client, "changed")
    patient = TemporalEngine(hasty_client, "changed", patience=PATIENT)
    before = RefoldPlugin([changed_before], model="scripted:demo", storage=values)
    after = RefoldPlugin([changed_after], model="scripted:demo", storage=values)
    async with make_worker(hasty_client, before, task_queue="changed"):
        task_id = (await patient.start("changed", Content.from_text("Hello"))).task_id

    async with make_worker(hasty_client, after, task_queue="changed"):
        note = (await engine.look(task_id)).note
        with pytest.raises(NoWorker, match=r"`ctx\.patched`"):
            await kinds(engine, task_id)
        with pytest.raises(NoWorker, match=r"cannot take the message: .* from what was recorded .* `ctx.patched`"):
            await engine.send(task_id, Content.from_text("Ada"))
    async with make_worker(hasty_client, before, task_queue="changed"):
        while (await engine.look(task_id)).note:  # until its next attempt
            await a_moment()
        ended = [entry async for entry in patient.watch(task_id)]

    assert "entry 1: messages was recorded by build" in note
    assert [entry.event.kind for entry in ended if isinstance(entry, Entry)][-1] == "user_message"


async def test_a_deleted_task_is_gone(engine: TemporalEngine) -> None:
    """
    `temporal workflow delete` forgets the task, and its id may be used again; its stored values stay.
    """
    view = await paused(engine)

    await engine.client.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=engine.client.namespace, workflow_execution=WorkflowExecution(workflow_id=view.task_id)
        )
    )
    while True:  # it is deleted some moments later
        try:
            await engine.look(view.task_id)
            await collected(engine.journal(view.task_id))
        except (TaskNotFound, NoWorker):
            break

    with pytest.raises(TaskNotFound):
        await engine.look(view.task_id)


@workflow.defn(sandboxed=False)
class Another:
    """A workflow of another program, which goes on."""

    @workflow.run
    async def run(self) -> None:
        await workflow.wait_condition(lambda: False)

    @workflow.query
    def there(self) -> bool:
        return True


async def test_a_workflow_of_another_program_is_no_task(engine: TemporalEngine) -> None:
    """
    Nobody reads or cancels one by its id: without an owner it would be a task of every caller without a name.
    """
    queue, id = f"another-{uuid4().hex[:8]}", f"another-{uuid4().hex[:8]}"
    async with Worker(engine.client, task_queue=queue, workflows=[Another]):
        handle = await engine.client.start_workflow(Another.run, id=id, task_queue=queue)
        assert await handle.query(Another.there)
        for verb in (engine.look, engine.record, engine.cancel):
            with pytest.raises(TaskNotFound):
                await verb(id)
        kinds = {event.event_type for event in (await handle.fetch_history()).events}
        await handle.terminate()

    assert EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCEL_REQUESTED not in kinds


async def test_a_schedule_starts_tasks(engine: TemporalEngine) -> None:
    """
    Each under an id of its own, which has the time of its start.
    """
    id = f"greets-{uuid4().hex[:8]}"
    start = ScheduleActionStartWorkflow("hello", "Ada", id=id, task_queue=engine.task_queue)
    schedule = await engine.client.create_schedule(id, Schedule(action=start, spec=ScheduleSpec()))
    await schedule.trigger()
    while not (started := (await schedule.describe()).info.recent_actions):
        await a_moment()
    await schedule.delete()
    action = started[0].action
    assert isinstance(action, ScheduleActionExecutionStartWorkflow)
    assert action.workflow_id.startswith(f"{id}-20")

    await collected(engine.watch(action.workflow_id))
    assert (await engine.look(action.workflow_id)).messages[-1].text == "Hello, Ada!"


async def test_a_cron_schedule_is_refused(engine: TemporalEngine) -> None:
    """
    All its runs would have one id, so that an effect of the first would count as made for all.
    """
    id = f"monthly-{uuid4().hex[:8]}"
    handle = await engine.client.start_workflow(
        "hello", "Ada", id=id, task_queue=engine.task_queue, cron_schedule="@every 1s"
    )
    first = engine.client.get_workflow_handle(id, run_id=handle.first_execution_run_id)
    last = WorkflowHistoryEventFilterType.CLOSE_EVENT
    ended = await anext(first.fetch_history_events(wait_new_event=True, event_filter_type=last))
    await handle.terminate()

    why = ended.workflow_execution_continued_as_new_event_attributes.failure.message
    assert "the cron schedule '@every 1s'" in why
    assert "temporal schedule create" in why
