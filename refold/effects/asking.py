"""What is asked again: a query, as a worker wishes; and what an activity asks the server, until it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio import activity
from temporalio.client import Client, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

ASK_AGAIN = "this workflow is about to take in what has just happened to it; ask again"
"""What a worker answers to a query that came ahead of a workflow task."""

PAUSE_S = 0.25
"""The pause, in seconds, before the server is asked again."""

_NEVER_TOLD = {
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.INVALID_ARGUMENT,
}
"""Refusals that the server would only repeat."""

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


async def told(ask: Callable[[Client], Awaitable[T]]) -> T | None:
    """What the server answers to the current activity, however long that takes; None if it never tells this client."""
    while True:
        try:
            return await ask(activity.client())
        except RPCError as error:
            if error.status in _NEVER_TOLD:
                return None
        except RuntimeError:  # there is no client, in a test of an activity
            return None
        await asyncio.sleep(PAUSE_S)
