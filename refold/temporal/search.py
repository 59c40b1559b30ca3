"""What the server alone can say of tasks: filters over visibility, and a task's state where no worker answers."""

from __future__ import annotations

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import EngineError, NotConnected
from refold.core.lifecycle import Ending, Status, TaskState
from refold.temporal import show
from refold.temporal.stuck import in_words

CLOSED = {
    WorkflowExecutionStatus.COMPLETED: (TaskState.DONE, Ending.COMPLETED),
    WorkflowExecutionStatus.FAILED: (TaskState.FAILED, Ending.FAILED),
    WorkflowExecutionStatus.CANCELED: (TaskState.FAILED, Ending.CANCELED),
    # C-13: whoever terminates a workflow cancels the task.
    WorkflowExecutionStatus.TERMINATED: (TaskState.FAILED, Ending.CANCELED),
    WorkflowExecutionStatus.TIMED_OUT: (TaskState.FAILED, Ending.FAILED),
}


def tasks(*, skill: str | None = None, lifecycle: TaskState | None = None) -> str:
    """A visibility filter for tasks, newest runs only, from typed values: no text goes in unquoted."""
    parts = [f"{show.SKILL.name} IS NOT NULL", "ExecutionStatus != 'ContinuedAsNew'"]
    if skill is not None:
        parts.append(f"{show.SKILL.name} = {_quoted(skill)}")
    match lifecycle:
        case None:
            pass
        case TaskState.DONE:
            parts.append("ExecutionStatus = 'Completed'")
        case TaskState.FAILED:
            parts.append("ExecutionStatus IN ('Failed', 'Canceled', 'Terminated', 'TimedOut')")
        case _:
            parts += ["ExecutionStatus = 'Running'", f"{show.STATE.name} = {_quoted(lifecycle.value)}"]
    return " AND ".join(parts)


def going_on_from(task_id: str) -> str:
    """A visibility filter for the tasks that were recovered or forked from this one."""
    return f"{show.ORIGIN.name} = {_quoted(task_id)} AND ExecutionStatus != 'ContinuedAsNew'"


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def as_shown(execution: WorkflowExecution) -> tuple[TaskState, Ending | None]:
    """A task's lifecycle and ending as the server knows them."""
    if execution.status in CLOSED:
        state, ending = CLOSED[execution.status]
        rejected = execution.typed_search_attributes.get(show.STATUS) == Status.REJECTED.value
        return state, Ending.REJECTED if rejected else ending
    shown = execution.typed_search_attributes.get(show.STATE)
    return TaskState(shown) if shown else TaskState.RUNNING, None


def why_unanswered(error: Exception, task_queue: str) -> str:
    """Why a task's worker could not be asked, and what to do."""
    timed_out = isinstance(error, RPCTimeoutOrCancelledError) or (
        isinstance(error, RPCError) and error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
    )
    if timed_out:
        return (
            f"no worker answers on task queue {task_queue!r}, so this is what the server knows; "
            "start one with `refold worker`"
        )
    if isinstance(error, WorkflowQueryFailedError | RPCError):
        return f"this is what the server knows: {in_words(error.message)}"
    return str(error)


def server_refused(error: RPCError, what: str) -> EngineError:
    """What to tell somebody to whom the server said no, or nothing."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message.lower():
        return EngineError(
            f"the server cannot {what}: {error.message}. refold's search attributes are not registered there: start a "
            f"worker, which registers them if it may, or run: {REGISTER}"
        )
    if error.status in (RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED):
        return NotConnected(f"the Temporal server does not answer: {error.message}; is it up? `refold dev` starts one")
    return EngineError(f"the server cannot {what}: {error.message}")


REGISTER = "; ".join(
    f"temporal operator search-attribute create --name {name} --type {kind}" for name, kind in show.KINDS.items()
)
"""The commands that register what tasks are found by; one call each, for a call with several takes only the first."""


async def register(client: Client) -> None:
    """Make the server know what tasks are found by, as far as it does not.

    Raises:
        EngineError: It does not, and we may not tell it; the message has the commands.
    """
    try:
        listed = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
        missing = {name: kind for name, kind in show.KINDS.items() if name not in listed.custom_attributes}
        if missing:
            kinds = {
                name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}") for name, kind in missing.items()
            }
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds)
            )
    except RPCError as error:
        if error.status is RPCStatusCode.ALREADY_EXISTS:
            return  # another worker was faster
        raise EngineError(
            f"refold's search attributes cannot be registered ({error.message}); whoever runs the server can: "
            f"{REGISTER}"
        ) from None
