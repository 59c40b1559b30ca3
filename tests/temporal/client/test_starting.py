"""Many starts at once, and starts whose answer is lost."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from temporalio.service import RPCError, RPCStatusCode

from refold import Status, TaskState
from refold.engine import NotConnected, TaskExists
from refold.temporal import TemporalEngine
from refold.temporal.client.starting import STARTS_AT_ONCE
from tests.temporal.client.between import Call, between
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import settled, text

LOST = RPCError("Timeout expired", RPCStatusCode.CANCELLED, b"")


@pytest.mark.parametrize(
    "tasks", [STARTS_AT_ONCE + 8, pytest.param(1_000, marks=[pytest.mark.sweep, pytest.mark.timeout(600)])]
)
async def test_a_burst_of_starts_is_taken(engine: TemporalEngine, tasks: int) -> None:
    """
    The server is never given more than it answers in time, however many tasks a program starts at once.
    """
    under_way = most = 0

    async def counted(rpc: str, call: Call) -> Any:
        nonlocal under_way, most
        if rpc != "start_workflow_execution":
            return await call()
        under_way += 1
        most = max(most, under_way)
        try:
            return await call()
        finally:
            under_way -= 1

    many = TemporalEngine(between(engine.client, counted), engine.task_queue, patience=PATIENT)
    views = await asyncio.gather(*(many.start("hello", text("Ada")) for _ in range(tasks)))

    assert (len({view.task_id for view in views}), most) == (tasks, STARTS_AT_ONCE)
    for view in views:
        assert (await settled(engine, view.task_id)).status is Status.COMPLETED


async def test_a_start_whose_answer_is_lost(engine: TemporalEngine) -> None:
    """
    The error says that the task may have started, and what to do; a second start under its id starts nothing.
    """
    task_id = f"lost-{uuid4().hex[:8]}"

    async def losing(rpc: str, call: Call) -> Any:
        answer = await call()
        if rpc == "start_workflow_execution":
            raise LOST
        return answer

    far = TemporalEngine(between(engine.client, losing), engine.task_queue)
    with pytest.raises(
        NotConnected, match=f"does not say whether task '{task_id}' has started .*refold show {task_id}"
    ):
        await far.start("hello", text("Ada"), task_id=task_id)
    with pytest.raises(TaskExists):
        await far.start("hello", text("Ada"), task_id=task_id)

    assert (await settled(engine, task_id)).status is Status.COMPLETED


async def test_a_start_that_cannot_be_looked_at_is_no_failed_start(engine: TemporalEngine) -> None:
    """
    The server took it, and answers nothing more: the caller gets the task.
    """

    async def losing(rpc: str, call: Call) -> Any:
        if rpc != "start_workflow_execution":
            raise LOST
        return await call()

    far = TemporalEngine(between(engine.client, losing), engine.task_queue)
    view = await far.start("hello", text("Ada"))

    assert (view.status, view.lifecycle) == (Status.SUBMITTED, TaskState.PLANNED)
    assert view.note.startswith("it has started")
    assert (await settled(engine, view.task_id)).status is Status.COMPLETED


async def test_forks_at_the_same_time_take_different_ids(engine: TemporalEngine) -> None:
    """
    Another fork starts after an id was found free, before it is taken: nobody has named an id, so both start.
    """
    task_id = (await settled(engine, (await engine.start("talk", text("hello"))).task_id)).task_id
    others: list[str] = []

    async def on(rpc: str, call: Call) -> Any:
        if rpc == "start_workflow_execution" and not others:
            others.append((await engine.fork(task_id, at=1)).task_id)
        return await call()

    mine = await TemporalEngine(between(engine.client, on), "tests").fork(task_id, at=1)

    assert (others, mine.task_id) == ([f"{task_id}.f1"], f"{task_id}.f2")
