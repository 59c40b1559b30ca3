"""Connections of the gateway: how many there may be, and how long one may take to send the headers of a request.

uvicorn waits for headers without limit, so half-sent requests could hold all its connections. Bodies have a time of
their own (`security/bodies.py`), and a connection between two requests has uvicorn's.
"""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_S = 10.0
MOST_CONNECTIONS = 1000

_REFUSAL = b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n%s\r\n"
TOO_SLOW = _REFUSAL % (b"408 Request Timeout", b"")
TOO_MANY = _REFUSAL % (b"503 Service Unavailable", b"Retry-After: 1\r\n")


def protocol(header_s: float, connections: int) -> type[asyncio.Protocol]:
    """uvicorn's HTTP protocol with these limits; see `refold.a2a.serve.serve`."""

    class Connection(H11Protocol):
        _headers_due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            if len(self.connections) > connections:
                self._refuse(TOO_MANY)
            else:
                self._await_headers()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._headers_came()
            elif self._headers_due is None:
                self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            self._headers_came()
            super().connection_lost(exc)

        def _await_headers(self) -> None:
            self._headers_due = self.loop.call_later(header_s, self._refuse, TOO_SLOW)

        def _headers_came(self) -> None:
            if self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None

        def _refuse(self, answer: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(answer)
                self.transport.close()

    return Connection
