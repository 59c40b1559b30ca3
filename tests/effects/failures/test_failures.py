"""Every kind of exception gets one verdict: try later, or never."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import urllib.error
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from email.message import Message
from typing import Any

import httpx
import httpx2
import openai
import pytest
from pydantic import BaseModel, JsonValue, ValidationError
from pydantic_ai import exceptions as ai

from refold.core.retry_policy import FailureKind
from refold.effects import Never, TryLater
from refold.effects.failures.building import LONGEST_RETRY_AFTER_S
from refold.effects.failures.classify import classify, surely_not_done, surely_unsent
from refold.effects.failures.network import retry_after

TRANSIENT, PERMANENT = FailureKind.TRANSIENT, FailureKind.PERMANENT
SECRET = "sk-0123456789abcdef"
KEY = "Zq81hunter2"  # looks like no secret
URL = f"https://ada:{SECRET}@api.example.org/{SECRET}?key={SECRET}"


def status(code: int, library: Any = httpx, headers: dict[str, str] | None = None) -> Exception:
    response = library.Response(code, headers=headers, text=SECRET, request=library.Request("POST", URL))
    with pytest.raises(library.HTTPStatusError) as caught:
        response.raise_for_status()
    raised: Exception = caught.value
    return raised


def model_error(code: int, category: Any = None, headers: dict[str, str] | None = None) -> Exception:
    return ai.ModelHTTPError.for_category(category, status_code=code, model_name="m", body=SECRET, headers=headers)


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def misfit() -> Exception:
    class Order(BaseModel):
        amount: int

    with pytest.raises(ValidationError) as caught:
        Order.model_validate({"amount": SECRET})
    return caught.value


STATUSES = [
    *[(code, TRANSIENT) for code in (408, 425, 429, 500, 502, 503, 504, 520, 529)],
    *[(code, PERMANENT) for code in (400, 401, 402, 403, 404, 405, 409, 410, 413, 422, 451, 501, 505, 511)],
]


@pytest.mark.parametrize("library", [httpx, httpx2])
@pytest.mark.parametrize(("code", "kind"), STATUSES)
def test_a_status_has_one_verdict(code: int, kind: FailureKind, library: Any) -> None:
    """
    What the moment may change is tried again; what only another request may change is not.
    """
    failure = classify(status(code, library))

    assert (failure.kind, failure.type, failure.details) == (kind, f"http_{code}", {"status": code})
    assert "api.example.org" in failure.message


@pytest.mark.parametrize(
    ("error", "kind", "type"),
    [
        *[
            pytest.param(error, kind, type, id=f"{library.__name__}-{type}-{number}")
            for library in (httpx, httpx2)
            for number, (error, kind, type) in enumerate(
                [
                    (library.ConnectTimeout("x"), TRANSIENT, "timeout"),
                    (library.ReadTimeout("x"), TRANSIENT, "timeout"),
                    (library.PoolTimeout("x"), TRANSIENT, "timeout"),
                    (library.ConnectError("x"), TRANSIENT, "connection"),
                    (library.ReadError("x"), TRANSIENT, "connection"),
                    (library.RemoteProtocolError("x"), TRANSIENT, "connection"),
                    (caused(library.ConnectError("x"), socket.gaierror(-2, "x")), TRANSIENT, "dns"),
                    (caused(library.ConnectError("x"), ssl.SSLCertVerificationError("x")), PERMANENT, "certificate"),
                    (library.DecodingError("x"), PERMANENT, "corrupt_data"),
                    (library.UnsupportedProtocol("x"), PERMANENT, "UnsupportedProtocol"),
                    (library.TooManyRedirects("x"), PERMANENT, "TooManyRedirects"),
                    (library.LocalProtocolError(f"Illegal header value b'{KEY}\\n'"), PERMANENT, "configuration"),
                    (library.LocalProtocolError("Too much data for declared"), PERMANENT, "LocalProtocolError"),
                ]
            )
        ],
        (openai.APITimeoutError(httpx2.Request("POST", URL)), TRANSIENT, "timeout"),
        (openai.APIConnectionError(request=httpx2.Request("POST", URL)), TRANSIENT, "connection"),
        (ai.ModelTimeoutError("m", "x"), TRANSIENT, "timeout"),
        (ai.ModelTimeoutError("m", "x", phase="read"), TRANSIENT, "timeout"),
        (ai.ModelTimeoutError("m", "x", phase="connect"), TRANSIENT, "connection"),
        (ai.ModelRequestTimeout("m", 3), TRANSIENT, "timeout"),
        (ai.ModelConnectionError("m", "x"), TRANSIENT, "connection"),
        (caused(ai.ModelConnectionError("m", "x"), socket.gaierror(-2, "x")), TRANSIENT, "dns"),
        (
            caused(ai.ModelConnectionError("m", "x"), httpx2.LocalProtocolError(f"Illegal header value {SECRET}")),
            PERMANENT,
            "configuration",
        ),
        (caused(ai.ModelConnectionError("m", "x"), httpx2.UnsupportedProtocol("x")), PERMANENT, "configuration"),
        (caused(ai.ModelConnectionError("m", "x"), httpx2.InvalidURL(SECRET)), PERMANENT, "configuration"),
        (ai.ModelAPIError("m", SECRET, in_stream=True), TRANSIENT, "stream_broken"),
        (ai.ModelAPIError("m", SECRET), PERMANENT, "corrupt_data"),
        (ai.UnexpectedModelBehavior(SECRET), PERMANENT, "corrupt_data"),
        (ai.ContentFilterError(SECRET), PERMANENT, "content_filter"),
        (ai.UserError("Set the `OPENAI_API_KEY`. Or do not."), PERMANENT, "configuration"),
        (ai.ModelOverloadedError("m", SECRET), TRANSIENT, "overloaded"),
        (ai.ModelContextWindowExceededError("m", SECRET), PERMANENT, "context_window"),
        (ai.ModelRequestRejectedError("m", SECRET), PERMANENT, "rejected"),
        (model_error(429, ai.ModelRateLimitError), TRANSIENT, "http_429"),
        (model_error(429, ai.ModelQuotaExceededError), PERMANENT, "quota_exceeded"),
        (model_error(403, ai.ModelUnavailableError), TRANSIENT, "http_403"),
        (model_error(500, ai.ModelServerError), TRANSIENT, "http_500"),
        (model_error(500, ai.ModelServerError, {"x-should-retry": "false"}), PERMANENT, "http_500"),
        (model_error(409, None, {"x-should-retry": "true"}), TRANSIENT, "http_409"),
        (model_error(401, ai.ModelAuthenticationError), PERMANENT, "http_401"),
        (TimeoutError(), TRANSIENT, "timeout"),
        (ConnectionResetError(), TRANSIENT, "connection"),
        (socket.gaierror(-2, "x"), TRANSIENT, "dns"),
        (OSError(errno.EHOSTUNREACH, "x"), TRANSIENT, "connection"),
        (FileNotFoundError(errno.ENOENT, "x"), PERMANENT, "FileNotFoundError"),
        (ssl.SSLCertVerificationError("x"), PERMANENT, "certificate"),
        (urllib.error.URLError(ConnectionRefusedError()), TRANSIENT, "connection"),
        (urllib.error.HTTPError(URL, 503, SECRET, Message(), None), TRANSIENT, "http_503"),
        (json.JSONDecodeError("x", SECRET, 0), PERMANENT, "corrupt_data"),
        (misfit(), PERMANENT, "validation"),
        (asyncio.CancelledError(), PERMANENT, "CancelledError"),
        (ValueError(f"Invalid header value b'{KEY}\\n'"), PERMANENT, "ValueError"),
        (ZeroDivisionError("division by zero"), PERMANENT, "ZeroDivisionError"),
        (TryLater("the till is closed", after=7), TRANSIENT, "try_later"),
        (Never("no such order", type="no_order"), PERMANENT, "no_order"),
        (ExceptionGroup("x", [TimeoutError(), ConnectionResetError()]), TRANSIENT, "timeout"),
        (ExceptionGroup("x", [TimeoutError(), Never("no")]), PERMANENT, "never"),
    ],
)
def test_an_exception_has_one_verdict(error: BaseException, kind: FailureKind, type: str) -> None:
    """
    Would the outcome change with all inputs unchanged? Then it is transient. No secret gets out in any case.
    """
    failure = classify(error)

    assert (failure.kind, failure.type) == (kind, type)
    assert SECRET not in failure.model_dump_json()
    assert KEY not in failure.model_dump_json()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (f"cannot reach {URL}", "ValueError: cannot reach https://api.example.org"),
        (f"header Authorization: Bearer {SECRET}", "ValueError: header Authorization: Bearer ***"),
        (f"password={SECRET}", "ValueError: password=***"),
        ("Config(token='abcd1234', size=3)", "ValueError: Config(token='***', size=3)"),
        ('{"password": "hunter22"}', 'ValueError: {"password": "***"}'),
        (f"used {SECRET} here", "ValueError: used *** here"),
        ("order A1 is not there\nsecond line", "ValueError: order A1 is not there"),
        ("x" * 1000, "ValueError: " + "x" * 299 + "…"),
        ("", "ValueError"),
    ],
)
def test_what_a_bug_says_is_cleaned(said: str, shown: str) -> None:
    """
    An unknown exception's first line is shown, without addresses' paths and what looks like a secret.
    """
    assert classify(ValueError(said)).message == shown


@pytest.mark.timeout(30)
@pytest.mark.parametrize("unit", ["a", "a.", "key", "token ", "https://x:"])
def test_an_error_of_a_megabyte_is_cleaned_at_once(unit: str) -> None:
    """
    A service may answer with anything, in one line: the patterns for secrets see its beginning.
    """
    assert len(classify(RuntimeError(unit * 1_000_000)).message) <= 400


def test_a_bug_says_where_it_is() -> None:
    """
    The file, line and function of an unknown exception go along, since the stack stays in the worker.
    """
    with pytest.raises(TypeError) as caught:
        json.loads(1)  # type: ignore[arg-type]

    failure = classify(caught.value)
    assert isinstance(failure.details, dict)
    assert "__init__.py" in str(failure.details["at"])


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT"}, 30.0),
        ({"Retry-After": "Wed, 31 Dec 2025 00:00:30 GMT"}, 0.0),
        ({"retry-after-ms": "250", "Retry-After": "1"}, 0.25),
        ({"Retry-After": "999999999"}, LONGEST_RETRY_AFTER_S),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": 30}, 30.0),
        ({"Retry-After": "1e400"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read(headers: dict[str, Any], seconds: float | None) -> None:
    """
    Seconds or a date; nonsense says nothing, and nobody is made to wait for years.
    """
    assert retry_after(headers, NOW) == seconds


def test_retry_after_goes_along() -> None:
    """
    What the other side asked for is kept with the failure, over every library.
    """
    headers = {"Retry-After": "7"}

    assert classify(status(503, headers=headers)).retry_after == 7
    assert classify(model_error(429, ai.ModelRateLimitError, headers)).retry_after == 7
    assert classify(TryLater("x", after=7)).retry_after == 7


@pytest.mark.parametrize("verdict", [TryLater, Never])
def test_a_tool_may_say_it_with_the_exception_that_it_met(verdict: Any) -> None:
    """
    A verdict that raised something else would be taken for a bug of the tool, and the effect for one in doubt.
    """
    assert classify(verdict(OSError("no route"))).message == "OSError: no route"
    assert classify(verdict({"a": 1})).message == "{'a': 1} (dict)"


@pytest.mark.parametrize(
    ("after", "wait"),
    [
        (timedelta(minutes=2), 120.0),
        (" 7\x1f", 7.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("soon", None),
        (datetime(2026, 1, 1, tzinfo=UTC), None),
        (10**400, None),
    ],
)
def test_a_tool_may_pass_a_wait_on_as_it_came(after: Any, wait: float | None) -> None:
    """
    As the header that the receiver sent. What is no time is left out: the tool has said that a retry may help, and
    whether it has had an effect.
    """
    later = TryLater("x", after=after, unsent=True)

    assert (classify(later).kind, classify(later).retry_after) == (FailureKind.TRANSIENT, wait)
    assert surely_unsent(later)


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("verdict", [TryLater, Never])
@pytest.mark.parametrize(
    ("details", "kept"),
    [
        ({"due": Decimal("9.50"), 7: (1, {2})}, {"due": "9.50", "7": [1, [2]]}),
        (date(2026, 1, 1), "2026-01-01"),
        (b"\xff", "b'\\xff' (bytes)"),
        (LOOP, "what cannot be shown, for __repr__ raised RecursionError (list)"),
        (object, "<class 'object'> (type)"),
    ],
)
def test_details_are_made_json_as_far_as_they_can_be(verdict: Any, details: Any, kept: JsonValue) -> None:
    """
    An amount or a date is none, and must not take the place of what the tool says.
    """
    assert classify(verdict("x", details=details, type=503)).details == kept
    assert classify(verdict("x", type=503)).type == "503"


@pytest.mark.parametrize(
    ("error", "unsent"),
    [
        (ConnectionRefusedError(), True),
        (socket.gaierror(-2, "x"), True),
        (httpx.ConnectError("x"), True),
        (httpx2.ConnectTimeout("x"), True),
        (caused(openai.APIConnectionError(request=httpx2.Request("POST", URL)), httpx2.ConnectError("x")), True),
        (TryLater("x", unsent=True), True),
        (TryLater("x"), False),
        (httpx.ReadTimeout("x"), False),
        (httpx.RemoteProtocolError("x"), False),
        (ConnectionResetError(), False),
        (TimeoutError(), False),
        (status(503), False),
    ],
)
def test_what_was_surely_not_sent(error: BaseException, unsent: bool) -> None:
    """
    Only a request that found no name or no connection surely never left.
    """
    assert surely_unsent(error) is unsent


class Unprintable(Exception):
    """Its text needs an attribute that nobody has set."""

    def __str__(self) -> str:
        return str(self.code)  # type: ignore[attr-defined]


class Half(Exception):
    """Its properties need what its constructor was not given."""

    @property
    def response(self) -> Any:
        raise KeyError("response")

    request = headers = status_code = response


class Bare(TryLater):
    """Its constructor does not call its base's."""

    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("error", [Unprintable(), Half("half of it"), Bare()])
def test_an_exception_whose_own_code_fails_is_classified(error: Exception) -> None:
    """
    A tool's library may raise any class: whatever its text or properties do, it is a bug, and nothing is sure.
    """
    failure = classify(error)

    assert (failure.kind, failure.type) == (PERMANENT, type(error).__name__)
    assert not surely_not_done(error, [])


@pytest.mark.timeout(30)
def test_an_exception_that_is_raised_from_itself_is_judged() -> None:
    """
    `raise error from error` makes a ring of causes; a worker that followed it for ever would do nothing else.
    """
    error = caused(ValueError("x"), TimeoutError())
    error.__cause__.__cause__ = error  # type: ignore[union-attr]

    assert not surely_unsent(error)
    assert not surely_unsent(caused(error, error))
    assert classify(error).type == "ValueError"


def test_an_earlier_refusal_is_not_this_one() -> None:
    """
    A failure that happened while another was handled is judged by itself.
    """

    def elsewhere() -> None:
        try:
            raise httpx.ConnectError("first host")
        except httpx.ConnectError:
            raise httpx.ReadTimeout("second host")  # noqa: B904 - the context is the point

    with pytest.raises(httpx.ReadTimeout) as caught:
        elsewhere()

    assert not surely_unsent(caught.value)


@pytest.mark.parametrize("verdict", [Never, TryLater])
def test_a_type_is_short(verdict: Any) -> None:
    """
    The server refuses a failure with a long one, as where a tool gave the answer's body: the effect would be repeated.
    """
    assert len(verdict("refused", type="x" * 10_000_000).failure.type) < 300
