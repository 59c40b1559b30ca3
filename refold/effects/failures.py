"""Why an effect failed, and whether asking again can help: `classify`, one table for every kind of exception.

The question behind every row: *would the outcome change with all inputs unchanged?* Where it would (the network, load,
a limit that is lifted by waiting), the failure is transient, and the task tries again. Where it would not (wrong
credentials, no such thing, what came cannot be read), it is permanent, and trying again only costs.

| what went wrong                                        | verdict   | type                            |
| ------------------------------------------------------ | --------- | ------------------------------- |
| no name, no connection, broken off, no answer in time  | transient | `dns`, `connection`, `timeout`  |
| HTTP 408, 425, 429, 500, 502, 503, 504 and other 5xx   | transient | `http_NNN`, Retry-After kept    |
| a quota or budget that is used up, though it is a 429  | permanent | `quota_exceeded`                |
| HTTP 501, 505, 506, 508, 510, 511, and every other 4xx | permanent | `http_NNN`                      |
| a certificate that does not hold                       | permanent | `certificate`                   |
| an answer that cannot be read, a value that misfits    | permanent | `corrupt_data`, `validation`    |
| a setting that is missing or wrong                     | permanent | `configuration`                 |
| `TryLater`, `Never`, raised by the tool itself         | as it says| as it says                      |
| anything else: a bug, until someone says otherwise     | permanent | the exception's class name      |

500 counts as transient: it says that the server failed, not that the request is wrong, and in practice it is load, a
deployment or a crash. Model providers' own SDKs repeat it too. Retries are few, and an effect that must not be repeated
says so by its policy.

Messages are for people: they name the host and the status, never a path, a query, a header or a body.

Source: S3.48, S3.49; RFC 9110 sections 10.2.3 and 15; RFC 6585; the exception classes of openai 3 and pydantic-ai 2.
"""

from __future__ import annotations

import errno
import json
import re
import socket
import ssl
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from email.message import Message
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import PurePath
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_ai import exceptions as ai

from refold.core.errors import CommandError, DefinitionError
from refold.core.retry import Failure, FailureKind
from refold.core.schema import problems
from refold.effects.invocation import Sent
from refold.effects.verdicts import Never, TryLater, Verdict

LONGEST_RETRY_AFTER_S = 86_400.0
"""Whoever asks for more than a day of patience gets a day: beyond it a timer is no answer, a person is."""

_NEVER_SERVED = {501, 505, 506, 508, 510, 511}
"""5xx that say something about the request or the network set-up, not about the moment."""

_EARLY_4XX = {408, 425, 429}

# By package and class name, looked up along an exception's bases, so that none of these libraries need be installed.
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
_TRANSIENT_TYPES = {"timeout": "no answer in time", "connection": "the connection failed or broke off"}

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
_REFUSING = frozenset({*range(400, 432), 451} - {408, 409, 418, 419, 420, 430})
"""Statuses by which the other side says that it has not done what was asked. Not among them: 408, as a proxy may have
given up waiting for an answer; 409, which may speak of the same effect; and every 5xx, after which it may be done."""

_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN, errno.ETIMEDOUT}


def classify(error: BaseException) -> Failure:
    """The failure that an exception is. Never raises; cancellation is no failure, and is not given here."""
    for rule in _RULES:
        failure = rule(error)
        if failure is not None:
            return failure
    return _unknown(error)


def surely_unsent(error: BaseException) -> bool:
    """Whether the request behind `error` never left: no name, no connection. False where nobody can know."""
    if isinstance(error, TryLater):
        return error.unsent
    seen: BaseException | None = error
    while seen is not None:  # causes only: an exception's mere context may be another request's
        if _named(seen, _UNSENT):
            return True
        seen = seen.__cause__
    return False


def surely_not_done(error: BaseException, sent: Sequence[Sent]) -> bool:
    """Whether a tool that failed by `error` has had no effect; False where nobody can know.

    Args:
        sent: What it is known to have sent that may have changed something, oldest first.
    """
    match error:
        case TryLater():
            return error.unsent
        case Never():
            return True
        case Verdict():
            return False
        case _:
            pass
    if any(one.status is not None and one.status not in _REFUSING for one in sent):
        return False
    unanswered = sum(one.status is None for one in sent)
    if surely_unsent(error):
        return unanswered <= 1
    found = _status(error)
    # A read that is refused says nothing about what was written before it.
    return not unanswered and found is not None and found[0] in _REFUSING and _method(error) not in _READING


_READING = {"GET", "HEAD", "OPTIONS"}


def _method(error: BaseException) -> str:
    """The method of the request behind an exception: httpx and requests, then aiohttp; empty where nobody says."""
    try:
        request = getattr(error, "request", None) or getattr(error, "request_info", None)
    except RuntimeError:  # httpx: "the .request property has not been set"
        return ""
    return str(getattr(request, "method", "") or "").upper()


# --- the rules, in order; each knows its own kind of exception


def _by_its_author(error: BaseException) -> Failure | None:
    match error:
        case Verdict():
            return error.failure
        case CommandError():
            return error.failure
        case _:
            return None


def _group(error: BaseException) -> Failure | None:
    if not isinstance(error, BaseExceptionGroup):
        return None
    failures = [classify(one) for one in error.exceptions]
    # Asking again helps only if it can help with all of them.
    return next((failure for failure in failures if failure.kind is FailureKind.PERMANENT), failures[0])


def _by_pydantic_ai(error: BaseException) -> Failure | None:
    match error:
        case ai.ModelQuotaExceededError():
            return _permanent("quota_exceeded", f"{_model(error)}: the account's quota or budget is used up", error)
        case ai.ModelContextWindowExceededError():
            return _permanent("context_window", f"{_model(error)}: the input is too long for the model", error)
        case ai.ModelUnavailableError() | ai.ModelRateLimitError() | ai.ModelServerError():
            return _transient_model(error)
        case ai.ModelHTTPError():
            said = f"{_model(error)} answered {_phrase(error.status_code)}"
            wait = retry_after(error.headers) or error.retry_after
            return _http(error.status_code, said, wait, error.provider_retry_hint)
        case ai.ModelRequestRejectedError():
            return _permanent("rejected", f"{_model(error)} rejected the request", error)
        case ai.ModelRequestTimeout() | ai.ModelTimeoutError():
            return _transient("timeout", _TRANSIENT_TYPES["timeout"] + _to(error))
        case ai.ModelConnectionError():
            return _by_network(error) or _transient("connection", _TRANSIENT_TYPES["connection"] + _to(error))
        case ai.ModelAPIError(in_stream=True):
            return _transient("stream_broken", f"{_model(error)} broke off its answer with an error", error.retry_after)
        case ai.ModelAPIError():
            return _permanent("corrupt_data", f"{_model(error)} sent an answer that cannot be read", error)
        case ai.ContentFilterError():
            return _permanent("content_filter", "the provider's content filter stopped the answer")
        case ai.UnexpectedModelBehavior():
            return _permanent("corrupt_data", "the model sent an answer that cannot be read")
        case ai.UserError():
            return _permanent("configuration", first_sentence(error))
        case _:
            return None


def _transient_model(error: ai.ModelAPIError) -> Failure:
    wait = error.retry_after
    if isinstance(error, ai.ModelHTTPError):
        said = f"{_model(error)} answered {_phrase(error.status_code)}"
        wait = retry_after(error.headers) or wait
        if isinstance(error, ai.ModelServerError) or error.provider_retry_hint is False:
            return _http(error.status_code, said, wait, error.provider_retry_hint)
        return _transient(f"http_{error.status_code}", said, wait, {"status": error.status_code})
    return _transient("overloaded", f"{_model(error)} cannot serve the request now", wait)


def _by_status(error: BaseException) -> Failure | None:
    found = _status(error)
    if found is None:
        return None
    status, headers = found
    said = f"{_host(error) or 'the other side'} answered {_phrase(status)}"
    return _http(status, said, retry_after(headers))


def _by_network(error: BaseException) -> Failure | None:
    kind = _named_type(error)
    to_host = _to(error)
    chain = list(_chain(error))
    about_network = kind in _TRANSIENT_TYPES or isinstance(error, OSError | ai.ModelConnectionError)
    if about_network and any(isinstance(one, ssl.SSLCertVerificationError) for one in chain):
        return _permanent("certificate", f"the other side's certificate does not hold{to_host}")
    if about_network and any(isinstance(one, socket.gaierror) for one in chain):
        return _transient("dns", f"the name of the other side cannot be resolved{to_host}")
    if kind in _TRANSIENT_TYPES:
        return _transient(kind, f"{_TRANSIENT_TYPES[kind]}{to_host}")
    if kind is not None:
        return _permanent(kind, f"the answer cannot be read{to_host}")
    return _by_os(error)


def _by_os(error: BaseException) -> Failure | None:
    reason = getattr(error, "reason", None)
    match error:
        case TimeoutError():
            return _transient("timeout", _TRANSIENT_TYPES["timeout"])
        case ConnectionError() | ssl.SSLError():
            return _transient("connection", _TRANSIENT_TYPES["connection"])
        case OSError(errno=code) if code in _UNREACHABLE:
            return _transient("connection", _TRANSIENT_TYPES["connection"])
        case OSError() if isinstance(reason, OSError):  # urllib.error.URLError
            return _by_network(reason)
        case _:
            return None


def _by_data(error: BaseException) -> Failure | None:
    match error:
        case ValidationError():
            return _permanent("validation", f"a value does not fit {error.title}: {problems(error)}")
        case json.JSONDecodeError() | UnicodeDecodeError():
            return _permanent("corrupt_data", "what came is neither JSON nor text that can be read")
        case DefinitionError():
            return _permanent("configuration", str(error))
        case _:
            return None


def _unknown(error: BaseException) -> Failure:
    name = type(error).__name__
    said = _plain(error)
    return Failure(
        kind=FailureKind.PERMANENT, type=name, message=f"{name}: {said}" if said else name, details=_place(error)
    )


_RULES: tuple[Callable[[BaseException], Failure | None], ...] = (
    _by_its_author,
    _group,
    _by_pydantic_ai,
    _by_status,
    _by_network,
    _by_data,
)


# --- HTTP


def retry_after(headers: Mapping[str, str] | None, now: datetime | None = None) -> float | None:
    """Seconds to wait, from `Retry-After` (seconds or a date) or `retry-after-ms`; None where neither says so.

    Args:
        headers: Any mapping; names in any case.
        now: What a date is compared with; None is the clock.
    """
    fields = {name.lower(): value for name, value in (headers or {}).items()}
    wait = _seconds(fields.get("retry-after-ms"))
    if wait is not None:
        wait /= 1000
    else:
        wait = _seconds(fields.get("retry-after"))
    if wait is None and "retry-after" in fields:
        wait = _until(fields["retry-after"], now or datetime.now(UTC))
    return None if wait is None else min(wait, LONGEST_RETRY_AFTER_S)


def _seconds(text: str | None) -> float | None:
    return float(text) if text is not None and re.fullmatch(r"\s*\d{1,12}(\.\d*)?\s*", text) else None


def _until(date: str, now: datetime) -> float | None:
    try:
        then = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    return max(0.0, ((then if then.tzinfo else then.replace(tzinfo=UTC)) - now).total_seconds())


def _http(status: int, said: str, wait: float | None, hint: bool | None = None) -> Failure:
    """The verdict on a status; `hint` is what a provider says itself (`x-should-retry`), and it knows better."""
    later = status in _EARLY_4XX or (status >= 500 and status not in _NEVER_SERVED)
    if later if hint is None else hint:
        return _transient(f"http_{status}", said, wait, {"status": status})
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


def _status(error: BaseException) -> tuple[int, Mapping[str, str]] | None:
    """The HTTP status behind an exception: httpx, requests and the SDKs, then aiohttp, then urllib."""
    response = getattr(error, "response", None)
    places = (
        (getattr(response, "status_code", None), getattr(response, "headers", None)),
        (getattr(error, "status_code", None), getattr(error, "headers", None)),
        (_of_package(error, "aiohttp", "status"), getattr(error, "headers", None)),
        (_of_package(error, "urllib", "code"), getattr(error, "headers", None)),
    )
    for status, headers in places:
        if isinstance(status, int) and 400 <= status < 600:
            return status, dict(headers.items()) if isinstance(headers, Mapping | Message) else {}
    return None


def _of_package(error: BaseException, package: str, attribute: str) -> Any:
    ours = any(cls.__module__.partition(".")[0] == package for cls in type(error).__mro__)
    return getattr(error, attribute, None) if ours else None


def _phrase(status: int) -> str:
    try:
        return f"HTTP {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"HTTP {status}"


def _host(error: BaseException) -> str:
    """The host that was asked; empty where nobody says. Never more of the address: paths may hold secrets."""
    return next((host for one in _chain(error) if (host := _host_of(one))), "")


def _host_of(error: BaseException) -> str:
    try:
        url = getattr(getattr(error, "request", None), "url", None)
        return (urlsplit(str(url)).hostname or "") if url is not None else ""
    except (RuntimeError, ValueError):  # httpx: "the .request property has not been set"
        return ""


# --- small things


def _transient(type: str, message: str, wait: float | None = None, details: Any = None) -> Failure:
    wait = None if wait is None else min(max(wait, 0.0), LONGEST_RETRY_AFTER_S)
    return Failure(kind=FailureKind.TRANSIENT, type=type, message=message, retry_after=wait, details=details)


def _permanent(type: str, message: str, error: ai.ModelAPIError | None = None) -> Failure:
    status = getattr(error, "status_code", None)
    details = None if status is None else {"status": status}
    return Failure(kind=FailureKind.PERMANENT, type=type, message=message, details=details)


def _to(error: BaseException) -> str:
    """Whom it was sent to, in brackets: the model and the host, as far as they are known."""
    model = _model(error) if isinstance(error, ai.ModelAPIError) else ""
    known = ", ".join(one for one in (model, _host(error)) if one)
    return f" ({known})" if known else ""


def _model(error: ai.ModelAPIError) -> str:
    return f"model {error.model_name!r}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _named(error: BaseException, table: Mapping[str, set[str]]) -> bool:
    return any(cls.__name__ in table.get(cls.__module__.partition(".")[0], ()) for cls in type(error).__mro__)


def _named_type(error: BaseException) -> str | None:
    for cls in type(error).__mro__:
        found = _KNOWN.get(cls.__module__.partition(".")[0], {}).get(cls.__name__)
        if found is not None:
            return found
    return None


_LONGEST_MESSAGE = 300
_SECRETS = (
    (re.compile(r"(\w[\w+.-]*://)(?:[^/\s@]*@)?([^/\s?#]+)[^\s'\")]*"), r"\1\2"),  # an address: its host is enough
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), r"\1 ***"),
    (re.compile(r"\b(?:sk|pk|rk|ghp|gho|xox[a-z])[-_][\w-]{8,}"), "***"),
    (re.compile(r"(?i)\b([\w-]*(?:key|token|secret|password|passwd))(\s*[=:]\s*)[^\s,;)'\"`]{4,}"), r"\1\2***"),
)


def _plain(error: BaseException) -> str:
    """The first line of what an exception says, shortened, without what looks like a secret."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text if len(text) <= _LONGEST_MESSAGE else text[: _LONGEST_MESSAGE - 1] + "…"


def first_sentence(error: BaseException) -> str:
    """The first sentence of a message that a library wrote for its users: what is wrong, without the advertisement."""
    return re.split(r"(?<=\.)\s", str(error).strip(), maxsplit=1)[0].rstrip(".")


def _place(error: BaseException) -> dict[str, Any] | None:
    """Where an exception was raised: the file's name, line and function, which is what its author needs."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    last = frames[-1]
    return {"at": f"{PurePath(last.filename).name}:{last.lineno} in {last.name}"}
