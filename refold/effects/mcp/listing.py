"""Leaves out of a server's listing the tools whose definitions MCP does not allow, so that the others can be called.

MCP's SDK refuses a listing as a whole if one tool in it is wrong, for example one whose `inputSchema` has no `type`. So
the tools are taken out of what the server sent, between the transport and the SDK's client. So is each tool's
`outputSchema`: the SDK would refuse a result that does not fit it, although the tool has had its effect. A line of a
program that the SDK cannot read for half of a surrogate pair is read here.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Self

import anyio
from mcp.client import Transport
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCResponse, jsonrpc_message_adapter
from mcp_types.methods import validate_server_result
from pydantic import ValidationError

from refold.effects.mcp.rounds import Counted, Wrapped
from refold.effects.mcp.surrogates import mended


@contextlib.asynccontextmanager
async def readable(
    transport: Transport, unfit: dict[str, str], version: Callable[[], str], ended: Callable[[], None]
) -> AsyncIterator[Any]:
    """A transport whose listings can be read, and whose requests are counted for each call (`rounds`).

    Args:
        transport: The transport to the server.
        unfit: Receives the tools that were left out: why, by their names at the server.
        version: The version of MCP that was agreed on.
        ended: Called once nothing more comes from the server, as when its program has ended.
    """
    async with transport as (received, sent):
        counted = Counted(sent)
        yield _Readable(received, unfit, version, ended, counted.answered), counted


class _Readable(Wrapped):
    """The stream of what a server sends; see `mcp.client.ReadStream`."""

    def __init__(
        self,
        stream: Any,
        unfit: dict[str, str],
        version: Callable[[], str],
        ended: Callable[[], None],
        answered: Callable[[JSONRPCError], None],
    ) -> None:
        super().__init__(stream)
        self._unfit = unfit
        self._version = version
        self._ended = ended
        self._answered = answered

    @property
    def last_context(self) -> Any:
        """The context of whoever sent the newest message, if the transport tells it."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        try:
            return self._fit(await self._stream.receive())
        except anyio.EndOfStream:
            self._ended()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return self._fit(await anext(self._stream))
        except StopAsyncIteration:
            self._ended()
            raise

    def _fit(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, ValidationError):
            item = _read_again(item)
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCError):
            self._answered(message)
        if isinstance(message, JSONRPCResponse) and isinstance(tools := message.result.get("tools"), list):
            wrong = _wrong(message.result, self._version())
            self._unfit |= {_name(tools[place]): why for place, why in wrong.items()}
            message.result["tools"] = fit = [tool for place, tool in enumerate(tools) if place not in wrong]
            for tool in fit:
                if isinstance(tool, dict):
                    tool.pop("outputSchema", None)
        return item


def _read_again(unread: ValidationError) -> SessionMessage | Exception:
    """The message in a line that could not be read; the error, if it still cannot."""
    line = unread.errors()[0]["input"]
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(mended(line.encode()), by_name=False))
    except (AttributeError, ValueError):
        return unread


def _wrong(listing: Mapping[str, Any], version: str) -> dict[int, str]:
    """Why the SDK would refuse tools of a listing, by their places in it."""
    wrong: dict[int, str] = {}
    try:
        validate_server_result("tools/list", version, listing)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False, include_context=False):
            match detail["loc"]:
                case ("tools", int(place), *within):
                    field = ".".join(map(str, within))
                    wrong.setdefault(place, f"{field}: {detail['msg']}" if field else detail["msg"])
                case _:  # of the listing itself, which the SDK refuses
                    pass
    return wrong


def _name(tool: Any) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else "(without a name)"
