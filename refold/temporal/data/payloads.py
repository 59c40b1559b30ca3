"""The data converter: pydantic's JSON in history, with large values and journals in storage.

Clients, workers and replay share one converter. For each value

1. the payload converter writes JSON and separates every `Stored` part (inside the workflow's thread);
2. the codec writes these parts to storage (outside the workflow); encryption follows here;
3. the SDK's external storage stores the rest as a whole if it is large.

Whatever is stored is named by the hash of what it is before encryption: a replay encrypts it anew, with other bytes,
and must find that it is stored already.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import zlib
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

from google.protobuf import json_format
from google.protobuf.message import DecodeError
from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
)
from pydantic_core import from_json, to_json
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.api.sdk.v1.external_storage_pb2 import ExternalStorageReference
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    EncodingPayloadConverter,
    ExternalStorage,
    PayloadCodec,
    PayloadConverter,
    StorageDriver,
    StorageDriverClaim,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from refold.core.values import Deferred
from refold.engine import CodecError, PayloadTooLarge, StorageError
from refold.formats import FORMAT, current, known_here
from refold.temporal.data.codec import ENV as CODEC_ENV
from refold.temporal.data.codec import (
    CodecUnusable,
    KeyMissing,
    codec_from_env,
    decrypted,
    encrypted,
    fit,
    named_key,
    unlike,
    unlike_keys,
)
from refold.temporal.data.failures import EncodedFailureConverter, RefoldFailureConverter, without_details
from refold.temporal.data.storage import (
    ENV,
    VALUE_KEY,
    Off,
    Storage,
    StorageUnusable,
    ValueCorrupt,
    ValueDriver,
    ValueMissing,
    is_key,
    key_of,
    verified,
)
from refold.temporal.data.storage_setting import storage_from_env

T = TypeVar("T")

AWAY = (CodecUnusable, StorageUnusable)
"""Errors of a codec or a storage that may be back when somebody asks again."""

logger = logging.getLogger(__name__)

LIMIT_BYTES = 2_000_000
"""The largest value without storage, in bytes. The server's limit of 2 MiB includes the value's envelope: the server
would accept an update just below that limit, but the worker could never answer it, and queries would fail."""

PACKED_LEVEL = 1
"""How hard stored parts are packed: journals repeat themselves. Level 6 takes four times the time for a sixth less."""

THRESHOLD_BYTES = 32 * 1024
"""Values of this size or more are stored. A gRPC message holds 4 MB, so about a hundred commands fit into one."""

REFERENCE_TYPE = b"temporal.api.sdk.v1.ExternalStorageReference"
"""What the SDK says of a reference to a stored value."""

WITH_PARTS_BYTES = 10 * LIMIT_BYTES
"""The longest JSON of a value with the parts that it carries, in bytes. Equal parts travel once, so a value may be
longer than its payload; but anybody can send a payload of 4 KB whose parts would be gigabytes."""

NESTED_PARTS = 10
"""How deep a part may be inside of others."""


@dataclass(slots=True)
class Shown:
    """What the server was last shown of a running activity.

    Attributes:
        details: The details of its last heartbeat.
        sent: The last details that could be encoded.
    """

    details: Sequence[Any] = ()
    sent: list[Payload] = field(default_factory=list)


MAY_BE_LOST: ContextVar[Shown | None] = ContextVar("refold_may_be_lost", default=None)
"""Whether what is written now may be lost, as the details of a heartbeat; and of which activity they are."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the current activity returns or fails with, and what that is encoded.

    `plain` is what it was then, before the codec, where an interceptor may change it since; else None.
    """

    outcome: object
    made: Any
    plain: Sequence[Payload] | None = None

    def still(self, value: object, converter: PayloadConverter) -> bool:
        """Whether this is the outcome, as it was."""
        return value is self.outcome and (self.plain is None or converter.to_payloads([value]) == self.plain)


_KEPT: ContextVar[_Kept | None] = ContextVar("refold_kept", default=None)

_JSON = b"json/plain"
_PART = "refold-part-"  # metadata key of a part separated from the JSON, by its hash, until the codec stores it
_LEFT_OUT = "refold-left-out"  # metadata key of a payload without its parts, which nobody has kept
_REFERENCE = re.compile(rb'\{"sha256":"[0-9a-f]{64}","size":\d+\}')  # `_reference`, as JSON
_ANSWER = "refold-answer"  # metadata key of a query's answer, which no history records
_NOT_OURS = b"a reference that refold did not write"  # encoding of a payload that refold makes unreadable
_MISNAMED = b"another value than its metadata name"  # as well


class Stored(Deferred, Generic[T]):
    """A value that is stored whatever its size, and referred to by its hash.

    For values written once and seldom read, such as the journal of an ended task. Put `Stored[T](value=…)` anywhere
    inside a value that a workflow, activity or client sends; the receiver gets `sha256` and `size`, and reads the value
    with `load`. Without storage the value is sent inline, if it fits.

    Attributes:
        value: The value itself; None if it was stored.
        sha256: The storage key, in hex; None if the value is inline.
        size: The length of the value's JSON, in bytes; 0 if the value is inline.
    """

    model_config = ConfigDict(extra="forbid")

    value: T | None = None
    sha256: str | None = None
    size: int = 0

    @model_serializer(mode="wrap")
    def _written(self, written: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        if self.sha256 is not None:
            return _reference(self.sha256, self.size)
        if not isinstance(info.context, _Parts):
            return {"value": written(self)["value"]}
        raw = to_json(self.value, context=info.context)
        return info.context.take(raw)


async def load(stored: Stored[T], converter: DataConverter, *, saved_as: tuple[str, int] | None = None) -> T:
    """Read the value of a `Stored`.

    Args:
        stored: The received reference, with its type parameter (`Stored[Segment]`).
        converter: The client's converter, `client.data_converter`.
        saved_as: The kind and the number of its format (`refold.formats`), where the value itself does not say.

    Raises:
        ValueMissing: The value is not in this process's storage.
        ValueCorrupt: The stored bytes no longer match the hash.
        StorageUnusable: The storage cannot be read.
        NewerFormat: A newer release saved it, in a format or with fields that this one does not know.
    """
    if stored.sha256 is None:
        return cast(T, stored.value)
    codec = converter.payload_codec
    if not isinstance(codec, PartsCodec):
        raise TypeError("a stored value is read through refold's `data_converter()`; this client has another")
    held = type(stored).__pydantic_generic_metadata__["args"]
    raw, kind = await codec.read(stored.sha256), _adapter(held[0] if held else Any)
    if saved_as is not None and saved_as[1] != FORMAT:
        raw = to_json(current(saved_as[0], from_json(raw), saved_as[1]))
    with known_here("stored value"):
        return cast(T, kind.validate_json(raw))


def data_converter(storage: Storage | None = None, codec: PayloadCodec | None = None) -> DataConverter:
    """The converter that client, worker and replay share.

    Args:
        storage: The storage for large values; None takes `REFOLD_STORAGE`.
        codec: Applied to every payload, stored parts included; for encryption. None takes `REFOLD_CODEC`.

    Raises:
        StorageUnusable: The storage that `REFOLD_STORAGE` names cannot be used.
        CodecError: The codec is refused, or `REFOLD_CODEC` names none.
    """
    storage = storage_from_env() if storage is None else storage
    codec = codec_from_env() if codec is None else fit(codec)
    driver = ValueDriver(storage)

    def select(context: StorageDriverSelectContext, payload: Payload) -> StorageDriver | None:
        if isinstance(storage, Off):
            return None
        if payload.ByteSize() <= LIMIT_BYTES:
            if _ANSWER in payload.metadata:
                return None
            if not storage.ready():
                logger.warning("%s cannot be used; %d bytes go to history", storage.place, len(payload.data))
                return None
        return driver

    return RefoldConverter(
        payload_converter_class=BoundedPayloadConverter if isinstance(storage, Off) else RefoldPayloadConverter,
        payload_codec=PartsCodec(storage, codec),
        failure_converter_class=RefoldFailureConverter if codec is None else EncodedFailureConverter,
        external_storage=ExternalStorage(
            drivers=[driver], driver_selector=select, payload_size_threshold=THRESHOLD_BYTES
        ),
    )


def codec_in(converter: DataConverter) -> PayloadCodec | None:
    """The codec that a client's converter encrypts with; None if it does not.

    Raises:
        CodecError: The converter is not refold's.
    """
    if not isinstance(converter.payload_codec, PartsCodec):
        raise CodecError(
            "this client does not write values as refold does, and would leave its own codec out; connect it with "
            "plugins=[RefoldPlugin(...)], or with data_converter=data_converter()"
        )
    return converter.payload_codec.inner


class RefoldConverter(DataConverter):
    """The SDK's converter, without its copies, and with references that are read as other inputs are."""

    async def encode(self, values: Sequence[Any]) -> list[Payload]:
        """See the SDK. What `MAY_BE_LOST` stays as it was sent last if the codec or the storage is away."""
        kept = _KEPT.get()
        if kept is not None and len(values) == 1 and kept.still(values[0], self.payload_converter):
            return list(kept.made)
        if (shown := MAY_BE_LOST.get()) is None:
            return await super().encode(values)
        try:
            shown.sent = await super().encode(values)
        except PayloadTooLarge:
            raise
        except (CodecError, StorageError) as error:
            logger.warning("the details of a heartbeat are left out: %s", error)
        return shown.sent

    async def encode_failure(self, exception: BaseException, failure: Failure) -> None:
        """See the SDK."""
        kept = _KEPT.get()
        if kept is not None and exception is kept.outcome:
            failure.CopyFrom(kept.made)
        else:
            await super().encode_failure(exception, failure)

    async def keep(self, outcome: object, *, final: bool) -> None:
        """Encode what the current activity returns, or the error that it raises, before the SDK does.

        The SDK, which encodes it next, then sends just that: the codec or the storage may be away again by then. Where
        it is not `final`, it may be changed before, and is encoded anew if it was.
        """
        if isinstance(outcome, BaseException):
            failure = Failure()
            try:
                await self.encode_failure(outcome, failure)
            except PayloadTooLarge as error:  # the codec never takes it
                failure.Clear()
                await self._encode_less(outcome, error, failure)
            _KEPT.set(_Kept(outcome, failure))
        else:
            plain = None if final else self.payload_converter.to_payloads([outcome])
            _KEPT.set(_Kept(outcome, await self.encode([outcome]), plain))

    async def _encode_less(self, outcome: BaseException, why: PayloadTooLarge, failure: Failure) -> None:
        less = without_details(outcome, str(why)) if isinstance(outcome, ApplicationError) else why
        try:
            await super().encode_failure(less, failure)
        except PayloadTooLarge:
            failure.Clear()
            await super().encode_failure(why, failure)  # of which the codec is given nothing

    def _with_store_context(self, store_ctx: StorageDriverStoreContext) -> DataConverter:
        # The SDK would copy the converter for each value, to give the driver a context. refold's driver needs none,
        # since a value's key is its hash.
        return self

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        # The first step of what the SDK does to inputs. A reference that it cannot follow would fail the workflow task,
        # again and again; as an encoding that nobody reads it is an input like any other.
        return [await self._reference(payload) for payload in payloads]

    async def _reference(self, payload: Payload) -> Payload:
        try:
            [decoded] = await super()._decode_reference_payload_sequence([payload])
        except RuntimeError as error:
            if "TMPRL1106" not in str(error):
                raise
        else:
            if _readable(decoded):
                return decoded
        unread = Payload()
        unread.CopyFrom(payload)
        unread.metadata.pop("__temporal_external_storage_reference", None)
        unread.metadata["encoding"] = _NOT_OURS
        return unread


class RefoldPayloadConverter(PydanticPayloadConverter):
    """Writes pydantic's JSON, and `Stored` parts separately."""

    def __init__(self) -> None:
        # The SDK creates an instance for each value that external storage might take, so instances share converters.
        # In the sandbox types are imported again for each task, so their adapters must not be shared.
        self.converters = {**_OTHERS, _JSON: _JsonConverter()} if workflow.unsafe.in_sandbox() else _CONVERTERS

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        try:
            return super().from_payloads(payloads, type_hints)
        except KeyError:  # of the encodings, one is unknown
            for payload in payloads:
                if said := unlike(payload):
                    raise unlike_keys(said) from None
            raise

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        payloads: list[Payload] = []
        for value in values:
            payloads += [_as_json(value)] if isinstance(value, _AS_JSON) else super().to_payloads([value])
        if workflow.in_workflow() and workflow.unsafe.is_read_only():
            for payload in payloads:
                payload.metadata[_ANSWER] = b""
        return payloads


class BoundedPayloadConverter(RefoldPayloadConverter):
    """The converter without storage: raises `PayloadTooLarge` for a value that the server would refuse.

    The server's own refusal comes too late for an update, an activity's result or a workflow's command: each would be
    retried without end, and the task would answer no query meanwhile.
    """

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        payloads = super().to_payloads(values)
        if _size(payloads) > LIMIT_BYTES:
            relieved = [payload for payload in payloads if parts_of(payload)]
            for payload in relieved:
                _leave_out_parts(payload)
            if _size(payloads) > LIMIT_BYTES:
                raise _too_large(_size(payloads))
            for payload in relieved:
                payload.metadata[_LEFT_OUT] = b""  # not counted: a replay must find the same values too large
        return payloads


class PartsCodec(PayloadCodec):
    """Moves `Stored` parts from payloads to storage, then applies the given codec, if any."""

    def __init__(self, storage: Storage, inner: PayloadCodec | None = None) -> None:
        self.storage = storage
        self.inner = inner

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        relieved = [await self._relieved(payload) if parts_of(payload) else payload for payload in payloads]
        for payload in relieved:
            # The mark matters for large answers only, and Temporal's command line shows a marked payload as base64.
            if _ANSWER in payload.metadata and payload.ByteSize() < THRESHOLD_BYTES:
                del payload.metadata[_ANSWER]
        if self.inner is None:
            return relieved
        return list(await asyncio.gather(*(self._encoded(self.inner, payload) for payload in relieved)))

    async def _encoded(self, inner: PayloadCodec, payload: Payload) -> Payload:
        made = await encrypted(inner, payload)
        if made.ByteSize() < THRESHOLD_BYTES:
            return made
        encoded = Payload()
        encoded.CopyFrom(made)
        encoded.metadata[VALUE_KEY] = key_of(payload.SerializeToString(deterministic=True)).encode()
        if _ANSWER in payload.metadata:
            encoded.metadata[_ANSWER] = b""
        return encoded

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        # Parts are not loaded: a reader of an ended task seldom needs its journal, and may not have the storage.
        if self.inner is not None:
            return list(await asyncio.gather(*(self._decoded(self.inner, payload) for payload in payloads)))
        for payload in payloads:
            if (key := named_key(payload)) is not None:
                way_out = f"set {CODEC_ENV} as it is where the value was written"
                raise KeyMissing(key, f"and this process has no codec; {way_out}")
        return list(payloads)

    async def _decoded(self, inner: PayloadCodec, payload: Payload) -> Payload:
        key = payload.metadata.get(VALUE_KEY)
        if key is None:
            return await decrypted(inner, payload)
        bare = Payload()
        bare.CopyFrom(payload)
        del bare.metadata[VALUE_KEY]
        bare.metadata.pop(_ANSWER, None)
        decoded = await decrypted(inner, bare)
        named, found = key.decode(errors="replace"), key_of(decoded.SerializeToString(deterministic=True))
        if found == named:
            return decoded
        if await self._is_stored(named, payload):
            raise ValueCorrupt(named, self.storage.place, found, unlike(decoded))
        # Anybody can send bytes that say so of themselves. An error would fail the workflow task, again and again.
        return Payload(metadata={"encoding": _MISNAMED}, data=payload.data)

    async def _is_stored(self, key: str, payload: Payload) -> bool:
        if not is_key(key):
            return False
        with contextlib.suppress(ValueMissing, DecodeError):
            return Payload.FromString(await self.storage.get(key)) == payload
        return False

    async def read(self, key: str) -> bytes:
        """The JSON of the part that is stored under `key`; errors as `load`."""
        if not is_key(key):  # anybody can start a task with a reference, and a storage may take its key for a path
            raise ValueMissing(key, self.storage.place)
        data = await self.storage.get(key)
        raw = _unpacked(data)
        if key_of(raw) != key:  # it is encoded; what was stored before encryption began is as it is
            with contextlib.suppress(DecodeError):  # damaged, as its hash then shows
                [decoded] = await self.decode([Payload.FromString(data)])
                raw = _unpacked(decoded.data)
                if said := unlike(decoded):
                    raise ValueCorrupt(key, self.storage.place, key_of(raw), said)
        return verified(key, raw, self.storage.place)

    async def _relieved(self, payload: Payload) -> Payload:
        # Who calls a codec server may make up parts: one under another name than its hash would be written over another
        # value, or outside of the folder.
        parts = {key: raw for key, raw in parts_of(payload).items() if key_of(raw) == key}
        if isinstance(self.storage, Off):
            return payload
        fits = payload.ByteSize() <= LIMIT_BYTES
        if fits and _ANSWER in payload.metadata:
            return payload
        relieved = Payload()
        relieved.CopyFrom(payload)
        for key, raw in parts.items():
            try:
                await self._keep(key, raw)
            except StorageUnusable as error:
                # If the storage fails, a part that fits stays inline, so that the task can end.
                if not fits:
                    raise
                logger.warning("%s; %d bytes go to history", error, len(raw))
            else:
                del relieved.metadata[_PART + key]
        return relieved

    async def _keep(self, key: str, raw: bytes) -> None:
        # The key is the hash of the JSON before it is packed and encoded, which is the same at replay.
        raw = zlib.compress(raw, PACKED_LEVEL)
        if self.inner is not None:
            encoded = await encrypted(self.inner, Payload(metadata={"encoding": b"binary/plain"}, data=raw))
            raw = encoded.SerializeToString(deterministic=True)
        await self.storage.put(key, raw)


def _unpacked(data: bytes) -> bytes:
    """The JSON of a part. Earlier releases stored it as it is, and JSON never begins as packed data does."""
    with contextlib.suppress(zlib.error):  # damaged, as its hash then shows
        return zlib.decompress(data)
    return data


class _Parts:
    """Collects the `Stored` parts of one payload while its JSON is written."""

    def __init__(self) -> None:
        self.by_key: dict[str, bytes] = {}

    def take(self, raw: bytes) -> dict[str, Any]:
        key = key_of(raw)
        self.by_key[key] = raw
        return _reference(key, len(raw))


def _as_json(value: Any) -> Payload:
    parts = _Parts()
    payload = Payload(metadata={"encoding": _JSON}, data=to_json(value, context=parts))
    for key, raw in parts.by_key.items():
        payload.metadata[_PART + key] = raw
    return payload


# Types that only the JSON converter accepts; for other types the SDK tries each converter in turn.
_AS_JSON = (BaseModel, str, bool, int, float, dict, list)


def _with_parts(payload: Payload) -> bytes:
    """The JSON of a payload, with the parts that it carries in place of their references.

    Replaced as bytes, whatever the requested type. A reference cannot be forged, since it holds the part's hash.

    Raises:
        ValueError: There are more parts inside of parts than refold writes.
    """
    data, parts = payload.data, parts_of(payload)
    if not parts:
        return data
    values = {to_json(_reference(key, len(raw))): b'{"value":' + raw + b"}" for key, raw in parts.items()}
    for _ in range(NESTED_PARTS + 1):
        found = [values[one] for one in _REFERENCE.findall(data) if one in values]
        if not found:
            return data
        if len(data) + sum(map(len, found)) > WITH_PARTS_BYTES:
            break
        data = _REFERENCE.sub(lambda one: values.get(one[0], one[0]), data)
    raise ValueError("it carries parts that refer to each other, or to one part again and again")


class _JsonConverter(EncodingPayloadConverter):
    """pydantic's JSON, as the SDK's own converter writes and reads it."""

    def __init__(self) -> None:
        self._adapters: dict[Any, TypeAdapter[Any]] = {}

    @property
    def encoding(self) -> str:
        return "json/plain"

    def to_payload(self, value: Any) -> Payload | None:
        return _as_json(value)

    def from_payload(self, payload: Payload, type_hint: type | None = None) -> Any:
        return self._adapter_of(Any if type_hint is None else type_hint).validate_json(_with_parts(payload))

    def _adapter_of(self, kind: Any) -> TypeAdapter[Any]:
        if kind in (Any, JsonValue) or str(getattr(kind, "__module__", "")).startswith("refold."):
            return _adapter(kind)
        try:
            found = self._adapters.get(kind)
        except TypeError:  # an unhashable annotation
            return TypeAdapter(kind)
        if found is None:
            found = self._adapters[kind] = TypeAdapter(kind)
        return found


def _readable(reference: Payload) -> bool:
    """Whether what says that it refers to a stored value was written by refold: others anybody can make up."""
    if reference.metadata.get("encoding") == b"json/external-storage-reference":
        return False  # the SDK's older form
    if reference.metadata.get("messageType") != REFERENCE_TYPE:
        return True
    try:
        found = from_json(reference.data)
        if found["driverName"] != ValueDriver.NAME or not is_key(found["claimData"]["sha256"]):
            return False
        # The SDK refuses a field it does not know, and takes the last of a field's two names.
        read = json_format.Parse(reference.data, ExternalStorageReference())
    except (ValueError, TypeError, KeyError, json_format.Error):
        return False
    return read.driver_name == ValueDriver.NAME and is_key(read.claim_data["sha256"])


_OTHERS = {
    encoding: converter for encoding, converter in PydanticPayloadConverter().converters.items() if encoding != _JSON
}
_CONVERTERS: Mapping[bytes, EncodingPayloadConverter] = {**_OTHERS, _JSON: _JsonConverter()}


def still_encoded(payload: Payload) -> str:
    """Why a decoded payload is still encoded, by a codec or a key that this process lacks; empty if it is not."""
    if said := unlike(payload):
        return str(unlike_keys(said))
    encoding = payload.metadata.get("encoding")
    if encoding is None or encoding in _CONVERTERS or encoding in (_NOT_OURS, _MISNAMED):
        return ""
    named = encoding.decode(errors="replace")
    return f"a value has the encoding {named!r}, which refold does not write; set {CODEC_ENV} as it is for the workers"


def reference_in(payload: Payload) -> StorageDriverClaim | None:
    """What a payload refers to, if it is refold's reference to a stored value."""
    if payload.metadata.get("messageType") != REFERENCE_TYPE or not _readable(payload):
        return None
    return StorageDriverClaim(claim_data=from_json(payload.data)["claimData"])


def _reference(key: str, size: int) -> dict[str, Any]:
    return {"sha256": key, "size": size}


def parts_of(payload: Payload) -> dict[str, bytes]:
    """The `Stored` parts that a payload carries because they are not stored (yet), by the names of their values."""
    if len(payload.metadata) == 1:
        return {}
    return {name[len(_PART) :]: raw for name, raw in payload.metadata.items() if name.startswith(_PART)}


def lacks_storage(payload: Payload) -> bool:
    """Whether a payload was sent without storage for its `Stored` parts: it carries them, or they were left out.

    False for payloads whose parts earlier releases left out: these do not say so.
    """
    return _LEFT_OUT in payload.metadata or bool(parts_of(payload))


def _leave_out_parts(payload: Payload) -> None:
    for key, raw in parts_of(payload).items():
        logger.warning("a value of %d bytes is not kept: it is too large for history, and %s is off", len(raw), ENV)
        del payload.metadata[_PART + key]


def _size(payloads: Sequence[Payload]) -> int:
    return sum(payload.ByteSize() for payload in payloads)


def _too_large(size: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a value of {size:,} bytes is too large for Temporal, which takes {LIMIT_BYTES:,}, and the storage for large "
        f"values is off; set {ENV} to a folder that the client and every worker share"
    )


@lru_cache(maxsize=64)
def _adapter(held: Any) -> TypeAdapter[Any]:
    return TypeAdapter(held)
