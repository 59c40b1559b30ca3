"""Marks: the digests of journal entries in a task's history, with what the entries say. No event is written for one.

A mark rides on what a workflow task sends anyway: in the metadata of a command's summary, else of its details, else of
an update's answer. What people could read in the entries since the mark before goes along as data, so that a codec
encrypts it, and large texts go to storage.

Rule 1: a mark names the number of its entry, so it does not matter which command carries it, or whether one is missing.
Rule 2: readers skip what they cannot read. A history without marks is that of a task whose entries nobody can verify.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from refold import formats
from refold.core.commands import AskApproval, AskUser
from refold.core.content import Content
from refold.core.fold.journal import Issued
from refold.digests import BROUGHT, DIGEST_BYTES, BeyondHistory

KEY = "r"
"""The metadata key of a mark; short, since each workflow task writes it to history."""

SAID = "said"
"""The field of an update's answer that holds what was said, where no command carries it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The digest of a journal as a workflow task recorded it.

    Attributes:
        event_id: The number of the history event that carries it.
        seq: The number of the entry that the digest reaches up to.
        digest: `chained` over all entries up to that one.
        said: What the entries since the mark before said, in order; entries that said nothing are left out.
        build_id: The build of the worker that wrote it; empty where the server does not know.
    """

    event_id: int
    seq: int
    digest: bytes
    said: tuple[BeyondHistory, ...]
    build_id: str


def written(seq: int, digest: bytes) -> bytes:
    """A mark as the value of `KEY`: the digest, then the entry's number in as few bytes as it takes."""
    return digest + seq.to_bytes((seq.bit_length() + 7) // 8, "big")


async def marks_of(events: Iterable[HistoryEvent], converter: DataConverter, *, words: bool = True) -> list[Mark]:
    """The marks of one run's history, in the order of its events.

    Args:
        events: The run's history, from its first event on.
        converter: The client's, which decrypts and follows references to storage.
        words: Read what the entries said, too; without it, `said` is empty and no storage is read.

    Raises:
        StorageError: What an entry said is in a storage that cannot be read.
        CodecError: The codec cannot read it.
    """
    build_id, task_id, found = "", "", list[tuple[HistoryEvent, str]]()
    for event in events:
        if event.HasField("workflow_execution_started_event_attributes"):
            task_id = event.workflow_execution_started_event_attributes.workflow_id
        elif event.HasField("workflow_task_completed_event_attributes"):
            build_id = event.workflow_task_completed_event_attributes.worker_version.build_id
        elif _carriers(event):
            found.append((event, build_id))
    clear = iter(await _clear([payload for event, _ in found for payload in _carriers(event)], converter))
    marks = []
    for event, build_id in found:
        value = b"".join([next(clear).metadata.get(KEY, b"") for _ in _carriers(event)])
        if len(value) <= DIGEST_BYTES:
            continue
        seq, digest = int.from_bytes(value[DIGEST_BYTES:], "big"), value[:DIGEST_BYTES]
        said = unpacked(await _said(event, converter), seq, task_id) if words else ()
        marks.append(Mark(event_id=event.event_id, seq=seq, digest=digest, said=said, build_id=build_id))
    return marks


def packed(said: Iterable[BeyondHistory], seq: int, task_id: str) -> list[dict[str, Any]]:
    """What entries said as JSON data of few bytes.

    Args:
        said: By the entries since the mark before, in order.
        seq: The mark's entry, whose number is left out.
        task_id: The task, whose id is left out of invocation ids.

    Returns:
        For each entry its fields, with `commands` by invocation id, text alone as a string, and `BROUGHT` as null.
        `messages` is left out where the questions' own messages are all that the entry says. `format` is that of the
        commands (`refold.formats`).
    """
    made = []
    for one in said:
        data = one.model_dump(mode="json")
        if one.seq == seq:
            del data["seq"]
        asked = _asked(one.commands)
        if one.commands:
            places = [issued.invocation_id.removeprefix(f"{task_id}/") for issued in one.commands]
            commands = [_short_command(issued["command"]) for issued in data["commands"]]
            data["commands"] = dict(zip(places, commands, strict=True))
        if asked and one.messages == asked:
            del data["messages"]
        elif asked or one.messages:
            data["messages"] = [_short(content) for content in data.get("messages", ())]
        made.append({**data, **({} if formats.FORMAT == 1 else {"format": formats.FORMAT})})
    return made


def unpacked(made: Iterable[dict[str, Any]], seq: int, task_id: str) -> tuple[BeyondHistory, ...]:
    """What `packed` packed.

    Raises:
        ValidationError: It is something else.
        NewerFormat: A newer release wrote it.
    """
    found = []
    for given in made:
        data = {name: value for name, value in given.items() if name != "format"}
        commands = [
            {"invocation_id": id if "/" in id else f"{task_id}/{id}", "command": _long_command(command)}
            for id, command in data.get("commands", {}).items()
        ]
        messages = [_long(one) for one in data.get("messages", ())]
        long = {"seq": seq, **data, "commands": commands, "messages": messages}
        one = BeyondHistory.model_validate(formats.current("said", long, given.get("format", 1)))
        found.append(one if "messages" in data else one.changed({"messages": _asked(one.commands)}))
    return tuple(found)


def _asked(commands: Iterable[Issued]) -> tuple[Content, ...]:
    return tuple(one.command.message for one in commands if isinstance(one.command, AskUser | AskApproval))


def _short_command(command: dict[str, Any]) -> dict[str, Any]:
    shorter = {name: value for name, value in command.items() if (name, value) != _QUESTION}
    return {**shorter, "message": _short(command["message"])} if "message" in command else shorter


def _long_command(command: dict[str, Any]) -> dict[str, Any]:
    longer = {**dict([_QUESTION]), **command}
    return {**longer, "message": _long(command["message"])} if "message" in command else longer


_QUESTION = ("kind", "ask")  # the kind of most commands that are said, so it is left out


_BROUGHT = BROUGHT.model_dump(mode="json")


def _short(content: dict[str, Any]) -> str | dict[str, Any] | None:
    if content == _BROUGHT:
        return None
    match content:
        case {"parts": [{"text": str(text), **others}], **rest} if not others and not rest:
            return str(text)
        case _:
            return content


def _long(content: str | dict[str, Any] | None) -> dict[str, Any]:
    if content is None:
        return _BROUGHT
    return {"parts": [{"text": content}]} if isinstance(content, str) else content


def _carriers(event: HistoryEvent) -> Sequence[Payload]:
    """The payloads of an event that may hold a mark."""
    if event.HasField("workflow_execution_update_completed_event_attributes"):
        return event.workflow_execution_update_completed_event_attributes.outcome.success.payloads[:1]
    own = event.user_metadata
    result = event.workflow_execution_completed_event_attributes.result.payloads[:1]
    return [*result, *(getattr(own, name) for name in ("summary", "details") if own.HasField(name))]


async def _clear(payloads: Sequence[Payload], converter: DataConverter) -> list[Payload]:
    """Payloads as they were before encryption, all in one call of the codec."""
    if not payloads or converter.payload_codec is None:
        return list(payloads)
    return await converter.payload_codec.decode(payloads)


async def _said(event: HistoryEvent, converter: DataConverter) -> list[dict[str, Any]]:
    if event.HasField("workflow_execution_update_completed_event_attributes"):
        [answer] = await converter.decode(_carriers(event), [dict[str, Any]])
        return cast("list[dict[str, Any]]", answer.get(SAID, []))
    if not event.user_metadata.details.data:
        return []
    [found] = await converter.decode([event.user_metadata.details], [list[dict[str, Any]]])
    return cast("list[dict[str, Any]]", found)
