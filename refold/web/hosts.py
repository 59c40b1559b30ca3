"""Whether a request comes from this machine, and which host it addresses."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

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
    """The address that the request comes from; empty if unknown."""
    client = scope.get("client")
    return client[0] if client else ""


def on_loopback(scope: Scope, headers: Headers) -> bool:
    """Whether the caller is on this machine, and does not forward a request of another."""
    if any(name in headers for name in _FORWARDED):
        return False
    return is_loopback(address_of(scope))


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
