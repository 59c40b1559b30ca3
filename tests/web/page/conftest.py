"""A page over tasks in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest

from refold.testing import FakeEngine
from refold.web.page import Access, Pages, page_app
from refold.web.page.frame import Schedules
from tests.web.page.skills import SKILLS

HOST = "http://127.0.0.1:9000"
SAME = {"Sec-Fetch-Site": "same-origin"}
"""What a browser says of a form of the page's own."""

KEYS = {f"key-of-{name}": name for name in ("ada", "bob", "dora", "eve", "nora", "rita")}


async def who(key: str) -> str | None:
    """The owner of a key."""
    return KEYS.get(key)


class Browser:
    """Somebody's browser, without JavaScript."""

    def __init__(self, http: httpx2.AsyncClient) -> None:
        self.http = http

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        """Open an address."""
        return await self.http.get(path, **more)

    async def send(self, path: str, **fields: Any) -> httpx2.Response:
        """Send a form of the page."""
        return await self.http.post(path, data=fields, headers=SAME)


@pytest.fixture
def engine() -> FakeEngine:
    """Tasks in memory."""
    return FakeEngine(SKILLS)


Open = Callable[..., Awaitable[Browser]]


@pytest.fixture
async def open_page(engine: FakeEngine) -> AsyncIterator[Open]:
    """Opens the page in a browser: `await open_page(loopback="ada")`, `await open_page(key="key-of-ada")`."""
    async with AsyncExitStack() as stack:

        async def opened(
            *,
            key: str | None = None,
            address: str = "127.0.0.1",
            ui: str | None = None,
            skills: Sequence[Any] = SKILLS,
            schedules: Schedules | None = None,
            **access: Any,
        ) -> Browser:
            settings = Access(check=who, **access) if key is not None else Access(**access)
            app = page_app(engine, settings, Pages(skills=skills, temporal_ui=ui, schedules=schedules))
            transport = httpx2.ASGITransport(app=app, client=(address, 1234))
            http = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url=HOST))
            browser = Browser(http)
            if key is not None:
                assert (await browser.send("/signin", key=key)).status_code == 303
            return browser

        yield opened


@pytest.fixture
async def ada(open_page: Open) -> Browser:
    """ada's browser, on the machine itself."""
    return await open_page(loopback="ada")
