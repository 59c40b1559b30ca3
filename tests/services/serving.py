"""An ASGI application over real HTTP, on a free loopback port, in a thread of its own; and ports for other servers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import uvicorn
from starlette.applications import Starlette

LOWEST, HIGHEST = 20_000, 32_000
"""Below the ports that kernels hand out by themselves, to whoever connects or asks for any port."""
_numbers = itertools.count(50 * os.getpid())


def free_port() -> int:
    """A port that nobody listens on, and that nobody else is given until this process does.

    For servers that must be told their port before they start, or come back to it after a while.
    """
    while True:
        port = LOWEST + next(_numbers) % (HIGHEST - LOWEST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class PromptServer(uvicorn.Server):
    """Ends as soon as it is told, from any thread: uvicorn's looks ten times a second whether it should, and then waits
    for its clients, who may be waiting for whoever tells it."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._told: Future[None] = Future()

    def end(self) -> None:
        """Let `serve` return."""
        if not self._told.done():
            self._told.set_result(None)

    async def main_loop(self) -> None:
        """Wait to be told."""
        await self.on_tick(0)
        await asyncio.wrap_future(self._told)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Cut all connections, and close the sockets."""
        for sock in sockets or []:
            asyncio.get_running_loop().remove_reader(sock)
        # First asyncio makes a transport of what it has just accepted, and then tells uvicorn. It would leave the
        # connection open if its server were closed before.
        for _ in range(2):
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in (answering := [*self.server_state.tasks]):
            task.cancel()
        await asyncio.gather(*answering, return_exceptions=True)
        await self.lifespan.shutdown()


class Serving:
    """Serves an application while it is entered as a context manager."""

    def __init__(self, app: Starlette, port: int = 0, *, lifespan: bool = False) -> None:
        # The protocol is named so that asyncio knows it for TCP and sends small answers at once.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._server = PromptServer(
            uvicorn.Config(app, log_level="critical", lifespan="on" if lifespan else "off", ws="none")
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._socket]}, name="serving", daemon=True
        )

    def __enter__(self) -> Self:
        # Connections wait in the socket's queue until the thread takes them: nothing to wait for.
        self._socket.listen(128)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.end()
        self._thread.join()
        self._socket.close()

    @property
    def address(self) -> str:
        """`http://host:port`."""
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}"
