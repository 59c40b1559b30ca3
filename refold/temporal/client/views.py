"""A task's present state: from its worker while it is open, from its result once it has ended, else from the server."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.exceptions import ApplicationError, TerminatedError
from temporalio.service import RPCError

from refold.core.errors import InputRejected
from refold.core.lifecycle import Ending, derive_status
from refold.engine import NoWorker, TaskNotFound, TaskView, UnknownSkill
from refold.engine.refusals import start_refused
from refold.formats import NewerFields, known_here
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import of_task, why_effects_wait, why_unanswered
from refold.temporal.client.index import search
from refold.temporal.data.search_attributes import state_since
from refold.temporal.data.wire import RESULT_MEMO, TaskResult


async def look(connection: Connection, task_id: str) -> TaskView:
    """See `Engine.look`."""
    return await connection.crowds.of(task_id).look(partial(_seen, connection, task_id))


async def _seen(connection: Connection, task_id: str) -> TaskView:
    try:
        return await _with_silent_queues(connection, await told(connection, task_id))
    except Silent as silent:
        return unanswered(silent.description, str(silent))


async def _with_silent_queues(connection: Connection, view: TaskView) -> TaskView:
    """A task as its worker sees it, with a note if effects wait since no worker polls their own task queue."""
    try:
        why = await why_effects_wait(connection.client, view)
    except RPCError:
        return view  # it has ended meanwhile, or the server is away: what the worker said stands
    return view.model_copy(update={"note": why}) if why else view


class Silent(NoWorker):
    """An open task whose worker does not answer; the message says why.

    Attributes:
        description: The task as the server knows it.
    """

    def __init__(self, why: str, description: WorkflowExecutionDescription) -> None:
        self.description = description
        super().__init__(why)


async def told(connection: Connection, task_id: str) -> TaskView:
    """A task as its worker answers; once the task has ended, as its result says.

    Raises:
        Silent: It is open, and its worker does not answer.
        TaskNotFound: There is no such task.
    """
    # One query for an open task; the server refuses to ask about one that has ended.
    view = await status(connection, task_id, if_open=True)
    if isinstance(view, TaskView):
        return view
    description = await connection.describe(task_id)
    if description.status is not WorkflowExecutionStatus.RUNNING:
        return await view_of_closed(connection, description)
    raise Silent(await why_unanswered(connection.client, view, description), description)


async def view_of(connection: Connection, description: WorkflowExecutionDescription) -> TaskView:
    """A task whose description is known already."""
    if description.status is not WorkflowExecutionStatus.RUNNING:
        return await view_of_closed(connection, description)
    view = await status(connection, description.id, run_id=description.run_id)
    if isinstance(view, TaskView):
        return await _with_silent_queues(connection, view)
    return unanswered(description, await why_unanswered(connection.client, view, description))


async def status(
    connection: Connection, task_id: str, *, run_id: str | None = None, if_open: bool = False
) -> TaskView | Exception:
    """The task as its worker sees it; or the error that came instead."""
    try:
        return await connection.query(task_id, "status", kind=TaskView, run_id=run_id, if_open=if_open)
    except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError, WorkflowQueryRejectedError) as error:
        return error


async def view_of_closed(
    connection: Connection, description: WorkflowExecutionDescription, *, new: bool = False
) -> TaskView:
    """A task whose workflow has closed; see `result_of`."""
    result = await result_of(connection, description, new=new)
    return result.task if result is not None else unanswered(description, await why_ended(connection, description))


async def closed(connection: Connection, task_id: str) -> None:
    """Wait until a task's workflow has closed, at most as long as the connection is patient."""
    handle = connection.client.get_workflow_handle(task_id, result_type=TaskResult)
    with contextlib.suppress(TimeoutError, WorkflowFailureError, RPCError):  # who looks next is told of an outage
        async with asyncio.timeout(connection.patience.total_seconds()):
            await handle.result()


async def result_of(
    connection: Connection, description: WorkflowExecutionDescription, *, new: bool = False
) -> TaskResult | None:
    """What an ended task left behind; None where Temporal ended it from outside, or where it is no skill's workflow.

    Args:
        connection: To the server.
        description: Of the task's last run.
        new: It was started just now: a refusal of its start is raised, and the task deleted.

    Raises:
        UnknownSkill: No worker has its skill; only where it is new.
        InputRejected: Its skill refused its input; only where it is new.
        TaskNotFound: It was deleted meanwhile.
        NewerFormat: A newer release wrote it, and it holds what this one does not know.
        EngineError: The server refuses, or does not answer.
    """
    handle = connection.client.get_workflow_handle(description.id, run_id=description.run_id, result_type=TaskResult)
    try:
        with of_task(description.id, _END):
            completed = await handle.result(follow_runs=False)
    except WorkflowFailureError as error:
        cause = error.cause
    except ValidationError as error:
        if all(len(one["loc"]) > 1 for one in error.errors()):  # what is wrong is within a task and its journal
            raise NewerFields("result", error) from error
        return None
    else:
        return completed if isinstance(completed, TaskResult) else None
    with known_here("result"):
        if isinstance(cause, ApplicationError) and cause.type in ("TaskFailed", "TaskRejected") and cause.details:
            return TaskResult.model_validate_json(to_json(cause.details[0]))
        if isinstance(cause, ApplicationError) and new:
            await _raise_refusal(connection, description, cause)
        memo = await description.memo_value(RESULT_MEMO, None, type_hint=TaskResult)
        return memo if isinstance(memo, TaskResult) else None


def unanswered(description: WorkflowExecutionDescription, why: str) -> TaskView:
    """A task as far as the server knows it, for when neither a worker nor a result answers."""
    lifecycle, ending = search.as_shown(description)
    return TaskView(
        task_id=description.id,
        skill=description.workflow_type,
        status=derive_status(lifecycle, ending),
        lifecycle=lifecycle,
        reason=why if ending is not None and ending is not Ending.COMPLETED else "",
        updated_at=description.close_time
        or state_since(description.typed_search_attributes)  # after a seal its run began later
        or description.start_time,
        note=why,
    )


async def why_ended(connection: Connection, description: WorkflowExecutionDescription) -> str:
    """Why a task without a result ended: its start was refused, or Temporal ended it from outside."""
    cause = await _cause_of_end(connection, description)
    if refused := _refusal(cause):
        return refused
    if description.status is WorkflowExecutionStatus.COMPLETED:
        return (
            f"what it returned is the result of no skill: {description.workflow_type!r} is another program's workflow, "
            "and Temporal's own tools show it"
        )
    return "Temporal ended it from outside" + ("" if cause is None else f": {cause}")


async def why_refused(connection: Connection, description: WorkflowExecutionDescription) -> str:
    """Why the start of a task without a result was refused; empty if it was not."""
    return _refusal(await _cause_of_end(connection, description))


def _refusal(cause: BaseException | None) -> str:
    if isinstance(cause, ApplicationError) and cause.type in _REFUSALS:
        return start_refused(cause.message)
    return ""


async def _cause_of_end(connection: Connection, description: WorkflowExecutionDescription) -> BaseException | None:
    handle = connection.client.get_workflow_handle(description.id, run_id=description.run_id)
    try:
        with of_task(description.id, _END):
            await handle.result(follow_runs=False)
    except WorkflowFailureError as error:
        return error.cause
    return None


async def never_began(connection: Connection, task_id: str) -> bool:
    """Whether there is no such task, or its start was refused, so that its id is free."""
    try:
        return await start_was_refused(connection, await connection.describe(task_id))
    except TaskNotFound:
        return True  # perhaps deleted just now


async def start_was_refused(connection: Connection, description: WorkflowExecutionDescription) -> bool:
    """Whether no worker has begun a task, and none will; the server deletes such a task in its own time.

    Raises:
        TaskNotFound: It was deleted just now.
    """
    if description.status is WorkflowExecutionStatus.RUNNING:
        return False
    cause = await _cause_of_end(connection, description)
    if isinstance(cause, TerminatedError):
        return NEVER_BEGAN in cause.details
    return bool(_refusal(cause))


_END = "read the end of"

_REFUSALS = (UnknownSkill.__name__, InputRejected.__name__)

NEVER_BEGAN = "never began"
"""Why a task that no worker has begun is terminated, as a detail of its termination."""


async def _raise_refusal(
    connection: Connection, description: WorkflowExecutionDescription, cause: ApplicationError
) -> None:
    """Delete a task whose start was refused, and raise the refusal; nothing for any other failure."""
    if cause.type not in _REFUSALS:
        return
    await forget(connection, description.id, description.run_id)
    if cause.type == UnknownSkill.__name__:
        raise UnknownSkill(description.workflow_type, cause.details[0] if cause.details else ())
    raise InputRejected(cause.message)


async def forget(connection: Connection, task_id: str, run_id: str | None) -> None:
    """Delete a run that never began; None is the task's newest."""
    with contextlib.suppress(RPCError):  # a server that lets nobody delete keeps a failed workflow
        await connection.client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=connection.client.namespace,
                workflow_execution=WorkflowExecution(workflow_id=task_id, run_id=run_id or ""),
            ),
            retry=True,
        )
