"""The long poll on a task's Temporal history, which wakes the task's tail.

The server has no poll for several tasks, and ends a poll without news after about 20 seconds. So a process that watches
many tasks polls many times a second. It polls for all of them together: one poll after the other costs several times
less than the same polls spread over the 20 seconds, each of which wakes the process by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import math

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError

from refold.temporal.client.watch.reconnect import AGAIN_S, cut

_CHANGES = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CANCELED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TIMED_OUT,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW,
    }
)


LASTS_S = 10.0
"""A poll that ends without news after fewer seconds was cut; no other one starts again with it."""

SOON_S = 0.2
"""A poll that the server ends within so many seconds is left to it."""

MOST_TOGETHER = 200
"""How many polls start together, so that a server with many watched tasks gets no more of them at once."""


class Round:
    """Long polls that start together: when the server ends one of them, all start again."""

    def __init__(self) -> None:
        self._polls: set[LongPoll] = set()
        self._began = -math.inf

    @property
    def full(self) -> bool:
        """Whether no further poll should start with these."""
        return len(self._polls) >= MOST_TOGETHER

    def add(self, poll: LongPoll) -> None:
        """Add a poll."""
        self._polls.add(poll)

    def discard(self, poll: LongPoll) -> None:
        """Remove a poll."""
        self._polls.discard(poll)

    def ended(self, after_s: float) -> None:
        """Report that the server has ended a poll without news, after so many seconds: the others start again."""
        now = asyncio.get_running_loop().time()
        if after_s < LASTS_S or now - self._began < LASTS_S:
            return
        self._began = now
        for poll in self._polls:
            poll.start_again(after_s - SOON_S)


class LongPoll:
    """Signals changes of a task over all its runs, by one long poll at a time on the history."""

    def __init__(self, client: Client, task_id: str, round: Round) -> None:
        self._round = round
        self._began = 0.0
        self._until: asyncio.Timeout | None = None  # of the open poll
        self._client = client
        self._execution = WorkflowExecution(workflow_id=task_id)
        self._change = asyncio.Event()
        self._caught_up = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None

    @property
    def changed(self) -> bool:
        """Whether the task has changed, or the poll was cut, since `clear`."""
        return self._change.is_set()

    def clear(self) -> None:
        """Forget the changes so far."""
        self._change.clear()

    async def start(self) -> None:
        """Return when the poll has read the history so far, or has failed; later changes set `changed`."""
        self._polling = asyncio.create_task(self._poll_run())
        await self._caught_up.wait()

    async def wait(self, within_s: float | None = None) -> None:
        """Return when the task has changed, or the time is over.

        Raises:
            RPCError: The server refuses the poll.
        """
        if self._polling is None or self._polling.done():
            if self._polling is not None:
                self._polling.result()
            self._polling = asyncio.create_task(self._poll_run())  # of the task's next run
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._change.wait()

    def start_again(self, lasts_s: float) -> None:
        """Poll anew, unless the open poll has lasted so many seconds. Its page token marks what was read, so no change
        is lost."""
        now = asyncio.get_running_loop().time()
        if self._until is not None and now - self._began < lasts_s:
            self._until.reschedule(now)

    async def close(self) -> None:
        """Stop polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll_run(self) -> None:
        """Signal each change of the task's newest run, until that run is closed."""
        token = b""
        clock = asyncio.get_running_loop().time
        self._round.add(self)
        try:
            while True:
                self._began = clock()
                self._until = until = asyncio.timeout(None)
                try:
                    async with until:
                        answer = await self._poll(token)
                except TimeoutError:
                    if not until.expired():
                        raise
                    continue  # with the others
                except RPCError as error:
                    if not cut(error):
                        raise
                    # The page token marks what was read, so only the poll starts again. The waiting tail is woken, and
                    # checks whether the server answers.
                    self._wake()
                    self._until = None
                    await asyncio.sleep(AGAIN_S)
                    continue
                self._until = None
                if any(event.event_type in _CHANGES for event in answer.history.events):
                    self._change.set()
                self._caught_up.set()
                token = answer.next_page_token
                if not token:
                    return
                if not answer.history.events:
                    self._round.ended(clock() - self._began)
        finally:
            self._until = None
            self._round.discard(self)
            self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._caught_up.set()

    async def _poll(self, token: bytes) -> GetWorkflowExecutionHistoryResponse:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=self._execution,
            next_page_token=token,
            wait_new_event=True,
            skip_archival=True,
        )
        return await self._client.workflow_service.get_workflow_execution_history(request, retry=True)
