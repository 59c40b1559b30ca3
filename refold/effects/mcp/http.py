"""The HTTP client of a session with an MCP server, and what came back for the requests of one call.

MCP's SDK ends a session, with every call that is under way in it, when one request raises an exception; and its own
errors do not say what came back. So a request that fails is answered here, and `HEARD` says how it failed.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import httpx2
from pydantic_core import from_json

from refold.effects.mcp.surrogates import mended

HEARD: ContextVar[list[httpx2.Response | httpx2.RequestError]] = ContextVar("refold_mcp_heard")
"""What came back for MCP's requests of one call, oldest first: the SDK makes them in the context of its caller."""

_FAILED = 502


def listen() -> None:
    """From now on, keep in `HEARD` what comes back for MCP's requests of this context."""
    HEARD.set([])


class McpHttp(httpx2.AsyncClient):
    """An HTTP client whose POST requests do not raise."""

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """See `httpx2.AsyncClient.send`."""
        if request.method != "POST":  # a server may answer other methods with an error
            return await super().send(request, **options)
        asks = _asks(await request.aread())  # nobody has read the request by which the SDK follows a redirect
        heard: httpx2.Response | httpx2.RequestError
        try:
            heard = response = _readable(await super().send(request, **options))
            if "json" in response.headers.get("content-type", ""):
                await response.aread()  # here, since it may break off; the SDK reads a stream of events itself
        except httpx2.RequestError as error:
            heard, response = error, httpx2.Response(_FAILED, request=request)
        if asks:
            HEARD.get([]).append(heard)
        return response


class _Readable(httpx2.Response):
    """An answer without halves of surrogate pairs, see `surrogates`; a line of it comes once it is whole."""

    async def aiter_bytes(self, chunk_size: int | None = None) -> AsyncGenerator[bytes, None]:
        """See `httpx2.Response.aiter_bytes`."""
        line: list[bytes] = []
        async with aclosing(super().aiter_bytes(chunk_size)) as pieces:
            async for piece in pieces:
                end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
                if end:
                    yield mended(b"".join([*line, piece[:end]]))
                    line = []
                line.append(piece[end:])
        yield mended(b"".join(line))


def _readable(answer: httpx2.Response) -> httpx2.Response:
    if answer.is_closed:  # it has been read, by a request that asked for no stream
        return answer
    readable = _Readable(
        answer.status_code,
        headers=answer.headers,
        stream=answer.stream,
        request=answer.request,
        extensions=answer.extensions,
        history=answer.history,
    )
    readable.next_request = answer.next_request  # a redirect, which the SDK follows itself
    return readable


def _asks(body: bytes) -> bool:
    """Whether this is the body of a request of MCP: no notification, and no reply to what the server asked for.

    The SDK sends those in the context of the call, too: how the server takes them says nothing of the call itself, and
    they come as long as the session lives.
    """
    try:
        said: dict[str, object] = from_json(body)
    except ValueError:  # arguments nested more deeply than is read here: no reply of the SDK's
        return True
    return {"method", "id"} <= said.keys()
