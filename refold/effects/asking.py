"""Queries that a worker asks to be sent again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.client import WorkflowQueryFailedError

ASK_AGAIN = "this workflow is about to take in what has just happened to it; ask again"
"""What a worker answers to a query that came ahead of a workflow task."""

T = TypeVar("T")


async def asked(ask: Callable[[], Awaitable[T]]) -> T:
    """Send a query again for as long as a worker says so: each time, the workflow has taken something in meanwhile.

    Raises:
        WorkflowQueryFailedError, WorkflowQueryRejectedError, RPCError: As the SDK's `query`.
    """
    while True:
        try:
            return await ask()
        except WorkflowQueryFailedError as error:
            if ASK_AGAIN not in error.message:
                raise
