"""Adds to event streams: an id for each event, heartbeats, a clean end, and a plain error if a stream cannot begin.

The SDK builds a stream's frames internally. So this module wraps the application, and reads from each frame's metadata
what `updates` has put there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

import structlog
from a2a.utils.error_handlers import build_rest_error_payload
from google.protobuf.json_format import ParseError
from pydantic_core import from_json
from sse_starlette.event import ServerSentEvent
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refold.a2a.convert import METADATA
from refold.a2a.errors import as_a2a
from refold.a2a.streams.updates import EventId

log = structlog.get_logger("refold.a2a")

STOPS = b": the gateway stops; subscribe again with the last id\r\n\r\n"
"""The last thing in a stream that the gateway ends: a comment, so that every client understands it."""

_DATA = b"data:"
_UPDATES = ("statusUpdate", "artifactUpdate", "task")


class OpenStreams:
    """The event streams that are open in this process."""

    def __init__(self) -> None:
        self._streams: set[_Stream] = set()

    def __len__(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def end(self) -> None:
        """End them all cleanly, so that their clients reconnect to another process. Called on SIGTERM."""
        if self._streams:
            log.info("streams_end", open=len(self._streams))
        for stream in list(self._streams):
            stream.end()

    def add(self, stream: _Stream) -> None:
        """Register a stream."""
        self._streams.add(stream)

    def discard(self, stream: _Stream) -> None:
        """Remove an ended stream."""
        self._streams.discard(stream)


def with_heartbeats(routes: Iterable[BaseRoute], every_s: float) -> list[BaseRoute]:
    """The same routes, with heartbeats in their event streams.

    Args:
        routes: The SDK's.
        every_s: Seconds between heartbeats; 0 for none.
    """
    paced: list[BaseRoute] = []
    for route in routes:
        match route:
            case Route():
                paced.append(Route(route.path, _paced(route.endpoint, every_s), methods=list(route.methods or ())))
            case Mount():
                paced.append(Mount(route.path, routes=with_heartbeats(route.routes or (), every_s)))
            case _:
                paced.append(route)
    return paced


def _paced(
    serve: Callable[[Request], Awaitable[Response]], every_s: float
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    async def served(request: Request) -> Response:
        response = await serve(request)
        if isinstance(response, EventSourceResponse):
            response.ping_interval = every_s
            response.ping_message_factory = _alive
        return response

    return served


def _alive() -> ServerSentEvent:
    return ServerSentEvent(comment="alive")


class EventStreams:
    """Middleware that numbers the events of streams, and ends each stream cleanly."""

    def __init__(self, app: ASGIApp, *, open_streams: OpenStreams) -> None:
        """Wrap an application.

        Args:
            app: The application.
            open_streams: Registers its streams while they are open.
        """
        self.app = app
        self.open = open_streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stream = _Stream(send, self.open)
        try:
            async with asyncio.timeout(None) as stream.until:
                await self.app(scope, receive, stream.send)
        except TimeoutError:
            if not stream.until.expired():
                raise
        except Exception as error:
            if not stream.waits:
                raise
            await _refused(error)(scope, receive, send)
            return
        finally:
            stream.close()
        await stream.complete()


class _Stream:
    """One response; any other than an event stream passes unchanged."""

    def __init__(self, send: Send, open_streams: OpenStreams) -> None:
        self.until: asyncio.Timeout
        self._send = send
        self._open = open_streams
        self._streams = False
        self._start: Message | None = None
        self._complete = False

    @property
    def waits(self) -> bool:
        """Whether this is an event stream of which nothing has been sent yet."""
        return self._start is not None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._streams = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            if self._streams:
                self._open.add(self)
                self._start = message  # sent with the first event: until then the response may still become an error
                return
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body", False)
            frame = message.get("body", b"")
            if self._streams and frame.startswith(_DATA) and (id := _id_in(frame)) is not None:
                message = {**message, "body": b"id: %s\r\n%s" % (id.encode(), frame)}
        await self._pass_on(message)

    async def _pass_on(self, message: Message) -> None:
        start, self._start = self._start, None
        if start is not None:
            await self._send(start)
        await self._send(message)

    def end(self) -> None:
        """Stop the application; `complete` then ends the response properly."""
        self.until.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """Called when the application has returned."""
        self._open.discard(self)

    async def complete(self) -> None:
        """End a stream that its application left open."""
        if self._streams and not self._complete:
            last = STOPS if self.until.expired() else b""
            await self._pass_on({"type": "http.response.body", "body": last, "more_body": False})


def _refused(error: Exception) -> Response:
    """The error response for a stream that cannot begin."""
    known = isinstance(error, ParseError)  # an error that the SDK attributes to the caller
    told = build_rest_error_payload(error if known else as_a2a(error))
    return JSONResponse(told, status_code=told["error"]["code"])


def _id_in(frame: bytes) -> str | None:
    """The number in a frame's metadata: only the event's own, since a message in the event may come from a client."""
    try:
        told = from_json(frame[len(_DATA) :])
    except ValueError:
        return None
    event = told.get("result", told) if isinstance(told, dict) else None
    if not isinstance(event, dict):
        return None
    for kind in _UPDATES:
        if kind in event:
            event = event[kind]
            break
    id = _at(event, "metadata", METADATA, "id")
    found = EventId.read(id) if isinstance(id, str) else None
    return None if found is None else str(found)


def _at(value: Any, *path: str) -> Any:
    for key in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
