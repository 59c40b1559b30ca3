"""Encryption of everything that refold writes: AES-256-GCM, with a ring of keys.

    pip install 'refold[encryption]'
    export REFOLD_CODEC=refold.temporal.encryption:from_env
    export REFOLD_ENCRYPTION_KEYS=2026-11=$(openssl rand -base64 32)

The first key encrypts; every key of the ring decrypts. The id of its key stands in each payload's metadata, in clear,
as in the codec of Temporal's own samples, whose payloads this one reads.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from refold.engine import CodecError
from refold.engine.arguments import takes
from refold.temporal.data.codec import KEY_ID, UNLIKE, KeyMissing, named_key

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{__name__} needs {error.name!r}: pip install 'refold[encryption]'") from error

KEYS_ENV = "REFOLD_ENCRYPTION_KEYS"
FILE_ENV = "REFOLD_ENCRYPTION_KEYS_FILE"
ENCODING = b"binary/encrypted"
KEY_BYTES = 32
NONCE_BYTES = 12

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


@takes(CodecError)
class Encryption(PayloadCodec):
    """Encrypts payloads by the first of its keys, and decrypts by any of them.

    A payload that no codec has encrypted stays as it is, so that tasks from before there was encryption are read.
    """

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        """Take the keys.

        Args:
            keys: 32 random bytes each, by id: the one that encrypts first, then those that only decrypt.

        Raises:
            CodecError: There is none, or one is too short or too long, or its id is not allowed.
        """
        if not keys:
            raise CodecError("encryption needs a key; `openssl rand -base64 32` makes one")
        for id, key in keys.items():
            if not _ID.fullmatch(id):
                raise CodecError(f"a key's id has 1 to 64 letters, digits, dots, dashes or underscores, unlike {id!r}")
            if len(key) != KEY_BYTES:
                raise CodecError(f"the key {id!r} has {len(key)} bytes, not {KEY_BYTES}; `openssl rand -base64 32`")
        self._ciphers = {id: AESGCM(key) for id, key in keys.items()}
        self._current = next(iter(keys))

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See the SDK."""
        return [self._encrypted(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """See the SDK.

        Raises:
            KeyMissing: A payload is encrypted by a key that is not in the ring.
        """
        return [self._decrypted(payload) for payload in payloads]

    def _encrypted(self, payload: Payload) -> Payload:
        nonce = os.urandom(NONCE_BYTES)
        data = self._ciphers[self._current].encrypt(nonce, payload.SerializeToString(deterministic=True), None)
        return Payload(metadata={"encoding": ENCODING, KEY_ID: self._current.encode()}, data=nonce + data)

    def _decrypted(self, payload: Payload) -> Payload:
        key = named_key(payload)
        if key is None or payload.metadata.get("encoding") != ENCODING:
            return payload
        cipher = self._ciphers.get(key)
        if cipher is None:
            known = ", ".join(self._ciphers)
            raise KeyMissing(key, f"which is not here ({known}); add it to the ring")
        try:
            return Payload.FromString(cipher.decrypt(payload.data[:NONCE_BYTES], payload.data[NONCE_BYTES:], None))
        except (InvalidTag, ValueError, DecodeError):
            # Anybody can send bytes that say so of themselves. Under an encoding that nobody reads they are refused as
            # any other input that cannot be read; an error would fail the workflow task, again and again.
            unread = f"{UNLIKE} {key!r}"
            return Payload(metadata={"encoding": unread.encode()}, data=payload.data)


def from_env(environ: Mapping[str, str] = os.environ) -> Encryption:
    """The codec with the keys of `REFOLD_ENCRYPTION_KEYS`, or of the file that `REFOLD_ENCRYPTION_KEYS_FILE` names.

    `ID=KEY`, one a line or separated by commas; the key in base64. Empty lines are skipped, and what follows a `#` in
    a line.

    Raises:
        CodecError: Neither or both are set, the file cannot be read, or a line is no key. The message never contains
            a key.
    """
    written, file = environ.get(KEYS_ENV, "").strip(), environ.get(FILE_ENV, "").strip()
    if bool(written) == bool(file):
        raise CodecError(
            f"encryption takes its keys from {KEYS_ENV} or from the file {FILE_ENV} names: set one of them"
        )
    try:
        return Encryption(_keys(Path(file).read_text(encoding="utf-8-sig") if file else written))
    except OSError as error:
        raise CodecError(f"{FILE_ENV}={file} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise CodecError(f"{FILE_ENV}={file} is no text") from None


def _keys(text: str) -> dict[str, bytes]:
    keys: dict[str, bytes] = {}
    written = ",".join(line.partition("#")[0] for line in text.split("\n")).split(",")
    for number, one in enumerate((one for one in written if one.strip()), 1):
        id, equals, key = (part.strip() for part in one.partition("="))
        if not equals:
            raise CodecError(f"key {number} is not ID=KEY")
        if id in keys:
            raise CodecError(f"two keys have the id {id!r}")
        try:
            keys[id] = base64.b64decode(key, validate=True)
        except ValueError:  # `binascii.Error`, or a character that is not ASCII
            raise CodecError(f"the key {id!r} is not base64; `openssl rand -base64 32` makes a good one") from None
    return keys
