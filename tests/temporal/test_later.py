"""Tasks that are started with a hold or a delay: planned until somebody releases them, or until their time comes."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHistory
from temporalio.testing import TimeSkipper

from refold import InputRejected, Status, TaskState
from refold.engine import TaskExists, TaskFilter, TaskView
from refold.temporal import TemporalEngine
from refold.temporal.client.views import NEVER_BEGAN
from refold.temporal.data.wire import TaskStart
from refold.temporal.upgrade.sealing import seal, taken
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected, settled, text
from tests.waiting import a_moment

HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
NOT_BEGUN = {
    "hold": r"it is held; `refold release {id}` begins it now",
    "start_delay": r"it begins at \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d UTC; `refold release {id}` begins it now",
}
LATER: list[dict[str, Any]] = [{"hold": True}, {"start_delay": HOUR}]


def planned(view: TaskView) -> bool:
    return (view.lifecycle, view.status) == (TaskState.PLANNED, Status.SUBMITTED)


async def listed(engine: TemporalEngine, owner: str, lifecycle: TaskState) -> list[TaskView]:
    """An owner's tasks as `list` has them, once the server's index has one."""
    while not await engine.find(TaskFilter(owner=owner, lifecycle=lifecycle)):
        await a_moment()
    return [view async for view in engine.list(owner=owner, lifecycle=lifecycle)]


async def an_hour_passes(engine: TemporalEngine, task_id: str) -> None:
    """And a moment more, by the task's clock."""
    await TimeSkipper(engine.client).fast_forward(engine.client.get_workflow_handle(task_id), HOUR + SECOND)


async def history(engine: TemporalEngine, task_id: str) -> WorkflowHistory:
    return await engine.client.get_workflow_handle(task_id).fetch_history()


async def test_a_list_leaves_out_what_never_began(engine: TemporalEngine) -> None:
    """
    As the task with which a schedule's input was checked: the server may keep it for minutes after its deletion.
    """
    owner = f"ada-{uuid4().hex[:6]}"
    id = (await engine.start("talk", text("hello"), owner=owner, hold=True)).task_id
    await engine.client.get_workflow_handle(id).terminate(NEVER_BEGAN)

    assert await listed(engine, owner, TaskState.FAILED) == []


@pytest.mark.parametrize("later", LATER, ids=["held", "delayed"])
async def test_a_task_is_planned_until_it_is_released(engine: TemporalEngine, later: dict[str, Any]) -> None:
    """
    To `start`, `look`, `record`, `list` and `find`; its id is taken; then one call begins it, and no second one does.
    """
    owner = f"ada-{uuid4().hex[:6]}"
    started = await engine.start("talk", text("hello"), owner=owner, **later)
    id = started.task_id
    looked, record = await engine.look(id), await engine.record(id)
    views = [started, looked, *await listed(engine, owner, TaskState.PLANNED)]
    with pytest.raises(TaskExists):
        await engine.start("talk", text("again"), task_id=id)

    assert len(views) == 3
    assert all(planned(view) for view in views)
    assert (record.lifecycle, record.status) == (TaskState.PLANNED, Status.SUBMITTED)
    assert [message.content.text for message in record.messages] == ["hello"]
    why = NOT_BEGUN[next(iter(later))].format(id=id)
    assert all(re.fullmatch(why, view.note) for view in views)

    await engine.release(id, by="ada")
    waiting = await settled(engine, id)
    with pytest.raises(InputRejected, match="it has begun, or has ended; there is nothing to release"):
        await engine.release(id)

    assert [wait.slot for wait in waiting.waiting_for] == ["name"]
    assert (await listed(engine, owner, TaskState.PAUSED))[0].messages[0].text == "hello"
    await engine.cancel(id)


async def test_a_watch_of_a_held_task_ends(engine: TemporalEngine) -> None:
    """
    It needs a person, as a task at a gate does; who follows it sees it begin.
    """
    id = (await engine.start("talk", text("hello"), hold=True)).task_id
    following = asyncio.ensure_future(anext(engine.watch(id, follow=True)))

    assert await collected(engine.watch(id)) == []
    await engine.release(id)
    assert (await following).seq == 1  # type: ignore[union-attr]
    await engine.cancel(id)


@pytest.mark.parametrize("later", LATER, ids=["held", "delayed"])
async def test_nothing_but_a_release_begins_a_task(engine: TemporalEngine, later: dict[str, Any]) -> None:
    """
    An answer is refused, and a signal journaled as refused: a task that gets one before its time stays planned.
    """
    id = (await engine.start("talk", text("hello"), **later)).task_id
    handle = engine.client.get_workflow_handle(id)
    with pytest.raises(InputRejected, match=f"`refold release {id}` begins it now"):
        await engine.send(id, text("Ada"))
    await handle.signal("message", "Ada")
    await handle.signal("decide", None)
    while (view := await engine.look(id)).refused < 2:
        await a_moment()
    assert planned(view)

    await handle.signal("release")
    await settled(engine, id)
    await engine.send(id, text("Ada"))
    entries = await collected(engine.journal(id))

    assert [bool(entry.refused) for entry in entries] == [True, True, False, False]
    assert "`refold release" in entries[0].refused
    await engine.cancel(id)


async def test_what_a_task_would_begin_with_is_read_without_a_worker(engine: TemporalEngine) -> None:
    """
    Also after a seal, where the task's snapshot does not hold the message yet.
    """
    task_id = (await engine.start("talk", text("hello"), hold=True)).task_id
    before = await engine.record(task_id)
    run_id = (await engine.connection.describe(task_id)).run_id
    await seal(engine.connection, task_id)
    await taken(engine.connection, task_id, run_id, PATIENT)
    await engine.client.get_workflow_handle(task_id).terminate()
    after = await engine.record(task_id)

    assert [message.text for message in before.messages] == ["hello"]
    assert after.messages == before.messages


@pytest.mark.parametrize("later", LATER, ids=["held", "delayed"])
async def test_a_task_that_has_not_begun_can_be_canceled(engine: TemporalEngine, later: dict[str, Any]) -> None:
    """
    Its skill is never called; there is nothing to recover or to fork.
    """
    id = (await engine.start("talk", text("hello"), **later)).task_id

    view = await engine.cancel(id, reason="not today")

    assert (view.status, view.reason) == (Status.CANCELED, "not today")
    assert [entry.event.kind for entry in await collected(engine.journal(id))] == ["cancel_requested"]
    with pytest.raises(InputRejected, match="was canceled before it began; start a new one"):
        await engine.recover(id)
    with pytest.raises(InputRejected, match="has ended"):
        await engine.release(id)
    with pytest.raises(InputRejected):
        await engine.fork(id, at=1)


async def test_a_delayed_task_begins_at_its_time(engine: TemporalEngine) -> None:
    """
    The server keeps it until then: no timer, and no event more than for a task that began at once.
    """
    delayed = await engine.start("talk", text("hello"), start_delay=timedelta(seconds=3))
    at_once = await engine.start("talk", text("hello"))
    assert planned(delayed)

    while planned(await engine.look(delayed.task_id)):
        await a_moment()  # moving the clock would be an event
    for view in (delayed, at_once):
        await settled(engine, view.task_id)
    events = [
        [event.event_type for event in (await history(engine, view.task_id)).events] for view in (delayed, at_once)
    ]

    assert len(events[0]) == len(events[1])  # either has one upsert: to paused
    assert EventType.EVENT_TYPE_TIMER_STARTED not in events[0]
    for view in (delayed, at_once):
        await engine.cancel(view.task_id)


async def test_a_delay_goes_on_after_an_update(engine: TemporalEngine) -> None:
    """
    An update brings a delayed task to a worker, which then waits for the rest of the delay.
    """
    id = (await engine.start("talk", text("hello"), start_delay=HOUR)).task_id
    with pytest.raises(InputRejected, match="it begins at"):
        await engine.send(id, text("Ada"))

    assert planned(await engine.look(id))
    await an_hour_passes(engine, id)
    assert (await settled(engine, id)).lifecycle is TaskState.PAUSED
    timers = [
        event for event in (await history(engine, id)).events if event.event_type == EventType.EVENT_TYPE_TIMER_FIRED
    ]
    assert len(timers) == 1
    await engine.cancel(id)


async def test_a_start_that_does_not_fit_is_refused_at_once(engine: TemporalEngine) -> None:
    """
    A hold is no way past the skill's schema; nor may a start be both held and delayed, or delayed by nothing.
    """
    with pytest.raises(InputRejected, match="failures"):
        await engine.start("stubborn", text("no tries"), hold=True)
    with pytest.raises(InputRejected, match="give one of hold and start_delay"):
        await engine.start("talk", text("hello"), hold=True, start_delay=HOUR)
    with pytest.raises(InputRejected, match="more than 0 and at most 10 years"):
        await engine.start("talk", text("hello"), start_delay=timedelta(0))


async def test_a_refused_signal_does_not_end_a_run_that_it_opens(engine: TemporalEngine) -> None:
    """
    A task continues in a new run, and the first thing there is a signal that nobody can read.
    """
    first = (await engine.start("talk", text("hello"))).task_id
    await settled(engine, first)
    snapshot = await engine.at(first, 1)
    id = f"next-{uuid4().hex[:8]}"
    await engine.client.start_workflow(
        "talk", TaskStart(snapshot=snapshot), id=id, task_queue="tests", start_signal="decide", start_signal_args=[None]
    )

    view = await settled(engine, id)

    assert (view.lifecycle, view.refused) == (TaskState.PAUSED, 1)
    for task_id in (first, id):
        await engine.client.get_workflow_handle(task_id).terminate()
