"""Queries that came ahead of a workflow task are sent again, once the task has taken in what came."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from temporalio.client import WorkflowQueryFailedError

from refold.effects.asking import ASK_AGAIN, asked
from refold.temporal import TemporalEngine
from refold.temporal.client.connection import MOMENT_S
from tests.temporal.test_task import text


async def test_a_query_is_sent_again_once_the_task_has_taken_in_what_came() -> None:
    """
    Each time before it is sent again; any other failure is raised.
    """
    early = [WorkflowQueryFailedError(ASK_AGAIN), WorkflowQueryFailedError(f"{ASK_AGAIN}!")]
    answers: list[str | WorkflowQueryFailedError] = [*early, "done"]
    waited: list[int] = []

    async def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, WorkflowQueryFailedError):
            raise answer
        return answer

    async def taken_in(refused: int) -> None:
        waited.append(refused)

    assert await asked(ask, taken_in) == "done"
    assert waited == [1, 2]
    answers.append(WorkflowQueryFailedError("another"))
    with pytest.raises(WorkflowQueryFailedError, match="another"):
        await asked(ask, taken_in)
    assert waited == [1, 2]


async def test_a_task_that_nobody_serves_is_not_waited_for_long(engine: TemporalEngine) -> None:
    """
    What came to it is never taken in; a task at rest has taken in everything.
    """
    resting = await engine.start("counts", text("go"))
    id = f"waits-for-ever-{uuid4().hex[:8]}"
    handle = await engine.client.start_workflow("nobody_serves_this", id=id, task_queue="nobodys")

    began = time.monotonic()
    await engine.connection._taken_in(resting.task_id, 99)
    await engine.connection._taken_in(handle.id, 2)
    waited = time.monotonic() - began
    await handle.terminate()

    assert waited >= 2 * MOMENT_S
