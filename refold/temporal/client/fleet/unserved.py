"""A new task whose first worker lacks its skill: refused if that is the only worker, else left to the others."""

from __future__ import annotations

from contextlib import suppress

from temporalio.client import WorkflowExecutionDescription
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from refold.engine import UnknownSkill
from refold.temporal.client.connection import Connection
from refold.temporal.client.failed import failed_task
from refold.temporal.client.fleet.polling import polls_of
from refold.temporal.client.views import NEVER_BEGAN, forget


async def why_not_begun(connection: Connection, description: WorkflowExecutionDescription) -> str | None:
    """Why a new task has not begun, though a worker took it; None if none has, or if it failed otherwise.

    Raises:
        UnknownSkill: The only worker on the task queue has no such skill. The task is deleted.
    """
    failed = await failed_task(connection.client, description)
    if failed is None:
        return None
    cause = (await connection.client.data_converter.decode_failure(failed.failure)).__cause__
    if not isinstance(cause, ApplicationError) or cause.type != UnknownSkill.__name__:
        return None
    refused = UnknownSkill(description.workflow_type, cause.details[0] if cause.details else ())
    with suppress(RPCError):  # a client that may not ask or terminate leaves the task to others
        polls = await polls_of(connection.client, connection.task_queue)
        if {one.identity for one in polls.recent()} == {failed.identity}:
            handle = connection.client.get_workflow_handle(description.id, run_id=description.run_id)
            await handle.terminate(NEVER_BEGAN, reason=str(refused))
            await forget(connection, description.id, description.run_id)
            raise refused
    return f"{refused}. That is what the worker says that took it, and it is left to the others on the task queue"
