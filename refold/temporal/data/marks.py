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

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.converter import DataConverter

from refold.digests import DIGEST_BYTES, Said

KEY = "r"
"""The metadata key of a mark; short, since each workflow task writes it to history."""


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
    said: tuple[Said, ...]
    build_id: str


def written(seq: int, digest: bytes) -> bytes:
    """A mark as the value of `KEY`: the digest, then the entry's number in as few bytes as it takes."""
    return digest + seq.to_bytes((seq.bit_length() + 7) // 8, "big")


async def marks_of(events: Iterable[HistoryEvent], converter: DataConverter) -> list[Mark]:
    """The marks of one run's history, in the order of its events.

    Args:
        events: The run's history, from its first event on.
        converter: The client's, which decrypts and follows references to storage.

    Raises:
        StorageError: What an entry said is in a storage that cannot be read.
        CodecError: The codec cannot read it.
    """
    build_id, found = "", list[tuple[HistoryEvent, str]]()
    for event in events:
        if event.HasField("workflow_task_completed_event_attributes"):
            build_id = event.workflow_task_completed_event_attributes.worker_version.build_id
        elif _carriers(event):
            found.append((event, build_id))
    clear = await _clear([payload for event, _ in found for payload in _carriers(event)], converter)
    marks = []
    for event, build_id in found:
        value = b"".join([clear.pop(0).metadata.get(KEY, b"") for _ in _carriers(event)])
        if len(value) <= DIGEST_BYTES:
            continue
        seq, digest = int.from_bytes(value[DIGEST_BYTES:], "big"), value[:DIGEST_BYTES]
        said = await _said(event.user_metadata.details, converter)
        marks.append(Mark(event_id=event.event_id, seq=seq, digest=digest, said=said, build_id=build_id))
    return marks


def _carriers(event: HistoryEvent) -> Sequence[Payload]:
    """The payloads of an event that may hold a mark."""
    if event.HasField("workflow_execution_update_completed_event_attributes"):
        return event.workflow_execution_update_completed_event_attributes.outcome.success.payloads[:1]
    own = event.user_metadata
    return [getattr(own, name) for name in ("summary", "details") if own.HasField(name)]


async def _clear(payloads: Sequence[Payload], converter: DataConverter) -> list[Payload]:
    """Payloads as they were before encryption, all in one call of the codec."""
    if not payloads or converter.payload_codec is None:
        return list(payloads)
    return await converter.payload_codec.decode(payloads)


async def _said(details: Payload, converter: DataConverter) -> tuple[Said, ...]:
    if not details.ByteSize():
        return ()
    [found] = await converter.decode([details], [list[Said]])
    return tuple(found)
