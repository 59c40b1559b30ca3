"""Checks of a request's `Host` and `Origin`, and whether it comes from this machine.

Any web page can make a browser call a service on the browser's machine: by the service's address, in which case
`Origin` names the page; or by a host name of the page's own that resolves to this machine (DNS rebinding), which shows
in `Host`.
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


def check_host(headers: Headers, allowed: Sequence[str], prefix: str) -> None:
    """Check that the request addresses this gateway.

    Raises:
        Refused: It names another host, or none.
    """
    given = headers.getlist("host")
    if len(given) != 1 or host_of(given[0]) not in allowed:
        named = repr(given[0]) if given else "no host"
        raise Refused(
            421, f"this is not {named}; whoever runs the agent adds the names it is called by to {prefix}HOSTS"
        )


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


def check_origin(scope: Scope, headers: Headers, allowed: Sequence[str], prefix: str) -> None:
    """Check that the request comes from no web page, or from one of an allowed origin.

    Raises:
        Refused: It comes from another origin.
    """
    origin = headers.get("origin")
    if origin is None or origin in allowed:
        return
    own = f"{scope['scheme']}://{headers.get('host', '')}"
    if origin.lower() != own.lower():
        raise Refused(
            403,
            f"web pages of {origin!r} may not call this agent; whoever runs it adds them to {prefix}ORIGINS",
        )


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
