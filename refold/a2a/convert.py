"""Converts between refold's values and A2A's: contents and parts, messages, artifacts, status, tasks.

No other module knows both vocabularies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from a2a.types import Artifact as A2AArtifact
from a2a.types import Message as A2AMessage
from a2a.types import Part as A2APart
from a2a.types import Role, Task, TaskStatus
from a2a.types import TaskState as A2AState
from a2a.utils.errors import InvalidParamsError
from google.protobuf.struct_pb2 import Struct
from pydantic import JsonValue

from refold.a2a.data import JSON, MOST_LEVELS, data_of, is_carried, part_of, struct_of, text_of, value_of
from refold.core.commands import AskApproval
from refold.core.content import Artifact, Content, Message, Part
from refold.core.lifecycle import Status
from refold.core.waits import Wait
from refold.record import TaskRecord

STATE: Mapping[Status, A2AState] = MappingProxyType(
    {
        Status.SUBMITTED: A2AState.TASK_STATE_SUBMITTED,
        Status.WORKING: A2AState.TASK_STATE_WORKING,
        Status.INPUT_REQUIRED: A2AState.TASK_STATE_INPUT_REQUIRED,
        Status.AUTH_REQUIRED: A2AState.TASK_STATE_AUTH_REQUIRED,
        Status.COMPLETED: A2AState.TASK_STATE_COMPLETED,
        Status.FAILED: A2AState.TASK_STATE_FAILED,
        Status.CANCELED: A2AState.TASK_STATE_CANCELED,
        Status.REJECTED: A2AState.TASK_STATE_REJECTED,
    }
)

METADATA = "refold"
"""The key under which an object's metadata has refold's own data."""


# --- from A2A


def content_of(message: A2AMessage) -> Content:
    """The content of a message.

    Raises:
        InvalidParamsError: The message has no parts, or an empty one.
    """
    if not message.parts:
        raise InvalidParamsError("a message holds one or more parts; got none")
    return Content(parts=tuple(_part_in(part, number) for number, part in enumerate(message.parts)))


def _part_in(part: A2APart, number: int) -> Part:
    rest: dict[str, Any] = {"filename": part.filename or None, "media_type": part.media_type or None}
    match part.WhichOneof("content"):
        case "text":
            return Part(text=part.text, **rest)
        case "raw":
            return Part(raw=part.raw, **rest)
        case "url":
            return Part(url=part.url, **rest)
        case "data":
            data = data_of(part.data, f"parts[{number}].data")
            if not is_carried(data):
                raise InvalidParamsError(f"parts[{number}].data is nested deeper than {MOST_LEVELS} levels")
            if data is None:  # also after a text: ProtoJSON takes a null there for the part's content
                raise InvalidParamsError(
                    f"parts[{number}].data is null, which is no data here: leave `data` out where the part is text or "
                    "a file, or send an object, with null as a field"
                )
            return Part(data=data, **rest)
        case _:
            raise InvalidParamsError(f"parts[{number}] holds none of text, raw, url and data")


# --- to A2A


def task_of(record: TaskRecord) -> Task:
    """A task in A2A's format."""
    context = context_of(record)
    return Task(
        id=record.task_id,
        context_id=context,
        status=status_of(record),
        artifacts=[artifact_of(artifact) for artifact in record.artifacts],
        history=history_of(record.task_id, context, record.messages),
        metadata=metadata_of(record),
    )


def reply_of(record: TaskRecord) -> A2AMessage | None:
    """The last message of a completed task that has no other result, as an answer without a task; else None."""
    if record.status is not Status.COMPLETED or record.artifacts:
        return None
    if not record.messages or record.messages[-1].role != "agent":
        return None
    reply = history_of(record.task_id, context_of(record), record.messages)[-1]
    reply.ClearField("task_id")
    return reply


def short_task_of(record: TaskRecord, note: str) -> Task:
    """A task without its contents: where it stands, and a note that says why there is no more."""
    status = TaskStatus(state=STATE[record.status])
    status.timestamp.FromDatetime(_naive(record.status_at))
    task = Task(id=record.task_id, context_id=context_of(record), status=status, metadata=metadata_of(record))
    task.metadata.get_or_create_struct(METADATA)["note"] = note
    return task


def context_of(record: TaskRecord) -> str:
    """A task that was not started over A2A is a conversation of its own."""
    return record.context or record.task_id


def metadata_of(record: TaskRecord) -> Struct:
    """refold's metadata of a task: the skill, the newest journal entry, and why something is missing, if it is."""
    said: dict[str, JsonValue] = {"skill": record.skill, "seq": record.seq}
    if record.note:
        why = "the task ended without its last words" if record.ended else "the task's worker cannot be asked just now"
        said["note"] = f"{why}; this is what is known without it"
    elif record.differs:
        said["note"] = "the agent's code has changed under this task, which takes nothing meanwhile; this is its record"
    return struct_of({METADATA: said})


def status_of(record: TaskRecord) -> TaskStatus:
    """The status, with a message that holds the question, or why the task ended so."""
    status = TaskStatus(state=STATE[record.status], message=_status_message(record))
    status.timestamp.FromDatetime(_naive(record.status_at))
    return status


def _status_message(record: TaskRecord) -> A2AMessage | None:
    if record.paused and record.waits:
        return question_of(record.task_id, context_of(record), record.waits, record.seq)
    if record.status in (Status.FAILED, Status.REJECTED, Status.CANCELED) and record.reason:
        return agent_message(record.task_id, context_of(record), "end", [A2APart(text=record.reason)])
    last = record.messages[-1] if record.messages else None
    if record.status is Status.COMPLETED and last is not None and last.role == "agent":
        return history_of(record.task_id, context_of(record), record.messages)[-1]
    if record.status is Status.WORKING and record.progress:
        return agent_message(
            record.task_id, context_of(record), f"{record.seq}.progress", [A2APart(text=record.progress)]
        )
    return None


def question_of(task_id: str, context: str, waits: Sequence[Wait], seq: int) -> A2AMessage:
    """The questions of a paused task; for a gate, followed by the data that a decision must send back."""
    parts = [part for wait in waits for part in _asked(wait)]
    message = agent_message(task_id, context, f"{seq}.ask", parts)
    open_now: list[JsonValue] = [{"slot": wait.slot, "gate": wait.gate} for wait in waits]
    message.metadata.CopyFrom(struct_of({METADATA: {"waiting_for": open_now}}))
    return message


def _asked(wait: Wait) -> list[A2APart]:
    parts = parts_of(wait.ask.message.parts)
    if isinstance(wait.ask, AskApproval):
        shown: dict[str, JsonValue] = {"gate": wait.gate, "digest": wait.ask.digest, "kind": wait.ask.policy.kind.value}
        # As text only if it must be: gate and digest stay data, which the decision sends back.
        shown["arguments"] = wait.ask.show if is_carried(wait.ask.show) else text_of(wait.ask.show)
        if wait.ask.editable:
            shown["editable"] = list(wait.ask.editable)
        parts.append(A2APart(data=value_of(shown), media_type=JSON))
    return parts


def history_of(task_id: str, context: str, messages: Iterable[Message]) -> list[A2AMessage]:
    """Messages with permanent ids: the sender's own, else made from the journal entry and the place in it."""
    found: list[A2AMessage] = []
    entry, place = 0, 0
    for message in messages:
        entry, place = message.seq, place + 1 if message.seq == entry else 1
        found.append(
            A2AMessage(
                message_id=message.id or message_id(task_id, f"{entry}.{place}"),
                task_id=task_id,
                context_id=context,
                role=Role.ROLE_USER if message.role == "user" else Role.ROLE_AGENT,
                parts=parts_of(message.content.parts),
            )
        )
    return found


def agent_message(task_id: str, context: str, place: str, parts: Iterable[A2APart]) -> A2AMessage:
    """A message of the task's agent, with a permanent id."""
    return A2AMessage(
        message_id=message_id(task_id, place), task_id=task_id, context_id=context, role=Role.ROLE_AGENT, parts=parts
    )


def message_id(task_id: str, place: str) -> str:
    """The id of an agent message at a place in the journal: the same for every caller and at every time."""
    return f"{task_id}:{place}"


def artifact_of(artifact: Artifact) -> A2AArtifact:
    """An artifact; its id is its name, since a second artifact of the same name replaces the first."""
    return A2AArtifact(
        artifact_id=artifact.name,
        name=artifact.name,
        description=artifact.description,
        parts=parts_of(artifact.parts),
    )


def parts_of(parts: Iterable[Part]) -> list[A2APart]:
    """Parts in A2A's format."""
    return [_part_out(part) for part in parts]


def _part_out(part: Part) -> A2APart:
    if part.text is not None:
        out = A2APart(text=part.text)
    elif part.raw is not None:
        out = A2APart(raw=part.raw)
    elif part.url is not None:
        out = A2APart(url=part.url)
    else:
        out = part_of(part.data)
    out.filename = part.filename or out.filename
    out.media_type = part.media_type or out.media_type
    return out


def _naive(at: datetime) -> datetime:
    return at.replace(tzinfo=None)
