"""Inputs of a task that its worker cannot get: a reference to a value that is not stored, or a key that is not here.

Anybody can send one, and an error would fail the workflow task, again and again. So whatever came from outside is
handed to the task, with the reason, and the task decides (`refold.temporal.worker.task.absences`):

| what cannot be got                                  | is refused                                              |
| --------------------------------------------------- | ------------------------------------------------------- |
| the storage says that it has no such value          | at once                                                 |
| its key is not here, or this worker has no storage  | once this worker has lacked it for `PATIENCE_S`          |
| the storage does not answer, or its folder is away  | never: the error fails the workflow task, which waits   |

A replay may get what could not be got, or may not get what could. So what came by a reference or a key carries the
words by which it would be refused, also where it was got: those that history alone gives, and no worker's settings.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter, StorageDriverStoreContext, StorageDriverWorkflowInfo

from refold.core.values import shortened
from refold.engine import StorageError
from refold.temporal.data.codec import KeyMissing, named_key
from refold.temporal.data.payloads import PartsCodec, RefoldConverter, reference_in
from refold.temporal.data.storage import Off, ValueCorrupt, ValueMissing, key_of

current_command_info: Any = None
with contextlib.suppress(ImportError):  # a release of the SDK that is made in another way: every input fails the task
    from temporalio.worker._command_aware_visitor import current_command_info

PATIENCE_S = 600.0
"""How long, in seconds, a worker waits for a key, or for storage to be configured, before it refuses an input. So long
for each input, since another worker may have the key, and take the next attempt of the workflow task."""

WHY = "refold-absent-why"
"""The metadata with the words by which an input would be refused."""

NOW = "refold-absent-now"
"""The metadata with the error of the worker that cannot get the input; absent where it was got."""

SURE = "refold-absent-sure"
"""The metadata that says that the input may be refused."""

KEPT = 10_000
"""How many inputs a process remembers that it could not get; one that it forgets has `PATIENCE_S` again."""

_lacking: OrderedDict[str, float] = OrderedDict()  # since when, by a hash of what is lacking, the run and the input
_read_for: ContextVar[StorageDriverWorkflowInfo | None] = ContextVar("refold_read_for", default=None)


@dataclass(frozen=True)
class InputConverter(RefoldConverter):
    """What a worker reads the inputs of workflows with.

    Attributes:
        tasks: The workflow types that are tasks: those of others fail as the SDK has it.
    """

    tasks: frozenset[str] = field(default=frozenset())

    def _with_store_context(self, store_ctx: StorageDriverStoreContext) -> DataConverter:
        # The SDK says here, before it reads an activation, whose it is.
        if isinstance(store_ctx.target, StorageDriverWorkflowInfo) and store_ctx.target.type is not None:
            _read_for.set(store_ctx.target)
        return self

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await self._followed(_bare(payload)) for payload in payloads]

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        if not self._is_input():
            return await super()._external_retrieve_payload_sequence(payloads)
        return [await self._retrieved(payload) for payload in payloads]

    async def _decode_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        if not self._is_input():
            return await super()._decode_payload_sequence(payloads)
        return [await self._decoded(payload) for payload in payloads]

    def _is_input(self) -> bool:
        """Whether the payload is an input of a task, and not the outcome of a command of the task."""
        if current_command_info is None or current_command_info.get():
            return False
        target = _read_for.get()
        return target is not None and target.type in self.tasks

    async def _followed(self, payload: Payload) -> Payload:
        if not self._is_input():
            [followed] = await super()._decode_reference_payload_sequence([payload])
            return followed
        why = _refusal(payload)
        try:
            [followed] = await super()._decode_reference_payload_sequence([payload])
        except KeyMissing as error:
            return _absent(payload, why, error, sure=_waited(error.key, payload))
        return _with(followed, why)

    async def _retrieved(self, payload: Payload) -> Payload:
        claim, why = reference_in(payload), payload.metadata.get(WHY, b"").decode()
        if NOW in payload.metadata or claim is None:
            return payload
        codec = self.payload_codec
        assert isinstance(codec, PartsCodec)
        try:
            [got] = await super()._external_retrieve_payload_sequence([_bare(payload)])
        except ValueMissing as error:
            if isinstance(codec.storage, Off):
                return _absent(payload, why, error, sure=_waited("storage", payload))
            if not codec.storage.ready():  # the mount point of a disk that is away may be there, and root's
                raise
            return _absent(payload, why, error, sure=True)
        except (ValueCorrupt, DecodeError) as error:
            try:
                if not await _is_part(codec, claim.claim_data["sha256"]):
                    raise
            except KeyMissing as missing:  # a part, since an input names its own key, and is decoded later
                return _absent(payload, why, missing, sure=_waited(missing.key, payload))
            return _absent(payload, why, StorageError(f"what is stored there is no input: {error}"), sure=True)
        return _with(got, why)

    async def _decoded(self, payload: Payload) -> Payload:
        if NOW in payload.metadata:
            return payload
        why = payload.metadata.get(WHY, b"").decode()
        try:
            [decoded] = await super()._decode_payload_sequence([_bare(payload)])
        except KeyMissing as error:
            return _absent(payload, why or _of_key(error.key), error, sure=_waited(error.key, payload))
        return _with(decoded, why)


def reading_inputs(converter: DataConverter, tasks: Sequence[str]) -> DataConverter:
    """What a worker reads workflows' inputs with, from its client's converter; another than refold's stays as it is."""
    if not isinstance(converter, RefoldConverter):
        return converter
    others = converter.tasks if isinstance(converter, InputConverter) else frozenset[str]()
    return InputConverter(
        payload_converter_class=converter.payload_converter_class,
        payload_codec=converter.payload_codec,
        failure_converter_class=converter.failure_converter_class,
        external_storage=converter.external_storage,
        tasks=others.union(tasks),
    )


def _refusal(payload: Payload) -> str:
    """The words by which an input is refused if it cannot be got; empty for one that came whole and readable."""
    claim, key = reference_in(payload), named_key(payload)
    if key is not None:
        return _of_key(key)
    return "" if claim is None else f"a reference to the value {claim.claim_data['sha256']}, which is not there to read"


def _of_key(key: str) -> str:
    return f"a value encrypted by the key {shortened(key, 100)!r}, which is not here"


def _waited(lacking: str, payload: Payload) -> bool:
    """Whether this process has lacked a key or storage for an input so long that it need not wait any longer."""
    target = _read_for.get()
    run_id = "" if target is None else target.run_id
    since = _lacking.setdefault(key_of(f"{lacking} {run_id} ".encode() + payload.data), time.monotonic())
    while len(_lacking) > KEPT:
        _lacking.popitem(last=False)
    return time.monotonic() - since >= PATIENCE_S


async def _is_part(codec: PartsCodec, key: str) -> bool:
    """Whether a part of a value is stored under a key, such as a journal, and no input."""
    with contextlib.suppress(ValueCorrupt):
        await codec.read(key)
        return True
    return False


def _absent(payload: Payload, why: str, error: Exception, *, sure: bool) -> Payload:
    absent = Payload(metadata={"encoding": b"absent", WHY: why.encode(), NOW: str(error).encode()}, data=payload.data)
    if sure:
        absent.metadata[SURE] = b""
    return absent


def _with(payload: Payload, why: str) -> Payload:
    if not why:
        return payload
    marked = Payload()
    marked.CopyFrom(payload)
    marked.metadata[WHY] = why.encode()
    return marked


def _bare(payload: Payload) -> Payload:
    """The same payload without refold's own words on it: anybody can send some."""
    if not any(name in payload.metadata for name in (WHY, NOW, SURE)):
        return payload
    bare = Payload()
    bare.CopyFrom(payload)
    for name in (WHY, NOW, SURE):
        bare.metadata.pop(name, None)
    return bare
