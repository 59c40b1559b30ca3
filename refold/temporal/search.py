"""What the server alone can say of tasks: filters over visibility, and a task's state where no worker answers."""

from __future__ import annotations

from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import EngineError, NotConnected
from refold.core.lifecycle import Ending, Status, TaskState
from refold.temporal import show

_CLOSED = {
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


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def as_shown(execution: WorkflowExecution) -> tuple[TaskState, Ending | None]:
    """A task's lifecycle and ending as the server knows them."""
    if execution.status in _CLOSED:
        state, ending = _CLOSED[execution.status]
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
        return f"its worker cannot answer, so this is what the server knows: {error.message}"
    return str(error)


def query_refused(error: RPCError) -> EngineError:
    """What to tell somebody whose list the server refused."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT:
        return EngineError(
            f"the server cannot list tasks: {error.message}. Its search attributes may be missing; `refold dev` and "
            "docker-compose register them, elsewhere: temporal operator search-attribute create --name RefoldSkill "
            "--type Keyword, and so on for each that docs/operate.md lists"
        )
    return NotConnected(f"the Temporal server does not answer: {error.message}; is it up? `refold dev` starts one")
