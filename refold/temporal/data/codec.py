"""The codec that encrypts what refold writes: where it comes from, and which ones are refused.

A codec is the Temporal SDK's `PayloadCodec`. Rule 1: every process of a task has the same one, or one that reads what
the others write. Rule 2: a program's own converter is kept or refused; encryption is never dropped silently.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import os
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    PayloadCodec,
    WithSerializationContext,
)

from refold.engine import CodecError, PayloadTooLarge

ENV = "REFOLD_CODEC"
KEY_ID = "encryption-key-id"
"""The metadata that names the key of an encrypted payload, as in Temporal's own samples."""

UNLIKE = "encrypted, but not by the key"
"""What the encoding begins with of a value that is not what the key of its name encrypted."""

_FACTORY = "_refold_factory"
"""The attribute of a codec that names the factory in `REFOLD_CODEC` that made it."""


class KeyMissing(CodecError):
    """A value is encrypted by a key that this process does not have.

    Attributes:
        key: The key's id.
    """

    def __init__(self, key: str, way_out: str) -> None:
        self.key = key
        super().__init__(f"a value is encrypted by the key {key!r}, {way_out}")


class CodecUnusable(CodecError):
    """A codec cannot encrypt or decrypt now, as while the service with its keys is away.

    The message has the type of the codec's own error, `__cause__`, and not its text, which may quote the value.
    """


def codec_from_env(environ: Mapping[str, str] = os.environ) -> PayloadCodec | None:
    """The codec that `REFOLD_CODEC` names, as `module:factory`; None if it is not set.

    The factory is called without arguments, once for each client, and once more for the ledger's texts.

    Raises:
        CodecError: There is no such factory, it fails, or what it makes is refused.
    """
    named = environ.get(ENV, "").strip()
    if not named:
        return None
    module, colon, factory = named.partition(":")
    if not (module and colon and factory):
        raise CodecError(f"{ENV} is module:factory, such as refold.temporal.encryption:from_env, not {named!r}")
    try:
        make = getattr(importlib.import_module(module), factory)
        made = make()
    except CodecError:
        raise
    except Exception as error:
        raise CodecError(f"{ENV}={named} makes no codec: {type(error).__name__}: {error}") from error
    codec = fit(made)
    vars(codec)[_FACTORY] = make
    return codec


def fit(codec: PayloadCodec) -> PayloadCodec:
    """A codec that refold can use.

    Raises:
        CodecError: It is no codec, or wants to know whose value it encodes.
    """
    name = type(codec).__name__
    if not isinstance(codec, PayloadCodec):
        raise CodecError(f"{name} is no temporalio.converter.PayloadCodec")
    if isinstance(codec, WithSerializationContext):
        raise CodecError(
            f"{name} asks for a serialization context (with_context), and refold gives none: equal large values of "
            "several tasks are stored once, so that a key for each workflow could not read them; choose the key in "
            "encode, and name it in the payload's metadata"
        )
    return codec


async def encrypted(codec: PayloadCodec, payload: Payload) -> Payload:
    """A payload, encrypted by a program's codec.

    Raises:
        CodecUnusable: The codec raised any error but those below, or made no payload of it.
        PayloadTooLarge: The codec's own: it never takes this value.
        CodecError: The codec's own.
    """
    with _as_unusable(codec, "encrypt"):
        [made] = await codec.encode([payload])
    return made


async def decrypted(codec: PayloadCodec, payload: Payload) -> Payload:
    """A payload, decrypted by a program's codec.

    Raises:
        CodecUnusable: As `encrypted`.
        CodecError: The codec's own, such as `KeyMissing`.
    """
    with _as_unusable(codec, "decrypt"):
        [made] = await codec.decode([payload])
    return made


@contextmanager
def _as_unusable(codec: PayloadCodec, verb: str) -> Iterator[None]:
    try:
        yield
    except (CodecError, PayloadTooLarge):
        raise
    except (Exception, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        # Else what the codec awaits was canceled, such as a request that it shares with a caller who has gone.
        if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
            raise
        why = f"the codec {type(codec).__name__} cannot {verb} a value: {type(error).__name__}"
        raise CodecUnusable(why) from error


def codec_of(given: DataConverter | None, known: type[DataConverter], own: PayloadCodec | None) -> PayloadCodec | None:
    """The codec of a client that gets refold's converter in place of its own.

    Args:
        given: The client's converter.
        known: The class of refold's own converter.
        own: The codec that refold was given; None takes the client's, else the one in `REFOLD_CODEC`.

    Raises:
        CodecError: The client's converter does what refold's cannot do for it, or has another codec.
    """
    theirs = None if given is None else given.payload_codec
    if given is not None and isinstance(given, known):
        theirs = getattr(theirs, "inner", None)
    elif given is not None:
        _refuse_foreign(given)
    if own is not None and theirs is not None and own is not theirs:
        raise CodecError("the client has a codec, and RefoldPlugin(codec=) names another; give it to one of them")
    own = theirs if own is None else own
    return codec_from_env() if own is None else fit(own)


def _refuse_foreign(given: DataConverter) -> None:
    parts = {
        "payload converter": (given.payload_converter_class, (DefaultPayloadConverter, PydanticPayloadConverter)),
        "failure converter": (
            given.failure_converter_class,
            (DefaultFailureConverter, DefaultFailureConverterWithEncodedAttributes),
        ),
    }
    for what, (found, replaceable) in parts.items():
        if found not in replaceable:
            name = getattr(found, "__name__", repr(found))
            raise CodecError(
                f"this client has a {what} of its own, {name}, and RefoldPlugin would replace it: refold writes "
                "pydantic's JSON; if a plugin brings it (PydanticAIPlugin does), name RefoldPlugin before that plugin; "
                "else connect another client for refold, and put encryption into a payload codec"
            )
    if given.external_storage is not None:
        raise CodecError(
            "this client has an external storage of its own, and RefoldPlugin would replace it; give refold's by "
            "RefoldPlugin(storage=) or REFOLD_STORAGE, and connect another client for refold"
        )


def named_key(payload: Payload) -> str | None:
    """The id of the key with which a payload says that it is encrypted; None where it says nothing of the kind."""
    found = payload.metadata.get(KEY_ID)
    return None if found is None else found.decode(errors="replace")


def unlike(payload: Payload) -> str:
    """That the key of its name has not encrypted a decoded payload; empty if it is another one."""
    encoding = payload.metadata.get("encoding", b"").decode(errors="replace")
    return encoding if encoding.startswith(UNLIKE) else ""


def unlike_keys(said: str) -> CodecError:
    """The error for a value that is `unlike` its key."""
    way_out = "here and where the value was written, this id stands for different keys"
    return CodecError(f"a value is {said}: {way_out}; set the same ones")


class CodecSeal:
    """Encrypts texts of the receipt ledger by a codec. The ledger works in threads without an event loop.

    A codec may keep a client or a lock, which belong to the loop that used them first. So all seals use one loop, in a
    thread of its own, and there a codec that the factory in `REFOLD_CODEC` made is made anew.
    """

    def __init__(self, codec: PayloadCodec) -> None:
        self._given = codec
        self._made: dict[int, PayloadCodec] = {}

    def sealed(self, text: str) -> str:
        """See `refold.effects.ledger.store.Seal`."""
        payload = _in_loop(self._encoded(Payload(metadata={"encoding": b"json/plain"}, data=text.encode())))
        return base64.b64encode(payload.SerializeToString(deterministic=True)).decode()

    def opened(self, sealed: str) -> str:
        """See `refold.effects.ledger.store.Seal`."""
        payload = _in_loop(self._decoded(Payload.FromString(base64.b64decode(sealed))))
        if said := unlike(payload):
            raise unlike_keys(said)
        return payload.data.decode()

    async def _encoded(self, payload: Payload) -> Payload:
        return await encrypted(self._codec, payload)

    async def _decoded(self, payload: Payload) -> Payload:
        return await decrypted(self._codec, payload)

    @property
    def _codec(self) -> PayloadCodec:
        """The codec for the loop of seals. Made within that loop: a client may bind itself to the loop that it sees."""
        make = vars(self._given).get(_FACTORY)
        if make is None:
            return self._given
        if os.getpid() not in self._made:
            self._made[os.getpid()] = fit(make())
        return self._made[os.getpid()]


_starting = threading.Lock()
os.register_at_fork(before=_starting.acquire, after_in_parent=_starting.release, after_in_child=_starting.release)


def _in_loop(coding: Coroutine[Any, Any, Payload]) -> Payload:
    with _starting:
        loop = _loop_of_seals(os.getpid())
    return asyncio.run_coroutine_threadsafe(_contained(coding), loop).result()


async def _contained(coding: Coroutine[Any, Any, Payload]) -> Payload:
    try:
        return await coding
    except SystemExit as error:  # it would end the loop of all seals
        raise CodecError(f"the codec raised SystemExit({error}); let it raise an Exception") from error


@cache
def _loop_of_seals(process: int) -> asyncio.AbstractEventLoop:
    """Runs as long as the process: several ledgers share it, and nobody ends a codec.

    The thread of a loop does not outlive a fork, so a forked process has a loop of its own.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="refold-seal", daemon=True).start()
    return loop
