"""Reading event streams as a client does."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Self

import httpx

from tests.a2a.conftest import VERSION


@dataclass
class Frame:
    """One frame of a stream.

    Attributes:
        id: Its id; None where it has none.
        event: Its type, where it names one.
        data: What it holds; None for a comment.
        comment: What a comment says.
    """

    id: str | None = None
    event: str | None = None
    data: Any = None
    comment: str | None = None

    @property
    def told(self) -> Any:
        """The task, or the update."""
        result = self.data.get("result", self.data)
        return next(iter(result.values())) if len(result) == 1 else result

    @property
    def seq(self) -> int:
        """The number of the journal entry."""
        assert self.id is not None
        return int(self.id.partition(".")[0])

    @property
    def state(self) -> str:
        """The task's state, as far as the frame says."""
        state: str = self.told.get("status", {}).get("state", "")
        return state

    @property
    def transient(self) -> bool:
        """Whether it is model text that is still being written."""
        return bool(self.told.get("metadata", {}).get("refold", {}).get("transient"))


class Events:
    """The frames of one response, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.aiter_lines()

    def __aiter__(self) -> Self:
        """All frames but comments, to the stream's clean end."""
        return self

    async def __anext__(self) -> Frame:
        """The next frame that is no comment."""
        while (frame := await self.next()).comment is not None:
            pass
        return frame

    async def next(self) -> Frame:
        """The next frame, or comment.

        Raises:
            StopAsyncIteration: The stream has ended, cleanly.
        """
        frame, begun = Frame(), False
        while True:
            line = (await anext(self._lines)).rstrip("\r\n")
            if not line:
                if begun:
                    return frame
                continue
            begun = True
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            match name:
                case "":
                    frame.comment = value
                case "id":
                    frame.id = value
                case "event":
                    frame.event = value
                case _:
                    frame.data = json.loads(value)

    async def take(self, number: int) -> list[Frame]:
        """So many frames."""
        return [await anext(self) for _ in range(number)]

    async def rest(self) -> list[Frame]:
        """All frames up to the end."""
        return [frame async for frame in self]


@contextlib.asynccontextmanager
async def opened(
    http: httpx.AsyncClient, base: str, method: str, params: Any, *, version: str = "1.0", **headers: str
) -> AsyncIterator[Events]:
    """A stream over JSON-RPC."""
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    given = {**VERSION, "A2A-Version": version, **headers}
    async with http.stream("POST", f"{base}/", json=body, headers=given) as response:
        assert response.status_code == 200, await response.aread()
        yield Events(response)


@contextlib.asynccontextmanager
async def subscribed(
    http: httpx.AsyncClient, base: str, task_id: str, seen: str | None = None
) -> AsyncIterator[Events]:
    """A subscription, from an event on."""
    headers = {} if seen is None else {"Last-Event-ID": seen}
    async with opened(http, base, "SubscribeToTask", {"id": task_id}, **headers) as events:
        yield events
