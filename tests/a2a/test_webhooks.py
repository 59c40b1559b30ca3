"""Webhooks of real tasks: registered over A2A, delivered by the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from refold.a2a import Settings, WebhookFeed, WebhookPush, a2a_app
from refold.effects.webhooks.post import Poster
from refold.effects.webhooks.ssrf import Screen
from refold.temporal import TemporalEngine, TemporalWebhooks
from tests.a2a import skills
from tests.a2a.conftest import Calls, free_socket, said, serving
from tests.services.receiver import PATIENCE_S, Receiver

pytestmark = pytest.mark.server


@contextlib.asynccontextmanager
async def posting(engine: TemporalEngine, screen: Screen) -> AsyncIterator[Calls]:
    """A gateway with webhooks, on a port, over Temporal."""
    sock = free_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    async with TemporalWebhooks(engine, WebhookFeed(engine), Poster(screen)) as webhooks:
        app = a2a_app(engine, skills.ALL, Settings(url=url), push=WebhookPush(webhooks))
        async with serving(app, sock) as address, httpx.AsyncClient(timeout=60) as http:
            yield Calls(http, address)


@pytest.fixture
async def delivering(a2a_engine: TemporalEngine) -> AsyncIterator[Calls]:
    """A gateway that posts to this machine, too."""
    async with posting(a2a_engine, Screen.from_env(loopback=True)) as calls:
        yield calls


def told(receiver: Receiver) -> list[Any]:
    """What the receiver was told, without repetitions, as StreamResponses."""
    return list({post.headers["webhook-id"]: post.json for post in receiver.taken}.values())


def state(response: Any) -> str | None:
    found: str | None = next(iter(response.values())).get("status", {}).get("state")
    return found


def over(receiver: Receiver) -> bool:
    return any(state(response) == "TASK_STATE_COMPLETED" for response in told(receiver))


async def test_a_receiver_that_was_down_hears_all_of_a_task(delivering: Calls) -> None:
    """
    It was down while the task ran: back again, it gets what its stream told, in the same order, to the end.
    """
    receiver = Receiver()
    configuration = {"taskPushNotificationConfig": {"url": receiver.url, "token": "t"}}
    task = await delivering.send(metadata={"skill": "ask"}, configuration=configuration)
    await delivering.send("Ada", taskId=task["id"])
    answer = {"messageId": "m", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"data": {"number": 3}}]}
    done = (await delivering.result("SendMessage", {"message": answer}))["task"]
    with receiver:
        await receiver.until(over)

    states = [found for response in told(receiver) if (found := state(response))]
    assert states[0] == "TASK_STATE_SUBMITTED"
    assert states.count("TASK_STATE_INPUT_REQUIRED") == 2
    assert states[-1] == "TASK_STATE_COMPLETED"
    seqs = [int(post.headers["webhook-id"].rpartition("/")[2].partition(".")[0]) for post in receiver.taken]
    assert seqs == sorted(seqs)
    assert {post.headers["x-a2a-notification-token"] for post in receiver.taken} == {"t"}
    last = told(receiver)[-1]["statusUpdate"]
    assert (last["taskId"], last["status"]) == (done["id"], done["status"])


async def test_a_webhook_for_a_task_that_has_ended_hears_how(delivering: Calls) -> None:
    """
    Once, the whole task; in the words of whoever registered it. It is listed until it is deleted.
    """
    task = (await delivering.send("Hello", metadata={"skill": "echo"}))["id"]
    legacy = Calls(delivering.http, delivering.base, {})
    with Receiver() as current, Receiver() as old:
        await delivering.result("CreateTaskPushNotificationConfig", {"taskId": task, "id": "new", "url": current.url})
        config = {"taskId": task, "pushNotificationConfig": {"id": "old", "url": old.url}}
        await legacy.result("tasks/pushNotificationConfig/set", config)
        await current.until(over)
        await old.until(lambda receiver: bool(receiver.posts))

    assert [next(iter(response)) for response in told(current)] == ["task"]
    assert [(post.json["kind"], post.json["status"]["state"]) for post in old.posts] == [("task", "completed")]
    listed = await delivering.result("ListTaskPushNotificationConfigs", {"taskId": task})
    assert [config["id"] for config in listed["configs"]] == ["new", "old"]
    await delivering.result("DeleteTaskPushNotificationConfig", {"taskId": task, "id": "old"})
    listed = await delivering.result("ListTaskPushNotificationConfigs", {"taskId": task})
    assert [config["id"] for config in listed["configs"]] == ["new"]


async def test_a_webhook_that_comes_with_an_answer_hears_all_from_there(delivering: Calls) -> None:
    """
    First the task with the answer in it. The same answer once more, with its key, is posted nowhere.
    """
    task = (await delivering.send(metadata={"skill": "ask"}))["id"]
    with Receiver() as receiver, Receiver() as other:
        for url in (receiver.url, other.url):
            configuration = {"taskPushNotificationConfig": {"url": url}}
            answer = {"message": said("Ada", taskId=task), "configuration": configuration}
            await delivering.result("SendMessage", answer, **{"Idempotency-Key": "k"})
        await delivering.result("SendMessage", {"message": said(taskId=task, parts=[{"data": {"number": 3}}])})
        await receiver.until(over)

    first = told(receiver)[0]["task"]
    assert [message["parts"] for message in first["history"] if message["role"] == "ROLE_USER"][1:2] == [
        [{"text": "Ada"}]
    ]
    assert other.posts == []


class Names:
    """Resolves names of the tests as they are told to, and all others as usual.

    Attributes:
        answers: The addresses of a name, in turn; the last one stays.
        asked: How often each was asked for.
    """

    def __init__(self, patch: pytest.MonkeyPatch, **answers: list[str]) -> None:
        self.answers, self.asked = answers, Counter[str]()
        self._loop, self._asked = asyncio.get_running_loop(), asyncio.Event()
        self._usual = socket.getaddrinfo
        patch.setattr(socket, "getaddrinfo", self._resolve)

    def _resolve(self, host: Any, port: Any, *args: Any, **how: Any) -> Any:
        """Called in threads."""
        name = str(host).removesuffix(".example")
        if name not in self.answers:
            return self._usual(host, port, *args, **how)
        address = self.answers[name][min(self.asked[name], len(self.answers[name]) - 1)]
        self.asked[name] += 1
        self._loop.call_soon_threadsafe(self._asked.set)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    async def until(self, name: str, times: int) -> None:
        """Wait until a name was asked for so often."""
        async with asyncio.timeout(PATIENCE_S):
            while self.asked[name] < times:
                self._asked.clear()
                await self._asked.wait()


async def test_names_of_this_machine_are_reached_by_no_way(
    a2a_engine: TemporalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Neither one that leads here nor one that does so once it has been judged, however often it is tried.
    """
    names = Names(monkeypatch, inside=["127.0.0.1"], rebinding=["93.184.216.34", "127.0.0.1"])
    with Receiver() as receiver:
        port = receiver.port
        async with posting(a2a_engine, Screen()) as calls:
            hook = {"id": "w", "url": f"http://rebinding.example:{port}/"}
            task = await calls.send(metadata={"skill": "ask"}, configuration={"taskPushNotificationConfig": hook})
            inside = {"taskId": task["id"], "url": f"http://inside.example:{port}/"}
            refused = await calls.error("CreateTaskPushNotificationConfig", inside)
            by_rest = await calls.rest("POST", f"/tasks/{task['id']}/pushNotificationConfigs", inside)
            # The first look-up judges; the second is that of the first post, the third that of the next one.
            await names.until("rebinding", 3)

        assert receiver.posts == []
    assert refused["code"] == -32602
    assert by_rest.status_code == 400
    assert "127.0.0.1" not in refused["message"] + by_rest.text
