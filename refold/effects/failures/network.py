"""Classifies failed connections, certificates and HTTP statuses, whichever library raised the exception.

The verdicts are those of the table in `classify`. Exceptions are recognised by package and class name, so that none of
these libraries needs to be installed or loaded.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.building import LONGEST_RETRY_AFTER_S, chain, permanent, transient

_NEVER_SERVED = {501, 505, 506, 508, 510, 511}
"""5xx statuses about the request or the network's set-up, which a retry cannot change."""

_EARLY_4XX = {408, 425, 429}

# By package and class name, looked up along an exception's bases.
_HTTPX = {
    "TimeoutException": "timeout",
    "NetworkError": "connection",
    "ProxyError": "connection",
    "RemoteProtocolError": "connection",
    "DecodingError": "corrupt_data",
}
_SDK = {"APITimeoutError": "timeout", "APIConnectionError": "connection", "APIResponseValidationError": "corrupt_data"}
_KNOWN: dict[str, dict[str, str]] = {
    "httpx": _HTTPX,
    "httpx2": _HTTPX,
    "openai": _SDK,
    "anthropic": _SDK,
    "groq": _SDK,
    "requests": {
        "Timeout": "timeout",
        "ConnectionError": "connection",
        "ChunkedEncodingError": "connection",
        "ContentDecodingError": "corrupt_data",
        "JSONDecodeError": "corrupt_data",
    },
    "aiohttp": {
        "ServerTimeoutError": "timeout",
        "ClientConnectionError": "connection",
        "ClientPayloadError": "connection",
        "ContentTypeError": "corrupt_data",
    },
    "urllib3": {"TimeoutError": "timeout", "ProtocolError": "connection", "NewConnectionError": "connection"},
}
TRANSIENT_TYPES = {"timeout": "no answer in time", "connection": "the connection failed or broke off"}
"""The types of transient network failures, with their wording."""

UNFIT_HEADER = "a header cannot be sent"
"""Says what `unfit_header` finds."""

_UNSENT: dict[str, set[str]] = {
    "httpx": {"ConnectError", "ConnectTimeout", "PoolTimeout"},
    "httpx2": {"ConnectError", "ConnectTimeout", "PoolTimeout"},
    "aiohttp": {"ClientConnectorError"},
    "urllib3": {"NewConnectionError", "ConnectTimeoutError"},
    "requests": {"ConnectTimeout"},
    "builtins": {"ConnectionRefusedError"},
    "socket": {"gaierror"},
    "smtplib": {
        "SMTPAuthenticationError",
        "SMTPConnectError",
        "SMTPDataError",
        "SMTPHeloError",
        "SMTPNotSupportedError",
        "SMTPRecipientsRefused",
        "SMTPSenderRefused",
    },
}

_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT}


def never_sent(error: BaseException) -> bool:
    """Whether this exception, causes aside, says that its request was not sent."""
    return any(cls.__name__ in _UNSENT.get(cls.__module__.partition(".")[0], ()) for cls in type(error).__mro__)


def unfit_header(error: BaseException) -> bool:
    """Whether an HTTP client refused to send a header. Its words quote the header's value, which may be a key."""
    return type(error).__name__ in ("LocalProtocolError", "InvalidHeader") and "header" in str(error)


def by_status(error: BaseException) -> Failure | None:
    """The verdict on an exception that carries an HTTP status; None for any other."""
    found = status_of(error)
    if found is None:
        return None
    status, headers = found
    said = f"{host(error) or 'the other side'} answered {phrase(status)}"
    return http_failure(status, said, retry_after(headers))


def by_network(error: BaseException, *, sure: bool = False, whom: str | None = None) -> Failure | None:
    """The verdict on an exception of the network; None for any other.

    Args:
        error: The exception; its causes are examined too.
        sure: The caller knows already that the exception is about a connection.
        whom: The receiver, as `addressed` writes it; None takes it from the exception.
    """
    kind = _named_type(error)
    whom = addressed(error) if whom is None else whom
    causes = list(chain(error))
    if unfit_header(error):
        return permanent("configuration", f"{UNFIT_HEADER}{whom}; look for a line break at the end of a key or token")
    about_network = sure or kind in TRANSIENT_TYPES or isinstance(error, OSError)
    if about_network and any(isinstance(one, ssl.SSLCertVerificationError) for one in causes):
        return permanent("certificate", f"the other side's certificate does not hold{whom}")
    if about_network and any(isinstance(one, socket.gaierror) for one in causes):
        return transient("dns", f"the name of the other side cannot be resolved{whom}")
    if kind in TRANSIENT_TYPES:
        return transient(kind, f"{TRANSIENT_TYPES[kind]}{whom}")
    if kind is not None:
        return permanent(kind, f"the answer cannot be read{whom}")
    return _by_os(error)


def _by_os(error: BaseException) -> Failure | None:
    reason = getattr(error, "reason", None)
    match error:
        case TimeoutError():
            return transient("timeout", TRANSIENT_TYPES["timeout"])
        case ConnectionError() | ssl.SSLError():
            return transient("connection", TRANSIENT_TYPES["connection"])
        case OSError(errno=code) if code in _UNREACHABLE:
            return transient("connection", TRANSIENT_TYPES["connection"])
        case OSError() if isinstance(reason, OSError):  # urllib.error.URLError
            return by_network(reason)
        case _:
            return None


# --- HTTP


def retry_after(headers: Mapping[str, str] | None, now: datetime | None = None) -> float | None:
    """Seconds to wait, from `Retry-After` (seconds or a date) or `retry-after-ms`; None without either.

    Args:
        headers: Any mapping; names in any case.
        now: The time that a date is compared with; None takes the clock.
    """
    fields = {name.lower(): str(value) for name, value in (headers or {}).items()}
    wait = _seconds(fields.get("retry-after-ms"))
    if wait is not None:
        wait /= 1000
    else:
        wait = _seconds(fields.get("retry-after"))
    if wait is None and "retry-after" in fields:
        wait = _until(fields["retry-after"], now or datetime.now(UTC))
    return None if wait is None else min(wait, LONGEST_RETRY_AFTER_S)


def _seconds(text: str | None) -> float | None:
    return float(text.strip()) if text is not None and re.fullmatch(r"\s*\d{1,12}(\.\d*)?\s*", text) else None


def _until(date: str, now: datetime) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    return max(0.0, ((then if then.tzinfo else then.replace(tzinfo=UTC)) - now).total_seconds())


def http_failure(status: int, said: str, wait: float | None, hint: bool | None = None) -> Failure:
    """The verdict on a status; `hint` is the provider's own (`x-should-retry`), and takes precedence."""
    later = status in _EARLY_4XX or (status >= 500 and status not in _NEVER_SERVED)
    if later if hint is None else hint:
        return transient(f"http_{status}", said, wait, {"status": status})
    way_out = _WAYS_OUT.get(status, "")
    return Failure(
        kind=FailureKind.PERMANENT, type=f"http_{status}", message=said + way_out, details={"status": status}
    )


_WAYS_OUT = {
    401: "; check the credentials",
    403: "; check what the credentials are allowed to do",
    404: "; check the name and the address",
    405: "; check the address",
}


def status_of(error: BaseException) -> tuple[int, Mapping[str, str]] | None:
    """The HTTP status behind an exception: httpx, requests and the SDKs, then aiohttp, then urllib."""
    response, headers = attribute(error, "response"), attribute(error, "headers")
    places = (
        (attribute(response, "status_code"), attribute(response, "headers")),
        (attribute(error, "status_code"), headers),
        (_of_package(error, "aiohttp", "status"), headers),
        (_of_package(error, "urllib", "code"), headers),
    )
    for status, headers in places:
        if isinstance(status, int) and 400 <= status < 600:
            return status, dict(headers.items()) if isinstance(headers, Mapping | Message) else {}
    return None


def _of_package(error: BaseException, package: str, name: str) -> Any:
    ours = any(cls.__module__.partition(".")[0] == package for cls in type(error).__mro__)
    return attribute(error, name) if ours else None


def attribute(of: object, name: str) -> Any:
    """An attribute of an exception or of what it carries; None if there is none, or its code fails.

    httpx, for one: "the .request property has not been set".
    """
    with suppress(Exception):
        return getattr(of, name, None)
    return None


def phrase(status: int) -> str:
    """A status with its name: `HTTP 503 Service Unavailable`."""
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def host(error: BaseException) -> str:
    """The receiver's host; empty if unknown. Never more of the address, since paths may hold secrets."""
    return next((host for one in chain(error) if (host := _host_of(one))), "")


def _host_of(error: BaseException) -> str:
    url = attribute(attribute(error, "request"), "url")
    try:
        return (urlsplit(str(url)).hostname or "") if url is not None else ""
    except ValueError:
        return ""


def addressed(error: BaseException, model: str = "") -> str:
    """The receiver in brackets: the model and the host, as far as they are known."""
    known = ", ".join(one for one in (model, host(error)) if one)
    return f" ({known})" if known else ""


def _named_type(error: BaseException) -> str | None:
    for cls in type(error).__mro__:
        found = _KNOWN.get(cls.__module__.partition(".")[0], {}).get(cls.__name__)
        if found is not None:
            return found
    return None
