"""Webhook configs: kept, read, listed and deleted, over every way in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from refold.a2a import Settings, a2a_app
from refold.a2a.tasks.push import WebhookPush
from refold.core.errors import InputRejected
from refold.testing import FakeEngine
from refold.webhooks import START, Webhook
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, calling

URL = "https://hooks.example/a"
LEGACY = {"A2A-Version": "0.3"}


class Kept:
    """Webhooks in memory, that refuse one host.

    Attributes:
        begun: Where each began.
    """

    def __init__(self) -> None:
        self.by_task: dict[str, dict[str, Webhook]] = {}
        self.begun: dict[str, str | None] = {}

    async def check(self, webhook: Webhook) -> None:
        if "inside.example" in webhook.url:
            raise InputRejected("inside.example, port 443, cannot be reached from here")

    async def put(self, task_id: str, webhook: Webhook, *, after: str | None = None) -> None:
        await self.check(webhook)
        self.by_task.setdefault(task_id, {})[webhook.id] = webhook
        self.begun[task_id] = after

    async def get(self, task_id: str, id: str) -> Webhook | None:
        return self.by_task.get(task_id, {}).get(id)

    async def of_task(self, task_id: str) -> list[Webhook]:
        return [hook for _, hook in sorted(self.by_task.get(task_id, {}).items())]

    async def remove(self, task_id: str, id: str) -> None:
        self.by_task.get(task_id, {}).pop(id, None)


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def pushing(fake: FakeEngine, kept: Kept) -> AsyncIterator[Calls]:
    app = a2a_app(fake, skills.ALL, Settings(url=BASE), push=WebhookPush(kept))
    async with calling(app) as calls:
        yield calls


async def test_the_card_says_whether_there_are_webhooks(pushing: Calls, gateway: Calls) -> None:
    """
    A gateway without them says so, and answers so.
    """
    card = "/.well-known/agent-card.json"
    assert (await pushing.rest("GET", card)).json()["capabilities"]["pushNotifications"] is True
    assert not (await gateway.rest("GET", card)).json()["capabilities"].get("pushNotifications")

    task = await gateway.send(metadata={"skill": "ask"})
    for method, params in (
        ("CreateTaskPushNotificationConfig", {"taskId": task["id"], "url": URL}),
        ("GetTaskPushNotificationConfig", {"taskId": task["id"], "id": "w"}),
        ("ListTaskPushNotificationConfigs", {"taskId": task["id"]}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "none", "id": "w"}),
    ):
        assert (await gateway.error(method, params))["code"] == -32003


async def test_configs_over_json_rpc(pushing: Calls) -> None:
    """
    What is created is read as it was; the same id is another config in the first one's place; deleting twice is fine.
    """
    task = (await pushing.send(metadata={"skill": "ask"}))["id"]
    auth = {"scheme": "Bearer", "credentials": "c"}
    first = await pushing.result("CreateTaskPushNotificationConfig", {"taskId": task, "url": URL, "token": "t"})
    assert first == {"taskId": task, "id": task, "url": URL, "token": "t"}
    second = {"taskId": task, "id": "2", "url": f"{URL}b", "authentication": auth}
    assert await pushing.result("CreateTaskPushNotificationConfig", second) == second

    assert await pushing.result("GetTaskPushNotificationConfig", {"taskId": task, "id": "2"}) == second
    listed = await pushing.result("ListTaskPushNotificationConfigs", {"taskId": task})
    assert listed == {"configs": [second, first]}

    changed = {"taskId": task, "id": "2", "url": f"{URL}c"}
    await pushing.result("CreateTaskPushNotificationConfig", changed)
    assert await pushing.result("GetTaskPushNotificationConfig", {"taskId": task, "id": "2"}) == changed

    for _ in range(2):
        await pushing.result("DeleteTaskPushNotificationConfig", {"taskId": task, "id": "2"})
    gone = await pushing.error("GetTaskPushNotificationConfig", {"taskId": task, "id": "2"})
    assert gone["code"] == -32001
    assert (await pushing.result("ListTaskPushNotificationConfigs", {"taskId": task})) == {"configs": [first]}


async def test_configs_over_rest(pushing: Calls) -> None:
    """
    The same over REST, by page.
    """
    task = (await pushing.send(metadata={"skill": "ask"}))["id"]
    place = f"/tasks/{task}/pushNotificationConfigs"
    for id in ("a", "b", "c"):
        assert (await pushing.rest("POST", place, {"id": id, "url": URL})).status_code == 200
    assert (await pushing.rest("GET", f"{place}/b")).json() == {"taskId": task, "id": "b", "url": URL}

    page = (await pushing.rest("GET", f"{place}?pageSize=2")).json()
    assert [config["id"] for config in page["configs"]] == ["a", "b"]
    rest = (await pushing.rest("GET", f"{place}?pageSize=2&pageToken={page['nextPageToken']}")).json()
    assert [config["id"] for config in rest["configs"]] == ["c"]

    assert (await pushing.rest("DELETE", f"{place}/b")).is_success
    assert (await pushing.rest("GET", f"{place}/b")).status_code == 404
    assert (await pushing.rest("GET", "/tasks/none/pushNotificationConfigs")).status_code == 404


async def test_configs_of_0_3(pushing: Calls, kept: Kept) -> None:
    """
    A 0.3 client's config is delivered to in 0.3's words, and is read without an id.
    """
    pushing.headers = LEGACY
    message = {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "Hi"}]}
    sent = await pushing.result("message/send", {"message": message, "metadata": {"skill": "ask"}})
    task = sent["id"]
    config: dict[str, Any] = {"url": URL, "token": "t", "authentication": {"schemes": ["Bearer"], "credentials": "c"}}
    await pushing.result("tasks/pushNotificationConfig/set", {"taskId": task, "pushNotificationConfig": config})

    found = await pushing.result("tasks/pushNotificationConfig/get", {"id": task})
    assert found == {"taskId": task, "pushNotificationConfig": {"id": task, **config}}
    assert await pushing.result("tasks/pushNotificationConfig/list", {"id": task}) == [found]
    assert kept.by_task[task][task].shape == "0.3"
    named = {"id": task, "pushNotificationConfigId": task}
    assert "error" not in await pushing.rpc("tasks/pushNotificationConfig/delete", named)
    assert await kept.of_task(task) == []


async def test_a_config_that_comes_with_a_message_is_kept_before_the_task_runs(pushing: Calls, kept: Kept) -> None:
    """
    So all of the task is told; with an answer it begins there.
    """
    configuration = {"taskPushNotificationConfig": {"url": URL, "id": "w"}}
    task = (await pushing.send(metadata={"skill": "ask"}, configuration=configuration))["id"]
    assert [hook.id for hook in await kept.of_task(task)] == ["w"]
    assert kept.begun[task] == START
    assert kept.by_task[task]["w"].shape == "1.0"

    await pushing.send(taskId=task, configuration=configuration)
    assert kept.begun[task] is None


@pytest.mark.parametrize("url", ["https://inside.example/", ""])
async def test_an_address_that_may_not_be_reached_is_a_wrong_parameter(url: str, pushing: Calls, kept: Kept) -> None:
    """
    Whether it comes alone or with a message; no task starts then.
    """
    task = (await pushing.send(metadata={"skill": "ask"}))["id"]
    refused = await pushing.error("CreateTaskPushNotificationConfig", {"taskId": task, "url": url})
    assert refused["code"] == -32602

    params = {
        "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "Hi"}]},
        "metadata": {"skill": "ask"},
        "configuration": {"taskPushNotificationConfig": {"url": url}},
    }
    assert (await pushing.error("SendMessage", params))["code"] == -32602
    assert kept.by_task == {}


async def test_a_task_that_does_not_exist_has_no_configs(pushing: Calls) -> None:
    """
    The same answer to every method.
    """
    for method, params in (
        ("CreateTaskPushNotificationConfig", {"taskId": "none", "url": URL}),
        ("GetTaskPushNotificationConfig", {"taskId": "none", "id": "w"}),
        ("ListTaskPushNotificationConfigs", {"taskId": "none"}),
        ("DeleteTaskPushNotificationConfig", {"taskId": "none", "id": "w"}),
    ):
        assert (await pushing.error(method, params))["code"] == -32001
