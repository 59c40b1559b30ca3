"""Event streams on their way out: each event gets its number as its id, quiet streams a heartbeat, and all a clean end.

The SDK builds the frames of a stream inside of it. So this wraps the application, and reads in each frame's metadata
what `updates` put there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from pydantic_core import from_json
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from refold.a2a.convert import METADATA
from refold.a2a.updates import EventId

HEARTBEAT_S = 15.0
"""How long a stream may be silent before a comment shows that it is alive."""

BEAT = b": alive\r\n\r\n"

_PING = b": ping"
_DATA = b"data:"
_UPDATES = ("statusUpdate", "artifactUpdate", "task")


class OpenStreams:
    """The event streams that are open in this process."""

    def __init__(self) -> None:
        self._streams: set[_Stream] = set()

    def __len__(self) -> int:
        """How many there are."""
        return len(self._streams)

    def end(self) -> None:
        """End them all, cleanly, so that those who read them come again, to another process. For SIGTERM."""
        for stream in list(self._streams):
            stream.end()

    def add(self, stream: _Stream) -> None:
        """One was opened."""
        self._streams.add(stream)

    def discard(self, stream: _Stream) -> None:
        """One has ended."""
        self._streams.discard(stream)


class EventStreams:
    """Middleware that numbers event streams and keeps them alive."""

    def __init__(self, app: ASGIApp, *, open_streams: OpenStreams, heartbeat_s: float = HEARTBEAT_S) -> None:
        """Wrap an application.

        Args:
            app: The application.
            open_streams: Where its streams are kept while they are open.
            heartbeat_s: How long a stream may be silent, in seconds; 0 lets it be silent for ever.
        """
        self.app = app
        self.open = open_streams
        self.heartbeat_s = heartbeat_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        stream = _Stream(send, self.open, self.heartbeat_s)
        try:
            async with asyncio.timeout(None) as stream.until:
                await self.app(scope, receive, stream.send)
        except TimeoutError:
            if not stream.until.expired():
                raise
        finally:
            stream.close()
        await stream.complete()


class _Stream:
    """One response; what is not an event stream passes as it is."""

    def __init__(self, send: Send, open_streams: OpenStreams, heartbeat_s: float) -> None:
        self.until: asyncio.Timeout
        self._send = send
        self._open = open_streams
        self._heartbeat_s = heartbeat_s
        self._streams = False
        self._complete = False
        self._sent_at = 0.0
        self._sending = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._streams = any(
                name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                for name, value in message["headers"]
            )
            if self._streams:
                self._open.add(self)
                self._sent_at = asyncio.get_running_loop().time()
                self._wait(self._heartbeat_s)
        elif self._streams and message["type"] == "http.response.body":
            frame = message.get("body", b"")
            if frame.startswith(_PING):
                return  # the SDK's own heartbeat, whose pace cannot be set
            if frame.startswith(_DATA) and (id := _id_in(frame)) is not None:
                message = {**message, "body": b"id: %s\r\n%s" % (id.encode(), frame)}
        await self._pass_on(message)

    def end(self) -> None:
        """Stop the application; `complete` then ends the response as one that is whole."""
        self.until.reschedule(asyncio.get_running_loop().time())

    def close(self) -> None:
        """The application has nothing more to say."""
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._beating is not None:
            self._beating.cancel()

    async def complete(self) -> None:
        """End a stream that its application left open."""
        if self._streams and not self._complete:
            await self._pass_on({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_on(self, message: Message) -> None:
        async with self._sending:
            self._complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            await self._send(message)
            self._sent_at = asyncio.get_running_loop().time()

    # --- heartbeats

    def _wait(self, seconds: float) -> None:
        if self._heartbeat_s > 0:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        quiet_s = asyncio.get_running_loop().time() - self._sent_at
        if quiet_s < self._heartbeat_s:
            self._wait(self._heartbeat_s - quiet_s)
            return
        if not self._sending.locked():  # whoever does not read what was sent needs no heartbeat
            self._beating = asyncio.create_task(self._beat())
        self._wait(self._heartbeat_s)

    async def _beat(self) -> None:
        with contextlib.suppress(OSError):  # whoever went away is noticed where the events are sent
            if not self._complete:
                await self._pass_on({"type": "http.response.body", "body": BEAT, "more_body": True})


def _id_in(frame: bytes) -> str | None:
    """The number in a frame's metadata: in that of the event itself, for a message in it is not ours to trust."""
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
