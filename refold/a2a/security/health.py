"""`/livez`: the process answers. `/readyz`: the Temporal server does, too. For load balancers and supervisors."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.responses import PlainTextResponse, Response

from refold.engine import EngineError

LIVE, READY = "/livez", "/readyz"

Ping = Callable[[], Awaitable[None]]

KEPT_S = 1.0
"""Seconds for which an answer of the server is cached, so that frequent checks cost it nothing."""


class Health:
    """Answers health checks.

    Args:
        ping: Raises an `EngineError` if tasks cannot be reached.
        clock: Seconds, monotonic; for tests.
    """

    def __init__(self, ping: Ping, clock: Callable[[], float] = time.monotonic) -> None:
        self._ping = ping
        self._clock = clock
        self._asked_at: float | None = None
        self._ready = False

    async def answer(self, path: str) -> Response:
        """The answer to `/livez` or `/readyz`: 200, or 503 if the tasks cannot be reached."""
        if path == LIVE or await self._is_ready():
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the Temporal server does not answer\n", 503, {"Retry-After": "1"})

    async def _is_ready(self) -> bool:
        if self._asked_at is None or self._clock() - self._asked_at >= KEPT_S:
            try:
                await self._ping()
                self._ready = True
            except EngineError:
                self._ready = False
            self._asked_at = self._clock()
        return self._ready
