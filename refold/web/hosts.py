"""Whether a request comes from this machine, and which host it addresses."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def host_of(given: str) -> str | None:
    """The name or address in a `Host` header, without the port; None if it is malformed."""
    try:
        parts = urlsplit(f"//{given}")
        _ = parts.port  # reading the port raises
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def address_of(scope: Scope) -> str:
    """The address that the request comes from, also through a proxy that the server trusts; empty if unknown."""
    client = scope.get("client")
    return client[0] if client else ""


PEER = "refold.peer"
"""Where a request's scope holds the address that the connection itself comes from, see `with_peer`."""


def with_peer(app: Any) -> ASGIApp:
    """Keep the address of each connection in the scope, before `app` replaces it by what a proxy's headers say."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        scope[PEER] = scope.get("client")
        await app(scope, receive, send)

    return serve


def peer_of(scope: Scope) -> str:
    """The address of the connection: of the proxy, if there is one. Empty if unknown."""
    peer = scope.get(PEER) or scope.get("client")
    return peer[0].removeprefix("::ffff:") if peer else ""  # as a socket for IPv4 and IPv6 writes the former


def on_loopback(scope: Scope, headers: Headers) -> bool:
    """Whether the caller is on this machine, and does not forward a request of another."""
    if any(name in headers for name in _FORWARDED):
        return False
    return is_loopback(address_of(scope))


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether a name or an address is a loopback one."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
