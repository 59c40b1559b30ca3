"""Why a task's workflow tasks fail, as far as the server keeps it: it keeps the failure of a first attempt alone."""

from __future__ import annotations

from datetime import timedelta
from itertools import takewhile

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent, WorkflowTaskFailedEventAttributes
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest, SignalWorkflowExecutionRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.service import RPCError

from refold.effects.asking import ASK_AGAIN
from refold.temporal.data.wire import TRY_ANEW

NEWEST_EVENTS = 20
"""How many events are read, newest first."""

MOST_ANEW = 4
"""How often a task that stands still is given a new first attempt: each may be lost with one more of the polls of
workers that are gone. No more than `NEWEST_EVENTS` holds, with the four events of each."""

ASK_PATIENCE = timedelta(seconds=2)
"""How long the server may take to say why a task stands still."""


async def failed_task(
    client: Client, description: WorkflowExecutionDescription
) -> WorkflowTaskFailedEventAttributes | None:
    """The newest failure that the server keeps of a task's open workflow task; None if it keeps none."""
    failed = filter(_says_why, await _attempts(client, description))
    return next((event.workflow_task_failed_event_attributes for event in failed), None)


async def try_anew(client: Client, description: WorkflowExecutionDescription) -> bool:
    """Make the server begin a new first attempt of a task's workflow task, by a signal that the task ignores.

    Sent where the first attempt was lost with its worker, or failed because the worker could not read the history in
    time: the server keeps the failure of a first attempt alone. At most `MOST_ANEW` signals are sent while the task
    makes no progress, so that whoever looks at it again and again does not fill its history.

    Returns:
        Whether it was sent.
    """
    attempts = await _attempts(client, description)
    lost = [event for event in attempts if event.event_type in _ENDED_ILL and not _says_why(event)]
    ours = [event for event in attempts if _is_ours(event)]
    if not lost or any(map(_says_why, attempts)) or len(ours) == MOST_ANEW:
        return False
    if ours and ours[0].event_id > lost[0].event_id:  # its attempt is under way
        return False
    request = SignalWorkflowExecutionRequest(
        namespace=client.namespace,
        workflow_execution=description.raw_description.workflow_execution_info.execution,
        signal_name=TRY_ANEW,
        identity=client.identity,
        request_id=f"{TRY_ANEW}/{lost[0].event_id}",  # those that look at once send one: history tells of it later
    )
    try:
        await client.workflow_service.signal_workflow_execution(request, retry=True)
    except RPCError:  # a client that may only read, a task that has ended meanwhile
        return False
    return True


_ENDED_ILL = (EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT, EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED)


def _says_why(event: HistoryEvent) -> bool:
    """Whether a workflow task failed for a reason that lasts, and not since its worker was to be asked again."""
    failed = event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    return failed and ASK_AGAIN not in event.workflow_task_failed_event_attributes.failure.message


def _is_ours(event: HistoryEvent) -> bool:
    return event.workflow_execution_signaled_event_attributes.signal_name == TRY_ANEW


async def _attempts(client: Client, description: WorkflowExecutionDescription) -> list[HistoryEvent]:
    """The events after the last completed workflow task, newest first, `NEWEST_EVENTS` at most.

    Empty while a first attempt is under way, or if the server refuses.
    """
    if description.raw_description.pending_workflow_task.attempt <= 1:
        return []
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=description.raw_description.workflow_execution_info.execution,
        maximum_page_size=NEWEST_EVENTS,
    )
    try:
        answer = await client.workflow_service.get_workflow_execution_history_reverse(
            request, retry=True, timeout=ASK_PATIENCE
        )
    except RPCError:  # an outage, or a client that may not: what else is known of the task is told without it
        return []
    done = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
    return list(takewhile(lambda event: event.event_type != done, answer.history.events))
