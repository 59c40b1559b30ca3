"""What refold's errors say where a server or a worker refuses, fails, or does not answer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pydantic_core import PydanticSerializationError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import WorkflowTaskFailedEventAttributes
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowQueryFailedError,
)
from temporalio.exceptions import FailureError
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import CodecError, EngineError, InputRejected, NotConnected
from refold.core.values import REFUSAL_CHARS, shortened
from refold.temporal.data.search_attributes import REGISTER

NEWEST_EVENTS = 20
"""How many events are read, newest first. Only the first of several failures in a row is recorded."""

NOT_FITTING = "TMPRL1100"
"""Temporal's number for code that does not fit a history."""


def server_away(error: BaseException) -> bool:
    """Whether a call ended because the server was not there, or its connection broke."""
    # The SDK reports a connection that breaks under a call as UNKNOWN, with these words.
    return isinstance(error, RPCError) and (
        error.status is RPCStatusCode.UNAVAILABLE
        or (error.status is RPCStatusCode.UNKNOWN and "transport error" in error.message)
    )


def timed_out(error: Exception) -> bool:
    """Whether a call ended because no answer came in time."""
    return isinstance(error, RPCTimeoutOrCancelledError) or (
        isinstance(error, RPCError) and error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
    )


def why_unanswered(error: Exception, task_queue: str) -> str:
    """Why a task's worker could not be asked, and what to do."""
    if timed_out(error):
        return (
            f"no worker answers on task queue {task_queue!r}, so this is what the server knows; "
            "start one with `refold worker`"
        )
    if isinstance(error, WorkflowQueryFailedError | RPCError):
        return f"this is what the server knows: {explained(error.message)}"
    return str(error)


def server_refused(error: RPCError, what: str) -> EngineError:
    """The error for a call that the server refused or did not answer."""
    if error.status is RPCStatusCode.INVALID_ARGUMENT and "search attribute" in error.message.lower():
        return EngineError(
            f"the server cannot {what}: {error.message}. refold's search attributes are not registered there: start a "
            f"worker, which registers them if it may, or run: {REGISTER}"
        )
    if server_away(error) or timed_out(error):
        return NotConnected(f"the Temporal server does not answer: {error.message}; is it up? `refold dev` starts one")
    return EngineError(f"the server cannot {what}: {error.message}")


def unwritable(error: PydanticSerializationError) -> InputRejected:
    """What to tell somebody whose words cannot be written: half a surrogate pair, as text that was cut may end in."""
    return InputRejected(f"what is to be sent cannot be written as JSON: {shortened(str(error), REFUSAL_CHARS)}")


@contextlib.contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turn the server's refusals inside the block into errors that say what to do."""
    try:
        yield
    except RPCError as error:
        raise server_refused(error, what) from None


async def why_stuck(client: Client, description: WorkflowExecutionDescription) -> str | None:
    """The failure of a task's latest workflow tasks; None if they did not fail.

    Args:
        client: Connected.
        description: Of the task's open run.
    """
    failed = await failed_task(client, description)
    if failed is None:
        return None
    try:
        error = await client.data_converter.decode_failure(failed.failure)
    except CodecError as unread:
        return f"its worker says why, and this process cannot read it: {unread}"
    return explained(error.message if isinstance(error, FailureError) else str(error))


async def failed_task(
    client: Client, description: WorkflowExecutionDescription
) -> WorkflowTaskFailedEventAttributes | None:
    """The first of a task's latest workflow tasks, which failed; None if they did not fail."""
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
            return event.workflow_task_failed_event_attributes
    return None


def explained(failure: str) -> str:
    """A workflow task's failure, and how to mend it.

    Args:
        failure: Temporal's message.
    """
    if NOT_FITTING in failure:
        return (
            f"its code has changed and does not fit what has happened already ({failure}). Nothing is lost: run the "
            "code that fits, or make the change under `ctx.patched`, and the task goes on"
        )
    return f"its worker cannot go on with it: {failure}"
