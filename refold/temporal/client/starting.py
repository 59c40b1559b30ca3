"""Starting tasks: new ones, and those that go on from another one."""

from __future__ import annotations

from datetime import UTC, datetime

from pydantic_core import PydanticSerializationError
from temporalio.client import WorkflowExecutionStatus
from temporalio.common import WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from refold.core.errors import TaskExists, TaskNotFound
from refold.core.lifecycle import TaskState
from refold.core.lineage.previous import Previous, check_previous, previous_of
from refold.engine import TaskView
from refold.temporal.client import search, views
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import server_refused, unwritable
from refold.temporal.client.journal import JournalReader
from refold.temporal.client.lineage import Origin
from refold.temporal.data.wire import TaskResult, TaskStart

SUMMARY_CHARS = 160
"""How much of a task's first message the Temporal UI shows."""


async def start(
    connection: Connection,
    skill: str,
    argument: TaskStart,
    task_id: str,
    summary: str,
    *,
    origin: Origin | None = None,
) -> TaskView:
    """Start a task, and see how it begins.

    Args:
        connection: To the server.
        skill: Its skill's id.
        argument: What the workflow starts with.
        task_id: Its id.
        summary: What the Temporal UI says of it.
        origin: What it goes on from.

    Raises:
        TaskExists: There is one with this id.
        UnknownSkill: The worker that took it has no such skill.
        InputRejected: The skill refused its input.
        EngineError: The server refuses, or does not answer.
    """
    from_task = None if origin is None else origin.task_id
    try:
        await connection.client.start_workflow(
            skill,
            argument,
            id=task_id,
            task_queue=connection.task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            search_attributes=search.at_start(
                skill,
                datetime.now(UTC),
                task_id=task_id,
                owner=argument.owner,
                context=argument.context,
                origin=from_task,
            ),
            memo=None if origin is None else origin.memo,
            static_summary=f"{skill}: {summary[:SUMMARY_CHARS]}",
            result_type=TaskResult,
        )
    except WorkflowAlreadyStartedError:
        raise TaskExists(task_id) from None
    except PydanticSerializationError as error:
        raise unwritable(error) from None
    except RPCError as error:
        raise server_refused(error, f"start task {task_id!r}") from None
    view = await views.status(connection, task_id)
    if isinstance(view, TaskView) and view.lifecycle is not TaskState.PLANNED:
        return view
    description = await connection.describe(task_id)
    if description.status is WorkflowExecutionStatus.RUNNING:
        return views.unanswered(description, str(view), submitted=True)
    return await views.view_of_closed(connection, description, new=True)


async def previous(connection: Connection, task_id: str, owner: str | None) -> Previous:
    """The conversation that a new task continues.

    Raises:
        InputRejected: The task is another owner's, or has not ended.
    """
    snapshot = await JournalReader(connection, task_id).at((await views.look(connection, task_id)).seq)
    check_previous(snapshot, owner)
    return previous_of(snapshot)


async def free_id(connection: Connection, stem: str) -> str:
    """The first id of no task: the stem and a number."""
    number = 1
    while True:
        try:
            await connection.describe(f"{stem}{number}")
        except TaskNotFound:
            return f"{stem}{number}"
        number += 1
