"""A task whole: from its worker while it is open, from storage when it has ended, from its start where neither can be
asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import EventType
from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from refold.core.content import Message
from refold.core.errors import EngineError, StorageError, TaskNotFound
from refold.core.fold.record import TaskRecord, record_of, told_all
from refold.core.lifecycle import TaskState
from refold.temporal.client import search
from refold.temporal.client.asking import asked
from refold.temporal.data.payloads import load
from refold.temporal.data.wire import TaskStart

if TYPE_CHECKING:
    from refold.temporal.client.engine import TemporalEngine

ENDED_OUTSIDE = "Temporal ended it from outside"


class Records:
    """Reads one task."""

    def __init__(self, engine: TemporalEngine, task_id: str) -> None:
        self.engine = engine
        self.task_id = task_id

    async def read(self) -> TaskRecord:
        """See `Engine.record`."""
        if self.task_id in self.engine.ended:
            description = await self.engine._describe(self.task_id)
            if description.status is not WorkflowExecutionStatus.RUNNING:
                return await self._ended(description)
        handle = self.engine.client.get_workflow_handle(self.task_id)
        try:
            # One question in the usual case: the server itself says where the task has ended.
            return await asked(handle, "record", kind=TaskRecord, patience=self.engine.patience, if_open=True)
        except WorkflowQueryRejectedError:
            return await self._ended(await self.engine._describe(self.task_id))
        except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                raise TaskNotFound(self.task_id) from None
            if isinstance(error, RPCError) and error.status is RPCStatusCode.UNAVAILABLE:
                raise search.server_refused(error, f"reach task {self.task_id!r}") from None
            why = search.why_unanswered(error, self.engine.task_queue)
            description = await self.engine._describe(self.task_id)
            if description.status is not WorkflowExecutionStatus.RUNNING:
                return await self._ended(description)
            return await self._as_started(description, why)

    async def _ended(self, description: WorkflowExecutionDescription) -> TaskRecord:
        known = self.engine.ended.of(self.task_id, description.run_id)
        if known is not None:
            return known
        result = await self.engine.result(description)
        if result is None:
            return await self._as_started(description, ENDED_OUTSIDE)
        try:
            last = await load(result.journal, self.engine.client.data_converter)
        except StorageError as error:
            raise EngineError(f"what was said in task {self.task_id!r} cannot be read: {error}") from error
        record = told_all(record_of(last.base), last.entries)
        self.engine.ended.keep(description.run_id, record)
        return record

    async def _as_started(self, description: WorkflowExecutionDescription, why: str) -> TaskRecord:
        """The task as its last run began: nobody can say how it went on."""
        start = await self._start(description)
        listed = search.as_listed(description)
        fields = {
            "at": description.close_time or description.start_time,
            "status": listed.status,
            "status_at": listed.status_at,
            "lifecycle": listed.lifecycle,
            "reason": why if listed.lifecycle is TaskState.FAILED else "",
            "note": why,
        }
        if start.snapshot is not None:
            return record_of(start.snapshot).model_copy(update={**fields, "waits": ()})
        said = start.message
        messages = () if said is None else (Message(role="user", content=said.content, seq=1, id=said.message_id),)
        return TaskRecord(
            task_id=description.id,
            skill=description.workflow_type,
            messages=messages,
            owner=start.owner,
            context=start.context,
            parent=start.parent,
            **fields,
        )

    async def _start(self, description: WorkflowExecutionDescription) -> TaskStart:
        handle = self.engine.client.get_workflow_handle(description.id, run_id=description.run_id)
        async for event in handle.fetch_history_events(page_size=1):
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                payloads = event.workflow_execution_started_event_attributes.input.payloads
                decoded = await self.engine.client.data_converter.decode(payloads, [TaskStart])
                start: TaskStart = decoded[0]
                return start
        raise TaskNotFound(self.task_id)
