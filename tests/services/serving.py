"""An ASGI application over real HTTP, on a free loopback port, in a thread of its own."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

import uvicorn
from starlette.applications import Starlette


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
        self._thread.join()
        self._socket.close()

    @property
    def address(self) -> str:
        """`http://host:port`."""
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}"
