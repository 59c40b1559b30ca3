"""What the server alone can say of tasks: filters over visibility, and a task's state where no worker answers."""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from refold.core.lifecycle import Ending, Status, TaskState, derive_status
from refold.engine import EngineError, Listed, TaskFilter
from refold.seen.logs import logger
from refold.temporal.client.errors import namespace_missing, server_refused
from refold.temporal.data import search_attributes
from refold.temporal.data.search_attributes import (
    CONTEXT,
    KINDS,
    ORIGIN,
    OWNER,
    REGISTER,
    SKILL,
    STATE,
    STATE_AT,
    STATUS,
    STATUS_AT,
    keyed,
    quoted,
    state_since,
)

log = logger(__name__)

CLOSED = {
    WorkflowExecutionStatus.COMPLETED: (TaskState.DONE, Ending.COMPLETED),
    WorkflowExecutionStatus.FAILED: (TaskState.FAILED, Ending.FAILED),
    WorkflowExecutionStatus.CANCELED: (TaskState.FAILED, Ending.CANCELED),
    # C-13: whoever terminates a workflow cancels the task.
    WorkflowExecutionStatus.TERMINATED: (TaskState.FAILED, Ending.CANCELED),
    WorkflowExecutionStatus.TIMED_OUT: (TaskState.FAILED, Ending.FAILED),
}


ENDED_AS = "('Completed', 'Failed', 'Canceled', 'Terminated', 'TimedOut')"

# A failed task that compensates its effects or waits for a late grant is still open, but already shows how it ends.
FINAL = "('completed', 'failed', 'canceled', 'rejected')"
SHOWN_AT = f"(ExecutionStatus = 'Running' OR {STATUS.name} IN {FINAL})"
# A new task is marked as running, so that its first worker need not write that to its history. The server itself writes
# `BuildIds` when a worker completes the first workflow task of a run.
BUILD_IDS = SearchAttributeKey.for_keyword_list("BuildIds")
UNTAKEN = f"({STATE.name} = '{TaskState.RUNNING}' AND {BUILD_IDS.name} IS NULL)"

WAITS = (
    f"(ExecutionStatus = 'Running' AND ({STATUS.name} IN ('{Status.INPUT_REQUIRED}', '{Status.AUTH_REQUIRED}') OR "
    f"{STATE.name} = '{TaskState.BLOCKED}'))"
)
UNTIMED = f"(ExecutionStatus = 'Running' AND {STATUS_AT.name} IS NULL)"
"""A task of a schedule that no worker has taken: the server has no time of its status but that of its start."""

CLOSED_AT = f"(ExecutionStatus IN {ENDED_AS} AND {STATUS.name} NOT IN {FINAL})"


UNLISTED = "(check)"
"""In the index, the skill of a task that only asks whether a worker would take it. No skill has such an id."""

IN_LISTS = f"{SKILL.name} IS NOT NULL AND {SKILL.name} != {UNLISTED!r}"


def tasks(wanted: TaskFilter) -> str:
    """A visibility filter for tasks, their last runs only, from typed values: no text goes in unquoted."""
    parts = [IN_LISTS, "ExecutionStatus != 'ContinuedAsNew'"]
    if wanted.skill is not None:
        parts.append(f"{SKILL.name} = {quoted(wanted.skill)}")
    for key, value in ((OWNER, wanted.owner), (CONTEXT, wanted.context)):
        if value is not None:
            parts.append(f"{key.name} = {quoted(keyed(key.name, value))}")
    if wanted.begins is not None:
        parts.append(f"WorkflowId STARTS_WITH {quoted(wanted.begins)}")
    if wanted.lifecycle is not None:
        parts.append(_lifecycle(wanted.lifecycle))
    if wanted.status is not None:
        parts.append(_status(wanted.status))
    if wanted.waits:
        parts.append(WAITS)
    if wanted.moved_since is not None:
        parts.append(_moved_since(wanted.moved_since))
    return " AND ".join(parts)


def _moved_since(low: datetime) -> str:
    fields = (STATUS_AT.name, STATE_AT.name, "CloseTime", "StartTime")
    return f"({' OR '.join(within(field, low, None) for field in fields)})"


def moved_at(execution: WorkflowExecution) -> datetime:
    """When a task's status or state last changed: what `TaskFilter.moved_since` goes by."""
    known = (state_since(execution.typed_search_attributes), execution.close_time, execution.start_time)
    return max(at for at in known if at is not None)


def _lifecycle(lifecycle: TaskState) -> str:
    open_in = f"(ExecutionStatus = 'Running' AND {STATE.name} = {quoted(lifecycle.value)})"
    match lifecycle:
        case TaskState.PLANNED:
            return f"(ExecutionStatus = 'Running' AND ({STATE.name} = {quoted(lifecycle.value)} OR {UNTAKEN}))"
        case TaskState.RUNNING:
            return f"({open_in} AND NOT {UNTAKEN})"
        case TaskState.DONE:
            return "ExecutionStatus = 'Completed'"
        case TaskState.FAILED:
            return f"({open_in} OR ExecutionStatus IN ('Failed', 'Canceled', 'Terminated', 'TimedOut'))"
        case _:
            return open_in


def _status(status: Status) -> str:
    shows = f"{STATUS.name} = {quoted(status.value)}"
    open_as = f"(ExecutionStatus = 'Running' AND {shows})"
    match status:
        case Status.SUBMITTED:
            return _lifecycle(TaskState.PLANNED)
        case Status.WORKING:
            return f"({open_as} AND NOT {UNTAKEN})"
        case Status.COMPLETED:
            return "ExecutionStatus = 'Completed'"
        case Status.FAILED:
            failed = f"(ExecutionStatus IN ('Failed', 'TimedOut') AND {STATUS.name} != 'rejected')"
            return f"({open_as} OR {failed})"
        case Status.CANCELED:
            return f"({open_as} OR ExecutionStatus IN ('Canceled', 'Terminated'))"
        case Status.REJECTED:
            return shows
        case _:
            return open_as


def going_on_from(task_id: str) -> str:
    """A visibility filter for the tasks that were recovered or forked from this one."""
    return f"{ORIGIN.name} = {quoted(search_attributes.origin_value(task_id))} AND ExecutionStatus != 'ContinuedAsNew'"


def status_within(low: datetime, high: datetime | None) -> str:
    """A filter for tasks whose status last changed at `low` or later, and before `high`."""
    shown, closed = within(STATUS_AT.name, low, high), within("CloseTime", low, high)
    new = f"({UNTIMED} AND {within('StartTime', low, high)})"
    return f"(({SHOWN_AT} AND {shown}) OR ({CLOSED_AT} AND {closed}) OR {new})"


def within(field: str, low: datetime, high: datetime | None) -> str:
    """A filter for a time from `low` on, and before `high`."""
    return f"{field} >= {_moment(low)}" + ("" if high is None else f" AND {field} < {_moment(high)}")


def status_at(execution: WorkflowExecution) -> datetime:
    """When a task's status last changed: what `status_within` goes by."""
    shown = execution.typed_search_attributes
    if execution.close_time is not None and shown.get(STATUS) not in _FINAL:
        return execution.close_time
    return shown.get(STATUS_AT) or execution.start_time


def until(field: str, high: datetime) -> str:
    """A filter for a time before `high`."""
    return f"{field} < {_moment(high)}"


_FINAL = frozenset(ending.value for ending in Ending)


def at_start(
    skill: str,
    now: datetime,
    *,
    task_id: str,
    owner: str | None,
    context: str | None,
    origin: str | None = None,
    later: bool = False,
) -> TypedSearchAttributes:
    """The search attributes that a client starts a task with; see `TaskFilter` for what they are found by."""
    known = ((OWNER, owner or ""), (CONTEXT, context or task_id))
    pairs = [SearchAttributePair(key, keyed(key.name, value)) for key, value in known]
    return TypedSearchAttributes([*search_attributes.at_start(skill, now, origin=origin, later=later), *pairs])


def _moment(at: datetime) -> str:
    return quoted(at.astimezone(UTC).isoformat(timespec="microseconds"))


def as_shown(execution: WorkflowExecution) -> tuple[TaskState, Ending | None]:
    """A task's lifecycle and ending as the server knows them."""
    if execution.status in CLOSED:
        state, ending = CLOSED[execution.status]
        rejected = execution.typed_search_attributes.get(STATUS) == Status.REJECTED.value
        return state, Ending.REJECTED if rejected else ending
    shown = execution.typed_search_attributes.get(STATE)
    # A newer release may write a state or a status that this one does not know; its task must not hide the others.
    state = TaskState(shown) if shown in set(TaskState) else TaskState.RUNNING
    return TaskState.PLANNED if state is TaskState.RUNNING and untaken(execution) else state, None


def untaken(execution: WorkflowExecution) -> bool:
    """Whether no worker has taken the task. A later run of a task was begun by a worker."""
    first = execution.raw_info.first_run_id or execution.run_id
    return execution.typed_search_attributes.get(BUILD_IDS) is None and first == execution.run_id


def as_listed(execution: WorkflowExecution) -> Listed:
    """A task as the server's index has it."""
    lifecycle, ending = as_shown(execution)
    open_as = execution.typed_search_attributes.get(STATUS) if ending is None else None
    known = open_as in set(Status) and lifecycle is not TaskState.PLANNED
    status = Status(str(open_as)) if known else derive_status(lifecycle, ending)
    return Listed(
        task_id=execution.id,
        skill=execution.typed_search_attributes.get(SKILL) or execution.workflow_type,
        status=status,
        lifecycle=lifecycle,
        status_at=status_at(execution),
        moved_at=moved_at(execution),
        over=execution.status != WorkflowExecutionStatus.RUNNING,
    )


_DENIED = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED, RPCStatusCode.UNAUTHENTICATED)
"""How servers answer calls to the operator service that they do not allow, as Temporal Cloud does."""


async def register(client: Client) -> None:
    """Register the search attributes that the server lacks; where that is not allowed, check that it lacks none.

    Raises:
        EngineError: An attribute is missing and the server refuses to register it; the message has the commands.
    """
    try:
        await _add_missing(client)
    except RPCError as error:
        if error.status in _DENIED:
            await _check_known(client, error)
        elif namespace_missing(error):
            raise server_refused(error, "register refold's search attributes") from None
        elif error.status is not RPCStatusCode.ALREADY_EXISTS:  # another worker was faster
            raise _unregistered(error) from None


async def _add_missing(client: Client) -> None:
    listed = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace), retry=True
    )
    missing = {name: kind for name, kind in KINDS.items() if name not in listed.custom_attributes}
    if not missing:
        return
    kinds = {name: IndexedValueType.Value(f"INDEXED_VALUE_TYPE_{kind.upper()}") for name, kind in missing.items()}
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=client.namespace, search_attributes=kinds), retry=True
    )


async def _check_known(client: Client, denied: RPCError) -> None:
    """Check that all attributes are registered: the server refuses a query that uses one which it does not know."""
    try:
        await client.count_workflows(" AND ".join(f"{name} IS NOT NULL" for name in KINDS))
    except RPCError as error:
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            raise _unregistered(denied) from None
        log.warning(
            "search_attributes_unchecked",
            error=error.message,
            hint=f"if a task cannot start because of its search attributes, register them: {REGISTER}",
        )


def _unregistered(error: RPCError) -> EngineError:
    return EngineError(
        f"refold's search attributes cannot be registered ({error.message}); whoever runs the server can: {REGISTER}"
    )
