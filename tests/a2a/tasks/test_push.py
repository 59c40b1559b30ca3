"""Webhook configs: kept, read, listed and deleted, over every way in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.a2a import Settings, a2a_app
from refold.a2a.tasks.push import WebhookPush
from refold.core.errors import InputRejected
from refold.engine import CodeChanged, NotConnected, NoWorker, TaskFilter, TaskView
from refold.testing import FakeEngine
from refold.webhooks import START, Webhook
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, calling, said

URL = "https://hooks.example/a"
LEGACY = {"A2A-Version": "0.3"}


class Kept:
    """Webhooks in memory, that refuse one host.

    Attributes:
        begun: Where each began.
        ever: The task and the id of each that was put once.
        away: Nobody delivers at the moment.
    """

    def __init__(self) -> None:
        self.by_task: dict[str, dict[str, Webhook]] = {}
        self.begun: dict[str, str | None] = {}
        self.ever: set[tuple[str, str]] = set()
        self.away = False

    async def check(self, task_id: str, webhook: Webhook) -> None:
        if "inside.example" in webhook.url:
            raise InputRejected("inside.example, port 443, cannot be reached from here")

    async def put(self, task_id: str, webhook: Webhook, *, after: str | None = None) -> None:
        await self.check(task_id, webhook)
        if self.away:
            raise NoWorker("nobody delivers webhooks")
        self.by_task.setdefault(task_id, {})[webhook.id] = webhook
        self.begun[task_id] = after
        self.ever.add((task_id, webhook.id))

    async def get(self, task_id: str, id: str) -> Webhook | None:
        return self.by_task.get(task_id, {}).get(id)

    async def known(self, task_id: str, id: str) -> bool:
        return (task_id, id) in self.ever

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


@pytest.mark.parametrize(
    ("version", "shape"), [("1.0", "1.0"), ("1", "1.0"), ("v1.0", "1.0"), (" 1.2.3 ", "1.0"), ("0.3", "0.3")]
)
async def test_receivers_have_the_version_of_the_caller(pushing: Calls, kept: Kept, version: str, shape: str) -> None:
    """
    As the SDK reads it, which asks for no minor number.
    """
    task = (await pushing.send(metadata={"skill": "ask"}))["id"]
    old = shape == "0.3"
    config = {"url": URL}
    place = f"{'/v1' if old else ''}/tasks/{task}/pushNotificationConfigs"
    body = {"parent": f"tasks/{task}", "config_id": "a", "config": {"push_notification_config": config}}
    made = await pushing.rest("POST", place, body if old else config, **{"A2A-Version": version})

    assert made.status_code == 200
    assert [hook.shape for hook in kept.by_task[task].values()] == [shape]


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


@pytest.mark.parametrize("id", ["eu/billing", "https://hooks.example.com/a2a", "pay-1/1.2"])
@pytest.mark.parametrize("under", ["", "/ask", "/v1", "/ask/v1"])
async def test_an_id_with_slashes_is_an_id_over_rest(pushing: Calls, kept: Kept, under: str, id: str) -> None:
    """
    A webhook without an id has that of its task, and a part's has a slash. A client may write it as it is, or as %2F.
    """
    task = (await pushing.send(metadata={"skill": "ask"}))["id"]
    config = {"taskId": task, "id": id, "url": URL}
    await pushing.result("CreateTaskPushNotificationConfig", config)
    version = LEGACY if "v1" in under else {}
    place = f"{under}/tasks/{task}/pushNotificationConfigs"

    for written in (id, quote(id, safe="")):
        found = await pushing.rest("GET", f"{place}/{written}", **version)
        assert found.is_success, found.text
        assert id in found.text
    deleted = await pushing.rest("DELETE", f"{place}/{quote(id, safe='')}", **version)
    assert (deleted.status_code, deleted.json()) == (200, {})
    assert not kept.by_task[task]
    assert (await pushing.rest("DELETE", f"{under}/tasks/none/pushNotificationConfigs/x", **version)).status_code == 404


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


async def entries(fake: FakeEngine) -> dict[str, int]:
    """The number of entries of every task."""
    return {one.task_id: (await fake.record(one.task_id)).seq for one in await fake.find(TaskFilter())}


def shown_by(task: Any) -> dict[str, Any]:
    """What a task's open gate shows; nothing if none is open."""
    parts = task["status"].get("message", {}).get("parts", [])
    return next((part["data"] for part in parts if "gate" in part.get("data", {})), {})


PARTS: list[dict[str, Any]] = [
    {"text": "Ada"},
    {"data": {"number": 3}},
    {"data": {"item": "tea"}},
    {"data": {"decision": "approved"}},
    {"data": {"decision": "approved", "digest": "another"}},
]
a_send = st.tuples(
    st.sampled_from(["echo", "ask", "buy", "answer", "answer", "delete"]),
    st.sampled_from(PARTS),
    st.sampled_from([{}, {"Idempotency-Key": "k"}, {"Idempotency-Key": "l"}]),
    st.sampled_from([None, f"{URL}/1", f"{URL}/2", "https://inside.example/"]),
)
"""A message to a new task of a skill, or to the last task: what it holds, its key, and its webhook's address. Or the
deletion of the last task's webhook."""


@pytest.mark.slow
@given(st.lists(a_send, max_size=10))
async def test_only_a_message_that_is_taken_changes_a_webhook(sends: list[Any]) -> None:
    """
    One that is refused, and one that is sent again with its key, leave the webhooks as they are: no address changes,
    and no deleted webhook comes back; an answer that is sent again may bring the first of its id. With one that is
    taken, the address is that of its config.
    """
    fake, kept = FakeEngine(skills.ALL), Kept()
    task: dict[str, Any] = {"id": "none"}
    shown: dict[str, Any] = {}
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE), push=WebhookPush(kept))) as calls:
        for to, part, key, url in sends:
            if to == "delete":
                await kept.remove(task["id"], "w")
                continue
            hooks, before = {id: dict(of_task) for id, of_task in kept.by_task.items()}, await entries(fake)
            ever = set(kept.ever)
            parts = [{"data": {**shown, **part["data"]}} if "decision" in part.get("data", {}) else part]
            message = said(parts=parts, **({"taskId": task["id"]} if to == "answer" else {}))
            config = {} if url is None else {"taskPushNotificationConfig": {"id": "w", "url": url}}
            params = {"message": message, "metadata": {"skill": to}, "configuration": config}
            answer = await calls.rpc("SendMessage", params, **key)
            if "result" in answer:
                task = answer["result"]["task"]
                shown = shown_by(task) or shown
            changed = (await entries(fake)).items() - before.items()
            if "result" in answer and changed:
                assert url is None or kept.by_task[task["id"]]["w"].url == url
            else:
                assert not changed
                for id, name in kept.ever - ever:
                    assert (to, "result" in answer) == ("answer", True)
                    hooks[id] = {name: kept.by_task[id][name]}
                    assert hooks[id][name].url == url
                assert kept.by_task == hooks


async def test_a_webhook_that_cannot_be_kept_is_told_after_the_message(pushing: Calls, kept: Kept) -> None:
    """
    The message was taken by then, and is not to be sent again.
    """
    task = (await pushing.send(metadata={"skill": "ask"}))["id"]
    kept.away = True
    configuration = {"taskPushNotificationConfig": {"url": URL}}
    refused = await pushing.error("SendMessage", {"message": said(taskId=task), "configuration": configuration})

    assert refused["code"] == -32603
    assert "has taken the message" in refused["message"]
    assert len((await pushing.result("GetTask", {"id": task}))["history"]) == 4


@pytest.mark.parametrize("what", ["answer", "decision"])
async def test_an_answer_that_is_sent_again_brings_the_webhook_that_was_lost(
    pushing: Calls, kept: Kept, what: str
) -> None:
    """
    The first call ended after the task had taken the answer, before the webhook was kept; one that was deleted since
    does not come back.
    """
    skill, part = ("buy", {"data": {"item": "tea"}}) if what == "decision" else ("ask", {"text": "Hi"})
    task = await pushing.send(parts=[part], metadata={"skill": skill})
    part = {"data": {**shown_by(task), "decision": "approved"}} if what == "decision" else {"text": "Ada"}
    configuration = {"taskPushNotificationConfig": {"url": URL, "id": "w"}}
    params = {"message": said(taskId=task["id"], parts=[part]), "configuration": configuration}
    kept.away = True
    lost = await pushing.error("SendMessage", params, **{"Idempotency-Key": "k"})
    kept.away = False
    await pushing.result("SendMessage", params, **{"Idempotency-Key": "k"})
    brought = await kept.of_task(task["id"])
    await kept.remove(task["id"], "w")
    await pushing.result("SendMessage", params, **{"Idempotency-Key": "k"})

    assert "register the webhook alone" in lost["message"]
    assert [hook.url for hook in brought] == [URL]
    assert await kept.of_task(task["id"]) == []


class Leaving(FakeEngine):
    """An engine whose server goes away once a task has taken an answer."""

    async def send(self, *words: Any, **how: Any) -> TaskView:
        """See `Engine.send`."""
        view = await super().send(*words, **how)
        self.fault = NotConnected("no Temporal server answers")
        return view


async def test_a_webhook_that_was_not_kept_is_named_where_the_message_was_taken(kept: Kept) -> None:
    """
    The server goes away between the two: the caller learns that the message alone was taken.
    """
    async with calling(a2a_app(Leaving(skills.ALL), skills.ALL, Settings(url=BASE), push=WebhookPush(kept))) as calls:
        task = (await calls.send("Hi", metadata={"skill": "ask"}))["id"]
        configuration = {"taskPushNotificationConfig": {"url": URL}}
        refused = await calls.error("SendMessage", {"message": said(taskId=task), "configuration": configuration})

    assert "has taken the message" in refused["message"]
    assert "It has not taken the webhook: register the webhook alone" in refused["message"]


@pytest.mark.parametrize("what", ["answer", "decision"])
async def test_a_webhook_is_named_where_a_worker_may_still_take_the_message(
    pushing: Calls, fake: FakeEngine, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    No call keeps the webhook once the worker comes back: the caller learns what to do then.
    """
    monkeypatch.setattr("refold.a2a.streams.patience.WORKER_S", 0.05)
    skill, part = ("buy", {"data": {"item": "tea"}}) if what == "decision" else ("ask", {"text": "Hi"})
    task = await pushing.send(parts=[part], metadata={"skill": skill})
    part = {"data": {**shown_by(task), "decision": "approved"}} if what == "decision" else {"text": "Ada"}
    message, configuration = said(taskId=task["id"], parts=[part]), {"taskPushNotificationConfig": {"url": URL}}
    fake.worker = False
    refused = await pushing.error("SendMessage", {"message": message, "configuration": configuration})
    plain = await pushing.error("SendMessage", {"message": message})

    assert "look at the task before you send it again" in refused["message"]
    assert "If it has taken it: register the webhook alone" in refused["message"]
    assert "webhook" not in plain["message"]


async def test_changed_code_has_taken_neither_the_message_nor_its_webhook(kept: Kept) -> None:
    """
    Both are sent again once the code is right.
    """

    class Changed(FakeEngine):
        async def send(self, *words: Any, **how: Any) -> TaskView:
            raise CodeChanged("the worker's code differs")

    async with calling(a2a_app(Changed(skills.ALL), skills.ALL, Settings(url=BASE), push=WebhookPush(kept))) as calls:
        task = (await calls.send("Hi", metadata={"skill": "ask"}))["id"]
        configuration = {"taskPushNotificationConfig": {"url": URL}}
        refused = await calls.error("SendMessage", {"message": said(taskId=task), "configuration": configuration})

    assert "send it again then" in refused["message"]
    assert "webhook" not in refused["message"]


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
