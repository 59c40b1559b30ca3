"""What a request passes before the gateway: host, origin, size, depth, rate; and what the process says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import httpx2
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, BaseUser, SimpleUser
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from refold.a2a.security import Security, bodies
from refold.a2a.security.api_keys import api_keys
from refold.a2a.security.bodies import _deepest
from refold.a2a.security.host_and_origin import check_host
from refold.a2a.security.http_errors import Refused
from refold.engine import NotConnected
from refold.testing import FakeEngine
from refold.web.callbacks import BODY_LIMIT_BYTES
from tests.a2a.security.guarding import ADA_KEY, BOB_KEY, BROKEN, ELSEWHERE, app, chunks, client, token

KEYS = api_keys(f"ada={ADA_KEY}\nbob={BOB_KEY}")


# --- where it comes from


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:9000", 200),
        ("localhost", 200),
        ("LOCALHOST:9000", 200),
        ("[::1]:9000", 200),
        ("evil.example.org", 421),
        ("127.0.0.1.evil.example.org", 421),
        ("localhost@evil.example.org", 421),
        ("evil.example.org/localhost", 421),
        ("localhost:x", 421),
        ("", 421),
    ],
)
async def test_on_loopback_only_loopback_names_count(host: str, status: int) -> None:
    """
    A name that somebody else lets point to this machine opens nothing (DNS rebinding).
    """
    async with client(Security()) as http:
        assert (await http.post("/", headers={"Host": host})).status_code == status


def test_a_request_without_a_host_is_told_so() -> None:
    """
    One of HTTP/1.0 may have none.
    """
    with pytest.raises(Refused, match=r"^the request names no host; whoever runs the agent adds the names"):
        check_host(Headers({}), ("localhost",), "REFOLD_A2A_")


async def test_hosts_can_be_named() -> None:
    """
    Behind a proxy the gateway has a name; no other one counts.
    """
    async with client(Security(keys=KEYS, anonymous=None, hosts=("Agent.example.org",)), at=ELSEWHERE) as http:
        key = {"X-API-Key": ADA_KEY}
        assert (await http.get("/", headers={**key, "Host": "agent.example.org"})).status_code == 200
        assert (await http.get("/", headers={**key, "Host": "other.example.org"})).status_code == 421


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:9000", 200),
        ("agent.example.org", 200),
        ("AGENT.example.org:9000", 200),
        ("192.168.1.7:9000", 200),
        ("[fd00::7]:9000", 200),
        ("evil.example.org:9000", 421),
        ("192.168.1.7.evil.example.org", 421),
        ("", 421),
    ],
)
async def test_where_everyone_may_call_a_web_page_still_may_not(host: str, status: int) -> None:
    """
    A name that a page's owner lets point to the gateway opens nothing (DNS rebinding); an IP address cannot be such.
    """
    served = app(Security(anonymous="everywhere"), url="https://agent.example.org")
    transport = httpx2.ASGITransport(app=served, client=ELSEWHERE)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:9000") as http:
        answer = await http.post("/", headers={"Host": host, "Origin": f"http://{host}"})

    assert answer.status_code == status
    assert status == 200 or "REFOLD_A2A_HOSTS" in answer.text


@pytest.mark.parametrize("security", [Security(), Security(anonymous="everywhere", hosts=("agent.example.org",))])
async def test_a_callback_may_come_by_any_name(security: Security) -> None:
    """
    Its address has the host that the workers were given, and a token that no web page knows.
    """
    async with client(security) as http:
        answers = [
            await http.post(path, content=b"x", headers={"Host": "hooks.example.org", "Content-Type": "text/plain"})
            for path in ("/callbacks/s3cret", "/callbacks/s3cret/more", "/")
        ]

    assert [answer.status_code == 421 for answer in answers] == [False, True, True]


async def test_where_hosts_are_named_an_address_is_none_of_them() -> None:
    """
    Also where everyone may call.
    """
    async with client(Security(anonymous="everywhere", hosts=("agent.example.org",)), at=ELSEWHERE) as http:
        hosts = ("agent.example.org", "192.168.1.7", "localhost")
        answers = [await http.get("/", headers={"Host": host}) for host in hosts]

    assert [answer.status_code for answer in answers] == [200, 421, 421]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        (None, 200),
        ("http://127.0.0.1:9000", 200),
        ("https://app.example.org", 200),
        ("https://evil.example.org", 403),
        ("http://127.0.0.1:9001", 403),
        ("null", 403),
    ],
)
async def test_web_pages_of_others_may_not_call(origin: str | None, status: int) -> None:
    """
    A browser says whose page calls; the gateway's own may, and those on the list.
    """
    async with client(Security(origins=("https://app.example.org",))) as http:
        answer = await http.post("/", headers={} if origin is None else {"Origin": origin})

    assert answer.status_code == status
    assert answer.headers.get("access-control-allow-origin") == (
        origin if origin == "https://app.example.org" else None
    )


async def test_no_page_may_call_unless_it_is_listed() -> None:
    """
    CORS is off: a preflight is nobody's.
    """
    ask = {"Origin": "https://app.example.org", "Access-Control-Request-Method": "POST"}
    async with client(Security()) as http:
        closed = await http.options("/", headers=ask)
    async with client(Security(origins=("https://app.example.org",))) as http:
        open_ = await http.options("/", headers=ask)

    assert closed.status_code == 403
    assert "access-control-allow-origin" not in closed.headers
    assert (open_.status_code, open_.headers["access-control-allow-origin"]) == (200, "https://app.example.org")


# --- what it brings


@pytest.mark.parametrize(
    ("content", "status"),
    [
        pytest.param(b"x" * 100, 200, id="just-fits"),
        pytest.param(b"x" * 101, 413, id="too-large"),
        pytest.param(chunks(b"x" * 60, b"x" * 40), 200, id="fits-in-chunks"),
        pytest.param(chunks(b"x" * 60, b"x" * 41), 413, id="too-large-in-chunks"),
    ],
)
async def test_a_body_has_a_largest_size(content: bytes | AsyncIterator[bytes], status: int) -> None:
    """
    With its length said beforehand or without.
    """
    async with client(Security(body_bytes=100)) as http:
        assert (await http.post("/", content=content)).status_code == status


async def test_an_endless_body_is_not_read_to_its_end() -> None:
    """
    What is too much is known as soon as it is too much.
    """
    sent = 0

    async def endless() -> dict[str, Any]:
        nonlocal sent
        sent += 1
        return {"type": "http.request", "body": b"x" * 60, "more_body": True}

    assert await _status(Security(body_bytes=100), endless) == 413
    assert sent == 2


async def test_a_body_that_breaks_off_or_never_comes_is_given_up() -> None:
    """
    The caller went away, or sends too slowly.
    """

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def never() -> dict[str, Any]:
        await asyncio.Future()
        raise AssertionError

    assert await _status(Security(), gone) == 400
    assert await _status(Security(body_seconds=0.01), never) == 408


async def _status(security: Security, receive: Any, path: str = "/") -> int:
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "scheme": "http",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
    }
    await app(security)(scope, receive, send)
    status: int = said[0]["status"]
    return status


@pytest.mark.parametrize("security", [Security(), Security(body_bytes=100)], ids=["usual", "less"])
async def test_a_callback_reads_as_much_as_a_callback_takes(security: Security) -> None:
    """
    Whoever has no address can send no more than that either, whatever authenticated callers may send.
    """
    most = min(BODY_LIMIT_BYTES, security.body_bytes)
    async with client(security) as http:
        posts = [await http.post("/callbacks/guess", content=chunks(b"x" * most, more)) for more in (b"", b"x")]

    assert [one.status_code for one in posts] == [404, 413]  # behind this guard nobody takes a callback


async def test_what_strangers_send_to_a_callback_is_not_parsed() -> None:
    """
    The callback parses it, once it has checked the address.
    """
    async with client(Security()) as http:
        posts = [await http.post(path, content=b"[" * 65) for path in ("/callbacks/guess", "/")]

    assert [one.status_code for one in posts] == [404, 400]


async def test_what_strangers_send_to_a_card_is_not_read() -> None:
    """
    A card is for reading: a POST is refused before its body has arrived.
    """

    async def never() -> dict[str, Any]:
        await asyncio.Future()
        raise AssertionError

    assert await _status(Security(body_seconds=0.01), never, "/.well-known/agent-card.json") == 405


@pytest.mark.parametrize(
    ("body", "status"),
    [
        pytest.param(b"[" * 64 + b"]" * 64, 200, id="deep-enough"),
        pytest.param(b"[" * 65 + b"]" * 65, 400, id="too-deep"),
        pytest.param(b'{"a":' * 70 + b"1" + b"}" * 70, 400, id="too-deep-in-objects"),
        pytest.param(json.dumps(["[" * 100, '"[' * 100, "\\"]).encode(), 200, id="brackets-in-text"),
        pytest.param(b"[[]," * 60 + b"1" + b"]" * 60, 200, id="wide"),
        pytest.param(b"[" * 40_000, 400, id="never-closed"),
        pytest.param(b"\xff\xfe", 400, id="no-text"),
        pytest.param(f'["\u2200", {"[" * 65}'.encode("utf-16-le"), 400, id="half-of-a-character-is-a-quote"),
        pytest.param("[0]".encode("utf-32-be"), 400, id="four-bytes-a-character"),
        pytest.param("[0]".encode("utf-8-sig"), 400, id="a-byte-order-mark"),
        pytest.param(b'{"id": "\\ud800"}', 400, id="half-a-character"),
        pytest.param(b'{"id": "\\ud83d\\ude00"}', 200, id="a-character-in-two-halves"),
        pytest.param(b"[" + b"1" * 5000 + b"]", 400, id="an-endless-number"),
        pytest.param(b'["a", ' + b"1" * 5000 + b', "b"]', 400, id="an-endless-number-between-texts"),
        pytest.param(b'["' + b"1" * 5000 + b'\\"' + b"1" * 5000 + b'"]', 200, id="digits-in-a-text"),
    ],
)
async def test_a_body_can_be_read_without_harm(body: bytes, status: int) -> None:
    """
    What no reader survives is refused before any reads it.
    """
    async with client(Security()) as http:
        assert (await http.post("/", content=body)).status_code == status


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(json_values)
def test_depth_is_counted_as_the_json_goes(value: Any) -> None:
    """
    Whatever stands in its texts.
    """

    def depth(value: Any) -> int:
        match value:
            case dict():
                return 1 + max(map(depth, value.values()), default=0)
            case list():
                return 1 + max(map(depth, value), default=0)
            case _:
                return 0

    for escaped in (True, False):
        assert _deepest(json.dumps(value, ensure_ascii=escaped).encode()) == depth(value)


@given(json_values)
def test_values_are_counted_as_the_json_goes(value: Any) -> None:
    """
    Each counts once, empty lists and objects too; whatever stands in texts is none.
    """

    def counted(value: Any) -> int:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return 1 + sum(map(counted, inner))

    def is_refused(body: bytes, most: int) -> bool:
        try:
            bodies.check(body, depth=64, values=most)
        except Refused as refused:
            return refused.status == 413
        return False

    for escaped, indent in product((True, False), (None, 1)):
        body, most = json.dumps(value, ensure_ascii=escaped, indent=indent).encode(), counted(value)
        assert not is_refused(body, most)
        assert most == 1 or is_refused(body, most - 1)


@pytest.mark.parametrize("body", [b'"' + b'\\"' * 500_000, b'"' * 999_999, b'["a",' * 200_000, b'"' + b"\\" * 999_999])
def test_no_text_makes_it_look_for_long(body: bytes) -> None:
    """
    A megabyte takes a moment, whatever is in it; were it read again from each place, it would take days.
    """
    assert _deepest(body) in (0, 200_000)
    with contextlib.suppress(Refused):
        bodies.check(body, depth=10, values=10)


# --- how often


async def test_a_caller_may_call_so_often() -> None:
    """
    Each caller for itself; the one too many hears when to come again.
    """
    security = Security(keys=KEYS, anonymous=None, rate="3/hour")
    async with client(security, at=ELSEWHERE) as http:
        ada = [await http.get("/", headers={"X-API-Key": ADA_KEY}) for _ in range(4)]
        bob = await http.get("/", headers={"X-API-Key": BOB_KEY})

    assert [answer.status_code for answer in ada] == [200, 200, 200, 429]
    assert 0 < int(ada[-1].headers["retry-after"]) <= 3600
    assert bob.status_code == 200


@pytest.mark.parametrize("rate", ["3/day;1/hour", "1/hour;3/day"])
async def test_a_call_that_comes_too_soon_takes_nothing_of_the_day(rate: str) -> None:
    """
    Whoever calls faster than they may waits for the next hour, and not for the next day, in whatever order the limits
    are written.
    """
    async with client(Security(keys=KEYS, anonymous=None, rate=rate), at=ELSEWHERE) as http:
        calls = [await http.get("/", headers={"X-API-Key": ADA_KEY}) for _ in range(5)]

    assert [answer.status_code for answer in calls] == [200, 429, 429, 429, 429]
    assert int(calls[-1].headers["retry-after"]) <= 3600


async def test_who_is_not_known_counts_by_address() -> None:
    """
    Guessing keys comes to an end, and takes nothing from those who have one.
    """
    security = Security(keys=KEYS, anonymous=None, rate="3/hour")
    async with client(security, at=ELSEWHERE) as http:
        guesses = [await http.get("/", headers={"X-API-Key": f"guess-{n}"}) for n in range(5)]
        known = await http.get("/", headers={"X-API-Key": ADA_KEY})

    assert [answer.status_code for answer in guesses] == [401, 401, 401, 429, 429]
    assert known.status_code == 200


# --- what the process says of itself


async def test_health_needs_no_key() -> None:
    """
    Alive as long as it answers; ready as long as the tasks can be reached.
    """
    engine = FakeEngine()
    async with client(
        Security(keys=KEYS, anonymous=None), at=ELSEWHERE, base_url="http://10.0.0.7", engine=engine
    ) as http:
        before = [(await http.get(path)).status_code for path in ("/livez", "/readyz")]
    engine.fault = NotConnected("gone")
    async with client(Security(), at=ELSEWHERE, engine=engine) as http:
        after = [(await http.get(path)).status_code for path in ("/livez", "/readyz")]

    assert (before, after) == ([200, 200], [200, 503])


async def test_an_error_shows_nothing_of_our_insides() -> None:
    """
    The caller is given a number; what went wrong is in the log beside it.
    """
    async with client(Security()) as http:
        answer = await http.post("/", content=b"fail")

    assert answer.status_code == 500
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("verb", ["GET", "POST"])
async def test_an_error_before_the_gateway_shows_nothing_either(verb: str) -> None:
    """
    A caller that cannot be checked gets a number of the log too, in the form of the binding; and the call counts.
    """
    structlog.reset_defaults()
    security = Security(tokens=BROKEN, anonymous=None, rate="1/hour")
    bearer = {"Authorization": f"Bearer {token()}"}
    with capture_logs() as logs:
        async with client(security, at=ELSEWHERE) as http:
            answer, second = [await http.request(verb, "/", headers=bearer) for _ in range(2)]

    number = answer.json()["error"]["message"].rpartition(" ")[2]
    assert (answer.status_code, second.status_code) == (500, 429)
    assert "hunter2" not in answer.text
    assert [line.get("reference") for line in logs if line["event"] == "request_failed"] == [number]


async def test_the_address_of_a_callback_is_not_logged() -> None:
    """
    Whoever has it may answer: a refused call is logged without it.
    """
    structlog.reset_defaults()
    with capture_logs() as logs:
        async with client(Security(body_bytes=10)) as http:
            answer = await http.post("/callbacks/s3cret", content=b"x" * 11)

    assert answer.status_code == 413
    assert [(line["event"], line["path"]) for line in logs] == [("call_refused", "/callbacks/…")]


async def test_a_text_for_a_callback_is_not_read_as_json() -> None:
    """
    The log of a build opens a bracket for each of its colours.
    """
    log, kind = b"\x1b[32mok\x1b[0m\n" * 100, {"Content-Type": "text/plain; charset=utf-8"}
    async with client(Security()) as http:
        posts = [await http.post(path, content=log, headers=kind) for path in ("/callbacks/s3cret", "/")]

    assert [one.status_code for one in posts] == [404, 400]  # behind this guard is nobody who takes one


# --- in another application


class ByHeader(AuthenticationBackend):
    """Believes a header; a number is none of the text that a name is."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, BaseUser] | None:
        name = conn.headers.get("x-user")
        # A number for a name is the mistake that is tried.
        return None if name is None else (AuthCredentials(), SimpleUser(int(name) if name.isdecimal() else name))  # type: ignore[arg-type]


def mounted(security: Security) -> httpx2.AsyncClient:
    """A client of a guarded application in another one, which knows its callers itself."""
    outer = Starlette(
        routes=[Mount("/agent", app(security))], middleware=[Middleware(AuthenticationMiddleware, backend=ByHeader())]
    )
    transport = httpx2.ASGITransport(app=outer, client=ELSEWHERE)
    return httpx2.AsyncClient(transport=transport, base_url="http://example.org/agent")


async def test_a_mounted_gateway_stays_with_who_calls_its_application() -> None:
    """
    Who has shown the application a name needs no key; everybody else does. Its own paths are under the mount.
    """

    async with mounted(Security(keys=KEYS, anonymous=None)) as http:
        known = await http.get("/", headers={"X-User": "grace"})
        by_key = await http.get("/", headers={"X-API-Key": ADA_KEY})
        free = [(await http.get(path)).status_code for path in ("/livez", "/.well-known/agent-card.json", "/")]

    assert (known.json()["caller"], by_key.json()["caller"]) == ("grace", "ada")
    assert free == [200, 200, 401]


@pytest.mark.parametrize("name", ["", "x" * 257, "(router) grace", "(router)", "7"])
async def test_a_name_of_the_application_can_own_tasks(name: str) -> None:
    """
    As that of a key or token can: an empty one would be that of callers without a name, in lists, and the router's
    tasks are no caller's.
    """
    async with mounted(Security(keys=KEYS, anonymous=None)) as http:
        answer = await http.get("/", headers={"X-User": name})

    assert answer.status_code == 403
    assert "nobody can call under the name" in answer.json()["error"]["message"]


async def test_of_a_name_that_is_no_text_the_caller_sees_the_beginning() -> None:
    """
    It may be anything that the application has, such as a row of its database.
    """
    async with mounted(Security(keys=KEYS, anonymous=None)) as http:
        answer = await http.get("/", headers={"X-User": "7" * 1000})

    assert answer.json()["error"]["message"].endswith(f"it is no text, but {'7' * 100} (int)")


async def test_callers_of_the_application_call_so_often_too() -> None:
    """
    The rate is each caller's, whoever knows it.
    """
    async with mounted(Security(keys=KEYS, anonymous=None, rate="2/hour")) as http:
        grace = [(await http.get("/", headers={"X-User": "grace"})).status_code for _ in range(3)]
        alan = (await http.get("/", headers={"X-User": "alan"})).status_code

    assert (grace, alan) == ([200, 200, 429], 200)


def test_starlettes_test_client_says_that_it_calls_from_this_machine() -> None:
    """
    Its own address and host are made up; docs/access.md says how to name others.
    """
    here: dict[str, Any] = {"base_url": "http://127.0.0.1:9000", "client": ("127.0.0.1", 50000)}

    statuses = [TestClient(app(Security()), **given).get("/").status_code for given in ({}, here)]

    assert statuses == [421, 200]
