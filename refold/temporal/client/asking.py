"""Questions to a task's worker, asked a second time where the first was lost."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, TypeVar

from temporalio.client import RPCTimeoutOrCancelledError, WorkflowHandle
from temporalio.common import QueryRejectCondition
from temporalio.service import RPCError, RPCStatusCode

T = TypeVar("T")

TRIES = 2
"""The SDK drops a question that comes just as it puts the task out of its memory: nobody ever answers that one."""


async def asked(
    handle: WorkflowHandle[Any, Any],
    query: str,
    arguments: Sequence[object] = (),
    *,
    kind: type[T],
    patience: timedelta,
    if_open: bool = False,
) -> T:
    """What a task's worker answers.

    Args:
        handle: Of the task.
        query: The question's name.
        arguments: The question's.
        kind: The answer's type.
        patience: How long all tries may take together.
        if_open: Do not answer where the task has ended.

    Raises:
        WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError: As the SDK's `query`.
    """
    for attempt in range(1, TRIES + 1):
        try:
            answer: T = await handle.query(
                query,
                args=arguments,
                result_type=kind,
                reject_condition=QueryRejectCondition.NOT_OPEN if if_open else None,
                rpc_timeout=patience / TRIES,
            )
        except (RPCTimeoutOrCancelledError, RPCError) as error:
            if attempt == TRIES or not timed_out(error):
                raise
        else:
            return answer
    raise AssertionError("the last try returns or raises")


def timed_out(error: Exception) -> bool:
    """Whether nobody has answered in time."""
    return isinstance(error, RPCTimeoutOrCancelledError) or (
        isinstance(error, RPCError) and error.status in (RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED)
    )
