"""Webhooks of real tasks: registered over A2A, delivered by the gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from refold.a2a import Settings, WebhookFeed, WebhookPush, a2a_app
from refold.effects.webhooks.post import Poster
from refold.effects.webhooks.ssrf import Screen
from refold.temporal import TemporalEngine, TemporalWebhooks
from tests.a2a import skills
from tests.a2a.conftest import Calls, free_socket, serving
from tests.services.receiver import Receiver

pytestmark = pytest.mark.server


@pytest.fixture
async def delivering(a2a_engine: TemporalEngine) -> AsyncIterator[Calls]:
    """A gateway with webhooks, on a port, over Temporal."""
    sock = free_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    poster = Poster(Screen.from_env(loopback=True))
    async with TemporalWebhooks(a2a_engine, WebhookFeed(a2a_engine), poster) as webhooks:
        app = a2a_app(a2a_engine, skills.ALL, Settings(url=url), push=WebhookPush(webhooks))
        async with serving(app, sock) as address, httpx.AsyncClient() as http:
            yield Calls(http, address)


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
    with receiver:
        pass  # it has an address, and is down
    configuration = {"taskPushNotificationConfig": {"url": receiver.url, "token": "t"}}
    task = await delivering.send(metadata={"skill": "ask"}, configuration=configuration)
    await delivering.send("Ada", taskId=task["id"])
    answer = {"messageId": "m", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"data": {"number": 3}}]}
    done = (await delivering.result("SendMessage", {"message": answer}))["task"]
    with receiver:
        await receiver.until(over)

    states = [found for response in told(receiver) if (found := state(response))]
    assert states[0] == "TASK_STATE_SUBMITTED"
    assert [found for found in states if found == "TASK_STATE_INPUT_REQUIRED"] == ["TASK_STATE_INPUT_REQUIRED"] * 2
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
