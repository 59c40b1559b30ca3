"""The events that a webhook's receiver gets: those of the task's stream, each as a document of its own.

A 1.0 receiver gets each event as a StreamResponse. A 0.3 receiver gets the whole task each time its status may have
changed; the task may be newer than the change, and a task that was sent already is not sent again.

Source: A2A specification 1.0, section 4.3.3; 0.3, section 9.5.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TypeAlias

from a2a.compat.v0_3.conversions import to_compat_task
from a2a.server.events import Event
from a2a.types import Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent
from a2a.utils.errors import InvalidParamsError
from a2a.utils.proto_utils import to_stream_response
from google.protobuf.json_format import MessageToDict
from pydantic_core import to_json

from refold.a2a.convert import METADATA, task_of
from refold.a2a.streams.follow import Streams
from refold.a2a.streams.updates import EventId, last_update_of, whole
from refold.engine import Engine, NoWorker
from refold.engine.arguments import defining, takes
from refold.record import TaskRecord
from refold.webhooks import START, Shape, Update

Told: TypeAlias = Task | TaskStatusUpdateEvent | TaskArtifactUpdateEvent

_END = "end"
"""The place of the only update without a journal entry: the task was ended from outside."""


@takes(defining("WebhookFeed", "feed"))
class WebhookFeed:
    """See `refold.webhooks.Feed`. A cursor is an event's number in the stream."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._streams = Streams(engine)

    async def __call__(self, task_id: str, shape: Shape, after: str | None) -> AsyncGenerator[Update, None]:
        """See `Feed`."""
        updates = self._events(task_id, after) if shape == "1.0" else self._tasks(task_id, after)
        async with aclosing(updates):
            async for update in updates:
                yield update

    async def _events(self, task_id: str, after: str | None) -> AsyncGenerator[Update, None]:
        cursor = after or START
        async with aclosing(self._numbered(task_id, after)) as events:
            async for number, event in events:
                id = f"{cursor}-{_END}" if number is None else str(number)
                cursor = cursor if number is None else id
                yield Update(id=id, cursor=cursor, body=to_json(MessageToDict(to_stream_response(event))))

    async def _tasks(self, task_id: str, after: str | None) -> AsyncGenerator[Update, None]:
        told, cursor = -1, after or START
        async with aclosing(self._numbered(task_id, after)) as events:
            async for number, event in events:
                if isinstance(event, TaskArtifactUpdateEvent) or (number is not None and number.seq <= told):
                    continue
                record = _known(await self._engine.record(task_id))
                told = record.seq
                id = f"{cursor}-{_END}" if number is None else str(EventId(told))
                cursor = cursor if number is None else id
                task = to_compat_task(task_of(record)).model_dump(mode="json", by_alias=True, exclude_none=True)
                yield Update(id=id, cursor=cursor, body=to_json(task))

    async def _numbered(self, task_id: str, after: str | None) -> AsyncGenerator[tuple[EventId | None, Told], None]:
        """The events of the task's stream after a cursor, without the model text that is still being written."""
        record = await self._engine.record(task_id)
        record = record if after == START else _known(record)
        async with aclosing(self._after(record, after)) as events:
            async for event in events:
                assert not isinstance(event, Message), "a stream of a task is of its updates"
                said = MessageToDict(event.metadata).get(METADATA, {})
                if "id" in said:
                    yield EventId.read(said["id"]), event
                elif not said.get("transient"):
                    yield None, event

    async def _after(self, record: TaskRecord, after: str | None) -> AsyncGenerator[Event, None]:
        """The task's stream after a cursor; begun anew if the task has no such event, since it was reset meanwhile."""
        if record.note and record.ended and after is not None:  # ended by Temporal: its journal can be read no more
            if after == START:
                yield whole(record)
            # Also after the whole task: a receiver that has had the task under the start's id drops it as a repeat.
            yield last_update_of(record)
            return
        seen = None if after is None else EventId.read(after)
        if seen is not None:
            async with aclosing(self._streams.resume(record, seen, over_pauses=True)) as events:
                try:
                    task = await anext(events)
                except InvalidParamsError:
                    pass
                else:
                    if after == START:
                        yield task  # at any other cursor it was sent already
                    async for event in events:
                        yield event
                    return
        async with aclosing(self._streams.follow(record, after=record.seq, over_pauses=True)) as events:
            async for event in events:
                yield event


def _known(record: TaskRecord) -> TaskRecord:
    """A task as its worker knows it.

    Raises:
        NoWorker: A record without a worker may lack events that were sent already.
    """
    if record.note and not record.ended:
        raise NoWorker(record.note)
    return record
