"""Encodes and decodes for Temporal's web UI and command line, by the protocol of its codec servers.

| operation  | answers with                                                                                  |
| ---------- | --------------------------------------------------------------------------------------------- |
| `encode`   | the payloads, encrypted                                                                       |
| `decode`   | the payloads, decrypted; stored values in place of references, unless these are to be preserved |
| `download` | the same; the web UI asks for it when somebody opens a reference                              |

Source: docs.temporal.io, Codec Server.
"""

from __future__ import annotations

from google.protobuf.json_format import MessageToJson, Parse, ParseError
from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import DataConverter, StorageDriverRetrieveContext

from refold.core.errors import InputRejected
from refold.engine import StorageError
from refold.temporal.data.payloads import data_converter, reference_in
from refold.temporal.data.storage import ValueDriver

OPERATIONS = ("encode", "decode", "download")


class RemoteCodec:
    """Serves one converter: its codec, and its storage."""

    def __init__(self, converter: DataConverter | None = None) -> None:
        """Take the converter.

        Args:
            converter: refold's; None takes `REFOLD_CODEC` and `REFOLD_STORAGE`.

        Raises:
            CodecError: `REFOLD_CODEC` names no codec.
            StorageUnusable: The storage that `REFOLD_STORAGE` names cannot be used.
        """
        converter = data_converter() if converter is None else converter
        assert converter.payload_codec is not None
        assert converter.external_storage is not None
        self._codec = converter.payload_codec
        [self._driver] = converter.external_storage.drivers
        assert isinstance(self._driver, ValueDriver)

    async def answer(self, operation: str, body: bytes, *, preserve: bool = False) -> bytes:
        """The answer to a request, as JSON of the protocol buffer `Payloads`, which the request is too.

        Args:
            operation: One of `OPERATIONS`.
            body: The request's.
            preserve: Leave references to stored values as they are.

        Raises:
            InputRejected: The body is no `Payloads`.
            CodecError: A payload cannot be decrypted.
            StorageError: A stored value cannot be read.
        """
        try:
            payloads = list(Parse(body, Payloads()).payloads)
        except (ParseError, UnicodeDecodeError) as error:
            raise InputRejected(f'the body is {{"payloads": [...]}} as Temporal writes it: {error}') from None
        if operation == "encode":
            payloads = await self._codec.encode(payloads)
        else:
            if not (preserve and operation == "decode"):
                payloads = [await self._stored(payload) for payload in payloads]
            payloads = await self._codec.decode(payloads)
        return MessageToJson(Payloads(payloads=payloads), indent=None).encode()

    async def _stored(self, payload: Payload) -> Payload:
        claim = reference_in(payload)
        if claim is None:
            return payload
        try:
            [found] = await self._driver.retrieve(StorageDriverRetrieveContext(), [claim])
        except DecodeError:  # such as a part of a value, which is stored by itself, and which anybody can refer to
            raise StorageError(f"the stored value {claim.claim_data['sha256']} is no payload of Temporal's") from None
        return found
