"""Serves the gateway on a port, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.applications import Starlette

from refold.a2a.connections import protocol
from refold.a2a.security.settings import Security
from refold.a2a.streams.sse import ENDS_STREAMS, OpenStreams
from refold.web.hosts import with_peer

DRAIN_S = 10
"""Seconds that open calls have to finish after the gateway is stopped."""

CUT_S = 2
"""Seconds after that until uvicorn cuts what is still open."""

DATE_S = 1
"""Seconds between two changes of the `Date` of responses."""

KEEP_ALIVE_S = 75
"""Seconds for which a connection is kept between two calls: longer than a proxy keeps it (nginx and AWS's load balancer
60 s), which would else send a call into a connection that is being closed, and answer it with 502."""


def bound(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free port.

    Raises:
        OSError: The port is in use, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(1024)
    except OSError:
        sock.close()
        raise
    return sock


def url_of(sock: socket.socket, host: str) -> str:
    """The URL of a socket, from this machine."""
    named = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return f"http://{f'[{named}]' if ':' in named else named}:{sock.getsockname()[1]}"


async def serve(
    app: Starlette,
    sock: socket.socket,
    stop: asyncio.Event,
    *,
    ready: Callable[[], None] = lambda: None,
    security: Security | None = None,
    drain_s: float = DRAIN_S,
) -> None:
    """Serve until `stop` is set; then end the open streams, finish open calls, and return.

    Args:
        app: From `a2a_app`; or another one.
        sock: From `bound`.
        stop: Set by the caller, who handles signals.
        ready: Called once the gateway answers calls.
        security: The application's. A connection that sends no headers in time is closed (408), and one more than
            there may be is refused (503).
        drain_s: Seconds that open calls have to finish; then they are told to come again (503).
    """
    security = security or Security()
    config = uvicorn.Config(
        app,
        http=protocol(security.header_seconds, security.connections),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(drain_s) + CUT_S,
    )
    config.load()
    # uvicorn puts the address that a proxy on this machine forwards in the place of the proxy's own. Callers are
    # counted and logged by it, but the page asks whether the proxy itself has sent the name of a person.
    config.loaded_app = with_peer(config.loaded_app)
    server = _Server(config, ready)
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
        calls: OpenStreams | None = getattr(app.state, "open_streams", None)
        if calls is not None:
            calls.end()
        server.exit()
        await asyncio.wait([serving], timeout=drain_s)
        if calls is not None:
            calls.cut()
        await serving
    finally:
        stopped.cancel()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready
        self._exits = asyncio.Event()

    def exit(self) -> None:
        """Take no more connections, and return from `serve` once the open calls are done."""
        self.should_exit = True
        self._exits.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self.lifespan.state[ENDS_STREAMS] = True
        await super().startup(sockets)
        self.ready()

    async def main_loop(self) -> None:
        """Wake once a second, to renew the date of responses, and when `exit` is called: uvicorn's own loop wakes ten
        times a second."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._exits.wait(), DATE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the command line handles signals, and sets `stop`
