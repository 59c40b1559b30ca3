"""Following a task as it runs: Temporal's history is the bell, the journal is what is read when it rings.

Model text that is still being written rides on the heartbeats of its activity, and is read from the server while
somebody watches. Neither writes a history event.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from temporalio.api.enums.v1 import EventType
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import NotConnected, NoWorker
from refold.core.journal import Entry
from refold.core.lifecycle import TERMINAL, Status
from refold.engine import Tokens
from refold.temporal import search
from refold.temporal.history import History
from refold.temporal.perform import LLM_ACTIVITY

if TYPE_CHECKING:
    from refold.temporal.client import TemporalEngine

TOKEN_POLL_S = 0.1
"""How often the server is asked for model text while somebody watches a call."""

PAUSES = (Status.INPUT_REQUIRED, Status.AUTH_REQUIRED)

OUTAGE_S = 5.0
"""A server that was there is asked for so long after the first question that failed; then a watch ends. The SDK takes
about nine seconds to fail a question, so a server may be away for twice as long: a restart takes less."""

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


class Tail:
    """Follows one task for one watcher."""

    def __init__(self, engine: TemporalEngine, task_id: str) -> None:
        self.engine = engine
        self.task_id = task_id
        self.handle = engine.client.get_workflow_handle(task_id)
        self._bell = asyncio.Event()
        self._calls = False
        self._read: dict[tuple[str, int], int] = {}

    async def follow(self, after: int, *, over_pauses: bool) -> AsyncIterator[Entry | Tokens]:
        """See `Engine.watch`. A worker or server that was there may go away for a while: the watch goes on after."""
        clock = asyncio.get_running_loop().time
        met, away_since = False, None
        ringer = self._start_ringing()
        try:
            while True:
                self._bell.clear()
                try:
                    async for entry in History(self.engine, self.task_id).entries(after):
                        yield entry
                        after = entry.seq
                    view = await self.engine.look(self.task_id)
                    met, away_since = True, None
                    rests = view.lifecycle in TERMINAL or (view.status in PAUSES and not over_pauses)
                    if rests and view.seq <= after:
                        return
                    async for tokens in self._until_the_bell():
                        yield tokens
                    if ringer.done():
                        ringer.result()
                except (NoWorker, RPCError, NotConnected) as error:
                    # Asking takes its time before it fails, so nothing spins here.
                    away_since = away_since or clock()
                    if not (met and _may_come_back(error, clock() - away_since)):
                        raise
                    if ringer.done():
                        ringer = self._start_ringing()
        except RPCError as error:
            raise search.server_refused(error, f"follow task {self.task_id!r}") from None
        finally:
            ringer.cancel()
            await asyncio.gather(ringer, return_exceptions=True)

    def _start_ringing(self) -> asyncio.Task[None]:
        ringer = asyncio.create_task(self._ring())
        # Rung when it ends, too: a server that went away would leave us waiting.
        ringer.add_done_callback(lambda _: self._bell.set())
        return ringer

    async def _until_the_bell(self) -> AsyncIterator[Tokens]:
        while not self._bell.is_set():
            streaming = False
            for tokens in await self._tokens():
                streaming = True
                yield tokens
            try:
                async with asyncio.timeout(TOKEN_POLL_S if streaming or self._calls else None):
                    await self._bell.wait()
            except TimeoutError:
                pass

    async def _tokens(self) -> list[Tokens]:
        description = await self.handle.describe()
        calls = [
            activity
            for activity in description.raw_description.pending_activities
            if activity.activity_type.name == LLM_ACTIVITY
        ]
        self._calls = bool(calls)
        found: list[Tokens] = []
        for call in calls:
            for tail in await description.data_converter.decode(call.heartbeat_details.payloads):
                tokens = self._new_text(call.activity_id, tail)
                if tokens is not None:
                    found.append(tokens)
        return found

    def _new_text(self, invocation_id: str, tail: dict[str, Any]) -> Tokens | None:
        # The attempt that wrote it: the server keeps the last words of a lost one until the next has said something.
        attempt = int(tail["attempt"])
        offset, text = int(tail["offset"]), str(tail["text"])
        read = self._read.get((invocation_id, attempt), 0)
        end = offset + len(text)
        if end <= read:
            return None
        self._read[invocation_id, attempt] = end
        start = max(read, offset)
        return Tokens(invocation_id=invocation_id, attempt=attempt, offset=start, text=text[start - offset :])

    async def _ring(self) -> None:
        """Ring for each change, over all the runs of the task, until it ends."""
        while True:
            follows = False
            async for event in self.handle.fetch_history_events(wait_new_event=True):
                if event.event_type in _RINGS:
                    follows = event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
                    self._bell.set()
            if not follows:
                return


def _may_come_back(error: Exception, away_s: float) -> bool:
    if isinstance(error, NoWorker):
        return True  # the task waits, and so do we
    down = isinstance(error, NotConnected) or (
        isinstance(error, RPCError) and error.status is RPCStatusCode.UNAVAILABLE
    )
    return down and away_s < OUTAGE_S
