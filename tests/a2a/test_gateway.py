"""A2A's methods over a gateway: what is sent, what comes back."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator
from datetime import timedelta

import httpx
import pytest
from starlette.testclient import TestClient
from temporalio.client import Client

from refold import Content, Ctx, Status, Transition, flow_skill, step
from refold.a2a import Security, Settings, a2a_app
from refold.a2a.serve import bound, url_of
from refold.engine import News
from refold.temporal import TemporalEngine
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, calling, serving


async def test_a_message_starts_a_task_of_the_skill_it_names(gateway: Calls) -> None:
    """
    The answer is the finished task: its status, its history with the client's own message id, its artifacts.
    """
    task = await gateway.send("Hello", metadata={"skill": "echo"}, contextId="c-1")

    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["contextId"] == "c-1"
    assert [message["messageId"] for message in task["history"]] == ["m-1", f"{task['id']}:1.2"]
    assert task["artifacts"] == [{"artifactId": "echo", "name": "echo", "parts": [{"text": "Hello"}]}]


async def test_a_message_answers_the_task_that_it_names(gateway: Calls) -> None:
    """
    The context is the task's; a reply that does not fit leaves the task as it was.
    """
    task = await gateway.send("Hi", metadata={"skill": "ask"})
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["status"]["message"]["parts"] == [{"text": "Who are you?"}]

    task = await gateway.send("Ada", taskId=task["id"])
    again = await gateway.error("SendMessage", {"message": {**_reply(task), "parts": [{"text": "many"}]}})
    done = await gateway.result("SendMessage", {"message": {**_reply(task), "parts": [{"data": {"number": 3}}]}})

    assert again["code"] == -32004
    assert done["task"]["status"]["message"]["parts"] == [{"text": "Ada: 3"}]


def _reply(task: dict[str, str]) -> dict[str, object]:
    return {"messageId": "m-2", "role": "ROLE_USER", "taskId": task["id"]}


@flow_skill(id="asks_by_part", description="Has another skill ask.")
class AsksByPart:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("asked", "ask", "go")).text)


@pytest.mark.parametrize("slash", ["/", "%2F"])
@pytest.mark.parametrize("below", ["", "/asks_by_part"])
async def test_a_part_has_its_address_over_rest(slash: str, below: str) -> None:
    """
    Its id has a slash, which clients send as it is or encoded: it is read, canceled and has webhooks like any other.
    """
    engine = FakeEngine([AsksByPart, skills.Ask])
    async with calling(a2a_app(engine, [AsksByPart, skills.Ask], Settings(url=BASE))) as calls:
        whole = await calls.send("Hi", metadata={"skill": "asks_by_part"})
        (part,) = [view.task_id async for view in engine.list() if view.task_id.startswith(f"{whole['id']}/")]
        path = f"{below}/tasks/{part.replace('/', slash)}"
        read = await calls.rest("GET", path)
        hooks = await calls.rest("GET", f"{path}/pushNotificationConfigs")
        canceled = await calls.rest("POST", f"{path}:cancel")
        nothing = await calls.rest("GET", f"{path}{slash}none")

    assert (read.status_code, read.json()["id"]) == (200, part), read.text
    assert read.json()["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert hooks.json()["error"]["details"][0]["reason"] == "PUSH_NOTIFICATION_NOT_SUPPORTED", hooks.text
    assert canceled.json()["status"]["state"] == "TASK_STATE_CANCELED", canceled.text
    assert nothing.status_code == 404


@pytest.mark.parametrize("id", ["tasks", "v1", "callbacks"])
async def test_a_skill_is_not_named_as_a_path_of_the_gateway(id: str) -> None:
    """
    Its calls would go to that path.
    """

    @flow_skill(id=id, description="Says hello.")
    class Hello:
        @step(start=True)
        async def say(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.complete("Hello.")

    with pytest.raises(ValueError, match=f"has paths of its own at {id}, .*: give it another id"):
        a2a_app(FakeEngine([]), [Hello], Settings(url=BASE))


async def test_a_task_is_read_whole_by_rest_and_by_rpc(gateway: Calls) -> None:
    """
    Both tell the same.
    """
    task = await gateway.send("Hello", metadata={"skill": "echo"})

    assert await gateway.result("GetTask", {"id": task["id"]}) == task
    assert (await gateway.rest("GET", f"/tasks/{task['id']}")).json() == task


@pytest.mark.server
async def test_a_task_on_temporal_ends_before_its_sender_hears_of_it(served: str) -> None:
    """
    A blocking call waits for the end; the ended task is read whole from storage.
    """

    async with httpx.AsyncClient(timeout=60) as http:
        calls = Calls(http, served)
        task = await calls.send("Hello", metadata={"skill": "echo"}, contextId="c-1")
        asked = await calls.send("Hi", metadata={"skill": "ask"})

        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["contextId"] == "c-1"
        assert task["artifacts"] == [{"artifactId": "echo", "name": "echo", "parts": [{"text": "Hello"}]}]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


async def test_a_task_without_a_worker_is_known_all_the_same(client: Client) -> None:
    """
    Whose it is, what it was told and where it belongs are read from how it began; nobody waits for long.
    """
    engine = TemporalEngine(client, "nobody-serves-this-queue", patience=timedelta(seconds=1))
    hello = Content.from_text("Hello")
    view = await engine.start("echo", hello, owner="ada", context="c-1", message_id="m-1")
    record = await engine.record(view.task_id)
    await client.get_workflow_handle(view.task_id).terminate()
    ended = await engine.record(view.task_id)

    assert (record.owner, record.context, record.messages[0].id) == ("ada", "c-1", "m-1")
    assert record.note.startswith("no worker answers")
    assert (ended.owner, ended.status, ended.messages[0].content) == ("ada", Status.CANCELED, hello)


async def test_a_large_file_goes_in_and_out(served: str) -> None:
    """
    Larger than Temporal takes: it is kept in storage, and comes back as it was.
    """
    raw = base64.b64encode(bytes(range(256)) * 12_000).decode()  # 3 MB
    part = {"raw": raw, "filename": "big.bin", "mediaType": "application/octet-stream"}
    async with httpx.AsyncClient(timeout=60) as http:
        calls = Calls(http, served)
        task = await calls.send(parts=[part], metadata={"skill": "copy"})
        again = await calls.result("GetTask", {"id": task["id"], "historyLength": 0})

    assert again["artifacts"] == [{"artifactId": "copy", "name": "copy", "parts": [part]}]


async def test_what_a_callback_brings_is_no_message(gateway: Calls) -> None:
    """
    It has whatever shape its sender gives it, and nobody looks for files in it before the address is checked.
    """
    answer = await gateway.http.post(f"{gateway.base}/callbacks/guess", json={"message": {"parts": [{"raw": "!"}]}})

    assert (answer.status_code, answer.json()) == (404, {"error": "nothing here has this address"})


def test_a_gateway_starts_and_stops_with_whoever_serves_it(fake: FakeEngine) -> None:
    """
    A server or a test client that sends an application's lifespan starts it, and calls it.
    """
    app = a2a_app(fake, skills.ALL, Settings(), security=Security(anonymous="everywhere"))
    with TestClient(app) as client:
        assert client.get("/livez").status_code == 200


def test_a_port_that_is_taken_is_refused() -> None:
    """
    A gateway does not share it with another process.
    """
    with bound("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        bound("127.0.0.1", taken.getsockname()[1])


class Watched(FakeEngine):
    """Tells when a task begins to be watched, and when it no longer is."""

    def __init__(self) -> None:
        super().__init__(skills.ALL)
        self.began, self.left = asyncio.Event(), asyncio.Event()

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        """See `Engine.watch`."""
        self.began.set()
        try:
            async for news in super().watch(task_id, after=after, follow=follow):
                yield news
        finally:
            self.left.set()


async def test_a_caller_that_goes_away_takes_nothing_along() -> None:
    """
    Nobody waits for it any more, and its task goes on.
    """
    engine = Watched()
    sock = bound("127.0.0.1", 0)
    url = url_of(sock, "127.0.0.1")
    async with serving(a2a_app(engine, skills.ALL, Settings(url=url)), sock), httpx.AsyncClient(timeout=60) as http:
        calls = Calls(http, url)
        waiting = asyncio.create_task(calls.send("x", metadata={"skill": "wait"}))
        await engine.began.wait()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await engine.left.wait()
        (task,) = [task async for task in engine.list(skill="wait")]
        await engine.reply(task.task_id, "held", "done")

        assert (await calls.result("GetTask", {"id": task.task_id}))["status"]["state"] == "TASK_STATE_COMPLETED"
