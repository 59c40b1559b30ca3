"""The long poll on a task's Temporal history, which wakes the task's tail."""

from __future__ import annotations

import asyncio
import contextlib

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


class LongPoll:
    """Signals changes of a task over all its runs, by one long poll at a time on the history."""

    def __init__(self, client: Client, task_id: str) -> None:
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

    async def close(self) -> None:
        """Stop polling."""
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.gather(self._polling, return_exceptions=True)

    async def _poll_run(self) -> None:
        """Signal each change of the task's newest run, until that run is closed."""
        token = b""
        try:
            while True:
                try:
                    answer = await self._poll(token)
                except RPCError as error:
                    if not cut(error):
                        raise
                    # The page token marks what was read, so only the poll starts again. The waiting tail is woken, and
                    # checks whether the server answers.
                    self._wake()
                    await asyncio.sleep(AGAIN_S)
                    continue
                if any(event.event_type in _CHANGES for event in answer.history.events):
                    self._change.set()
                self._caught_up.set()
                token = answer.next_page_token
                if not token:
                    return
        finally:
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
