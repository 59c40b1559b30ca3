"""What rings for each change of a task: Temporal's history, waited for in one long poll."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.service import RPCError

from refold.temporal.client.outage import AGAIN_S, CUT

if TYPE_CHECKING:
    from refold.temporal.client.engine import TemporalEngine

_RINGS = frozenset(
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


class Bell:
    """Rings for each change of a task, over all its runs: one long poll at a time on the history."""

    def __init__(self, engine: TemporalEngine, task_id: str) -> None:
        self._client = engine.client
        self._execution = WorkflowExecution(workflow_id=task_id)
        self._ring = asyncio.Event()
        self._heard = asyncio.Event()
        self._listening: asyncio.Task[None] | None = None

    @property
    def rings(self) -> bool:
        """It has rung since it was cleared."""
        return self._ring.is_set()

    def clear(self) -> None:
        """Be silent until the next change."""
        self._ring.clear()

    async def listens(self) -> None:
        """Return when it has heard what happened so far, or could not: the next ring is for something new."""
        self._listening = asyncio.create_task(self._listen())
        await self._heard.wait()

    async def rung(self, within_s: float | None = None) -> None:
        """Return when it has rung, or the time is over.

        Raises:
            RPCError: The server refuses to let it listen.
        """
        if self._listening is None or self._listening.done():
            if self._listening is not None:
                self._listening.result()
            self._listening = asyncio.create_task(self._listen())  # to the task's next run
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._ring.wait()

    async def close(self) -> None:
        """Listen no more."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)

    async def _listen(self) -> None:
        """Ring for each change of the task's newest run, until that run is closed."""
        token = b""
        try:
            while True:
                try:
                    answer = await self._poll(token)
                except RPCError as error:
                    if error.status not in CUT:
                        raise
                    # What was read is known, so only the waiting begins again. Whoever hears the bell finds out
                    # whether the server is there.
                    self._tell()
                    await asyncio.sleep(AGAIN_S)
                    continue
                if any(event.event_type in _RINGS for event in answer.history.events):
                    self._ring.set()
                self._heard.set()
                token = answer.next_page_token
                if not token:
                    return
        finally:
            self._tell()

    def _tell(self) -> None:
        self._ring.set()
        self._heard.set()

    async def _poll(self, token: bytes) -> GetWorkflowExecutionHistoryResponse:
        request = GetWorkflowExecutionHistoryRequest(
            namespace=self._client.namespace,
            execution=self._execution,
            next_page_token=token,
            wait_new_event=True,
            skip_archival=True,
        )
        return await self._client.workflow_service.get_workflow_execution_history(request, retry=True)
