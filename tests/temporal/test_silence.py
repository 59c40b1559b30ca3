"""What people are told where a task's worker does not answer: none is there, or it cannot go on with the task."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.failure.v1 import Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import PollWorkflowTaskQueueRequest, RespondWorkflowTaskFailedRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    HandleQueryInput,
    Interceptor,
    WorkflowInboundInterceptor,
    WorkflowInstance,
    WorkflowInterceptorClassInput,
)
from temporalio.worker._workflow import _DeadlockError

from refold import Ctx, Event, Message, Status, TaskState, Transition, flow_skill
from refold.effects.asking import ASK_AGAIN
from refold.engine import NoWorker, TaskFilter
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker, workflow_for
from refold.temporal.client.connection import QUERY_ATTEMPTS, UPDATE_PATIENCE
from refold.temporal.client.errors import NO_REASON
from refold.temporal.client.failed import MOST_ANEW
from refold.temporal.data.wire import TRY_ANEW
from tests.temporal import skills
from tests.temporal.client.between import Call, between
from tests.temporal.conftest import PATIENT
from tests.temporal.test_odd_payloads import payload, start
from tests.temporal.test_task import collected, settled, text
from tests.waiting import a_moment

WEDGED = r"its worker cannot go on with it: another release of refold started this task \(start/9\)"
FAILED_STATE = 3
"""After so many attempts of a workflow task the server refuses questions."""

SOON = timedelta(milliseconds=400)
NOBODY = r"no worker answers on task queue 'nobody-polls'; start one with `refold worker --task-queue nobody-polls`"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers here: the sooner that is said, the better."""
    monkeypatch.setattr("refold.temporal.client.updates.UPDATE_PATIENCE", SOON)
    monkeypatch.setattr("refold.temporal.client.journal.QUERY_PATIENCE", SOON)


async def wedged(engine: TemporalEngine) -> str:
    """A task whose workflow tasks fail."""
    task_id = await start(engine, "gated", payload({"refold": "start/9"}))
    async for event in engine.client.get_workflow_handle(task_id).fetch_history_events(wait_new_event=True):
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            return task_id
    raise AssertionError("it goes on")


async def unserved(engine: TemporalEngine) -> str:
    """A task on a queue that nobody polls."""
    impatient = TemporalEngine(engine.client, "nobody-polls", patience=SOON)
    return (await impatient.start("gated", text("go"))).task_id


@pytest.mark.parametrize(("stuck", "why"), [(wedged, WEDGED), (unserved, NOBODY)])
async def test_everybody_is_told_why_a_task_does_not_answer(
    stuck: Callable[[TemporalEngine], Awaitable[str]], why: str, engine: TemporalEngine
) -> None:
    """
    Look, journal, answer, decision and resolution each name the failure of the worker, or the queue without one.
    """
    task_id = await stuck(engine)
    impatient = TemporalEngine(engine.client, "tests", patience=SOON)

    view = await impatient.look(task_id)
    with pytest.raises(NoWorker, match=why):
        await collected(impatient.journal(task_id))
    with pytest.raises(NoWorker, match=rf"cannot take the message: {why}"):
        await impatient.send(task_id, text("hello"))
    with pytest.raises(NoWorker, match=rf"cannot be asked for its gates: {why}"):
        await impatient.decide(task_id, approved=True, approver="ada")
    with pytest.raises(NoWorker, match=rf"cannot take the resolution: {why}"):
        await impatient.resolve(task_id, retry=True)
    with pytest.raises(NoWorker, match=rf"is not canceled yet: {why}.* `temporal workflow terminate"):
        await impatient.cancel(task_id)

    assert re.search(why, view.note)
    await engine.client.get_workflow_handle(task_id).terminate()


async def test_a_task_that_nobody_serves_is_planned_everywhere(client: Client) -> None:
    """
    To `start`, `look`, `record`, `find` and `list` alike, until a worker takes it.
    """
    impatient = TemporalEngine(client, "nobody-polls", patience=SOON)
    wanted = TaskFilter(skill="gated", lifecycle=TaskState.PLANNED, status=Status.SUBMITTED)

    started = await impatient.start("gated", text("go"), message_id="m-1", delivery_id="d-1")
    looked, record = await impatient.look(started.task_id), await impatient.record(started.task_id)
    while started.task_id not in {one.task_id for one in await impatient.find(wanted)}:
        await a_moment()  # the index lags by moments
    listed = [view async for view in impatient.list(lifecycle=TaskState.PLANNED) if view.task_id == started.task_id]

    for view in (started, looked, *listed):
        assert (view.lifecycle, view.status) == (TaskState.PLANNED, Status.SUBMITTED)
        assert re.search(NOBODY, view.note)
    assert (record.lifecycle, record.status) == (TaskState.PLANNED, Status.SUBMITTED)
    assert record.messages == (Message(role="user", content=text("go"), seq=1, id="m-1", delivery_id="d-1"),)
    assert len(listed) == 1


async def test_a_start_that_is_delayed_is_planned(engine: TemporalEngine) -> None:
    """
    A task that Temporal's own tools start with a delay is planned, and its note says until when.
    """
    id = f"later-{uuid4().hex[:8]}"
    await engine.client.start_workflow("talk", "go", id=id, task_queue="tests", start_delay=timedelta(hours=1))

    view = await TemporalEngine(engine.client, "tests", patience=SOON).look(id)

    assert (view.lifecycle, view.status) == (TaskState.PLANNED, Status.SUBMITTED)
    assert re.fullmatch(r"it begins at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", view.note)
    await engine.client.get_workflow_handle(id).terminate()


@flow_skill(id="begun_late")
class BegunLate:
    """Asks for a message."""

    @staticmethod
    def initial() -> skills.Open:
        return skills.Open()

    def on_event(self, state: skills.Open, event: Event, ctx: Ctx) -> Transition:
        return Transition.await_input("next", "And then?", state)


BegunLateWorkflow = workflow_for(BegunLate)

BUSY = threading.Semaphore(0)
"""How many more times the worker has no time for a query."""


class WithoutTime(WorkflowInboundInterceptor):
    """Fails queries as the SDK does after two seconds in which a worker did not get to the answer.

    Not by letting the two seconds pass: the SDK then interrupts the thread, and evicts the task in another one. Where
    the machine is busy and the first has not ended yet, the eviction never succeeds, and the worker never ends.
    """

    async def handle_query(self, input: HandleQueryInput) -> Any:
        if BUSY.acquire(blocking=False):
            raise _DeadlockError.from_deadlocked_workflow(cast(WorkflowInstance, NotBegun()), 2)
        return await super().handle_query(input)


class NotBegun:
    """An instance of a workflow that no thread has begun to ask."""

    def get_thread_id(self) -> int | None:
        return None


class LateWorker(Interceptor):
    """Of a worker without time."""

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        return WithoutTime


async def test_a_worker_without_time_is_asked_again(client: Client) -> None:
    """
    The SDK gives it two seconds for each answer, and fails the query after that; the second answer comes.
    """
    plugin = RefoldPlugin([BegunLate], sandboxed=False)
    async with make_worker(client, plugin, task_queue="without-time", interceptors=[LateWorker()]):
        engine = TemporalEngine(client, "without-time", patience=PATIENT)
        task_id = (await settled(engine, (await engine.start("begun_late", text("go"))).task_id)).task_id
        BUSY.release()
        assert (await engine.at(task_id, 1)).status is Status.INPUT_REQUIRED
        assert not BUSY.acquire(blocking=False), "the first answer was one"
        await engine.client.get_workflow_handle(task_id).terminate()


async def taken(client: Client, queue: str, fails: str = "") -> str:
    """The id of a task whose workflow task a worker takes, which is lost then, or fails it with these words."""
    lost = await client.workflow_service.poll_workflow_task_queue(
        PollWorkflowTaskQueueRequest(namespace=client.namespace, task_queue=TaskQueue(name=queue), identity="lost")
    )
    if fails:
        failed = RespondWorkflowTaskFailedRequest(
            namespace=client.namespace, task_token=lost.task_token, failure=Failure(message=fails)
        )
        await client.workflow_service.respond_workflow_task_failed(failed)
    return lost.workflow_execution.workflow_id


async def test_a_worker_that_is_lost_at_a_workflow_task_is_waited_for(hasty_client: Client) -> None:
    """
    It took the task's workflow task and never ends it. Until the server takes that for lost, longer than an answer is
    waited for, it passes no question on; then another worker answers.
    """
    queue = f"lost-{uuid4().hex[:8]}"
    engine = TemporalEngine(hasty_client, queue, patience=3 * SOON)
    started = await engine.start("begun_late", text("go"))
    assert await taken(hasty_client, queue) == started.task_id

    async with make_worker(hasty_client, RefoldPlugin([BegunLate], sandboxed=False), task_queue=queue):
        entries = await collected(engine.journal(started.task_id))
        await engine.client.get_workflow_handle(started.task_id).terminate()

    assert [entry.seq for entry in entries] == [1]


async def test_a_question_has_all_its_time_after_a_lost_worker(hasty_client: Client) -> None:
    """
    Its last tries, while the worker that is lost has the task's workflow task, end just as the server takes that for
    lost: the next worker is asked, too.
    """
    queue, asked = f"lost-{uuid4().hex[:8]}", 0

    async def late(rpc: str, call: Call) -> Any:
        nonlocal asked
        asked += rpc == "query_workflow"
        if rpc != "query_workflow" or asked > 2 * QUERY_ATTEMPTS:
            return await call()
        if asked > QUERY_ATTEMPTS:
            async for event in hasty_client.get_workflow_handle(task_id).fetch_history_events(wait_new_event=True):
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
                    break
        raise RPCError("Timeout expired", RPCStatusCode.DEADLINE_EXCEEDED, b"")

    task_id = (await TemporalEngine(hasty_client, queue, patience=SOON).start("begun_late", text("go"))).task_id
    assert await taken(hasty_client, queue) == task_id
    engine = TemporalEngine(between(hasty_client, late), queue, patience=PATIENT)

    async with make_worker(hasty_client, RefoldPlugin([BegunLate], sandboxed=False), task_queue=queue):
        entries = await collected(engine.journal(task_id))
        await hasty_client.get_workflow_handle(task_id).terminate()

    assert [entry.seq for entry in entries] == [1]


async def test_a_message_that_a_lost_worker_took_is_accepted(
    hasty_client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The server gives it to another worker some seconds later, and whoever sent it waits for that.
    """
    monkeypatch.setattr("refold.temporal.client.updates.UPDATE_PATIENCE", UPDATE_PATIENCE)
    queue = f"lost-{uuid4().hex[:8]}"
    plugin = RefoldPlugin([BegunLate], sandboxed=False)
    engine = TemporalEngine(hasty_client, queue, patience=PATIENT)
    async with make_worker(hasty_client, plugin, task_queue=queue, max_cached_workflows=0):
        task_id = (await settled(engine, (await engine.start("begun_late", text("go"))).task_id)).task_id
    sending = asyncio.create_task(engine.send(task_id, text("again")))
    assert await taken(hasty_client, queue) == task_id

    async with make_worker(hasty_client, plugin, task_queue=queue):
        assert (await sending).seq == 2
        await hasty_client.get_workflow_handle(task_id).terminate()


@pytest.mark.parametrize(("fails", "rounds"), [("", 1), (ASK_AGAIN, MOST_ANEW + 2)])
async def test_workers_that_are_lost_again_and_again_are_named(hasty_client: Client, fails: str, rounds: int) -> None:
    """
    The server keeps no reason of that, and whoever looks is told so. It is asked for one once for each first attempt,
    however often they look, and four times in all.
    The same where the first attempt failed since its worker could not read the history in time, which is no reason.
    """
    queue = f"lost-{uuid4().hex[:8]}"
    engine = TemporalEngine(hasty_client, queue, patience=SOON)
    started = await engine.start("begun_late", text("go"))
    task = hasty_client.get_workflow_handle(started.task_id)
    for asked in range(1, rounds + 1):
        for _ in range(FAILED_STATE):
            assert await taken(hasty_client, queue, fails) == started.task_id
        for _ in range(3):
            note = (await engine.look(started.task_id)).note
            assert re.search(rf"{NO_REASON} of its workflow task, tried \d+ times", note)
        assert await taken(hasty_client, queue, fails) == started.task_id
        sent = [event.workflow_execution_signaled_event_attributes async for event in task.fetch_history_events()]
        assert [one.signal_name for one in sent].count(TRY_ANEW) == min(asked, MOST_ANEW)
    await task.terminate()
