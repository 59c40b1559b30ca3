"""How values travel: pydantic's JSON in history, large values and journals beside it.

One converter serves clients, workers and replay. In this order a value is

1. written as JSON, with every `Stored` part taken out of it (the payload converter, inside the workflow's thread);
2. relieved of these parts, which go to storage (the codec, outside the workflow); encryption would follow here;
3. kept in storage as a whole if it is large (the SDK's external storage).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast

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
    DefaultFailureConverter,
    EncodingPayloadConverter,
    ExternalStorage,
    PayloadCodec,
    PayloadConverter,
    StorageDriver,
    StorageDriverSelectContext,
    StorageDriverStoreContext,
)
from temporalio.exceptions import ApplicationError

from refold.core.errors import PayloadTooLarge
from refold.core.values import shortened
from refold.temporal.data.storage import (
    ENV,
    Off,
    Storage,
    StorageUnusable,
    ValueDriver,
    is_key,
    key_of,
    storage_from_env,
    verified,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

LIMIT_BYTES = 2_000_000
"""The largest value that travels without storage. The server's limit is 2 MiB, but it counts what wraps a value too:
an update just below it is accepted, and then the worker can never answer, nor can queries be asked."""

THRESHOLD_BYTES = 32 * 1024
"""From here on a value is stored. One gRPC message holds 4 MB, so about a hundred commands may go out at once."""

_JSON = b"json/plain"
_PART = "refold-part-"  # metadata key: a part taken out of the JSON, by its hash, on its way to storage
_ANSWER = "refold-answer"  # metadata key: a query's answer, which no history keeps


class Stored(BaseModel, Generic[T]):
    """A value that is kept in storage whatever its size; what mentions it holds its hash.

    For what is written once and seldom read: a final task that is readable in the Temporal UI mentions its journal
    like this. Make one with `Stored[T](value=…)` anywhere inside what a workflow, activity or client sends; whoever
    receives it has `sha256` and `size`, and reads the value with `load`. Without storage the value travels along, as
    long as it fits.

    Attributes:
        value: The value itself; None once it is elsewhere.
        sha256: The key it is stored under, in hex; None while it is still here.
        size: Its length as JSON, in bytes; 0 while it is still here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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


async def load(stored: Stored[T], converter: DataConverter) -> T:
    """The value that `stored` stands for.

    Args:
        stored: As it was received, of a type that says what it holds (`Stored[Segment]`).
        converter: The client's, `client.data_converter`.

    Raises:
        ValueMissing: It is not in this process's storage.
        ValueCorrupt: What is there is not what was stored.
        StorageUnusable: The storage cannot be read.
    """
    if stored.sha256 is None:
        return cast(T, stored.value)
    codec = converter.payload_codec
    if not isinstance(codec, PartsCodec):
        raise TypeError("a stored value is read through refold's `data_converter()`; this client has another")
    held = type(stored).__pydantic_generic_metadata__["args"]
    return cast(T, _adapter(held[0] if held else Any).validate_json(await codec.read(stored.sha256)))


def data_converter(storage: Storage | None = None, codec: PayloadCodec | None = None) -> DataConverter:
    """The converter that client, worker and replay share.

    Args:
        storage: Where large values are kept; None asks the environment (`REFOLD_STORAGE`).
        codec: Applied to all that is written, stored parts included; encryption goes here.

    Raises:
        StorageUnusable: `REFOLD_STORAGE` names something that cannot be used.
    """
    storage = storage_from_env() if storage is None else storage
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

    return _Converter(
        payload_converter_class=BoundedPayloadConverter if isinstance(storage, Off) else RefoldPayloadConverter,
        payload_codec=PartsCodec(storage, codec),
        failure_converter_class=RefoldFailureConverter,
        external_storage=ExternalStorage(
            drivers=[driver], driver_selector=select, payload_size_threshold=THRESHOLD_BYTES
        ),
    )


class _Converter(DataConverter):
    def _with_store_context(self, store_ctx: StorageDriverStoreContext) -> DataConverter:
        # The SDK would copy the converter for each value, to tell the driver for whom the value is kept. Ours does
        # not ask: a value's key is its hash.
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
        unread.metadata["encoding"] = b"a reference that refold did not write"
        return unread


class RefoldPayloadConverter(PydanticPayloadConverter):
    """Pydantic's JSON, `Stored` parts beside it."""

    def __init__(self) -> None:
        # The SDK makes one of these for each value that external storage might take: with converters of its own it
        # would cost more than the value. In the sandbox the types are the workflow's own, and so is what knows them.
        self.converters = {**_OTHERS, _JSON: _JsonConverter()} if workflow.unsafe.in_sandbox() else _CONVERTERS

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        payloads: list[Payload] = []
        for value in values:
            payloads += [_as_json(value)] if isinstance(value, _AS_JSON) else super().to_payloads([value])
        if workflow.in_workflow() and workflow.unsafe.is_read_only():
            for payload in payloads:
                payload.metadata[_ANSWER] = b""
        return payloads


class BoundedPayloadConverter(RefoldPayloadConverter):
    """The same without storage: what Temporal would not take is refused here, where the caller can still act.

    The server's own refusal comes too late for an update, an activity's result or a workflow's command: these fail
    again and again, and the task answers no query meanwhile.
    """

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        payloads = super().to_payloads(values)
        if _size(payloads) > LIMIT_BYTES:
            for payload in payloads:
                _leave_out_parts(payload)
            if _size(payloads) > LIMIT_BYTES:
                raise _too_large(_size(payloads))
        return payloads


class RefoldFailureConverter(DefaultFailureConverter):
    """The SDK's, for which a value that is too large is final, and never keeps a failure from being told.

    A failure itself is never too large either: long messages are cut.
    """

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """See the SDK."""
        self._written(exception, payload_converter, failure)
        _bounded(failure)

    def _written(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        if isinstance(exception, PayloadTooLarge):
            # An activity would run again and again, for the same large result.
            final = ApplicationError(str(exception), type=PayloadTooLarge.__name__, non_retryable=True)
            super().to_failure(final.with_traceback(exception.__traceback__), payload_converter, failure)
            return
        try:
            super().to_failure(exception, payload_converter, failure)
        except PayloadTooLarge as error:
            if not isinstance(exception, ApplicationError):
                raise
            failure.Clear()
            bare = ApplicationError(
                f"{exception.message} (its details are left out: {error})",
                type=exception.type,
                non_retryable=exception.non_retryable,
            )
            super().to_failure(bare.with_traceback(exception.__traceback__), payload_converter, failure)


FAILURE_CHARS = 20_000
"""How much of a failure's message and stack trace travels. Whatever holds one larger than Temporal takes, fails again
and again."""


def _bounded(failure: Failure) -> None:
    failure.message = shortened(failure.message, FAILURE_CHARS)
    failure.stack_trace = shortened(failure.stack_trace, FAILURE_CHARS)
    if failure.HasField("cause"):
        _bounded(failure.cause)


class PartsCodec(PayloadCodec):
    """Takes `Stored` parts out of payloads and into storage; then applies the codec that was given, if any."""

    def __init__(self, storage: Storage, inner: PayloadCodec | None = None) -> None:
        self.storage = storage
        self.inner = inner

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        relieved = [await self._relieved(payload) if _parts(payload) else payload for payload in payloads]
        for payload in relieved:
            # It matters for large answers only; Temporal's command line shows what has it as base64.
            if _ANSWER in payload.metadata and payload.ByteSize() < THRESHOLD_BYTES:
                del payload.metadata[_ANSWER]
        return relieved if self.inner is None else await self.inner.encode(relieved)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        # Parts stay where they are: who reads a final task seldom wants its journal, and may not have the storage.
        return list(payloads) if self.inner is None else await self.inner.decode(payloads)

    async def read(self, key: str) -> bytes:
        """The JSON of the part that is stored under `key`; errors as `load`."""
        data = await self.storage.get(key)
        if self.inner is not None:
            data = (await self.inner.decode([Payload.FromString(data)]))[0].data
        return verified(key, data, self.storage.place)

    async def _relieved(self, payload: Payload) -> Payload:
        parts = _parts(payload)
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
                # A task that could end should end: its journal is no worse off in history.
                if not fits:
                    raise
                logger.warning("%s; %d bytes go to history", error, len(raw))
            else:
                del relieved.metadata[_PART + key]
        return relieved

    async def _keep(self, key: str, raw: bytes) -> None:
        # The key is the hash of what was written, encoded or not: only that is the same at replay.
        if self.inner is not None:
            encoded = await self.inner.encode([Payload(metadata={"encoding": _JSON}, data=raw)])
            raw = encoded[0].SerializeToString(deterministic=True)
        await self.storage.put(key, raw)


class _Parts:
    """Collects the parts of one payload while its JSON is written."""

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


# What no other encoding would take: for most values the SDK asks each in turn.
_AS_JSON = (BaseModel, str, bool, int, float, dict, list)


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
        data = payload.data
        # As bytes, so that it works whatever type is asked for. Nobody can write the reference to a part by accident
        # or by intent: it holds the hash of all that the part says.
        parts = _parts(payload)
        for _ in parts:  # a part may hold a part
            for key, raw in parts.items():
                data = data.replace(to_json(_reference(key, len(raw))), b'{"value":' + raw + b"}")
        return self._adapter_of(Any if type_hint is None else type_hint).validate_json(data)

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
    if reference.metadata.get("messageType") != ExternalStorageReference.DESCRIPTOR.full_name.encode():
        return True
    try:
        found = from_json(reference.data)
        return found["driverName"] == ValueDriver.NAME and is_key(found["claimData"]["sha256"])
    except (ValueError, TypeError, KeyError):
        return False


_OTHERS = {
    encoding: converter for encoding, converter in PydanticPayloadConverter().converters.items() if encoding != _JSON
}
_CONVERTERS: Mapping[bytes, EncodingPayloadConverter] = {**_OTHERS, _JSON: _JsonConverter()}


def _reference(key: str, size: int) -> dict[str, Any]:
    return {"sha256": key, "size": size}


def _parts(payload: Payload) -> dict[str, bytes]:
    if len(payload.metadata) == 1:
        return {}
    return {name[len(_PART) :]: raw for name, raw in payload.metadata.items() if name.startswith(_PART)}


def _leave_out_parts(payload: Payload) -> None:
    for key, raw in _parts(payload).items():
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
