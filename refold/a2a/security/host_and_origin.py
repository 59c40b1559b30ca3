"""Checks of a request's `Host` and `Origin`, and whether it comes from this machine.

Any web page can make a browser call a service on the browser's machine: by the service's address, in which case
`Origin` names the page; or by a host name of the page's own that resolves to this machine (DNS rebinding), which shows
in `Host`.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from refold.a2a.security.http_errors import Refused
from refold.web.hosts import host_of

_USUAL_PORTS = {"http": 80, "https": 443}


def as_host(given: str) -> str:
    """A name that a gateway is called by, as `check_host` compares it: a setting may have the port, too.

    Raises:
        ValueError: It is none, so that no request could ever name it.
    """
    try:
        return str(ip_address(given))
    except ValueError:
        found = host_of(given)
    if not found or "*" in found:
        raise ValueError(f"{given!r} is no name of a host, such as agent.example.org")
    return found


def as_origin(given: str) -> str:
    """An origin as browsers write it in `Origin`.

    Raises:
        ValueError: It is none, so that no page could ever have it.
    """
    wrong = f"{given!r} is no origin, such as https://app.example.org: scheme, host and port, and no path"
    try:
        parts = urlsplit(given.lower())
        port = parts.port
    except ValueError:
        raise ValueError(wrong) from None
    if not (parts.scheme and parts.hostname) or "*" in parts.netloc or "@" in parts.netloc:
        raise ValueError(wrong)
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(wrong)
    netloc = parts.netloc if port != _USUAL_PORTS.get(parts.scheme) else parts.netloc.rpartition(":")[0]
    return f"{parts.scheme}://{netloc}"


def check_host(headers: Headers, allowed: Sequence[str], prefix: str, *, by_address: bool = False) -> None:
    """Check that the request addresses this gateway.

    Args:
        headers: Of the request.
        allowed: The names of the gateway.
        prefix: What the names of its settings begin with.
        by_address: Any IP address is accepted, too: nobody can let one lead elsewhere, as a name can.

    Raises:
        Refused: It names another host, or none.
    """
    given = headers.getlist("host")
    host = host_of(given[0]) if len(given) == 1 else None
    if host not in allowed and not (by_address and _is_address(host)):
        wrong = f"this is not {given[0]!r}" if given else "the request names no host"
        raise Refused(421, f"{wrong}; whoever runs the agent adds the names it is called by to {prefix}HOSTS")


def _is_address(host: str | None) -> bool:
    try:
        return host is not None and bool(ip_address(host))
    except ValueError:
        return False


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
