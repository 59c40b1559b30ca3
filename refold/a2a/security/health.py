"""`/livez`: the process answers. `/readyz`: tasks can be reached, too. For load balancers and supervisors.

The checks themselves, and how soon they notice an outage, are in `refold.seen.health`. Anybody may ask, so the answer
does not say where the server or the storage is.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from starlette.responses import PlainTextResponse, Response

from refold.engine import StorageError
from refold.seen import health
from refold.seen.health import LIVE, READY

__all__ = ["LIVE", "READY", "Health", "Ping"]

Ping = Callable[[], Awaitable[None]]


class Health:
    """Answers health checks.

    Args:
        ping: Raises an `EngineError` if tasks cannot be reached.
        clock: Seconds, monotonic; for tests.
    """

    def __init__(self, ping: Ping, clock: Callable[[], float] = time.monotonic) -> None:
        self._storage_away = False
        self._ping = ping
        self._health = health.Health({"tasks": self._check}, clock)

    async def answer(self, path: str) -> Response:
        """The answer to `/livez` or `/readyz`: 200, or 503 if the tasks cannot be reached."""
        status, _ = await self._health.answer(path)
        if status == 200:
            return PlainTextResponse("ok\n")
        away = "storage" if self._storage_away else "Temporal server"
        return PlainTextResponse(f"the {away} does not answer\n", 503, {"Retry-After": "1"})

    async def _check(self) -> None:
        self._storage_away = False
        try:
            await self._ping()
        except StorageError:
            self._storage_away = True
            raise
