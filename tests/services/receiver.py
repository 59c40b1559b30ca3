"""A webhook receiver: keeps what it is sent, and answers as it is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.services.serving import Serving, free_port

PATIENCE_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What was sent once.

    Attributes:
        headers: By lower-case name.
        body: As it came.
        answered: The status that it got.
    """

    headers: dict[str, str]
    body: bytes
    answered: int

    @property
    def json(self) -> dict[str, Any]:
        """The body, read."""
        found: dict[str, Any] = json.loads(self.body)
        return found


Answer = Callable[[int], Response]
"""Makes the answer to the n-th post, from 1 on."""


@dataclass
class Receiver:
    """Listens while it is entered; may be entered again, and then has the same port.

    Attributes:
        answer: How it answers.
        slow: It never answers.
        posts: What came, oldest first.
        port: Where it listens, on loopback.
    """

    answer: Answer = lambda _: Response(status_code=204)
    slow: bool = False
    posts: list[Post] = field(default_factory=list)
    port: int = field(default_factory=free_port)
    _serving: Serving | None = None
    _came: threading.Condition = field(default_factory=threading.Condition)

    def __enter__(self) -> Self:
        app = Starlette(routes=[Route("/{path:path}", self._take, methods=["POST"])])
        self._serving = Serving(app, self.port).__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._serving is not None
        self._serving.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        """Where to send."""
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def taken(self) -> list[Post]:
        """What it was sent and took."""
        return [post for post in self.posts if post.answered < 300]

    async def until(self, enough: Callable[[Self], bool]) -> None:
        """Wait until what came is enough."""

        def wait() -> None:
            with self._came:
                assert self._came.wait_for(lambda: enough(self), PATIENCE_S), self.posts

        await asyncio.to_thread(wait)

    async def _take(self, request: Request) -> Response:
        body = await request.body()
        with self._came:
            response = self.answer(len(self.posts) + 1)
            self.posts.append(Post(headers=dict(request.headers), body=body, answered=response.status_code))
            self._came.notify_all()
        if self.slow:
            await request.is_disconnected()
            await asyncio.Event().wait()
        return response
