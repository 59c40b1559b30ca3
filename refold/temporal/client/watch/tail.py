"""Follows a running task: a long poll on Temporal's history signals a change, then the journal is read.

Rule 1: all watchers of a task in this process share one tail. The tail reads the run's history once, waits in one long
        poll, and reads the journal once for all watchers when the poll returns. It ends with its last watcher.
Rule 2: a slow watcher delays no other. The tail buffers the newest entries; a watcher that falls behind the buffer
        reads the journal itself until it has caught up. Entries that all watchers have seen are dropped.
Rule 3: after an outage of the worker or the server the tail reconnects.
Rule 4: the long polls of a process start together, so that it wakes for all idle tasks at once.

A model call sends its streamed text with its activity's heartbeats, and a tool what it reports of its progress; the
tail reads both from the server while such a call runs and the task is watched. None of it writes a history event.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import replace
from itertools import islice

from temporalio.service import RPCError

from refold.core.fold.journal import Entry
from refold.core.lifecycle import TERMINAL, Status
from refold.engine import News, NotConnected, NoWorker, Progress, TaskNotFound, TaskView, Tokens
from refold.temporal.client import views
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import is_missing, server_refused
from refold.temporal.client.journal import JournalReader, Newest
from refold.temporal.client.watch.long_poll import LongPoll, Round
from refold.temporal.client.watch.model_text import ModelText, TextPlace, model_text_of
from refold.temporal.client.watch.reconnect import Reconnect, cut
from refold.temporal.client.watch.tool_reports import reports_of
from refold.temporal.client.watch.tries import Retries

TOKEN_POLL_S = 0.1
"""The interval, in seconds, of polling the server for model text."""

REPORT_POLL_S = 0.25
"""The shortest interval, in seconds, of polling for tools' reports; it grows while no tool reports anything."""

SILENT_POLL_S = 5.0
"""The longest interval, in seconds, of polling for tools' reports."""

PAUSES = (Status.INPUT_REQUIRED, Status.AUTH_REQUIRED)

RECENT = 64
"""The most entries that a tail buffers for its watchers."""


class Tails:
    """The tails of one engine, one for each watched task."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tails: dict[str, Tail] = {}
        self._rounds: list[Round] = []

    def __len__(self) -> int:
        """How many tasks are being watched."""
        return len(self._tails)

    async def watch(self, task_id: str, after: int, *, over_pauses: bool) -> AsyncGenerator[News]:
        """See `Engine.watch`."""
        tail = self._tails.get(task_id)
        if tail is None or tail.over:
            tail = self._tails[task_id] = Tail(self._connection, task_id, after, self._round())
        watcher = Watcher(tail, after)
        tail.watchers.add(watcher)
        try:
            async with contextlib.aclosing(watcher.follow(over_pauses=over_pauses)) as items:
                async for item in items:
                    yield item
        except RPCError as error:
            if is_missing(error):  # from the long poll or from the watcher's own read
                raise TaskNotFound(task_id) from None
            raise server_refused(error, f"follow task {task_id!r}") from None
        finally:
            tail.watchers.discard(watcher)
            if not tail.watchers:
                if self._tails.get(task_id) is tail:
                    del self._tails[task_id]
                await tail.close()

    def _round(self) -> Round:
        for round in self._rounds:
            if not round.full:
                return round
        self._rounds.append(Round())
        return self._rounds[-1]


class Tail:
    """Follows one task for all its watchers.

    Attributes:
        watchers: The watchers.
        last: The number of the newest entry read.
        newest: The task's status at that entry; None before the first answer.
        began: How many reads of the task have begun.
        read: Which of them brought `newest`.
        error: The error that ended the tail; None while it runs.
        recent: The buffered entries, oldest first, up to `last`.
        writing: The streamed text of incomplete answers, by invocation id and tool call.
        reports: The newest report of each running tool.
    """

    def __init__(self, connection: Connection, task_id: str, after: int, round: Round) -> None:
        self.journal = JournalReader(connection, task_id)
        self.watchers: set[Watcher] = set()
        self.last = after
        self.newest: Newest | None = None
        self.began = self.read = 0
        self.error: Exception | None = None
        self.recent: deque[Entry] = deque(maxlen=RECENT)
        self.writing: dict[TextPlace, ModelText] = {}
        self.reports: tuple[Progress, ...] = ()
        self._retries = Retries(after)
        self._poll = LongPoll(connection.client, task_id, round)
        self._handle = connection.client.get_workflow_handle(task_id)
        self._running = asyncio.create_task(self._run())

    @property
    def over(self) -> bool:
        """Whether the tail has ended."""
        return self._running.done()

    async def close(self) -> None:
        """Stop following."""
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    def since(self, after: int) -> list[Entry] | None:
        """The entries after number `after`; None if they are not in the buffer, so the journal must be read."""
        if after >= self.last:
            return []
        if not self.recent or self.recent[0].seq > after + 1:
            return None
        return list(islice(self.recent, after + 1 - self.recent[0].seq, None))

    def forget(self) -> None:
        """Drop the entries that all watchers have seen; a later watcher reads the journal."""
        seen = min((watcher.after for watcher in self.watchers), default=self.last)
        while self.recent and self.recent[0].seq <= seen:
            self.recent.popleft()

    # --- the loop

    async def _run(self) -> None:
        reconnect = Reconnect()
        try:
            await self._poll.start()
            while True:
                self._poll.clear()
                self.began += 1
                try:
                    newest = await self._read()
                except (NoWorker, RPCError, NotConnected) as error:
                    await reconnect.failed(error)
                    continue
                reconnect.answered()
                self._take(newest)
                if newest.over:
                    return
                await self._until_changed(newest)
        except Exception as error:  # noqa: BLE001 - passed on to the watchers, which raise it
            self.error = error
            self._tell()
        finally:
            await self._poll.close()

    async def _read(self) -> Newest:
        newest = await self.journal.newest(self.last, limit=RECENT)
        if self.newest is None or not newest.over:
            return newest
        # The task ended while it was watched: the remaining entries are read once for all watchers, if they are few.
        entries = []
        async for entry in self.journal.entries(self.last):
            entries.append(entry)
            if len(entries) == RECENT:
                break
        return replace(newest, entries=tuple(entries))

    def _take(self, newest: Newest) -> None:
        entries = [entry for entry in newest.entries if entry.seq > self.last]
        if newest.last != self.last:
            if not entries or entries[0].seq != self.last + 1 or entries[-1].seq != newest.last:
                self.recent.clear()  # too many at once, or of several runs: each watcher reads them from the journal
                self._retries.missed()
            else:
                self.recent.extend(entries)
                self._retries.read(entries)
            self.writing, self.reports = {}, ()  # a call may be complete now; nothing of it must follow its entry
        self.last = newest.last
        self.newest, self.read = replace(newest, entries=()), self.began
        self._tell()

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher.news.set()

    # --- model text and tools' reports

    async def _until_changed(self, newest: Newest) -> None:
        wait_s = REPORT_POLL_S
        while (newest.writes or newest.works) and not self._poll.changed:
            known = self.reports
            await self._look_at_calls()
            wait_s = REPORT_POLL_S if self.reports != known else min(wait_s * 1.5, SILENT_POLL_S)
            await self._poll.wait(TOKEN_POLL_S if newest.writes else wait_s)
        await self._poll.wait()

    async def _look_at_calls(self) -> None:
        try:
            description = await self._handle.describe()
        except RPCError as error:
            if cut(error):
                return  # the next read shows the cause
            raise
        if (retries := self._retries.known) is None:
            task = await views.status(self.journal.connection, self.journal.task_id, if_open=True)
            if not isinstance(task, TaskView) or task.seq != self.last:
                return  # the next read shows why
            self._retries.told(task)
            retries = self._retries.known or {}
        seen = await model_text_of(description, retries), await reports_of(description, retries)
        if seen != (self.writing, self.reports):
            self.writing, self.reports = seen
            self._tell()


class Watcher:
    """One watcher of a task, which reads at its own pace.

    Attributes:
        after: The number of the last entry that the watcher has seen.
        news: Set when there may be new entries or text.
    """

    def __init__(self, tail: Tail, after: int) -> None:
        self.tail = tail
        self.after = after
        self.news = asyncio.Event()
        self._came = tail.began
        self._read: dict[tuple[TextPlace, int], int] = {}
        self._heard: dict[str, tuple[int, int]] = {}

    async def follow(self, *, over_pauses: bool) -> AsyncGenerator[News]:
        """New entries after `after`, model text and tools' reports, as they arrive."""
        tail, reconnect = self.tail, Reconnect()
        while True:
            if tail.newest is None and tail.error is None:
                await self.news.wait()
            self.news.clear()
            before = self.after
            if tail.error is not None:
                raise tail.error
            try:
                async for entry in self._entries():
                    yield entry
                reconnect.answered()
            except (NoWorker, RPCError, NotConnected) as error:
                await reconnect.failed(error)
                continue
            if self._is_through(over_pauses=over_pauses):
                return
            if tail.newest is not None and tail.newest.over:
                if self.after == before:
                    return
                continue  # the task ended while the caller had an entry in hand: more are there, and no news follows
            for tokens in self._new_text():
                yield tokens
            for report in self._new_reports():
                yield report
            tail.forget()
            await self.news.wait()

    async def _entries(self) -> AsyncIterator[Entry]:
        while (kept := self.tail.since(self.after)) is None:
            before = self.after
            async for entry in self.tail.journal.entries(self.after):
                self.after = entry.seq
                yield entry
            if self.after == before:
                return  # the buffer has dropped entries that this watcher needs
        for entry in kept:
            self.after = entry.seq
            yield entry

    def _is_through(self, *, over_pauses: bool) -> bool:
        newest = self.tail.newest
        if newest is None:
            return False
        waits = newest.status in PAUSES or newest.unresolved
        # A pause that the tail read before the watcher came may be over, if the watcher has seen a later entry.
        stands = newest.last == self.after or self.tail.read > self._came
        rests = newest.over or newest.lifecycle in TERMINAL or (waits and stands and not over_pauses)
        return rests and newest.last <= self.after

    def _new_reports(self) -> Iterator[Progress]:
        if self.after < self.tail.last:
            return
        for report in self.tail.reports:
            if (report.attempt, report.number) > self._heard.get(report.invocation_id, (0, 0)):
                self._heard[report.invocation_id] = (report.attempt, report.number)
                yield report

    def _new_text(self) -> Iterator[Tokens]:
        if self.after < self.tail.last:
            return  # the journal may hold the whole answer by now
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
