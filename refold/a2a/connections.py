"""Connections of the gateway: how many there may be, and how long one may take to send the headers of a request.

uvicorn waits without limit for headers, and for the rest of a body whose request it has answered, so half-sent requests
could hold all its connections. Bodies that are awaited have a time of their own (`security/bodies.py`), and a
connection between two requests has uvicorn's.
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
        _due: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
            super().connection_made(transport)
            if len(self.connections) > connections:
                self._refuse(TOO_MANY)
            else:
                self._await(TOO_SLOW)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._owes_body():
                return
            if self.conn.their_state is not h11.IDLE:
                self._came()
            elif self.conn.trailing_data[0]:
                self._await(TOO_SLOW)
            else:  # the rest of a body whose request was answered: uvicorn no longer counts the time until the next one
                self._came()
                self._unset_keepalive_if_required()
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._owes_body():
                self._await(b"")

        def connection_lost(self, exc: Exception | None) -> None:
            self._came()
            super().connection_lost(exc)

        def _owes_body(self) -> bool:
            """Whether a request was answered before its body had come whole."""
            return self.conn.our_state is h11.DONE and self.conn.their_state is h11.SEND_BODY

        def _await(self, answer: bytes) -> None:
            if self._due is None:
                self._due = self.loop.call_later(header_s, self._refuse, answer)

        def _came(self) -> None:
            if self._due is not None:
                self._due.cancel()
                self._due = None

        def _refuse(self, answer: bytes) -> None:
            if not self.transport.is_closing():
                self.transport.write(answer)
                self.transport.close()

    return Connection
