"""The worker's HTTP client is set up as pydantic-ai's own."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from pydantic_ai.models import create_async_httpx2_client

from refold.core.errors import DefinitionError
from refold.effects.http.client import HttpClient, open_client


async def seen_by(client: HttpClient, asked: Any) -> dict[str, float | None]:
    """The timeouts that a request of this client goes out with."""
    request = client.build_request("GET", "http://example.org", timeout=asked)
    for hook in client.event_hooks["request"]:
        await hook(request)
    found: dict[str, float | None] = request.extensions["timeout"]
    return found


@pytest.mark.parametrize(
    "asked", [httpx2.USE_CLIENT_DEFAULT, None, 2.0, 60.0, 6000.0, httpx2.Timeout(60.0, connect=30.0)]
)
async def test_a_request_waits_as_long_as_with_pydantic_ai(asked: Any) -> None:
    """
    Whatever timeout a request asks for, it goes out with the same as from a client of pydantic-ai.
    """
    async with open_client() as ours, create_async_httpx2_client() as theirs:
        assert await seen_by(ours, asked) == await seen_by(theirs, asked)


async def test_the_pool_is_as_large() -> None:
    """
    As many connections, and as many kept.
    """

    def pool(client: HttpClient) -> tuple[int, int]:
        inner: Any = client._transport
        return inner._pool._max_connections, inner._pool._max_keepalive_connections

    async with open_client() as ours, create_async_httpx2_client() as theirs:
        assert pool(ours) == pool(theirs)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("HTTPS_PROXY", "ftp://me:Zq81hunter2@proxy:3128", "is no address of a proxy that can be used"),
        ("HTTPS_PROXY", "http://me:Zq81hunter2@proxy:abc", "is no address of a proxy that can be used"),
        ("SSL_CERT_FILE", "/nonexistent", "cannot be read: No such file or directory"),
    ],
)
def test_a_setting_that_no_client_can_have_is_named(
    name: str, value: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    With the way out, and without a proxy's password.
    """
    monkeypatch.setenv(name, value)

    with pytest.raises(DefinitionError, match=says) as caught:
        open_client()
    assert name in str(caught.value)
    assert "Zq81hunter2" not in str(caught.value)


async def test_no_cookie_goes_from_one_call_to_another() -> None:
    """
    Tools of several owners share the client: a session that a service began for one is not continued for the next.
    """
    cookies: list[str | None] = []

    def served(request: httpx2.Request) -> httpx2.Response:
        cookies.append(request.headers.get("cookie"))
        return httpx2.Response(200, headers={"set-cookie": "session=ann; Path=/"})

    async with open_client() as client:
        client._mounts, client._transport = {}, httpx2.MockTransport(served)
        await client.get("http://shop.example/login")
        await client.get("http://shop.example/orders")
        await client.get("http://shop.example/orders", headers={"cookie": "session=ben"})

    assert cookies == [None, None, "session=ben"]
