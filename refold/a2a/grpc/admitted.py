"""The checks that every gRPC call passes before it reaches A2A's methods: caller, rate, readable, size, version.

Browsers cannot call gRPC, so that there are no hosts and no origins to check; the size of a message is the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import grpc
from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.grpc_handler import GrpcHandler, GrpcServerCallContextBuilder
from a2a.server.routes.common import StarletteUser
from a2a.utils.constants import PROTOCOL_VERSION_1_0, VERSION_HEADER
from a2a.utils.errors import VersionNotSupportedError
from google.protobuf.message import DecodeError, Message
from starlette.datastructures import Headers
from starlette.types import Scope

from refold.a2a.calls import major_version
from refold.a2a.extensions import activated
from refold.a2a.security.admission import Admission
from refold.a2a.security.bodies import too_many
from refold.a2a.security.http_errors import WORDS, Refused, broken
from refold.a2a.security.principal import NOBODY, Principal
from refold.a2a.streams.sse import STOPPED
from refold.seen.logs import logger

log = logger("refold.a2a")

_caller: ContextVar[Principal] = ContextVar("caller", default=NOBODY)


class Contexts(GrpcServerCallContextBuilder):
    """Makes the contexts of calls: the metadata of a call are its headers."""

    def build(self, context: grpc.aio.ServicerContext) -> ServerCallContext:
        """See `GrpcServerCallContextBuilder.build`."""
        headers = headers_of(context)
        said = dict(headers)
        said.setdefault(VERSION_HEADER.lower(), PROTOCOL_VERSION_1_0)  # the service has no other
        return ServerCallContext(
            user=StarletteUser(_caller.get()),
            state={"headers": said},
            requested_extensions=get_requested_extensions(headers.getlist(HTTP_EXTENSION_HEADER)),
        )


class Admitted(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Passes allowed calls on, and refuses all others. Ends streams when the gateway stops."""

    admission: Admission
    errors: GrpcHandler
    declared: Collection[str]

    def __init__(self, seconds: float) -> None:
        """Create the checks; `open` completes them.

        Args:
            seconds: Maximum time to receive a call's request.
        """
        self.stops = asyncio.Event()
        self._seconds = seconds

    def open(self, admission: Admission, errors: GrpcHandler, declared: Collection[str]) -> None:
        """Called before the first call.

        Args:
            admission: Who may call, and how often; shared with the other bindings.
            errors: Tells callers of A2A's errors.
            declared: The extensions that the card declares.
        """
        self.admission = admission
        self.errors = errors
        self.declared = declared

    async def intercept_service(self, continuation: Callable[..., Awaitable[Any]], details: Any) -> Any:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(details)
        if handler is None:
            return None  # there is no such method
        read, write = handler.request_deserializer, handler.response_serializer
        # As streams of requests: of any other call gRPC reads and parses the request before it calls the handler.
        if not handler.response_streaming:
            served = self._unary(handler.unary_unary, read)
            return grpc.stream_unary_rpc_method_handler(served, response_serializer=write)
        streamed = self._stream(handler.unary_stream, read)
        return grpc.stream_stream_rpc_method_handler(streamed, response_serializer=write)

    def _unary(self, serve: Callable[..., Awaitable[Any]], read: Callable[[bytes], Any]) -> Callable[..., Any]:
        async def served(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> Any:
            return await serve(await self._admit(requests, read, context), context)

        return served

    def _stream(
        self, serve: Callable[..., AsyncGenerator[Any, None]], read: Callable[[bytes], Any]
    ) -> Callable[..., Any]:
        async def served(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            request = await self._admit(requests, read, context)
            async with aclosing(serve(request, context)) as events:
                while True:
                    event = await self._next(events)
                    if event is None:
                        break
                    yield event
            if self.stops.is_set():
                await context.abort(grpc.StatusCode.UNAVAILABLE, STOPPED)

        return served

    async def _next(self, events: AsyncIterator[Any]) -> Any:
        """The next event; None at the stream's end, or when the gateway stops."""
        coming, stops = asyncio.ensure_future(anext(events, None)), asyncio.ensure_future(self.stops.wait())
        try:
            await asyncio.wait([coming, stops], return_when=asyncio.FIRST_COMPLETED)
            return coming.result() if coming.done() and not self.stops.is_set() else None
        finally:
            for task in (coming, stops):
                task.cancel()
            await asyncio.gather(coming, stops, return_exceptions=True)

    async def _admit(
        self, requests: AsyncIterator[bytes], read: Callable[[bytes], Any], context: grpc.aio.ServicerContext
    ) -> Any:
        """The request of a call that may be served; any other call is aborted."""
        headers = headers_of(context)
        scope = scope_of(context)
        try:
            _caller.set(await self.admission.caller(scope, headers))
        except Refused as refused:
            log.info("call_refused", status=refused.status, address=scope["client"][0], reason=refused.message)
            told = tuple((name.lower(), value) for name, value in refused.headers.items())
            await context.abort(grpc.StatusCode[WORDS[refused.status]], refused.message, told)
        except Exception as error:  # noqa: BLE001 - logged, and told by its number
            await context.abort(grpc.StatusCode.INTERNAL, broken(error).message)
        request = await self._read(requests, read, context)
        most = self.admission.security.values
        if _holds_more(request, most):
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, too_many(most))
        version = headers.get(VERSION_HEADER, PROTOCOL_VERSION_1_0)
        if major_version(version) != "1":
            told_of = VersionNotSupportedError(f"A2A {version[:20]!r} is not served over gRPC; 1.0 is")
            await self.errors.abort_context(told_of, context)
        if active := activated(headers, self.declared):
            await context.send_initial_metadata(((HTTP_EXTENSION_HEADER.lower(), active),))
        return request

    async def _read(
        self, requests: AsyncIterator[bytes], read: Callable[[bytes], Any], context: grpc.aio.ServicerContext
    ) -> Any:
        """The request. A call is aborted whose request is no message of protobuf, nested too deep, late or missing."""
        try:
            async with asyncio.timeout(self._seconds):
                return read(await anext(requests))
        except TimeoutError:
            message = f"the request took longer than {self._seconds:g} seconds to arrive"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, message)
        except (DecodeError, StopAsyncIteration):  # errors of ours to gRPC
            message = "the request is no message of this method, or it is nested too deep"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)


def _holds_more(request: Message, most: int) -> bool:
    """Whether the lists and maps of a message hold more than so many elements together."""
    rest, found = [request], 0
    while rest:
        for field, value in rest.pop().ListFields():
            is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
            inner = value.values() if is_map else value if field.is_repeated else (value,)
            found += len(inner) if field.is_repeated else 0
            if found > most:
                return True
            if field.message_type is not None:
                rest.extend(one for one in inner if isinstance(one, Message))
    return False


def headers_of(context: grpc.aio.ServicerContext) -> Headers:
    """A call's metadata, but for what is binary."""
    metadata = [(name, value) for name, value in context.invocation_metadata() or () if isinstance(value, str)]
    return Headers(raw=[(name.lower().encode(), value.encode("latin-1", "replace")) for name, value in metadata])


def scope_of(context: grpc.aio.ServicerContext) -> Scope:
    """A call's origin, as for a request over HTTP."""
    kind, _, rest = context.peer().partition(":")
    address, _, port = unquote(rest).rpartition(":")
    if kind not in ("ipv4", "ipv6"):
        address, port = "", "0"  # a socket of the file system: as unknown as a proxy
    return {"type": "http", "client": (address.strip("[]"), int(port)), "headers": []}
