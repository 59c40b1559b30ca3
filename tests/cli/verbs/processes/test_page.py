"""The page beside the gateway: who gets in, and which application answers."""

from __future__ import annotations

from types import SimpleNamespace

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from refold.a2a.security import Security
from refold.a2a.security.api_keys import api_keys
from refold.cli.errors import CallError
from refold.cli.verbs.processes.page import access, with_page
from refold.core.authoring.define import skill_of
from refold.testing import FakeEngine
from tests.gated import Payment

KEYS = Security(keys=api_keys("ada=a-key-of-ada-that-is-long"), anonymous=None)


async def test_the_gateways_keys_open_the_page() -> None:
    """
    A key that the gateway knows is its owner's; any other text is nobody's.
    """
    check = access(KEYS, "0.0.0.0").check
    assert check is not None

    assert await check("a-key-of-ada-that-is-long") == "ada"
    for wrong in ("", "a-key", "a-key-of-ada-that-is-long ", "é" * 20, "x\r\ny"):
        assert await check(wrong) is None or wrong.strip() == "a-key-of-ada-that-is-long"


@pytest.mark.parametrize(
    ("security", "host"),
    [
        pytest.param(Security(), "0.0.0.0", id="open-loopback-elsewhere"),
        pytest.param(Security(anonymous="everywhere"), "0.0.0.0", id="everybody"),
        pytest.param(Security(anonymous="everywhere"), "127.0.0.1", id="everybody-here"),
    ],
)
def test_nobody_may_act_under_any_name(security: Security, host: str) -> None:
    """
    Where people could not be told apart, the page is not served, and the error says what to set.
    """
    with pytest.raises(CallError, match="say who they are: set REFOLD_A2A_API_KEYS"):
        access(security, host)


def test_a_proxy_that_signs_people_in_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With a proxy's header, loopback's door is closed: the proxy is on loopback itself.
    """
    monkeypatch.setenv("REFOLD_PAGE_PROXY_HEADER", "X-User")
    monkeypatch.setenv("REFOLD_PAGE_SEE_ALL", "ada, bob")

    found = access(Security(), "0.0.0.0")

    assert (found.proxy_header, found.loopback, found.see_all) == ("X-User", None, ("ada", "bob"))


async def test_the_page_has_its_path_and_the_gateway_all_others() -> None:
    """
    `/page` leads to `/page/`; what is not the page's goes to the gateway; the process ends the streams of both.
    """

    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"gateway {request.url.path}")

    ended: list[str] = []
    gateway = Starlette(routes=[Route("/{rest:path}", answer)])
    gateway.state.open_streams = SimpleNamespace(end=lambda: ended.append("end"), cut=lambda: ended.append("cut"))
    app = with_page(gateway, FakeEngine([Payment]), [skill_of(Payment)], access(Security(), "127.0.0.1"), None)
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        assert (await http.get("/page")).headers["location"] == "/page/"
        assert "Nothing waits for you" in (await http.get("/page/")).text
        assert 'href="/page/skills/payment"' in (await http.get("/page/skills")).text
        assert (await http.get("/pages")).text == "gateway /pages"
        assert (await http.get("/")).text == "gateway /"
    app.state.open_streams.end()
    app.state.open_streams.cut()
    assert ended == ["end", "cut"]
