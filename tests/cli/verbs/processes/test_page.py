"""The page beside the gateway: who gets in, and which application answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import httpx2
import pytest
from joserfc.jwk import Key, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from refold.a2a.security import Security
from refold.a2a.security.api_keys import api_keys
from refold.a2a.security.tokens import KeysUnavailable, TokenRules
from refold.cli.errors import CallError
from refold.cli.verbs.processes.page import access, with_page
from refold.core.authoring.define import skill_of
from refold.testing import FakeEngine
from refold.web.page import page_app
from tests.a2a.security.guarding import RSA, token, tokens
from tests.gated import Payment

OTHER = RSAKey.generate_key(2048, {"kid": "one"})
KEYS = Security(keys=api_keys("ada=a-key-of-ada-that-is-long"), anonymous=None)


async def test_the_gateways_keys_open_the_page() -> None:
    """
    A key that the gateway knows is its owner's; any other text is nobody's.
    """
    check = access(KEYS, "0.0.0.0").check
    assert check is not None

    assert await check("a-key-of-ada-that-is-long") == "ada"
    for wrong in ("", "a-key", "a-key-of-ada-that-is-long ", "é" * 20, "ж" * 20, "x\r\ny"):
        assert await check(wrong) is None or wrong.strip() == "a-key-of-ada-that-is-long"


class NoKeys:
    """An issuer that does not answer."""

    async def find(self, kid: str | None) -> Sequence[Key]:
        """No keys."""
        raise KeysUnavailable("the issuer does not answer")


@pytest.mark.parametrize(
    ("known", "status", "said"),
    [
        pytest.param(replace(tokens(), keys=NoKeys()), 503, "tokens cannot be checked now", id="no-keys-of-the-issuer"),
        pytest.param(tokens(RSA, scope="agents"), 403, "scope", id="no-scope"),
        pytest.param(tokens(OTHER), 401, "", id="nobodys-token"),
    ],
)
async def test_a_token_that_is_not_let_in_is_told_why(known: TokenRules, status: int, said: str) -> None:
    """
    Whoever holds a token that cannot be checked now, or lacks the scope, reads so, at the door and at any address; of
    another one, only that nobody has it.
    """
    page = page_app(FakeEngine([Payment]), access(Security(tokens=known, anonymous=None), "0.0.0.0"))
    transport = httpx2.ASGITransport(app=page, client=("10.0.0.9", 1))
    headers = {"Authorization": f"Bearer {token(sub='ada')}", "Sec-Fetch-Site": "same-origin"}
    async with httpx2.AsyncClient(transport=transport, base_url="https://agent.example.org") as http:
        asked = await http.post("/decide", headers=headers)
        nowhere = await http.get("/nope", headers=headers)
        door = await http.post("/signin", data={"key": token(sub="ada")}, headers={"Sec-Fetch-Site": "same-origin"})

    assert (asked.status_code, said in asked.text) == (status, True)
    assert nowhere.status_code == 404
    if status == 401:
        assert "problem=key" in door.headers["location"]
    else:
        assert (door.status_code, said in door.text) == (status, True)


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
    with pytest.raises(CallError, match="say who they are: set REFOLD_A2A_API_KEYS") as refused:
        access(security, host)

    assert "on 127.0.0.1, without --anonymous and REFOLD_A2A_ANONYMOUS" in str(refused.value)


def test_a_proxy_that_signs_people_in_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With a proxy's header, loopback's door is closed: the proxy is on loopback itself.
    """
    monkeypatch.setenv("REFOLD_PAGE_PROXY_HEADER", "X-User")
    monkeypatch.setenv("REFOLD_PAGE_SEE_ALL", "ada, bob")

    found = access(Security(), "0.0.0.0")

    assert (found.proxy_header, found.loopback, found.see_all) == ("X-User", None, ("ada", "bob"))


@pytest.mark.parametrize(
    ("host", "status"), [("127.0.0.1:9000", 200), ("dev.example:9000", 200), ("other.example:9000", 421)]
)
async def test_the_page_answers_at_the_address_of_the_gateway(host: str, status: int) -> None:
    """
    `refold serve --page --url` prints an address with that host, which is none of loopback's names.
    """
    page = page_app(FakeEngine([Payment]), access(Security(), "127.0.0.1", "http://Dev.example:9000"))
    transport = httpx2.ASGITransport(app=page, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://{host}") as http:
        assert (await http.get("/")).status_code == status


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


@pytest.mark.parametrize("passed_on", ["", "/agents"], ids=["taken-off", "passed-on"])
async def test_a_proxy_may_have_the_gateway_under_a_path(passed_on: str) -> None:
    """
    The page's links, redirects and cookies are of the path, whether or not the proxy passes it on, or there is none.
    """
    gateway = Starlette()
    gateway.state.open_streams = SimpleNamespace()
    door, url = access(Security(), "127.0.0.1"), "https://example.org/agents"
    app = with_page(gateway, FakeEngine([Payment]), [skill_of(Payment)], door, None, url)
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with httpx2.AsyncClient(transport=transport, base_url=f"http://127.0.0.1{passed_on}") as http:
        page = await http.get("/page/skills/payment")
        sent = await http.post("/page/signin", data={"name": "ada"}, headers={"Sec-Fetch-Site": "same-origin"})
        script = await http.get("/page/static/page.js")

    assert set(re.findall(r'(?:href|action|src)="(/[^"?]{0,12})', page.text)) == {"/agents/page/"}
    assert sent.headers["location"] == "/agents/page/"
    assert "Path=/agents/page/;" in sent.headers["set-cookie"]
    assert script.status_code == 200
