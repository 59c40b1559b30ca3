"""Compares payloads of a history with those of today's code: equal, or the first difference.

A stored value is compared by its name, which is the hash of its content, and read only where the names differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import from_json, to_json
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter

from refold.differences import FieldDifference, first_difference
from refold.temporal.data.payloads import PartsCodec, parts_of, reference_in
from refold.temporal.data.storage import key_of


async def clear(payloads: Sequence[Payload], converter: DataConverter) -> list[Payload]:
    """Payloads of a history as they were before they were encrypted or stored.

    Raises:
        StorageError: A stored value cannot be read.
        CodecError: The codec cannot decrypt one, or there is none.
    """
    found = await converter.decode(payloads, [RawValue] * len(payloads))
    return [one.payload for one in found]


async def difference(recorded: Payload, now: Payload, converter: DataConverter) -> FieldDifference | None:
    """Where a value of a history and a value of today's code differ first; None if nowhere. Errors as `clear`."""
    claim = reference_in(recorded)
    if claim is not None and claim.claim_data["sha256"] == _key(now):
        return None
    [was] = await clear([recorded], converter)
    if was.data == now.data:
        return None
    return first_difference(data_in(was), data_in(now))


def data_in(payload: Payload) -> Any:
    """The JSON data of a payload; None for nothing, and text for what is no JSON."""
    encoding = payload.metadata.get("encoding", b"")
    if encoding == b"json/plain":
        return from_json(payload.data)
    return None if encoding == b"binary/null" else f"{len(payload.data):,} bytes of {encoding.decode()}"


async def stored_in(reference: Any, payload: Payload, converter: DataConverter) -> Any:
    """The JSON data of a `Stored` value.

    Args:
        reference: The `Stored` as JSON data.
        payload: Where it was found; what could not be stored is in its metadata.
        converter: Of the client that wrote it.

    Raises:
        StorageError: It cannot be read.
        CodecError: The codec cannot decrypt it.
    """
    if "value" in reference:
        return reference["value"]
    key = reference["sha256"]
    raw = parts_of(payload).get(key)
    if raw is None:
        assert isinstance(converter.payload_codec, PartsCodec)
        raw = await converter.payload_codec.read(key)
    return from_json(raw)


def name_of(reference: Any) -> str | None:
    """The name of a `Stored` value, as JSON data; None without one."""
    return reference.get("sha256") or key_of(to_json(reference["value"]))


def _key(payload: Payload) -> str:
    bare = Payload()
    bare.CopyFrom(payload)
    for name in [name for name in bare.metadata if name not in _KEPT]:
        del bare.metadata[name]
    return key_of(bare.SerializeToString(deterministic=True))


_KEPT = ("encoding", "messageType")
