"""Checks of a request's `Host` and `Origin`, and whether it comes from this machine.

A web page of anywhere can make a browser call a service on the same machine: by its address, which the browser tells in
`Origin`; or by a name of its own that it lets point there (DNS rebinding), which shows in `Host`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from refold.a2a.security.http_errors import Refused

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip")


def check_host(headers: Headers, allowed: Sequence[str]) -> None:
    """Whether the request is meant for this gateway.

    Raises:
        Refused: It names another host, or none.
    """
    given = headers.getlist("host")
    if len(given) != 1 or host_of(given[0]) not in allowed:
        named = repr(given[0]) if given else "no host"
        raise Refused(
            421, f"this is not {named}; whoever runs the agent adds the names it is called by to REFOLD_A2A_HOSTS"
        )


def host_of(given: str) -> str | None:
    """The name or address in a `Host` header, without the port; None where it is none."""
    try:
        parts = urlsplit(f"//{given}")
        _ = parts.port  # asking is what raises
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def check_origin(scope: Scope, headers: Headers, allowed: Sequence[str]) -> None:
    """Whether the request comes from no web page, or from one that may call.

    Raises:
        Refused: It comes from another one.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed:
        return
    own = f"{scope['scheme']}://{headers.get('host', '')}"
    if origin.lower() != own.lower():
        raise Refused(
            403,
            f"web pages of {origin!r} may not call this agent; whoever runs it adds them to REFOLD_A2A_ORIGINS",
        )


def address_of(scope: Scope) -> str:
    """The address that the request comes from; empty where it is not known."""
    client = scope.get("client")
    return client[0] if client else ""


def on_loopback(scope: Scope, headers: Headers) -> bool:
    """Whether the caller is on this machine itself, and speaks for nobody else."""
    if any(name in headers for name in _FORWARDED):
        return False
    return is_loopback(address_of(scope))


def is_loopback(host: str) -> bool:
    """Whether a name or an address is this machine's own, to itself."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
