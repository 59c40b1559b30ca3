"""Whose tasks are whose: what is not the caller's looks as if it did not exist, by every method and binding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from a2a.client import ClientCallContext, ClientConfig, create_client
from a2a.client.auth import AuthInterceptor, CredentialService
from a2a.types import GetTaskRequest, ListTasksRequest

from refold import Content, Ctx, GatePolicy, Status, Transition, flow_skill, step
from refold.a2a import Security, Settings, a2a_app
from refold.a2a.security.api_keys import api_keys
from refold.a2a.tasks.push import WebhookPush
from refold.a2a.tasks.reading import Reader
from refold.temporal import TemporalEngine
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, said
from tests.a2a.security.guarding import token, tokens
from tests.a2a.tasks.test_push import Kept

NAMES = ("ada", "bob", "boss", "desk")
SECURITY = Security(
    keys=api_keys("\n".join(f"{name}=key-of-{name}-0123456789" for name in NAMES)),
    tokens=tokens(),
    anonymous=None,
    parts=3,
    may_vouch=("desk",),
)
WEBHOOK = {"url": "https://example.org/hook"}


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
async def app(fake: FakeEngine, kept: Kept) -> Any:
    """A gateway that asks everybody for a key or a token."""
    return a2a_app(fake, skills.ALL, Settings(url=BASE), push=WebhookPush(kept), security=SECURITY)


@pytest.fixture
async def http(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app, client=("203.0.113.7", 1))) as http:
        yield http


@pytest.fixture
async def by(http: httpx.AsyncClient) -> dict[str, Calls]:
    """Calls, by who makes them."""
    return {
        name: Calls(http, headers={"A2A-Version": "1.0", "X-API-Key": f"key-of-{name}-0123456789"}) for name in NAMES
    }


@pytest.fixture
async def task(fake: FakeEngine) -> str:
    """A task of ada's that waits for a name."""
    return (await fake.start("ask", Content.from_text("hi"), owner="ada", context="c-ada")).task_id


def methods(id: str) -> list[tuple[str, dict[str, Any]]]:
    """Every method that names a task."""
    return [
        ("GetTask", {"id": id}),
        ("CancelTask", {"id": id}),
        ("SubscribeToTask", {"id": id}),
        ("SendMessage", {"message": said(taskId=id)}),
        ("SendStreamingMessage", {"message": said(taskId=id)}),
        ("CreateTaskPushNotificationConfig", {"taskId": id, **WEBHOOK}),
        ("GetTaskPushNotificationConfig", {"taskId": id, "id": "x"}),
        ("ListTaskPushNotificationConfigs", {"taskId": id}),
        ("DeleteTaskPushNotificationConfig", {"taskId": id, "id": "x"}),
    ]


async def test_what_is_anothers_looks_like_what_does_not_exist(by: dict[str, Calls], task: str) -> None:
    """
    The same error, word for word but for the id; and the task is as it was.
    """
    for (method, foreign), (_, missing) in zip(methods(task), methods("nothing"), strict=True):
        theirs, none = await by["bob"].error(method, foreign), await by["bob"].error(method, missing)
        assert theirs["code"] == none["code"] == -32001, method
        assert str(theirs).replace(task, "nothing") == str(none), method

    assert (await by["ada"].result("GetTask", {"id": task}))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


async def test_the_same_over_rest(by: dict[str, Calls], task: str) -> None:
    """
    404 for both.
    """
    for verb, path, body in [
        ("GET", "/tasks/{}", None),
        ("POST", "/tasks/{}:cancel", None),
        ("POST", "/tasks/{}:subscribe", None),
        ("GET", "/tasks/{}:subscribe", None),
        ("POST", "/tasks/{}/pushNotificationConfigs", WEBHOOK),
        ("GET", "/tasks/{}/pushNotificationConfigs", None),
        ("GET", "/tasks/{}/pushNotificationConfigs/x", None),
        ("DELETE", "/tasks/{}/pushNotificationConfigs/x", None),
    ]:
        theirs, none = [await by["bob"].rest(verb, path.format(id), body) for id in (task, "nothing")]
        assert (theirs.status_code, none.status_code) == (404, 404), path
        assert theirs.text.replace(task, "nothing") == none.text, path


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("tasks/get", {"id": "{}"}),
        ("tasks/cancel", {"id": "{}"}),
        ("message/send", {"message": {"messageId": "m", "role": "user", "taskId": "{}", "parts": []}}),
        ("tasks/pushNotificationConfig/set", {"taskId": "{}", "pushNotificationConfig": WEBHOOK}),
        ("tasks/pushNotificationConfig/list", {"id": "{}"}),
    ],
)
async def test_the_same_for_clients_of_0_3(
    http: httpx.AsyncClient, task: str, method: str, params: dict[str, Any]
) -> None:
    """
    The old methods know the same owners.
    """

    def of(id: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: of(id, one) for key, one in value.items()}
        return [{"kind": "text", "text": "hi"}] if value == [] else id if value == "{}" else value

    bob = Calls(http, headers={"X-API-Key": "key-of-bob-0123456789"})
    theirs, none = [await bob.error(method, of(id, params)) for id in (task, "nothing")]

    assert theirs["code"] == none["code"] == -32001
    assert str(theirs).replace(task, "nothing") == str(none)


async def test_keys_and_tokens_of_one_name_are_one_caller(by: dict[str, Calls], http: httpx.AsyncClient) -> None:
    """
    What ada starts by token is hers by key; her list holds it, bob's does not.
    """
    by_token = Calls(http, headers={"A2A-Version": "1.0", "Authorization": f"Bearer {token()}"})
    started = await by_token.send(metadata={"skill": "echo"})

    assert (await by["ada"].result("GetTask", {"id": started["id"]}))["id"] == started["id"]
    listed = {name: (await by[name].result("ListTasks"))["tasks"] for name in ("ada", "bob")}
    assert [task["id"] for task in listed["ada"]] == [started["id"]]
    assert listed["bob"] == []


async def test_nobodys_tasks_are_hidden_from_everybody_with_a_name(by: dict[str, Calls], fake: FakeEngine) -> None:
    """
    What was started without an owner belongs to callers without a name alone.
    """
    view = await fake.start("ask", Content.from_text("hi"))

    assert (await by["ada"].error("GetTask", {"id": view.task_id}))["code"] == -32001
    assert (await by["ada"].result("ListTasks"))["totalSize"] == 0


@pytest.mark.parametrize("named", [{}, {"gate": "buy"}], ids=["by-id", "by-slot"])
async def test_who_is_asked_at_a_gate_may_read_its_task_and_nothing_more(
    by: dict[str, Calls], fake: FakeEngine, named: dict[str, str]
) -> None:
    """
    And decide, naming the gate in either way; once the gate is closed, the task is as foreign as any other.
    """
    task = (await fake.start("buy", Content.from_data({"item": "yacht"}), owner="ada")).task_id

    read = await by["boss"].result("GetTask", {"id": task})
    assert read["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    for method, params in methods(task):
        if "Push" in method or method == "CancelTask":
            assert (await by["boss"].error(method, params))["code"] == -32001, method
    assert (await by["boss"].result("ListTasks"))["tasks"] == []
    shown = next(part["data"] for part in read["status"]["message"]["parts"] if "data" in part)
    decision = said(taskId=task, parts=[{"data": {**shown, **named, "decision": "approved"}}])
    await by["boss"].result("SendMessage", {"message": decision})
    assert (await fake.look(task)).status is Status.COMPLETED
    assert (await by["boss"].error("GetTask", {"id": task}))["code"] == -32001


async def test_an_approver_sees_the_task_as_its_journal_has_it_on_temporal(a2a_engine: TemporalEngine) -> None:
    """
    Read from its beginning, it is the task; whoever it never asked sees none.
    """
    task = (await a2a_engine.start("buy", Content.from_data({"item": "yacht"}), owner="ada")).task_id
    reader = Reader(a2a_engine)

    assert await reader.shown_to("boss", task) == await a2a_engine.record(task)
    assert await reader.shown_to("bob", task) is None
    await a2a_engine.cancel(task)
    assert await reader.shown_to("boss", task) == await a2a_engine.record(task)


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
@pytest.mark.parametrize("part", [{}, {"digest": "another"}, {"decision": "denied"}, None], ids=str)
async def test_whoever_is_asked_at_a_gate_registers_no_webhook(
    by: dict[str, Calls], kept: Kept, part: dict[str, str] | None, method: str, key: str | None
) -> None:
    """
    A message of an approver that has a webhook config is refused, whatever else it has: the gate stays open, and
    the owner's webhook stays as it was.
    """
    request = {"message": said(parts=[{"data": {"item": "yacht"}}]), "metadata": {"skill": "buy"}}
    theirs, own = ({"taskPushNotificationConfig": {"url": f"https://{name}.example/"}} for name in ("boss", "ada"))
    task = (await by["ada"].result("SendMessage", {**request, "configuration": own}))["task"]
    before = dict(kept.by_task[task["id"]])
    shown = next(part["data"] for part in task["status"]["message"]["parts"] if "data" in part)
    parts = [{"text": "Hi"} if part is None else {"data": {**shown, "decision": "approved", **part}}]
    message = said(taskId=task["id"], parts=parts)
    headers = {} if key is None else {"Idempotency-Key": key}

    refused = await by["boss"].error(method, {"message": message, "configuration": theirs}, **headers)

    assert refused["code"] == -32004
    assert kept.by_task == {task["id"]: before}
    assert (await by["ada"].result("GetTask", {"id": task["id"]}))["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"


async def test_the_callback_knows_the_same_callers(http: httpx.AsyncClient, fake: FakeEngine) -> None:
    """
    Who is asked decides there in its own name, a service on the list for others; a stranger finds nothing.
    """

    async def decide(caller: str | None, task: str, **more: str) -> int:
        headers = {} if caller is None else {"X-API-Key": f"key-of-{caller}-0123456789"}
        body = {"task_id": task, "decision": "approved", **more}
        return (await http.post(f"{BASE}/approval-callback", json=body, headers=headers)).status_code

    tasks = [(await fake.start("buy", Content.from_data({"item": "yacht"}), owner="ada")).task_id for _ in range(2)]

    assert await decide(None, tasks[0]) == 401
    assert await decide("bob", tasks[0]) == await decide("bob", "nothing") == 404
    assert await decide("ada", tasks[0]) == 403
    assert await decide("bob", tasks[0], approver="boss") == 403
    assert await decide("boss", tasks[0]) == 200
    assert await decide("desk", tasks[1], approver="boss") == 200
    assert [(await fake.look(task)).status for task in tasks] == [Status.COMPLETED] * 2


@flow_skill(id="pays")
class Pays:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("pay", "Pay?", show=1, policy=GatePolicy(approvers=("boss",)))
        return ctx.complete(await ctx.tool("fetch"))


async def test_who_decided_by_the_callback_reads_nothing_of_what_follows() -> None:
    """
    As over A2A, that is the owner's; a service that decides for others sees every task.
    """
    fake = FakeEngine([Pays], answers={"fetch": "for ada alone"})
    app = a2a_app(fake, [Pays], Settings(url=BASE), security=SECURITY)
    tasks = [(await fake.start("pays", Content.from_text("x"), owner="ada")).task_id for _ in range(2)]
    answers = {}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app, client=("203.0.113.7", 1))) as http:
        for caller, task in zip(("boss", "desk"), tasks, strict=True):
            body = {"task_id": task, "decision": "approved", "approver": "boss"}
            headers = {"X-API-Key": f"key-of-{caller}-0123456789"}
            answers[caller] = await http.post(f"{BASE}/approval-callback", json=body, headers=headers)

    assert [one.status_code for one in answers.values()] == [200, 200]
    assert answers["boss"].json() == {"task_id": tasks[0], "note": "the task has taken the decision, and goes on"}
    assert answers["desk"].json()["messages"][-1]["text"] == "for ada alone"


async def test_a_message_has_so_many_parts(by: dict[str, Calls]) -> None:
    """
    One too many is refused, and nothing is started.
    """
    fits, too_many = [{"message": said(parts=[{"text": "x"}] * n), "metadata": {"skill": "echo"}} for n in (3, 4)]

    assert (await by["ada"].error("SendMessage", too_many))["code"] == -32602
    assert (await by["ada"].result("ListTasks"))["totalSize"] == 0
    await by["ada"].result("SendMessage", fits)


async def test_the_card_says_what_to_show(http: httpx.AsyncClient) -> None:
    """
    Both ways, either of which will do.
    """
    card = (await http.get(f"{BASE}/.well-known/agent-card.json")).json()

    assert card["securitySchemes"]["apiKey"]["apiKeySecurityScheme"]["name"] == "X-API-Key"
    assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "bearer"
    assert [list(one["schemes"]) for one in card["securityRequirements"]] == [["apiKey"], ["bearer"]]


class Credentials(CredentialService):
    """What a client has, by the name of the scheme that the card declares."""

    def __init__(self, **known: str) -> None:
        self.known = known

    async def get_credentials(self, security_scheme_name: str, context: ClientCallContext | None) -> str | None:
        return self.known.get(security_scheme_name)


@pytest.mark.parametrize(
    "known", [{"apiKey": "key-of-ada-0123456789"}, {"bearer": token()}], ids=["by-key", "by-token"]
)
async def test_the_official_client_shows_what_the_card_asks_for(
    known: dict[str, str], http: httpx.AsyncClient, task: str
) -> None:
    """
    Told its credentials by the schemes' names, it needs to know nothing else of the gateway.
    """
    config = ClientConfig(httpx_client=http)
    client = await create_client(BASE, config, interceptors=[AuthInterceptor(Credentials(**known))])

    assert (await client.get_task(GetTaskRequest(id=task))).id == task
    assert [one.id for one in (await client.list_tasks(ListTasksRequest())).tasks] == [task]


async def test_an_unknown_version_is_refused(by: dict[str, Calls]) -> None:
    """
    Before anything else is looked at.
    """
    assert (await by["ada"].error("GetTask", {"id": "x"}, **{"A2A-Version": "2.0"}))["code"] == -32009
    assert (await by["ada"].rest("GET", "/tasks/x", **{"A2A-Version": "2.0"})).status_code == 400
