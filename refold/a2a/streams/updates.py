"""A journal entry as A2A's events, each with a permanent number, so that all streams of a task have the same events."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Self, TypeAlias

from a2a.types import Message as A2AMessage
from a2a.types import Part as A2APart
from a2a.types import Task, TaskArtifactUpdateEvent, TaskStatus, TaskStatusUpdateEvent
from pydantic import JsonValue

from refold.a2a.convert import (
    METADATA,
    STATE,
    agent_message,
    artifact_of,
    context_of,
    history_of,
    status_of,
    task_of,
)
from refold.a2a.data import part_of
from refold.core.content import Artifact
from refold.core.fold.journal import Entry
from refold.core.lifecycle import Status
from refold.engine import Progress, Tokens
from refold.record import TaskRecord, said_in, with_entry

Update: TypeAlias = TaskStatusUpdateEvent | TaskArtifactUpdateEvent

_ID = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)


class EventId(NamedTuple):
    """The number of an event: its journal entry, and its place among the entry's events.

    Attributes:
        seq: The entry's number.
        place: 1 is the entry's first event; 0 stands for all of them, and is the id of a whole task.
    """

    seq: int
    place: int = 0

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Parse an event's id; None if it is malformed."""
        found = _ID.fullmatch(text.strip())
        return None if found is None else cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        """The id in a stream."""
        return f"{self.seq}.{self.place}"


def whole(record: TaskRecord) -> Task:
    """A task as the first event of a stream, numbered."""
    return numbered(task_of(record), EventId(record.seq))


def numbered(task: Task, id: EventId) -> Task:
    """The task as of an event, with that event's number."""
    task.metadata.get_or_create_struct(METADATA)["id"] = str(id)
    return task


def updates_of(before: TaskRecord, entry: Entry) -> list[Update]:
    """The events of an entry: messages, artifacts, then the status; at least one.

    Args:
        before: The task before the entry.
        entry: The next entry.
    """
    after = with_entry(before, entry)
    status = status_of(after)
    updates: list[Update] = [
        _update(before, _saying(before, message, entry.at))
        for message in _said(before, entry)
        if message.message_id != status.message.message_id  # a task's last messages are part of its last status
    ]
    # A message takes the place of the task's question in a client that keeps the last status.
    asks_on = after.paused and bool(updates)
    updates += [
        TaskArtifactUpdateEvent(
            task_id=before.task_id,
            context_id=context_of(before),
            artifact=artifact_of(artifact),
            append=artifact.append and _is_there(before, entry.artifacts[:place], artifact.name),
            last_chunk=artifact.last_chunk,
        )
        for place, artifact in enumerate(entry.artifacts)
    ]
    if entry.status is not None or entry.progress is not None or asks_on or not updates:
        updates.append(_update(after, status))
    for place, update in enumerate(updates, 1):
        said = {"id": str(EventId(entry.seq, place)), "event": entry.event.kind}
        update.metadata.get_or_create_struct(METADATA).update(said)
    return updates


def last_update_of(record: TaskRecord) -> TaskStatusUpdateEvent:
    """The status of a task that was ended from outside: it has no entry, so no number."""
    return _update(record, status_of(record))


def transient_of(record: TaskRecord, news: Tokens | Progress) -> TaskStatusUpdateEvent:
    """Model text that is still being written, or a tool's report; the journal replaces it, so it has no number."""
    place = f"{news.invocation_id.rpartition('/')[2]}~{news.attempt}@"
    told_of: dict[str, str | int | bool] = {
        "transient": True,
        "call": news.invocation_id,
        "attempt": news.attempt,
    }
    if isinstance(news, Progress):
        place, part = f"{place}p{news.number}", _reported(news.said)
        told_of |= {"progress": news.number, "tool": news.tool}
    else:
        place, part = f"{place}{news.offset}", A2APart(text=news.text)
        told_of["offset"] = news.offset
        if news.call is not None:  # these tokens are arguments of a tool call, not text
            told_of |= {"tool": news.tool, "tool_call": news.call}
    message = agent_message(record.task_id, context_of(record), place, [part])
    update = _update(record, TaskStatus(state=STATE[record.status], message=message))
    for metadata in (update.metadata, update.status.message.metadata):
        metadata.get_or_create_struct(METADATA).update(told_of)
    return update


def _reported(said: JsonValue) -> A2APart:
    return A2APart(text=said) if isinstance(said, str) else part_of(said)


def partly_told(before: TaskRecord, updates: Iterable[Update]) -> Task:
    """A task after some of an entry's updates.

    Args:
        before: The task before the entry.
        updates: The updates that were sent, in order.
    """
    task = task_of(before)
    for update in updates:
        if isinstance(update, TaskStatusUpdateEvent):
            task.status.CopyFrom(update.status)
            if update.status.HasField("message"):
                task.history.append(update.status.message)
        else:
            _hand_over(task, update)
    return task


def _hand_over(task: Task, update: TaskArtifactUpdateEvent) -> None:
    others = [artifact for artifact in task.artifacts if artifact.artifact_id != update.artifact.artifact_id]
    before = [artifact for artifact in task.artifacts if artifact.artifact_id == update.artifact.artifact_id]
    new = type(update.artifact)()
    new.CopyFrom(update.artifact)
    if update.append:
        del new.parts[:]
        new.parts.extend([part for artifact in (*before, update.artifact) for part in artifact.parts])
    del task.artifacts[:]
    task.artifacts.extend([*others, new])


def _is_there(before: TaskRecord, earlier: Iterable[Artifact], name: str) -> bool:
    """Whether there is an artifact to which a chunk can be added: clients drop a chunk of one that they do not know."""
    return any(artifact.name == name for artifact in (*before.artifacts, *earlier))


def _said(before: TaskRecord, entry: Entry) -> list[A2AMessage]:
    said = said_in(entry)
    messages = history_of(before.task_id, context_of(before), said)
    return [message for message, one in zip(messages, said, strict=True) if one.role == "agent"]


def _saying(before: TaskRecord, message: A2AMessage, at: datetime) -> TaskStatus:
    # A client stops at a status that asks, and sends an answer: only the task's own status has the question.
    state = STATE[Status.WORKING if before.paused else before.status]
    status = TaskStatus(state=state, message=message)
    status.timestamp.FromDatetime(at.replace(tzinfo=None))
    return status


def _update(record: TaskRecord, status: TaskStatus) -> TaskStatusUpdateEvent:
    return TaskStatusUpdateEvent(task_id=record.task_id, context_id=context_of(record), status=status)
