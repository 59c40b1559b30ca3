"""An ASGI application over real HTTP, on a free loopback port, in a thread of its own; and ports for other servers."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
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


class Serving:
    """Serves an application while it is entered as a context manager."""

    def __init__(self, app: Starlette, port: int = 0, *, lifespan: bool = False) -> None:
        # The protocol is named so that asyncio knows it for TCP and sends small answers at once.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("127.0.0.1", port))
        self._server = uvicorn.Server(
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
        self._server.should_exit = True
        self._server.force_exit = True
        # From Python 3.12 on, a server waits for its clients, and they may be waiting for whoever leaves here.
        for connection in list(self._server.server_state.connections):
            connection.loop.call_soon_threadsafe(connection.transport.abort)
        self._thread.join()
        self._socket.close()

    @property
    def address(self) -> str:
        """`http://host:port`."""
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}"
