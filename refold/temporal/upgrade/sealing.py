"""Seals a task from outside, and sees who takes its new run."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowHistory

from refold.core.errors import InputRejected
from refold.engine import TaskView
from refold.temporal.client import updates, views
from refold.temporal.client.connection import Connection
from refold.temporal.data.wire import Sealed
from refold.temporal.upgrade.builds import builds_of

FIRST_LOOK_S, LONGEST_LOOK_S = 0.05, 1.0
"""The pause between two looks at whether a worker has taken a new run: the first, and the longest."""

_NOTHING_TAKEN = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_STARTED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED,
    EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT,
    EventType.EVENT_TYPE_TIMER_STARTED,
}
"""The events of a run that has begun and waits."""


def is_fresh(history: WorkflowHistory) -> bool:
    """Whether nothing has happened in a run since it began with a snapshot: it is sealed already."""
    first = history.events[0].workflow_execution_started_event_attributes
    return bool(first.continued_execution_run_id) and all(one.event_type in _NOTHING_TAKEN for one in history.events)


async def seal(connection: Connection, task_id: str, run_id: str | None = None) -> tuple[str, ...]:
    """Ask a task to go on in a new run at its next quiet moment.

    Args:
        connection: To the server.
        task_id: The task.
        run_id: The run that it should go on from: if it has done so meanwhile, it is not asked. None asks any.

    Returns:
        What it waits for; empty if it goes on at once, or has. A task that was asked before says the same again.

    Raises:
        InputRejected: The task has ended, or its worker's release of refold knows no seal.
        NoWorker: No worker took the request in time.
        EngineError: The server refuses, or does not answer.
    """
    try:
        sealed = await updates.update(connection, task_id, "seal", None, run_id=run_id, answer=Sealed)
    except InputRejected as error:
        if run_id is not None and (await connection.describe(task_id)).run_id != run_id:
            return ()
        view = await views.look(connection, task_id)
        if view.sealing:
            return view.sealing
        if "Update handler for 'seal'" in str(error):
            raise InputRejected(
                "its worker runs a release of refold that cannot seal a task: restart that worker with this release"
            ) from None
        raise
    return sealed.waits


async def still_waits(connection: Connection, task_id: str) -> tuple[str, ...]:
    """What the seal of a task waits for now; empty where its worker does not say."""
    view: TaskView = await views.look(connection, task_id)
    return view.sealing


async def taken(connection: Connection, task_id: str, run_id: str, patience: timedelta) -> WorkflowExecutionDescription:
    """The task, once a worker has taken the run after `run_id`, or it has ended; or as it is when patience is over."""
    pause, left_s = FIRST_LOOK_S, patience.total_seconds()
    while True:
        now = await connection.describe(task_id)
        if now.status is not WorkflowExecutionStatus.RUNNING or (now.run_id != run_id and builds_of(now)):
            return now
        if left_s <= 0:
            return now
        await asyncio.sleep(pause)
        left_s -= pause
        pause = min(2 * pause, LONGEST_LOOK_S)
