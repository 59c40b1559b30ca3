"""A whole task as a `TaskRecord`: from its worker while it is open, from storage or its start once it has ended."""

from __future__ import annotations

from functools import partial

from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError

from refold.core.fold.journal import as_said
from refold.core.lifecycle import TaskState
from refold.engine import EngineError, NoWorker, StorageError, TaskNotFound
from refold.engine.refusals import START_REFUSED
from refold.engine.view import with_first
from refold.record import TaskRecord, record_of, with_entries
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import is_missing, of_task, server_away, server_refused, why_unanswered
from refold.temporal.client.index import search
from refold.temporal.client.record_cache import RecordCache, Standing
from refold.temporal.client.views import result_of, why_refused
from refold.temporal.data.inputs import start_from
from refold.temporal.data.payloads import load
from refold.temporal.data.search_attributes import OWNER, keyed
from refold.temporal.data.wire import TaskStart

ENDED_OUTSIDE = "Temporal ended it from outside"
"""Without what an operator said, which is not for those who only called for the task."""


async def read_record(connection: Connection, cache: RecordCache, task_id: str) -> TaskRecord:
    """See `Engine.record`.

    Args:
        connection: To the server.
        cache: Of the records of tasks that stand still.
        task_id: The task.
    """
    return await connection.crowds.of(task_id).record(partial(_read, connection, cache, task_id))


async def _read(connection: Connection, cache: RecordCache, task_id: str) -> TaskRecord:
    standing = await connection.standing(task_id) if task_id in cache else None
    if standing is not None and (known := cache.of(task_id, standing)) is not None:
        return known
    try:
        # One query in the usual case: the server itself says where the task has ended.
        record = await connection.query(task_id, "record", kind=TaskRecord, if_open=True)
        if record.paused and not record.differs:
            cache.keep(record, standing)
        return record
    except WorkflowQueryRejectedError:
        return await _ended(connection, cache, await connection.describe(task_id))
    except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError) as error:
        if isinstance(error, RPCError) and is_missing(error):
            raise TaskNotFound(task_id) from None
        if isinstance(error, RPCError) and server_away(error):
            raise server_refused(error, f"reach task {task_id!r}") from None
        description = await connection.describe(task_id)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return await _ended(connection, cache, description)
        return await _as_started(connection, description, await why_unanswered(connection.client, error, description))


async def _ended(connection: Connection, cache: RecordCache, description: WorkflowExecutionDescription) -> TaskRecord:
    standing = Standing(run_id=description.run_id)
    known = cache.of(description.id, standing)
    if known is not None:
        return known
    result = await result_of(connection, description)
    if result is None:
        refused = await why_refused(connection, description)
        note = START_REFUSED if refused else ENDED_OUTSIDE  # as the reason, but for what a refusal may quote
        return await _as_started(connection, description, note, refused or ENDED_OUTSIDE)
    try:
        last = await load(result.journal, connection.client.data_converter)
    except StorageError as error:
        raise EngineError(f"what was said in task {description.id!r} cannot be read: {error}") from error
    record = with_entries(record_of(last.base), last.entries)
    cache.keep(record, standing)
    return record


async def _as_started(
    connection: Connection, description: WorkflowExecutionDescription, note: str, reason: str = ""
) -> TaskRecord:
    """The task as its last run began, where neither worker nor result says how it went on.

    Raises:
        NoWorker: It has an owner whose name this process cannot read, and its worker does not answer.
        EngineError: The same of a task that has ended.
    """
    start = await start_of(connection, description)
    # The index has a hash of the owner alone. Without the name the task would count as one that has no owner.
    owned = description.typed_search_attributes.get(OWNER) not in (None, keyed(OWNER.name, ""))
    if owned and start == TaskStart():
        kind = NoWorker if description.status is WorkflowExecutionStatus.RUNNING else EngineError
        raise kind(f"what task {description.id!r} began with cannot be read, nor whose it is: {note}")
    listed = search.as_listed(description)
    fields = {
        "at": description.close_time or description.start_time,
        "status": listed.status,
        "status_at": listed.status_at,
        "lifecycle": listed.lifecycle,
        "reason": (reason or note) if listed.lifecycle is TaskState.FAILED else "",
        "note": note,
    }
    if start.snapshot is not None:
        return record_of(with_first(start.snapshot, start.message)).model_copy(update={**fields, "waits": ()})
    said = start.message
    return TaskRecord(
        task_id=description.id,
        skill=description.workflow_type,
        messages=() if said is None else (as_said(said, seq=1),),
        owner=start.owner,
        context=start.context,
        parent=start.parent,
        **fields,
    )


async def start_of(connection: Connection, description: WorkflowExecutionDescription) -> TaskStart:
    """What a task's last run began with, from its history; empty where something else was sent in its place."""
    handle = connection.client.get_workflow_handle(description.id, run_id=description.run_id)
    with of_task(description.id, "read the start of"):
        async for event in handle.fetch_history_events(page_size=1):
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                payloads = event.workflow_execution_started_event_attributes.input.payloads
                try:
                    return start_from(await connection.client.data_converter.decode(payloads))
                except Exception:  # noqa: BLE001 - whatever was sent in place of a start, the task was refused for it
                    return TaskStart()
    raise TaskNotFound(description.id)
