"""Following a task as it runs: Temporal's history is the bell, the journal is what is read when it rings.

Rule 1: whoever watches a task in this process shares one tail of it. It reads the run's history once, then waits in one
        long poll, and asks for the journal once for all when that rings. It ends when its last watcher leaves.
Rule 2: nobody waits for a slow watcher. The newest entries are kept for those who keep up; who falls behind them reads
        the journal on its own, and is back among the others at its end. What everybody has seen is dropped.
Rule 3: a worker or a server that was there may go away for a while: the tail goes on after.

Model text that is still being written rides on the heartbeats of its activity, and is read from the server while
somebody watches and a model is at work. Neither writes a history event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import (
    GetWorkflowExecutionHistoryRequest,
    GetWorkflowExecutionHistoryResponse,
)
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import NotConnected, NoWorker
from refold.core.journal import Entry
from refold.core.lifecycle import TERMINAL, Status
from refold.engine import Tokens
from refold.temporal import search
from refold.temporal.history import History, Newest
from refold.temporal.perform import CHAT_ACTIVITY, LLM_ACTIVITY

if TYPE_CHECKING:
    from refold.temporal.client import TemporalEngine

TOKEN_POLL_S = 0.1
"""How often the server is asked for model text while somebody watches a call."""

PAUSES = (Status.INPUT_REQUIRED, Status.AUTH_REQUIRED)

OUTAGE_S = 5.0
"""A server that was there is asked for so long after the first question that failed; then a watch ends. The SDK takes
about nine seconds to fail a question, so a server may be away for twice as long: a restart takes less."""

AGAIN_S = 0.2
"""The pause before a question that failed is asked again."""

RECENT = 64
"""The most entries that are kept for watchers that have not come round to them."""

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

_CUT = frozenset({RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
"""How a long poll ends that the server, or somebody on the way to it, would not hold any longer."""


class Tails:
    """The tails of one engine: one for each task that somebody watches."""

    def __init__(self, engine: TemporalEngine) -> None:
        self._engine = engine
        self._tails: dict[str, Tail] = {}

    def __len__(self) -> int:
        """How many tasks are followed."""
        return len(self._tails)

    async def watch(self, task_id: str, after: int, *, over_pauses: bool) -> AsyncGenerator[Entry | Tokens]:
        """See `Engine.watch`."""
        tail = self._tails.get(task_id)
        if tail is None or tail.over:
            tail = self._tails[task_id] = Tail(self._engine, task_id, after)
        watcher = Watcher(tail, after)
        tail.watchers.add(watcher)
        try:
            async with contextlib.aclosing(watcher.follow(over_pauses=over_pauses)) as items:
                async for item in items:
                    yield item
        except RPCError as error:
            raise search.server_refused(error, f"follow task {task_id!r}") from None
        finally:
            tail.watchers.discard(watcher)
            if not tail.watchers:
                if self._tails.get(task_id) is tail:
                    del self._tails[task_id]
                await tail.close()


class Tail:
    """Follows one task for all who watch it.

    Attributes:
        watchers: Those who watch.
        last: The newest entry's number, as far as it was read.
        newest: How the task stood then; None before the first answer.
        error: Why nothing more will come; None while more may.
        recent: Entries that somebody has not seen, oldest first, up to `last`.
        writing: What models have said of answers that are not complete, by invocation id and tool call.
    """

    def __init__(self, engine: TemporalEngine, task_id: str, after: int) -> None:
        self.history = History(engine, task_id)
        self.watchers: set[Watcher] = set()
        self.last = after
        self.newest: Newest | None = None
        self.error: Exception | None = None
        self.recent: deque[Entry] = deque(maxlen=RECENT)
        self.writing: dict[_Place, _Text] = {}
        self._bell = Bell(engine, task_id)
        self._handle = engine.client.get_workflow_handle(task_id)
        self._running = asyncio.create_task(self._run())

    @property
    def over(self) -> bool:
        """Nothing more will come from it."""
        return self._running.done()

    async def close(self) -> None:
        """Stop following."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    def since(self, after: int) -> list[Entry] | None:
        """The entries after number `after`; None where they are not kept, and the journal must be read."""
        if after >= self.last:
            return []
        if not self.recent or self.recent[0].seq > after + 1:
            return None
        return list(islice(self.recent, after + 1 - self.recent[0].seq, None))

    def forget(self) -> None:
        """Drop the entries that all watchers have seen: who comes later reads the journal."""
        seen = min((watcher.after for watcher in self.watchers), default=self.last)
        while self.recent and self.recent[0].seq <= seen:
            self.recent.popleft()

    # --- the loop

    async def _run(self) -> None:
        patience = Patience()
        try:
            await self._bell.listens()
            while True:
                self._bell.clear()
                try:
                    newest = await self._read()
                except (NoWorker, RPCError, NotConnected) as error:
                    await patience.failed(error)
                    continue
                patience.answered()
                self._take(newest)
                if newest.over:
                    return
                await self._until_the_bell(newest)
        except Exception as error:  # noqa: BLE001 - whatever it is, those who watch must hear of it
            self.error = error
            self._tell()
        finally:
            await self._bell.close()

    async def _read(self) -> Newest:
        newest = await self.history.newest(self.last, limit=RECENT)
        if self.newest is None or not newest.over:
            return newest
        # It ended while it was followed: what is left of it is read once for all, unless that is a long story.
        entries = []
        async for entry in self.history.entries(self.last):
            entries.append(entry)
            if len(entries) == RECENT:
                break
        return replace(newest, entries=tuple(entries))

    def _take(self, newest: Newest) -> None:
        entries = [entry for entry in newest.entries if entry.seq > self.last]
        if newest.last != self.last:
            if not entries or entries[0].seq != self.last + 1 or entries[-1].seq != newest.last:
                self.recent.clear()  # too many at once, or of several runs: everybody reads them in the journal
            else:
                self.recent.extend(entries)
            self.writing = {}  # an answer may be complete, and then no more of its text may come
        self.last = newest.last
        self.newest = replace(newest, entries=())
        self._tell()

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher.news.set()

    # --- model text

    async def _until_the_bell(self, newest: Newest) -> None:
        while newest.writes and not self._bell.rings:
            await self._look_at_models()
            await self._bell.rung(TOKEN_POLL_S)
        await self._bell.rung()

    async def _look_at_models(self) -> None:
        try:
            description = await self._handle.describe()
        except RPCError as error:
            if error.status in _CUT:
                return  # the next question finds out more
            raise
        writing: dict[_Place, _Text] = {}
        for call in description.raw_description.pending_activities:
            if call.activity_type.name in (LLM_ACTIVITY, CHAT_ACTIVITY):
                for said in await description.data_converter.decode(call.heartbeat_details.payloads):
                    writing |= _said(call.activity_id, said)
        if writing != self.writing:
            self.writing = writing
            self._tell()


class Watcher:
    """One of those who watch a task, at a pace of its own.

    Attributes:
        after: The number of the last entry that it has seen.
        news: Set when there may be more.
    """

    def __init__(self, tail: Tail, after: int) -> None:
        self.tail = tail
        self.after = after
        self.news = asyncio.Event()
        self._read: dict[tuple[_Place, int], int] = {}

    async def follow(self, *, over_pauses: bool) -> AsyncGenerator[Entry | Tokens]:
        """Entries and model text from here on, as they come."""
        tail, patience = self.tail, Patience()
        while True:
            if tail.newest is None and tail.error is None:
                await self.news.wait()
            self.news.clear()
            if tail.error is not None:
                raise tail.error
            try:
                async for entry in self._entries():
                    yield entry
                patience.answered()
            except (NoWorker, RPCError, NotConnected) as error:
                await patience.failed(error)
                continue
            if self._is_through(over_pauses=over_pauses):
                return
            for tokens in self._new_text():
                yield tokens
            tail.forget()
            await self.news.wait()

    async def _entries(self) -> AsyncIterator[Entry]:
        while (kept := self.tail.since(self.after)) is None:
            before = self.after
            async for entry in self.tail.history.entries(self.after):
                self.after = entry.seq
                yield entry
            if self.after == before:
                return  # there were more, and they are gone
        for entry in kept:
            self.after = entry.seq
            yield entry

    def _is_through(self, *, over_pauses: bool) -> bool:
        newest = self.tail.newest
        if newest is None or newest.over:
            return newest is not None
        rests = newest.lifecycle in TERMINAL or (newest.status in PAUSES and not over_pauses)
        return rests and newest.last <= self.after

    def _new_text(self) -> Iterator[Tokens]:
        if self.after < self.tail.last:
            return  # the journal may have the whole answer
        for place, said in self.tail.writing.items():
            read = self._read.get((place, said.attempt), -1 if said.tool else 0)
            if said.end <= read:
                continue
            self._read[place, said.attempt] = said.end
            start = max(read, said.offset)
            invocation_id, call = place
            yield Tokens(
                invocation_id=invocation_id,
                attempt=said.attempt,
                offset=start,
                text=said.text[start - said.offset :],
                call=call,
                tool=said.tool,
            )


@dataclass(frozen=True, slots=True)
class _Text:
    """The end of what a model has said so far, and the attempt that said it.

    The server keeps the last words of a lost attempt until the next one has said something.
    """

    attempt: int
    offset: int
    text: str
    tool: str = ""

    @property
    def end(self) -> int:
        return self.offset + len(self.text)


_Place = tuple[str, int | None]
"""A model call, and which of its answer's tool calls; None is the text."""


def _said(invocation_id: str, tail: dict[str, Any]) -> dict[_Place, _Text]:
    """What a heartbeat tells: the text, and each tool call's arguments."""
    attempt = int(tail["attempt"])
    text = _Text(attempt=attempt, offset=int(tail["offset"]), text=str(tail["text"]))
    calls: dict[_Place, _Text] = {
        (invocation_id, int(call["number"])): _Text(
            attempt=attempt, offset=int(call.get("offset", 0)), text=str(call.get("args", "")), tool=str(call["tool"])
        )
        for call in tail.get("calls", ())
    }
    return {(invocation_id, None): text, **calls}


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
                    if error.status not in _CUT:
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


class Patience:
    """How long somebody goes on asking who was answered before."""

    def __init__(self) -> None:
        self._met = False
        self._away_since: float | None = None

    def answered(self) -> None:
        """Whoever was asked is there."""
        self._met, self._away_since = True, None

    async def failed(self, error: Exception) -> None:
        """Wait a little before the question is asked again, or raise the error."""
        now = asyncio.get_running_loop().time()
        self._away_since = self._away_since or now
        if not (self._met and _may_come_back(error, now - self._away_since)):
            raise error
        await asyncio.sleep(AGAIN_S)


def _may_come_back(error: Exception, away_s: float) -> bool:
    if isinstance(error, NoWorker):
        return True  # the task waits, and so do we
    down = isinstance(error, NotConnected) or (isinstance(error, RPCError) and error.status in _CUT)
    return down and away_s < OUTAGE_S
