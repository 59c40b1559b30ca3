"""Adds to event streams: an id for each event, heartbeats, a clean end, and a plain error if a stream cannot begin.

The SDK builds a stream's frames internally. So this module wraps the application, and reads from each frame's metadata
what `updates` has put there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import Any

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
from refold.a2a.security.http_errors import Refused
from refold.a2a.streams.updates import EventId
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import level

log = logger("refold.a2a")

STOPS = b": the gateway stops; subscribe again with the last id\r\n\r\n"
"""The last thing in a stream that the gateway ends: a comment, so that every client understands it."""

STOPPED = "the gateway stops; what it has begun goes on, so ask another one for the task"
LAST_S = 1.0
"""Seconds that a client has to take the end of its stream."""

ENDS_STREAMS = "refold.ends_streams"
"""In the state of a request to a server that calls `OpenStreams.end` itself as it stops."""

_DATA = b"data:"
_UPDATES = ("statusUpdate", "artifactUpdate", "task")


class OpenStreams:
    """The calls that are open in this process, the event streams above all."""

    def __init__(self) -> None:
        self._calls: set[_Answer] = set()
        self.ended = False

    def __len__(self) -> int:
        """How many event streams are open."""
        return sum(call.streams for call in self._calls)

    def end(self) -> None:
        """End all streams cleanly, and each that begins from now on, so that their clients reconnect to another
        process. Called on SIGTERM."""
        self.ended = True
        if len(self):
            log.info("streams_end", open=len(self))
        for call in list(self._calls):
            if call.streams:
                call.end()

    def cut(self) -> None:
        """End all other calls, too, with an error that asks their callers to retry."""
        if self._calls:
            log.info("calls_cut", open=len(self._calls))
        for call in list(self._calls):
            call.end()

    def add(self, call: _Answer) -> None:
        """Register a call."""
        self._calls.add(call)

    def discard(self, call: _Answer) -> None:
        """Remove an ended call."""
        self._calls.discard(call)
        if call.streams:
            level(metrics.STREAMS, len(self))


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
            _pace(response, every_s)
            if request.scope.get("state", {}).get(ENDS_STREAMS):
                # In its place sse-starlette would look twice a second, from the first stream on, whether uvicorn stops.
                # It is private, and has no public setting: under another name, the looking is all that comes back.
                response._listen_for_exit_signal_with_grace = asyncio.Event().wait  # type: ignore[assignment]
        return response

    return served


def _pace(response: EventSourceResponse, every_s: float) -> None:
    """Send heartbeats in a stream, at the same moments as in all others, so that the process wakes once for all."""

    def alive() -> ServerSentEvent:
        response.ping_interval = _until_next(every_s)
        return ServerSentEvent(comment="alive")

    response.ping_interval = _until_next(every_s)
    response.ping_message_factory = alive


def _until_next(every_s: float) -> float:
    """Seconds until the loop's clock shows a multiple of `every_s`; 0 for 0."""
    return every_s and every_s - asyncio.get_running_loop().time() % every_s


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
        answer = _Answer(send, self.open)
        failed: Exception | None = None
        self.open.add(answer)
        try:
            async with asyncio.timeout(None) as answer.until:
                await self.app(scope, receive, answer.send)
        except TimeoutError:
            if not answer.until.expired():
                raise
        except Exception as error:
            if not answer.waits:
                raise
            failed = error
        finally:
            self.open.discard(answer)
        if failed is not None:
            await _refused(failed)(scope, receive, send)
        elif answer.until.expired() and not answer.begun:
            await Refused(503, STOPPED, {"Retry-After": "1"}).response(scope)(scope, receive, send)
        else:
            await answer.complete()


class _Answer:
    """One response; any other than an event stream passes unchanged."""

    def __init__(self, send: Send, open_streams: OpenStreams) -> None:
        self.until: asyncio.Timeout
        self.streams = False
        self.begun = False
        self._send = send
        self._open = open_streams
        self._start: Message | None = None
        self._complete = False

    @property
    def waits(self) -> bool:
        """Whether this is an event stream of which nothing has been sent yet."""
        return self._start is not None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.streams = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            if self.streams:
                level(metrics.STREAMS, len(self._open))
                self._start = message  # sent with the first event: until then the response may still become an error
                return
        elif message["type"] == "http.response.body":
            self._complete = not message.get("more_body", False)
            frame = message.get("body", b"")
            if self.streams and frame.startswith(_DATA) and (id := _id_in(frame)) is not None:
                message = {**message, "body": b"id: %s\r\n%s" % (id.encode(), frame)}
        await self._pass_on(message)
        if self.streams and self._open.ended:
            self.end()

    async def _pass_on(self, message: Message) -> None:
        self.begun = True
        start, self._start = self._start, None
        if start is not None:
            await self._send(start)
        await self._send(message)

    def end(self) -> None:
        """Stop the application; `complete` then ends the response properly."""
        self.until.reschedule(asyncio.get_running_loop().time())

    async def complete(self) -> None:
        """End a stream that its application left open. A client that reads nothing is not waited for."""
        if self.streams and not self._complete:
            last = STOPS if self.until.expired() else b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_S):
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
