"""Stopping a gateway: what is being answered is answered, streams end, and nothing new is taken."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx

from refold.a2a import Settings, a2a_app
from refold.a2a.serve import bound, serve, url_of
from refold.record import ENDED
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import Calls, said


async def alive(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/livez")).is_success
    except httpx.TransportError:
        return False


async def test_a_call_that_is_being_answered_is_answered(fake: FakeEngine) -> None:
    """
    It ends in its own time; whoever calls meanwhile finds nobody, and goes to another gateway.
    """
    sock = bound("127.0.0.1", 0)
    url = url_of(sock, "127.0.0.1")
    stop, ready = asyncio.Event(), asyncio.Event()
    app = a2a_app(fake, skills.ALL, Settings(url=url))
    serving = asyncio.create_task(serve(app, sock, stop, ready=ready.set))
    await ready.wait()
    async with httpx.AsyncClient(timeout=30) as http, httpx.AsyncClient() as other:
        calls = Calls(http, url)
        params = {"message": said("x"), "metadata": {"skill": "wait"}}
        answer: asyncio.Task[Any] = asyncio.create_task(calls.result("SendMessage", params))
        found: list[str] = []
        while not found:  # the call may not have come in yet
            assert await alive(other, url)
            found = [view.task_id async for view in fake.list()]
        stop.set()
        while await alive(other, url):
            pass
        assert not answer.done()
        await fake.reply(found[0], "held", "x")

        assert (await answer)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    await serving
    assert (await fake.record(found[0])).status in ENDED
