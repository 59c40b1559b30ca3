"""Queries that a worker asks to be sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.client import WorkflowQueryFailedError

ASK_AGAIN = "this workflow is about to take in what has just happened to it; ask again"
"""What a worker answers to a query that came ahead of a workflow task."""

T = TypeVar("T")


async def asked(ask: Callable[[], Awaitable[T]], taken_in: Callable[[int], Awaitable[None]]) -> T:
    """Send a query again while the worker asks for that: each time, the workflow has taken events in between.

    Args:
        ask: Sends the query.
        taken_in: Called before each retry, with the number of refusals so far: waits for the workflow task, or merely
            pauses. A worker that refuses a query forgets the workflow, so each retry that comes too early costs a
            replay.

    Raises:
        WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError: As the SDK's `query`.
    """
    refused = 0
    while True:
        try:
            return await ask()
        except WorkflowQueryFailedError as error:
            if ASK_AGAIN not in error.message:
                raise
        refused += 1
        await taken_in(refused)
