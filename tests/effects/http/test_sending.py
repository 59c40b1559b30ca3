"""Idempotency keys on what a tool sends: in order, on what changes something, and to nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from refold import Cmd, tool
from refold.core.commands import CallTool
from refold.effects import Invocation, as_current, current
from refold.effects.activities import Effects
from refold.effects.http.keys import wire_key
from tests.effects.conftest import INVOCATION, Bench
from tests.services.serving import Serving


@dataclass(eq=False)
class Echo(Serving):
    """Keeps what it is asked, and redirects to wherever `to` says."""

    asked: list[tuple[str, str, str | None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        super().__init__(Starlette(routes=[Route("/{path:path}", self._answer, methods=methods)]))

    async def _answer(self, request: Request) -> Response:
        self.asked.append((request.method, request.url.path, request.headers.get("idempotency-key")))
        if to := request.query_params.get("to"):
            return RedirectResponse(to, int(request.query_params.get("status", "307")))
        return Response(status_code=204)


@pytest.fixture
def echo() -> Iterator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture
def elsewhere() -> Iterator[Echo]:
    with Echo() as server:
        yield server


KEY = wire_key(namespace="ns", tool="send", key=INVOCATION)


async def send(*requests: tuple[str, str], headers: dict[str, str] | None = None, attempt: int = 1) -> None:
    @tool(effect="idempotent", name="send")
    async def sends() -> None:
        for method, url in requests:
            await current().http.request(method, url, headers=headers, follow_redirects=True)

    async with Effects([sends]) as effects:
        await Bench(effects).tool(Cmd.tool("t", sends), attempt=attempt)


async def test_keys_in_call_order(echo: Echo) -> None:
    """
    The first request that may change something carries the key, the next ones a number more; reads carry none. The same
    on every try.
    """
    asked = [("GET", "/a"), ("POST", "/b"), ("PUT", "/c"), ("GET", "/d"), ("PATCH", "/e"), ("DELETE", "/f")]
    for attempt in (1, 2):
        await send(*((method, echo.address + path) for method, path in asked), attempt=attempt)

    first = [
        ("GET", "/a", None),
        ("POST", "/b", KEY),
        ("PUT", "/c", f"{KEY}.2"),
        ("GET", "/d", None),
        ("PATCH", "/e", f"{KEY}.3"),
        ("DELETE", "/f", f"{KEY}.4"),
    ]
    assert echo.asked == first + first


async def test_a_header_of_its_own(echo: Echo) -> None:
    """
    What the tool's author says stays; its requests count all the same.
    """
    await send(("POST", f"{echo.address}/a"), ("POST", f"{echo.address}/b"), headers={"idempotency-key": "mine"})

    assert echo.asked == [("POST", "/a", "mine"), ("POST", "/b", "mine")]


async def test_redirects(echo: Echo, elsewhere: Echo) -> None:
    """
    Within an origin it is the same request; another origin learns no key, and a redirect to a read needs none.
    """
    await send(
        ("POST", f"{echo.address}/a?to=/within"),
        ("POST", f"{echo.address}/b?to={elsewhere.address}/other"),
        ("POST", f"{echo.address}/c?to=/read&status=303"),
        ("POST", f"{echo.address}/d"),
    )

    assert echo.asked == [
        ("POST", "/a", KEY),
        ("POST", "/within", KEY),
        ("POST", "/b", f"{KEY}.2"),
        ("POST", "/c", f"{KEY}.3"),
        ("GET", "/read", None),
        ("POST", "/d", f"{KEY}.4"),
    ]
    assert elsewhere.asked == [("POST", "/other", None)]


async def test_a_request_that_a_tool_keeps_is_of_each_call_anew(echo: Echo) -> None:
    """
    The key is of the call that sends it: another owner's key would be taken for that owner's effect. Sent again within
    a call it stays the same request.
    """
    kept = {header: httpx2.Request("POST", f"{echo.address}/{header}", headers=given) for header, given in OWN.items()}

    @tool(effect="at_most_once", name="send")
    async def sends(header: str) -> list[int]:
        for _ in range(2):
            await current().http.send(kept[header])
        return [len(current().sent or []), len((current().sent or [])[0].earlier)]

    async with Effects([sends]) as effects:
        sent = [
            await Bench(effects).tool(CallTool(id="t", name="send", args={"header": header}, key=header), owner=owner)
            for header in OWN
            for owner in ("ann", "bob")
        ]

    keys = [wire_key(namespace="ns", tool="send", key="added", owner=owner) for owner in ("ann", "bob")]
    assert sent == [[1, 1]] * 4
    assert [key for _, path, key in echo.asked if path == "/added"] == [keys[0]] * 2 + [keys[1]] * 2
    assert [key for _, path, key in echo.asked if path == "/given"] == ["mine"] * 4


OWN: dict[str, dict[str, str]] = {"added": {}, "given": {"idempotency-key": "mine"}}


async def test_nobodys_requests(echo: Echo) -> None:
    """
    Outside a tool, as for model calls, the client adds nothing.
    """
    async with Effects() as effects:
        await effects.open.http.post(f"{echo.address}/a")

    assert echo.asked == [("POST", "/a", None)]


async def test_a_tools_own_test_sees_its_keys(echo: Echo) -> None:
    """
    `as_current` is enough, and what was sent is there to be looked at.
    """
    async with Effects() as effects:
        http = effects.open.http
        invocation = Invocation(task_id="t", invocation_id="t/1", idempotency_key="k", attempt=1, http=http)
        with as_current(invocation):
            await http.post(f"{echo.address}/a")

    assert echo.asked == [("POST", "/a", "k")]
    assert invocation.sent is not None
    assert [(one.method, one.status) for one in invocation.sent] == [("POST", 204)]
