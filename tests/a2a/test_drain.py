"""Stopping a gateway: what is being answered is answered, streams end, and nothing new is taken."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest
from sse_starlette import sse

from refold.a2a import Security, Settings, a2a_app
from refold.a2a.serve import KEEP_ALIVE_S, bound, serve, url_of
from refold.record import ENDED
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import VERSION, Calls, said
from tests.a2a.streams.events import subscribed
from tests.waiting import a_moment

Stopped = Callable[[], Coroutine[Any, Any, None]]


async def alive(http: httpx.AsyncClient, url: str) -> bool:
    try:
        return (await http.get(f"{url}/livez")).is_success
    except httpx.TransportError:
        return False


Stop = Callable[[], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def running(fake: FakeEngine, **limits: Any) -> AsyncIterator[tuple[str, Stop]]:
    """A gateway as `refold serve` runs it: its address, and how to stop it."""
    sock = bound("127.0.0.1", 0)
    url = url_of(sock, "127.0.0.1")
    stop, ready = asyncio.Event(), asyncio.Event()
    app = a2a_app(fake, skills.ALL, Settings(url=url))
    gateway = asyncio.create_task(serve(app, sock, stop, ready=ready.set, **limits))
    await ready.wait()

    async def stopped() -> None:
        stop.set()
        await gateway

    try:
        yield url, stopped
    finally:
        await stopped()


async def test_a_gateway_stops_when_told(fake: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It does not wait until it next renews the date, which alone wakes an idle gateway.
    """
    monkeypatch.setattr("refold.a2a.serve.DATE_S", 3600)
    async with asyncio.timeout(60), running(fake) as (_, stopped):
        await stopped()


async def test_open_streams_end_with_a_last_event(fake: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    """
    It says that the gateway stops, and from which event on to subscribe again; the log has one line, no traceback.
    """
    async with running(fake) as (url, stopped), httpx.AsyncClient(timeout=60) as http:
        task = await Calls(http, url).send(metadata={"skill": "ask"})
        async with subscribed(http, url, task["id"]) as one, subscribed(http, url, task["id"]) as other:
            first = await anext(one)
            await anext(other)
            with caplog.at_level(logging.INFO):
                stopping = asyncio.create_task(stopped())
                ends = [await one.next(), await other.next()]
                rest = [await one.rest(), await other.rest()]
                await stopping

    assert first.id is not None
    assert [end.comment for end in ends] == ["the gateway stops; subscribe again with the last id"] * 2
    assert rest == [[], []]
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


async def test_nothing_looks_again_and_again_whether_the_gateway_stops(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The server ends its streams itself. sse-starlette's loop, which would wake an idle gateway for ever, is not started.
    """
    state = sse._get_shutdown_state()
    monkeypatch.setattr(state, "watcher_started", False)  # by a stream of another test, in this thread
    async with running(fake) as (url, _), httpx.AsyncClient(timeout=60) as http:
        task = await Calls(http, url).send(metadata={"skill": "ask"})
        async with subscribed(http, url, task["id"]) as stream:
            await anext(stream)
            assert not state.watcher_started


async def test_a_call_that_does_not_end_in_time_is_told(fake: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    """
    The task goes on, so the caller may ask another gateway for it; the log has no traceback.
    """
    async with running(fake, drain_s=0.5) as (url, stopped), httpx.AsyncClient(timeout=60) as http:
        params = {"message": said("x"), "metadata": {"skill": "wait"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": params}
        answer = asyncio.create_task(http.post(f"{url}/", json=body, headers=VERSION))
        found: list[str] = []
        while not found:
            found = [view.task_id async for view in fake.list()]
            await asyncio.sleep(0)
        with caplog.at_level(logging.INFO):
            await stopped()
        told = await answer

    assert (told.status_code, told.headers["retry-after"]) == (503, "1")
    assert "the gateway stops" in told.json()["error"]["message"]
    assert not [record for record in caplog.records if record.exc_info or record.levelno >= logging.ERROR]


@pytest.mark.slow
async def test_a_stream_that_nobody_reads_ends(fake: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    """
    The gateway does not wait for a client that takes nothing.
    """
    async with running(fake, drain_s=0.5) as (url, stopped):
        async with httpx.AsyncClient(timeout=60) as http:
            task = await Calls(http, url).send("x" * 8_000_000, metadata={"skill": "echo"})
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port), limit=2**10)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "SubscribeToTask", "params": {"id": task["id"]}})
        head = "POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nA2A-Version: 1.0\r\nLast-Event-ID: 1.1\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
        await writer.drain()
        async with httpx.AsyncClient(timeout=60) as http:
            assert await alive(http, url)
        with caplog.at_level(logging.INFO):
            async with asyncio.timeout(60):
                await stopped()
        writer.close()

    assert not [record for record in caplog.records if record.exc_info]


async def test_a_connection_has_a_time_for_its_headers(fake: FakeEngine) -> None:
    """
    Half a request is not waited for, not even as the second one of a connection.
    """
    async with running(fake, security=Security(header_seconds=0.3)) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        whole = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for before in (b"", whole):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(before)
            if before:
                assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            writer.write(whole[:20])
            async with asyncio.timeout(60):
                assert (await reader.read()).startswith(b"HTTP/1.1 408")
            writer.close()


async def test_an_answered_request_has_a_time_for_the_rest_of_its_body(fake: FakeEngine) -> None:
    """
    A connection is not kept by a body that never ends, of a request that was answered before it had come whole.
    """
    async with running(fake, security=Security(header_seconds=0.3)) as (url, _):
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(b"POST /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")

        ended = asyncio.create_task(reader.read())
        async with asyncio.timeout(60):
            while not ended.done():
                writer.write(b"x")
                await asyncio.wait([ended], timeout=0.05)
        assert ended.exception() is not None or not ended.result()  # and no second answer
        writer.close()


async def test_a_body_that_comes_behind_its_answer_leaves_the_connection_as_it_is(fake: FakeEngine) -> None:
    """
    Between two calls a connection is kept, also if the first one was answered before its body had come.
    """
    async with running(fake, security=Security(header_seconds=0.2)) as (url, _):
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        for _ in range(2):
            writer.write(b"POST /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4\r\n\r\n")
            async with asyncio.timeout(60):
                assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"late")
            for _ in range(4):  # connections that are closed for their headers pass the time
                other, its = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
                assert b"408" in await other.read()
                its.close()
        writer.close()


async def test_a_slow_answer_is_no_slow_header(fake: FakeEngine) -> None:
    """
    The time ends with the headers: a stream may stay open for ever.
    """
    async with running(fake, security=Security(header_seconds=0.2)) as (url, _), httpx.AsyncClient(timeout=60) as http:
        task = await Calls(http, url).send("x", metadata={"skill": "wait"}, configuration={"returnImmediately": True})
        async with subscribed(http, url, task["id"]) as events:
            await anext(events)
            for _ in range(4):  # connections that are closed for their headers pass the time
                reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
                assert b"408" in await reader.read()
                writer.close()
            await fake.reply(task["id"], "held", "x")

            assert (await events.rest())[-1].state == "TASK_STATE_COMPLETED"


async def test_a_connection_is_kept_for_longer_than_a_proxy_keeps_it(
    fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It is the gateway that says for how long, so that a proxy does not send a call into a connection that is closing.
    """
    assert KEEP_ALIVE_S > 60
    monkeypatch.setattr("refold.a2a.serve.KEEP_ALIVE_S", 0)
    async with running(fake) as (url, _):
        reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")

        assert (await reader.read()).endswith(b"ok\n")
        writer.close()


async def test_connections_have_a_limit(fake: FakeEngine) -> None:
    """
    One more is told to come again; the others are served.
    """
    async with running(fake, security=Security(connections=3)) as (url, _):
        where = url.removeprefix("http://").split(":")
        held = [await asyncio.open_connection(*where) for _ in range(3)]
        reader, writer = await asyncio.open_connection(*where)

        assert b"HTTP/1.1 503" in await reader.read()
        writer.close()
        reader, writer = held[0]
        writer.write(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert b"HTTP/1.1 200" in await reader.read()
        for _, writer in held:
            writer.close()


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
    async with httpx.AsyncClient(timeout=60) as http, httpx.AsyncClient(timeout=60) as other:
        calls = Calls(http, url)
        params = {"message": said("x"), "metadata": {"skill": "wait"}}
        answer: asyncio.Task[Any] = asyncio.create_task(calls.result("SendMessage", params))
        found: list[str] = []
        while not found:  # the call may not have come in yet
            assert await alive(other, url)
            found = [view.task_id async for view in fake.list()]
        stop.set()
        while await alive(other, url):
            await a_moment()
        assert not answer.done()
        await fake.reply(found[0], "held", "x")

        assert (await answer)["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    await serving
    assert (await fake.record(found[0])).status in ENDED
