"""Streams over HTTP: what comes, in what order, under which ids; and what becomes of them when somebody goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from itertools import repeat
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from refold import Content
from refold.a2a import Settings, a2a_app
from refold.engine import EngineError, News, NotConnected, NoWorker
from refold.record import TaskRecord
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import Calls, free_socket, said, serving
from tests.a2a.streams.events import Events, Frame, opened, subscribed

SEND = "SendStreamingMessage"


@contextlib.asynccontextmanager
async def running(fake: FakeEngine, **settings: Any) -> AsyncIterator[tuple[Calls, Starlette]]:
    """A gateway on a port, over an engine in memory."""
    app = a2a_app(fake, skills.ALL, Settings(**settings))
    async with serving(app, free_socket()) as base, httpx.AsyncClient(timeout=60) as http:
        yield Calls(http, base), app


@pytest.fixture
async def calls(fake: FakeEngine) -> AsyncIterator[Calls]:
    """Calls to a gateway on a port, over an engine in memory."""
    async with running(fake) as (calls, _):
        yield calls


def sending(text: str, skill: str, **message: Any) -> dict[str, Any]:
    """The parameters of a first message."""
    return {"message": said(text, **message), "metadata": {"skill": skill}}


def answer(task_id: str, **part: Any) -> dict[str, Any]:
    """The parameters of an answer."""
    return {"message": {**said(taskId=task_id), "parts": [part]}}


def ids(frames: list[Frame]) -> list[str | None]:
    """The frames' ids."""
    return [frame.id for frame in frames]


async def test_a_stream_begins_with_the_task_and_ends_with_its_turn(calls: Calls) -> None:
    """
    The task at once, numbered by its newest entry; the stream ends where the task waits for somebody.
    """
    async with opened(calls.http, calls.base, SEND, sending("Hi", "ask")) as stream:
        frames = await stream.rest()
    assert ids(frames) == ["1.0"]
    assert frames[0].state == "TASK_STATE_INPUT_REQUIRED"

    async with opened(calls.http, calls.base, SEND, answer(frames[0].told["id"], text="Ada")) as stream:
        frames = await stream.rest()
    assert [frame.state for frame in frames] == ["TASK_STATE_INPUT_REQUIRED"]


@pytest.mark.parametrize("version", ["1.0", "0.3"])
async def test_head_of_a_subscription_is_answered_without_a_stream(calls: Calls, version: str) -> None:
    """
    With the status and the headers of GET; no stream stays open to whoever cannot read it.
    """
    task = await calls.send(metadata={"skill": "wait"}, configuration={"returnImmediately": True})
    path = f"{'/v1' if version == '0.3' else ''}/tasks/{task['id']}:subscribe"
    found = await calls.rest("HEAD", path, **{"A2A-Version": version})

    assert found.status_code == 200
    assert found.headers["content-type"].startswith("text/event-stream")
    assert found.content == b""


async def test_updates_follow_as_they_come(calls: Calls, fake: FakeEngine) -> None:
    """
    Entry by entry, the last status last, and then the stream ends.
    """
    async with opened(calls.http, calls.base, SEND, sending("x", "wait")) as stream:
        [first] = await stream.take(1)
        assert first.state == "TASK_STATE_WORKING"
        await fake.reply(first.told["id"], "held", "done")
        [last] = await stream.rest()

    assert (last.id, last.state) == ("2.1", "TASK_STATE_COMPLETED")
    assert last.told["status"]["message"]["parts"] == [{"text": "done"}]


async def test_a_subscription_stays_over_pauses(calls: Calls) -> None:
    """
    All who subscribe see the same frames in the same order, to the end.
    """
    task = await calls.send("Hi", metadata={"skill": "ask"})
    async with (
        subscribed(calls.http, calls.base, task["id"]) as one,
        subscribed(calls.http, calls.base, task["id"]) as two,
    ):
        assert ids(await one.take(1) + await two.take(1)) == ["1.0", "1.0"]
        await calls.result("SendMessage", answer(task["id"], text="Ada"))
        await calls.result("SendMessage", answer(task["id"], data={"number": 3}))
        first, second = await one.rest(), await two.rest()

    assert first == second
    assert ids(first) == ["2.1", "2.2", "3.1"]
    told = [frame.state.removeprefix("TASK_STATE_") for frame in first]
    assert told == ["WORKING", "INPUT_REQUIRED", "COMPLETED"]


async def test_a_cut_client_goes_on_where_it_was(calls: Calls) -> None:
    """
    From every id of a stream the same frames follow as did the first time, and the first frame is the task as of that
    id; also when the task has ended meanwhile.
    """
    task = await calls.send("Hi", metadata={"skill": "ask"})
    async with subscribed(calls.http, calls.base, task["id"]) as stream:
        frames = await stream.take(1)
        await calls.result("SendMessage", answer(task["id"], text="Ada"))
        await calls.result("SendMessage", answer(task["id"], data={"number": 3}))
        frames += await stream.rest()

    for place, seen in enumerate(frames):
        async with subscribed(calls.http, calls.base, task["id"], seen.id) as stream:
            again = await stream.rest()
        assert again[1:] == frames[place + 1 :]
        assert (again[0].seq, again[0].state) == (seen.seq, seen.state)
        assert "history" in again[0].told


async def test_a_client_that_was_cut_within_an_entry_gets_the_rest_of_it(calls: Calls) -> None:
    """
    An entry that gave several frames is resumed between them.
    """
    task = await calls.send("Hello", metadata={"skill": "echo"})

    async with subscribed(calls.http, calls.base, task["id"], "1.1") as stream:
        [part, last] = await stream.rest()

    assert (part.id, part.state) == ("1.1", "TASK_STATE_SUBMITTED")
    assert part.told["artifacts"] == task["artifacts"]
    assert (last.id, last.state) == ("1.2", "TASK_STATE_COMPLETED")


@pytest.mark.parametrize("how", ["recovered", "forked"])
async def test_a_task_made_from_another_begins_with_what_that_one_had(calls: Calls, fake: FakeEngine, how: str) -> None:
    """
    The first frame has the chunks up to its id, and those that follow add what is missing: no chunk comes twice, and
    none is left out.
    """
    origin = await fake.start("report", Content.from_text("one two three"))
    await fake.reply(origin.task_id, "held", "one")
    await fake.fail(origin.task_id, "held")
    if how == "recovered":
        task_id = (await fake.recover(origin.task_id)).task_id
    else:
        task_id = (await fake.fork(origin.task_id, at=2, live=True)).task_id
    await fake.reply(task_id, "held", "two")
    await fake.reply(task_id, "held", "three")
    first = await anext(fake.journal(task_id))

    async with subscribed(calls.http, calls.base, task_id, f"{first.seq}.0") as stream:
        task, *updates = await stream.rest()
    chunks = [frame.told["artifact"] for frame in updates if "artifact" in frame.told]

    assert _texts(task.told["artifacts"]) == ["one"]
    assert _texts(chunks) == ["two", "three"]


def _texts(artifacts: list[Any]) -> list[str]:
    return [part["text"] for artifact in artifacts for part in artifact["parts"]]


@pytest.mark.parametrize("seen", ["banana", "99.1", "1.9", "0.1"])
async def test_an_id_of_no_event_is_refused(calls: Calls, seen: str) -> None:
    """
    As an ordinary error, that says what is wrong with it.
    """
    task = await calls.send("Hi", metadata={"skill": "ask"})

    error = await calls.error("SubscribeToTask", {"id": task["id"]}, **{"Last-Event-ID": seen})

    assert error["code"] == -32602
    assert seen in error["message"]


async def test_what_cannot_be_followed_is_an_ordinary_error(calls: Calls) -> None:
    """
    Before the first frame: no task, and a task that has ended.
    """
    task = await calls.send("Hello", metadata={"skill": "echo"})

    assert (await calls.error("SubscribeToTask", {"id": "nobody"}))["code"] == -32001
    assert (await calls.error("SubscribeToTask", {"id": task["id"]}))["code"] == -32004
    assert (await calls.rest("GET", f"/tasks/{task['id']}:subscribe")).status_code == 400


async def test_rest_streams_are_the_same(calls: Calls, fake: FakeEngine) -> None:
    """
    The same frames under the same ids, without JSON-RPC around them.
    """
    task = await calls.send("x", metadata={"skill": "wait"}, configuration={"returnImmediately": True})
    path = f"{calls.base}/tasks/{task['id']}:subscribe"
    async with calls.http.stream("GET", path, headers=calls.headers) as response:
        stream = Events(response)
        frames = await stream.take(1)
        await fake.reply(task["id"], "held", "done")
        frames += await stream.rest()

    assert ids(frames) == ["1.0", "2.1"]
    assert "statusUpdate" in frames[1].data


async def test_clients_of_0_3_stream_too(calls: Calls, fake: FakeEngine) -> None:
    """
    Their frames have ids as well; the last one is final, and a question ends a resubscription.
    """
    message = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x"}]}
    params = {"message": message, "metadata": {"skill": "wait"}}
    async with opened(calls.http, calls.base, "message/stream", params, version="0.3") as stream:
        frames = await stream.take(1)
        task_id = frames[0].data["result"]["id"]
        async with opened(calls.http, calls.base, "tasks/resubscribe", {"id": task_id}, version="0.3") as other:
            again = await other.take(1)
            await fake.reply(task_id, "held", "done")
            again += await other.rest()
        frames += await stream.rest()

    assert ids(frames) == ids(again) == ["1.0", "2.1"]
    assert frames[1].data["result"]["final"] is True
    assert frames[1].data["result"]["status"]["state"] == "completed"


@pytest.mark.parametrize("by_rest", [False, True], ids=["json-rpc", "rest"])
async def test_a_question_ends_a_subscription_of_0_3(calls: Calls, fake: FakeEngine, by_rest: bool) -> None:
    """
    Over either binding: the end of the stream tells a 0.3 client that the task asks.
    """
    task = (await fake.start("later", Content.from_text("x"))).task_id
    body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/resubscribe", "params": {"id": task}}
    way = ("GET", f"/v1/tasks/{task}:subscribe", None) if by_rest else ("POST", "/", body)
    async with calls.http.stream(way[0], f"{calls.base}{way[1]}", json=way[2]) as response:
        stream = Events(response)
        await stream.take(1)
        await fake.reply(task, "held", "done")
        async with asyncio.timeout(10):
            frames = await stream.rest()

    assert "input" in str(frames[-1].data).lower()


@pytest.mark.parametrize("worker_away", [False, True])
async def test_a_question_that_stands_ends_a_subscription_of_0_3(
    worker_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A client that comes again after the question learns that the task asks, also where the worker was away as it came.
    One that names the question as its last event waits for what follows.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.AGAIN_S", 0.01)
    fake = Forgetful(skills.ALL)
    async with running(fake) as (calls, _):
        task = await calls.send("Hi", metadata={"skill": "ask"})
        params, seen = {"id": task["id"]}, {"Last-Event-ID": "1.2"}
        fake.worker = not worker_away
        async with opened(calls.http, calls.base, "tasks/resubscribe", params, version="0.3") as stream:
            async with asyncio.timeout(10):
                frames = await stream.rest()
        async with opened(calls.http, calls.base, "tasks/resubscribe", params, version="0.3", **seen) as stream:
            [again] = await stream.take(1)
            await calls.result("SendMessage", answer(task["id"], text="Ada"))
            later = await stream.rest()

    assert frames[-1].data["result"]["status"]["state"] == "input-required"
    assert frames[-1].data["result"]["status"]["message"]["parts"][0]["text"] == "Who are you?"
    assert ids(frames) == (["0.0", "1.1", "1.2"] if worker_away else ["1.0"])
    assert ids([again, *later]) == ["1.0", "2.1", "2.2"]


async def test_model_text_comes_between_and_cannot_be_resumed_from(calls: Calls, fake: FakeEngine) -> None:
    """
    It is marked as transient and has no id; what is journaled comes after it.
    """
    async with opened(calls.http, calls.base, SEND, sending("a poem", "poet")) as stream:
        [first] = await stream.take(1)
        fake.write(first.told["id"], "verse", "Once ")
        fake.write(first.told["id"], "verse", "upon")
        words = await stream.take(2)
        await fake.reply(first.told["id"], "verse", "Once upon a time")
        [last] = await stream.rest()

    assert [(word.id, word.transient) for word in words] == [(None, True)] * 2
    assert [word.told["status"]["message"]["parts"][0]["text"] for word in words] == ["Once ", "upon"]
    assert last.told["status"]["message"]["parts"] == [{"text": "Once upon a time"}]


async def test_a_tools_progress_comes_between(calls: Calls, fake: FakeEngine) -> None:
    """
    As a text or as data, transient like model text; its metadata name the call and the tool.
    """
    async with opened(calls.http, calls.base, SEND, sending("x", "wait")) as stream:
        [first] = await stream.take(1)
        fake.report(first.told["id"], "held", "1 of 2")
        fake.report(first.told["id"], "held", {"done": 2})
        reports = await stream.take(2)
        await fake.reply(first.told["id"], "held", "done")
        await stream.rest()

    assert [(one.id, one.transient) for one in reports] == [(None, True)] * 2
    assert [one.told["status"]["message"]["parts"][0] for one in reports] == [
        {"text": "1 of 2"},
        {"data": {"done": 2.0}},
    ]
    assert reports[1].told["metadata"]["refold"] == {
        "transient": True,
        "call": f"{first.told['id']}/1.1",
        "attempt": 1,
        "progress": 2,
        "tool": "held",
    }


async def test_a_silent_stream_shows_that_it_is_alive(fake: FakeEngine) -> None:
    """
    Comments at the pace that was set, between the frames.
    """
    async with running(fake, heartbeat_s=0.01) as (calls, _):
        task = await calls.send("Hi", metadata={"skill": "ask"})
        async with subscribed(calls.http, calls.base, task["id"]) as stream:
            await stream.take(1)
            assert [(await stream.next()).comment for _ in range(3)] == ["alive"] * 3
            await fake.cancel(task["id"])
            [last] = await stream.rest()

    assert last.state == "TASK_STATE_CANCELED"


async def test_streams_end_cleanly_when_their_gateway_stops(fake: FakeEngine) -> None:
    """
    The response is whole, so that the client comes again, to another gateway, and misses nothing.
    """
    async with running(fake) as (calls, app), running(fake) as (other, _):
        task = await calls.send("Hi", metadata={"skill": "ask"})
        async with subscribed(calls.http, calls.base, task["id"]) as stream:
            [first] = await stream.take(1)
            app.state.open_streams.end()
            assert await stream.rest() == []
        await fake.cancel(task["id"])
        async with subscribed(other.http, other.base, task["id"], first.id) as stream:
            frames = await stream.rest()

        assert ids(frames) == ["1.0", "2.1"]
        assert len(app.state.open_streams) == 0


async def test_a_client_that_goes_away_ends_its_own_subscription_only(fake: FakeEngine) -> None:
    """
    The task goes on, and so do the others; nothing of the one that left is kept.
    """
    async with running(fake) as (calls, app):
        task = await calls.send("Hi", metadata={"skill": "ask"})
        async with subscribed(calls.http, calls.base, task["id"]) as stays:
            await stays.take(1)
            async with subscribed(calls.http, calls.base, task["id"]) as leaves:
                await leaves.take(1)
                assert len(app.state.open_streams) == 2
            async with asyncio.timeout(60):
                while len(app.state.open_streams) > 1:  # noqa: ASYNC110 - the other side of a connection finds out
                    await asyncio.sleep(0.01)
            await fake.cancel(task["id"])
            assert [frame.state for frame in await stays.rest()] == ["TASK_STATE_CANCELED"]


class Unattended(FakeEngine):
    """An engine whose worker is away when a task is followed for the first time."""

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        """See `Engine.watch`."""
        if self.worker:
            self.worker = False
            raise NoWorker("no worker answers")
        self.worker = True
        async with contextlib.aclosing(super().watch(task_id, after=after, follow=follow)) as items:
            async for item in items:
                yield item


async def test_a_stream_waits_for_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A task whose worker is away is followed on when one is there again.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.AGAIN_S", 0.01)
    async with running(Unattended(skills.ALL)) as (calls, _):
        task = await calls.send("Hi", metadata={"skill": "ask"}, configuration={"returnImmediately": True})
        async with subscribed(calls.http, calls.base, task["id"]) as stream:
            await stream.take(1)
            await calls.result("SendMessage", {**answer(task["id"], text="Ada")})
            assert ids(await stream.take(1)) == ["2.1"]


class Forgetful(FakeEngine):
    """An engine that knows little of a task while its worker is away; it comes when it was asked for a second time."""

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        record = await super().record(task_id)
        if self.worker:
            return record
        self.worker = True
        return record.model_copy(update={"seq": 0, "note": "no worker answers"})


async def test_a_stream_does_not_end_at_a_question_that_was_answered() -> None:
    """
    Its task's worker was away when it began, so all entries come; the question that stands ends it.
    """
    fake = Forgetful(skills.ALL)
    async with running(fake) as (calls, _):
        key = {"Idempotency-Key": "k"}
        task = (await calls.result("SendMessage", sending("Hi", "ask"), **key))["task"]
        await calls.result("SendMessage", answer(task["id"], text="Ada"))
        fake.worker = False
        async with opened(calls.http, calls.base, SEND, sending("Hi", "ask"), **key) as stream:
            async with asyncio.timeout(10):
                frames = await stream.rest()

    assert (frames[0].id, frames[-1].id) == ("0.0", "2.2")


class Losing(FakeEngine):
    """An engine that has these faults in turn as a task is read; without its worker it knows little of the task."""

    faults: Iterator[EngineError] = iter(())

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        record = await super().record(task_id)
        match next(self.faults, None):
            case None:
                return record
            case NoWorker() as fault:
                return record.model_copy(update={"seq": 0, "note": str(fault)})
            case fault:
                raise fault


@pytest.mark.parametrize("worker_away", [1, 2])
async def test_a_server_that_restarts_as_a_question_is_sent_ends_no_stream(
    worker_away: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The stream, which began without a worker, reads the task to know whether the question stands, and waits for the
    server.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.AGAIN_S", 0.01)
    fake = Losing(skills.ALL)
    async with running(fake) as (calls, _):
        key = {"Idempotency-Key": "k"}
        task = (await calls.result("SendMessage", sending("Hi", "ask"), **key))["task"]
        await calls.result("SendMessage", answer(task["id"], text="Ada"))
        fake.faults = iter([NoWorker("no worker answers")] * worker_away + [NotConnected("no server answers")] * 3)
        async with opened(calls.http, calls.base, SEND, sending("Hi", "ask"), **key) as stream:
            async with asyncio.timeout(10):
                frames = await stream.rest()

    assert (frames[0].id, frames[-1].id) == ("0.0", "2.2")


async def test_a_stream_ends_at_a_question_whose_worker_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Nobody says whether the question stands, so after a while it counts as standing: a client of 0.3 learns from the
    stream's end that the task asks.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.AGAIN_S", 0.01)
    monkeypatch.setattr("refold.a2a.streams.patience.WORKER_S", 0.05)
    fake = Losing(skills.ALL)
    async with running(fake) as (calls, _):
        key = {"Idempotency-Key": "k"}
        await calls.result("SendMessage", sending("Hi", "ask"), **key)
        fake.faults = repeat(NoWorker("no worker answers"))
        async with opened(calls.http, calls.base, SEND, sending("Hi", "ask"), **key) as stream:
            async with asyncio.timeout(10):
                frames = await stream.rest()

    assert (frames[0].id, frames[-1].id) == ("0.0", "1.2")
    assert frames[-1].state == "TASK_STATE_INPUT_REQUIRED"


async def test_a_question_that_was_answered_ends_no_resubscription_of_0_3(calls: Calls) -> None:
    """
    The client comes again after the first question, and gets what has happened since: the second one, and the end.
    """
    task = await calls.send("Hi", metadata={"skill": "ask"})
    await calls.result("SendMessage", answer(task["id"], text="Ada"))
    await calls.result("SendMessage", answer(task["id"], data={"number": 3}))
    params, again = {"id": task["id"]}, {"Last-Event-ID": "1.0"}
    async with opened(calls.http, calls.base, "tasks/resubscribe", params, version="0.3", **again) as stream:
        frames = await stream.rest()

    assert ids(frames) == ["1.0", "2.1", "2.2", "3.1"]


async def test_a_client_that_comes_again_waits_for_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without one the gateway knows less than the client has seen already, and that is no error.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.AGAIN_S", 0.01)
    fake = Forgetful(skills.ALL)
    async with running(fake) as (calls, _):
        task = await calls.send("Hi", metadata={"skill": "ask"})
        await calls.result("SendMessage", answer(task["id"], text="Ada"))
        fake.worker = False
        async with subscribed(calls.http, calls.base, task["id"], "2.2") as stream:
            [again] = await stream.take(1)

    assert (again.id, again.state) == ("2.0", "TASK_STATE_INPUT_REQUIRED")
