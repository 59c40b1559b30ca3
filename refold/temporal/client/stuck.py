"""Why a task stands still although its worker is there: Temporal keeps what its last try to go on met."""

from __future__ import annotations

from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription

NEWEST_EVENTS = 20
"""How many events are read, newest first. Only the first of several failures in a row is recorded."""

NOT_FITTING = "TMPRL1100"
"""Temporal's number for code that does not fit a history."""


async def why_stuck(client: Client, description: WorkflowExecutionDescription) -> str | None:
    """What a worker met when it tried to go on with a task; None where none has failed at it.

    Args:
        client: Connected.
        description: Of the task's open run.
    """
    if description.raw_description.pending_workflow_task.attempt <= 1:
        return None
    answer = await client.workflow_service.get_workflow_execution_history_reverse(
        GetWorkflowExecutionHistoryReverseRequest(
            namespace=client.namespace,
            execution=description.raw_description.workflow_execution_info.execution,
            maximum_page_size=NEWEST_EVENTS,
        )
    )
    for event in answer.history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
            return in_words(event.workflow_task_failed_event_attributes.failure.message)
    return None


def in_words(failure: str) -> str:
    """What a worker met, and the way out.

    Args:
        failure: Temporal's message.
    """
    if NOT_FITTING in failure:
        return (
            f"its code has changed and does not fit what has happened already ({failure}). Nothing is lost: run the "
            "code that fits, or make the change under `ctx.patched`, and the task goes on"
        )
    return f"its worker cannot go on with it: {failure}"
