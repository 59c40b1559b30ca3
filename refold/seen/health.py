"""`/livez` and `/readyz` of a process, over HTTP: whether it answers, and whether it can do its work.

| path | 200 | 503 |
| --- | --- | --- |
| `/livez` | the process answers | (no answer: its event loop stands still, or it is gone) |
| `/readyz` | every check passes | a check fails; the body names each, and why |

A check that gives no answer within `PATIENCE_S` fails, and is not begun again before it has ended. Answers are kept for
`KEPT_S`, so frequent probes cost nothing. Together that is well below ten seconds from an outage to a 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from refold.core.errors import RefoldError, describe

LIVE, READY = "/livez", "/readyz"

KEPT_S = 1.0
"""How long the outcome of the checks is kept, in seconds."""

PATIENCE_S = 3.0
"""How long a check may take, in seconds."""

REQUEST_S = 5.0
"""How long a caller may take to send its request, in seconds."""

MOST_BYTES = 8192
"""The largest request that is read, in bytes."""

Check = Callable[[], Awaitable[None]]
"""Returns if what it looks at can be used, and raises if not. The error's message is shown to whoever asks."""


class Health:
    """Runs the checks of a process.

    Args:
        checks: What this process needs, by name, such as `server`.
        clock: Seconds, monotonic; for tests.
    """

    def __init__(self, checks: Mapping[str, Check], clock: Callable[[], float] = time.monotonic) -> None:
        self._checks = dict(checks)
        self._clock = clock
        self._running: dict[str, asyncio.Task[None]] = {}
        self._looking: asyncio.Task[dict[str, str]] | None = None
        self._found: dict[str, str] = {}
        self._looked_at: float | None = None

    async def problems(self) -> dict[str, str]:
        """What cannot be used, by name, and why; empty if the process is ready."""
        if self._looked_at is None or self._clock() - self._looked_at >= KEPT_S:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            self._found = await asyncio.shield(self._looking)
        return self._found

    async def answer(self, path: str) -> tuple[int, str]:
        """Status and body for a path; 404 for any path but `/livez` and `/readyz`."""
        if path == LIVE:
            return 200, "ok\n"
        if path != READY:
            return 404, f"there are {LIVE} and {READY}\n"
        wrong = await self.problems()
        return (503, "".join(f"{name}: {why}\n" for name, why in wrong.items())) if wrong else (200, "ok\n")

    async def _look(self) -> dict[str, str]:
        said = await asyncio.gather(*(self._ask(name, check) for name, check in self._checks.items()))
        self._looked_at = self._clock()
        return {name: why for name, why in zip(self._checks, said, strict=True) if why}

    async def _ask(self, name: str, check: Check) -> str:
        running = self._running.get(name)
        if running is None:
            running = self._running[name] = asyncio.ensure_future(_run(check))
        done, _ = await asyncio.wait([running], timeout=PATIENCE_S)
        if not done:
            return f"no answer for {PATIENCE_S:.0f} s"
        del self._running[name]
        error = running.exception()
        if error is None:
            return ""
        return " ".join((str(error) if isinstance(error, RefoldError) else describe(error)).split())


async def _run(check: Check) -> None:
    await check()


@asynccontextmanager
async def health_server(health: Health, host: str, port: int) -> AsyncIterator[tuple[str, int]]:
    """Answer `/livez` and `/readyz` over HTTP inside the block.

    Yields:
        The address that it listens on; a free port where `port` is 0.

    Raises:
        OSError: The port is in use, or the address is not this machine's.
    """
    callers: set[asyncio.Task[None]] = set()

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        callers.add(task)
        try:
            await _serve_one(health, reader, writer)
        finally:
            callers.discard(task)
            writer.close()

    server = await asyncio.start_server(served, host, port, limit=MOST_BYTES)
    try:
        listening = server.sockets[0].getsockname()
        yield listening[0], listening[1]
    finally:
        server.close()
        for task in tuple(callers):
            task.cancel()
        await asyncio.gather(*callers, return_exceptions=True)


async def _serve_one(health: Health, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        async with asyncio.timeout(REQUEST_S):
            head = await reader.readuntil(b"\r\n\r\n")
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        status, body = await health.answer(path) if method in ("GET", "HEAD") else (405, "GET or HEAD\n")
        words = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
        told = body.encode()
        lines = [
            f"HTTP/1.1 {status} {words[status]}",
            "Content-Type: text/plain; charset=utf-8",
            f"Content-Length: {len(told)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + (b"" if method == "HEAD" else told))
        await writer.drain()
