"""Following a task: its journal's entries as A2A's events, from any point on, for any number of callers.

Rule 1: the task comes at once, as a whole; then what follows it, without a gap and without a repetition.
Rule 2: the journal numbers the events, so whoever comes again with the last number gets exactly what is missing, from
        any gateway.
Rule 3: a stream outlives workers, and the server's restarts; it ends with the task, or with its turn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.utils.errors import InvalidParamsError

from refold.a2a.streams.updates import (
    EventId,
    Update,
    last_update_of,
    numbered,
    partly_told,
    transient_of,
    updates_of,
    whole,
)
from refold.core.errors import NotConnected, NoWorker
from refold.core.fold.journal import Entry
from refold.core.fold.record import TaskRecord, told
from refold.core.lifecycle import Status, TaskState
from refold.engine import Engine, Tokens

HEADER = "last-event-id"

AGAIN_S = 0.5
"""The pause before a task is followed again whose worker or server went away."""

WORKER_S = 10.0
"""So long a caller that comes again waits for a task's worker; then it is told to try again."""

OUTAGE_S = 60.0
"""So long a stream stays open although the server does not answer; then it ends with an error, and may be resumed."""

logger = logging.getLogger("refold.a2a")


class Streams:
    """Follows tasks for callers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def follow(self, record: TaskRecord, *, after: int, over_pauses: bool) -> AsyncGenerator[Event, None]:
        """The task, and what follows.

        Args:
            record: The task as it was just read; the first event shows it.
            after: What came up to this entry is known to the caller.
            over_pauses: Go on until the task ends; otherwise until it waits for somebody, too.
        """
        yield whole(record)
        if not _rests(record, after, over_pauses):
            async with aclosing(self._news(record, after, over_pauses)) as news:
                async for event in news:
                    yield event

    async def resume(self, record: TaskRecord, seen: EventId, *, over_pauses: bool) -> AsyncGenerator[Event, None]:
        """The task as of an event that the caller has seen, and what follows that.

        Args:
            record: The task as it was just read.
            seen: The last event that the caller has seen.
            over_pauses: See `follow`.

        Raises:
            InvalidParamsError: The task's stream has no such event.
            NoWorker: None came in time to say what the task's journal holds.
        """
        record = await self._answered(record)
        if record.note:  # ended by Temporal: of its journal nothing can be said
            yield whole(record)
            return
        then, left = await self._as_of(record, seen)
        if left is None:
            yield whole(then)
        else:
            before, entry, updates = left
            yield numbered(partly_told(before, updates[: seen.place]), seen)
            for update in updates[seen.place :]:
                yield update
            then = told(before, entry)
        if not _rests(then, seen.seq, over_pauses):
            async with aclosing(self._news(then, seen.seq, over_pauses)) as news:
                async for event in news:
                    yield event

    async def _news(self, record: TaskRecord, after: int, over_pauses: bool) -> AsyncGenerator[Event, None]:
        async with aclosing(self._entries(record.task_id, record.seq)) as items:
            async for item in items:
                if isinstance(item, Tokens):
                    yield transient_of(record, item)
                    continue
                for update in updates_of(record, item):
                    yield update
                record = told(record, item)
                if _rests(record, after, over_pauses):
                    return
        ended = await self.engine.record(record.task_id)
        if ended.ended:  # by Temporal: no entry tells it
            yield last_update_of(ended)

    async def _entries(self, task_id: str, after: int) -> AsyncGenerator[Entry | Tokens, None]:
        clock = asyncio.get_running_loop().time
        away_since: float | None = None
        while True:
            try:
                async with aclosing(self.engine.watch(task_id, after=after, follow=True)) as items:
                    async for item in items:
                        away_since = None
                        if isinstance(item, Entry):
                            after = item.seq
                        yield item
                return
            except NoWorker as error:
                # The task waits for one, and so does whoever follows it.
                logger.info("task %s: %s", task_id, error)
            except NotConnected as error:
                logger.warning("task %s: %s", task_id, error)
                away_since = away_since or clock()
                if clock() - away_since > OUTAGE_S:
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _answered(self, record: TaskRecord) -> TaskRecord:
        """The task as its worker knows it: what is known without one may be less than what was seen already."""
        clock = asyncio.get_running_loop().time
        until = clock() + WORKER_S
        while record.note and not record.ended:
            if clock() > until:
                raise NoWorker(record.note)
            await asyncio.sleep(AGAIN_S)
            record = await self.engine.record(record.task_id)
        return record

    async def _as_of(
        self, record: TaskRecord, seen: EventId
    ) -> tuple[TaskRecord, tuple[TaskRecord, Entry, list[Update]] | None]:
        """The task after an entry; and, where not all of that entry was seen, the entry."""
        if seen.seq > record.seq:
            raise _unknown(record, seen)
        if seen == EventId(record.seq):
            return record, None
        then: TaskRecord | None = None
        before, last = record, None
        async with aclosing(self.engine.journal(record.task_id)) as entries:
            async for entry in entries:
                then = then or _planned(record, entry)
                if entry.seq > seen.seq:
                    break
                before, last, then = then, entry, told(then, entry)
        if then is None or then.seq != seen.seq:
            raise _unknown(record, seen)
        if last is None or seen.place == 0:
            return then, None
        updates = updates_of(before, last)
        if seen.place > len(updates):
            raise _unknown(record, seen)
        return then, None if seen.place == len(updates) else (before, last, updates)


def seen_by(context: ServerCallContext) -> EventId | None:
    """The last event that a caller has seen who comes again.

    Raises:
        InvalidParamsError: The header holds something else.
    """
    text = context.state.get("headers", {}).get(HEADER)
    if not text:
        return None
    seen = EventId.read(text)
    if seen is None:
        raise InvalidParamsError(f"Last-Event-ID is the id of an event of this stream, such as 12.1; got {text[:80]!r}")
    return seen


def _rests(record: TaskRecord, after: int, over_pauses: bool) -> bool:
    return record.ended or (not over_pauses and record.paused and record.seq > after)


def _unknown(record: TaskRecord, seen: EventId) -> InvalidParamsError:
    return InvalidParamsError(
        f"the stream of task {record.task_id!r} has no event {seen}; its newest entry is {record.seq}. Come without "
        "Last-Event-ID, and the task comes as it is"
    )


def _planned(record: TaskRecord, first: Entry) -> TaskRecord:
    """A task before its first entry; one that goes on for another begins with what that one said and handed over."""
    return record.model_copy(
        update={
            "seq": first.seq - 1,
            "at": first.at,
            "status": Status.SUBMITTED,
            "status_at": first.at,
            "lifecycle": TaskState.PLANNED,
            "reason": "",
            "messages": tuple(message for message in record.messages if message.seq < first.seq),
            "artifacts": () if record.recovered_from is None else record.artifacts,
            "waits": (),
            "progress": "",
            "note": "",
        }
    )
