"""Serves the gateway over gRPC, until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from starlette.applications import Starlette

from refold.a2a.grpc.admitted import Admitted, Contexts
from refold.a2a.grpc.seen import SeenCalls
from refold.a2a.security.settings import Security
from refold.a2a.serve import DRAIN_S

HEADER_BYTES = 16 * 1024

PING_MS = 30_000
"""The pause between two pings of a client from which nothing comes. Without an answer its streams are closed: gRPC has
no heartbeats as event streams over HTTP have."""

PINGED_MS = 5_000
"""How often a client may ping, to keep an idle stream; one that does more often is cut. gRPC's own is five minutes."""


class GrpcServer:
    """The gateway's server for gRPC. Without TLS, as over HTTP: a proxy in front adds it.

    Args:
        security: The application's. One more call than it allows is refused (`RESOURCE_EXHAUSTED`).
    """

    def __init__(self, security: Security | None = None) -> None:
        security = security or Security()
        self._admitted, self._seen = Admitted(security.body_seconds), SeenCalls()
        self._server = grpc.aio.server(
            interceptors=[self._seen, self._admitted],
            maximum_concurrent_rpcs=security.connections,
            options=[
                ("grpc.max_receive_message_length", security.body_bytes),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", HEADER_BYTES),
                ("grpc.absolute_max_metadata_size", HEADER_BYTES),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", PING_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.max_pings_without_data", 0),  # of ours: as many as there are
                ("grpc.http2.min_ping_interval_without_data_ms", PINGED_MS),
            ],
        )

    def bind(self, host: str, port: int) -> int:
        """Listen on a port; 0 takes a free one. Returns the port.

        Raises:
            OSError: The port is in use, or the address is not this machine's.
        """
        try:
            return int(self._server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
        except RuntimeError as error:
            raise OSError(str(error)) from None

    async def serve(
        self, app: Starlette, stop: asyncio.Event, *, ready: Callable[[], None] = lambda: None, drain_s: float = DRAIN_S
    ) -> None:
        """Serve until `stop` is set; then end the open streams, finish open calls, and return.

        Args:
            app: From `a2a_app`: its methods are served, to its callers.
            stop: Set by the caller, who handles signals.
            ready: Called once calls are answered.
            drain_s: Seconds that open calls have to finish.
        """
        handler = GrpcHandler(app.state.handler, Contexts())
        add_A2AServiceServicer_to_server(handler, self._server)  # type: ignore[no-untyped-call]
        self._admitted.open(app.state.admission, handler, app.state.declared)
        self._seen.tracer = app.state.tracer
        await self._server.start()
        ready()
        try:
            await stop.wait()
        finally:
            self._admitted.stops.set()
            await self._server.stop(drain_s)
