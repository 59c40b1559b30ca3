"""Streams a task: the entries of its journal as A2A's events, from any event on, for any number of callers.

Rule 1: the whole task comes first, at once; then the events after it, each exactly once.
Rule 2: the journal numbers the events, so a caller that reconnects with its last number gets exactly the missing ones,
  from any gateway.
Rule 3: a stream survives the loss of workers and restarts of the server; it ends with the task, or with its turn.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.server.context import ServerCallContext
from a2a.server.events import Event
from a2a.utils.errors import InvalidParamsError

from refold.a2a.streams import patience
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
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import Status, TaskState
from refold.engine import Engine, NoWorker
from refold.record import TaskRecord, record_of, with_entry

HEADER = "last-event-id"


class Streams:
    """Streams tasks to callers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def follow(self, record: TaskRecord, *, after: int, over_pauses: bool) -> AsyncGenerator[Event, None]:
        """The task, and its further events.

        Args:
            record: The task as just read; the first event shows it.
            after: The caller knows the events up to this entry.
            over_pauses: Continue until the task ends; otherwise end also when the task waits for a person. A question
                that was answered before the stream began does not end it.
        """
        yield whole(record)
        if not _rests(record, after, over_pauses):
            newest = None if record.note else record.seq
            async with aclosing(self._news(record, after, over_pauses, newest)) as news:
                async for event in news:
                    yield event

    async def resume(self, record: TaskRecord, seen: EventId, *, over_pauses: bool) -> AsyncGenerator[Event, None]:
        """The task as of an event that the caller has seen, and the events after that.

        Args:
            record: The task as just read.
            seen: The last event that the caller has seen.
            over_pauses: See `follow`.

        Raises:
            InvalidParamsError: The task's stream has no such event.
            NoWorker: No worker answered in time to read the task's journal.
        """
        record = await patience.answered(self.engine, record)
        if record.note:  # ended by Temporal: its journal cannot be read
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
            then = with_entry(before, entry)
        if not _rests(then, seen.seq, over_pauses):
            async with aclosing(self._news(then, seen.seq, over_pauses, record.seq)) as news:
                async for event in news:
                    yield event

    async def _news(
        self, record: TaskRecord, after: int, over_pauses: bool, newest: int | None
    ) -> AsyncGenerator[Event, None]:
        """The events after a record; `newest` is the task's newest entry as the stream began, None if nobody knew."""
        items = patience.watched(self.engine, record.task_id, after=record.seq, follow=True)
        async with aclosing(items):
            async for item in items:
                if not isinstance(item, Entry):
                    yield transient_of(record, item)
                    continue
                for update in updates_of(record, item):
                    yield update
                record = with_entry(record, item)
                if _rests(record, after, over_pauses) and (record.ended or await self._stands(record, newest)):
                    return
        ended = await patience.read(self.engine, record.task_id)
        if ended.ended:  # ended by Temporal, so without an entry
            yield last_update_of(ended)

    async def _stands(self, pause: TaskRecord, newest: int | None) -> bool:
        """Whether a pause is the task's newest entry as the stream began (`newest`).

        With `newest` None, the task is read now. If its worker does not answer, the pause counts as the newest entry: a
        caller of A2A 0.3 learns from the end of the stream that the task asks.
        """
        if newest is not None:
            return pause.seq >= newest
        try:
            now = await patience.answered(self.engine, await patience.read(self.engine, pause.task_id))
        except NoWorker:
            return True
        return pause.seq >= now.seq and not now.ended

    async def _as_of(
        self, record: TaskRecord, seen: EventId
    ) -> tuple[TaskRecord, tuple[TaskRecord, Entry, list[Update]] | None]:
        """The task after an entry; and the entry, if the caller has not seen all its events."""
        if seen.seq > record.seq:
            raise _unknown(record, seen)
        if seen == EventId(record.seq):
            return record, None
        then: TaskRecord | None = None
        before, last = record, None
        async with aclosing(self.engine.journal(record.task_id)) as entries:
            async for entry in entries:
                then = then or await self._before(record, entry)
                if entry.seq > seen.seq:
                    break
                before, last, then = then, entry, with_entry(then, entry)
        if then is None or then.seq != seen.seq:
            raise _unknown(record, seen)
        updates = [] if last is None else updates_of(before, last)
        if seen.place > len(updates):
            raise _unknown(record, seen)
        return then, None if last is None or seen.place in (0, len(updates)) else (before, last, updates)

    async def _before(self, record: TaskRecord, first: Entry) -> TaskRecord:
        """A task before its first entry; a recovered or forked task begins with what its origin had by then."""
        if first.seq == 1:
            return _planned(record, first)
        async with aclosing(self.engine.past(record.task_id)) as past:
            base = await anext(past)
        assert isinstance(base, Snapshot), "a task's past begins with the task before its first entry"
        return record_of(base)


def seen_by(context: ServerCallContext) -> EventId | None:
    """The last event that a reconnecting caller has seen.

    Raises:
        InvalidParamsError: The header is not an event's id.
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
    """A task before anything was said in it."""
    return record.model_copy(
        update={
            "seq": 0,
            "at": first.at,
            "status": Status.SUBMITTED,
            "status_at": first.at,
            "lifecycle": TaskState.PLANNED,
            "reason": "",
            "messages": (),
            "artifacts": (),
            "waits": (),
            "progress": "",
            "note": "",
        }
    )
