"""What becomes of a message: which skill takes it, who may answer, what a repetition does, and how a gate is passed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
from a2a.types import Message, Part, Role
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from refold import Content, Ctx, GatePolicy, Transition, flow_skill, step
from refold.a2a import Settings, a2a_app
from refold.a2a.tasks.routing import FirstMessage
from refold.core.fold.journal import Entry
from refold.engine import NoWorker, TaskFilter, TaskView
from refold.record import TaskRecord
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, calling, free_socket, said, serving
from tests.a2a.streams.events import opened
from tests.engine.test_together import Several


class ByHeader(AuthenticationBackend):
    """Believes a header."""

    async def authenticate(self, conn: HTTPConnection) -> tuple[AuthCredentials, SimpleUser] | None:
        name = conn.headers.get("x-user")
        return None if name is None else (AuthCredentials(), SimpleUser(name))


def known(app: Starlette) -> Starlette:
    """The application, mounted in one that knows its callers."""
    return Starlette(routes=[Mount("/", app)], middleware=[Middleware(AuthenticationMiddleware, backend=ByHeader())])


def as_(user: str) -> dict[str, str]:
    return {"x-user": user}


@pytest.fixture
async def callers(fake: FakeEngine) -> Any:
    """A gateway that knows who calls; a private skill among the others."""
    async with calling(known(a2a_app(fake, skills.ALL, Settings(url=BASE, private=("files",))))) as calls:
        yield calls


# --- routing


@pytest.mark.parametrize(
    "where",
    [
        pytest.param({"metadata": {"skill": "ask"}}, id="the request's metadata"),
        pytest.param({"message": said(metadata={"skill": "ask"})}, id="the message's metadata"),
        pytest.param({"tenant": "ask"}, id="the tenant"),
    ],
)
async def test_a_skill_is_named_in_one_of_three_places(gateway: Calls, where: dict[str, Any]) -> None:
    """
    In the request's metadata, in the message's, or as the tenant.
    """
    result = await gateway.result("SendMessage", {"message": said(), **where})

    assert result["task"]["metadata"]["refold"]["skill"] == "ask"


@pytest.mark.parametrize(
    ("where", "batch"),
    [
        pytest.param({"message": said()}, False, id="not said"),
        pytest.param({"message": said(), "metadata": {"batch": True}}, True, id="the request's metadata"),
        pytest.param({"message": said(metadata={"batch": True})}, True, id="the message's metadata"),
        pytest.param({"message": said(metadata={"batch": True}), "metadata": {"batch": False}}, False, id="both"),
    ],
)
async def test_a_caller_says_that_nobody_waits_for_a_task(where: dict[str, Any], batch: bool) -> None:
    """
    By `metadata.batch`; the request's goes before the message's.
    """
    given = []

    class Noting(FakeEngine):
        async def start(self, *words: Any, **how: Any) -> TaskView:
            given.append(how["batch"])
            return await super().start(*words, **how)

    async with calling(a2a_app(Noting([skills.Echo]), [skills.Echo], Settings(url=BASE))) as calls:
        await calls.result("SendMessage", where)

    assert given == [batch]


async def test_a_batch_that_is_neither_true_nor_false_is_refused(gateway: Calls) -> None:
    """
    And nothing starts: a caller that meant something would not learn that it was ignored.
    """
    error = await gateway.error("SendMessage", {"message": said(), "metadata": {"skill": "ask", "batch": "yes"}})

    assert error["code"] == -32602
    assert "metadata.batch says whether nobody waits for the task, true or false; got 'yes'" in error["message"]


async def test_rest_has_the_skill_in_its_path(gateway: Calls) -> None:
    """
    As the tenant.
    """
    answer = await gateway.rest("POST", "/ask/message:send", {"message": said()})

    assert answer.json()["task"]["metadata"]["refold"]["skill"] == "ask"


async def test_the_only_skill_takes_every_message(fake: FakeEngine) -> None:
    """
    Nothing needs to be said then.
    """
    async with calling(a2a_app(fake, [skills.Echo], Settings(url=BASE))) as calls:
        task = await calls.send("Hello")

    assert task["metadata"]["refold"]["skill"] == "echo"


@pytest.mark.parametrize(
    ("text", "skill"), [pytest.param("echo this", "echo", id="echo"), pytest.param("ask me", "ask", id="ask")]
)
async def test_a_router_chooses(fake: FakeEngine, text: str, skill: str) -> None:
    """
    It is a skill of its own, so that a model may be asked.
    """
    async with calling(a2a_app(fake, [skills.Echo, skills.Ask], Settings(url=BASE), router="usher")) as calls:
        task = await calls.send(text)

    assert task["metadata"]["refold"]["skill"] == skill


async def test_a_router_may_ask_back(fake: FakeEngine) -> None:
    """
    The caller gets a message of the agent, in its conversation, and no task.
    """
    async with calling(a2a_app(fake, [skills.Echo, skills.Ask], Settings(url=BASE), router="usher")) as calls:
        result = await calls.result("SendMessage", {"message": said("Hm", contextId="c-1")})

    assert result["message"]["parts"] == [{"text": "What can I do for you?"}]
    assert (result["message"]["role"], result["message"]["contextId"]) == ("ROLE_AGENT", "c-1")


async def test_a_router_is_asked_once_for_each_key(fake: FakeEngine) -> None:
    """
    Whatever it would say by now: a model that chose another skill would start a second task. Another caller's key is
    another one, and each caller's messages are the work of an owner of their own.
    """
    words = iter(["echo", "ask", "ask"])

    @flow_skill(id="fickle")
    class Fickle:
        """Chooses anew each time."""

        @step(start=True)
        async def choose(self, ctx: Ctx, content: Content) -> Transition:
            return ctx.complete(Content.from_data({"skill": str(await ctx.tool("whim"))}))

    fake = FakeEngine([*skills.ALL, Fickle], answers={"whim": lambda _: next(words)})
    app = known(a2a_app(fake, [skills.Echo, skills.Ask], Settings(url=BASE), router="fickle"))
    async with calling(app) as calls:
        request = {"message": said("Hi")}
        one = await calls.result("SendMessage", request, **{"Idempotency-Key": "k", **as_("ada")})
        other_id = {"message": said("Hi", messageId="m-2")}
        again = await calls.result("SendMessage", other_id, **{"Idempotency-Key": "k", **as_("ada")})
        other = await calls.result("SendMessage", request, **{"Idempotency-Key": "k", **as_("bob")})
        wrong = await calls.error(
            "SendMessage", {"message": said("Something else")}, **{"Idempotency-Key": "k", **as_("ada")}
        )

    assert one["task"]["id"] == again["task"]["id"] != other["task"]["id"]
    assert "used before, for another message" in wrong["message"]
    routed = [len(await fake.find(TaskFilter(skill="fickle", owner=f"(router) {name}"))) for name in ("ada", "bob")]
    assert routed == [1, 1]


@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "k"}], ids=["without a key", "with a key"])
async def test_a_router_that_failed_is_no_fault_of_the_caller(key: dict[str, str]) -> None:
    """
    Who is told how to send the message again: under the same key the router has failed already.
    """
    fake = FakeEngine(skills.ALL)
    app = a2a_app(fake, [skills.Echo, skills.Ask], Settings(url=BASE), router="picky")
    async with calling(app) as calls:
        errors = [await calls.error("SendMessage", {"message": said("fail")}, **key) for _ in range(2)]

    assert {error["code"] for error in errors} == {-32603}
    assert all(("new Idempotency-Key" in error["message"]) is bool(key) for error in errors)
    assert all("it went wrong" not in error["message"] for error in errors)


class Slow:
    """A router that does not end; it notes that it began, and that nobody waits for it any more."""

    def __init__(self) -> None:
        self.began, self.left = asyncio.Event(), asyncio.Event()

    async def choose(self, message: FirstMessage) -> str:
        self.began.set()
        try:
            return await asyncio.Future[str]()
        finally:
            self.left.set()


@pytest.mark.parametrize("path", ["/message:send", "/message:stream"])
async def test_no_skill_is_chosen_for_a_caller_that_has_gone(fake: FakeEngine, path: str) -> None:
    """
    A router that is not done yet is left, and nothing is started.
    """
    slow = Slow()
    app = a2a_app(fake, [skills.Echo, skills.Ask], Settings(), router=slow)
    async with serving(app, free_socket()) as base, httpx.AsyncClient(timeout=60) as http, asyncio.timeout(60):
        call = asyncio.create_task(Calls(http, base).rest("POST", path, {"message": said()}))
        await slow.began.wait()
        call.cancel()
        await slow.left.wait()

    assert [view async for view in fake.list()] == []


class Doorman:
    """A router in Python: it keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[FirstMessage] = []

    async def choose(self, message: FirstMessage) -> str | Message:
        self.asked.append(message)
        return Message(message_id="r", role=Role.ROLE_AGENT, parts=[Part(text=f"Good day, {message.caller}.")])


async def test_a_router_sees_all_of_a_message(fake: FakeEngine) -> None:
    """
    Who says it, its id, its metadata and the request's, what it refers to, the extensions that are asked for, the key.
    """
    doorman = Doorman()
    app = known(a2a_app(fake, [skills.Echo, skills.Ask], Settings(url=BASE), router=doorman))
    message = said("Hi", messageId="m-7", contextId="c-1", metadata={"a": 1, "b": 1}, referenceTaskIds=["t-1"])
    async with calling(app) as calls:
        params = {"message": message, "metadata": {"b": 2}}
        headers = {"A2A-Extensions": "urn:x", "Idempotency-Key": "k-7"}
        result = await calls.result("SendMessage", params, **as_("ada"), **headers)

    assert result["message"]["parts"] == [{"text": "Good day, ada."}]
    assert doorman.asked == [
        FirstMessage(
            content=Content.from_text("Hi"),
            context="c-1",
            message_id="m-7",
            metadata={"a": 1, "b": 2},
            caller="ada",
            references=("t-1",),
            extensions=frozenset({"urn:x"}),
            key="k-7",
        )
    ]


# --- a message instead of a task

DIRECT = Settings(url=BASE, direct=("picky", "ask", "echo"))


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_a_skill_may_answer_with_a_message(fake: FakeEngine, method: str) -> None:
    """
    If it completes with its last words alone; the stream is of that message.
    """
    params = {"message": said("please", contextId="c-1"), "metadata": {"skill": "picky"}}
    async with calling(a2a_app(fake, skills.ALL, DIRECT)) as calls:
        if method == "SendMessage":
            told = [await calls.result(method, params)]
        else:
            async with opened(calls.http, calls.base, method, params) as events:
                told = [frame.data["result"] for frame in await events.rest()]

    (answer,) = told
    assert answer["message"]["parts"] == [{"text": "At your service."}]
    assert (answer["message"]["role"], answer["message"]["contextId"]) == ("ROLE_AGENT", "c-1")
    assert "taskId" not in answer["message"]


@pytest.mark.parametrize(
    ("skill", "text", "state"),
    [
        pytest.param("ask", "Hi", "TASK_STATE_INPUT_REQUIRED", id="it asks"),
        pytest.param("picky", "now", "TASK_STATE_REJECTED", id="it rejects"),
        pytest.param("picky", "fail", "TASK_STATE_FAILED", id="it fails"),
        pytest.param("echo", "Hi", "TASK_STATE_COMPLETED", id="it hands something over"),
    ],
)
@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_what_is_more_than_words_is_a_task(
    fake: FakeEngine, method: str, skill: str, text: str, state: str
) -> None:
    """
    Else the caller could not answer it, or would miss the result.
    """
    params = {"message": said(text), "metadata": {"skill": skill}}
    async with calling(a2a_app(fake, skills.ALL, DIRECT)) as calls:
        if method == "SendMessage":
            task = (await calls.result(method, params))["task"]
        else:
            async with opened(calls.http, calls.base, method, params) as events:
                task = (await events.rest())[0].told

    assert task["status"]["state"] == state


async def test_a_caller_that_does_not_wait_gets_the_task(fake: FakeEngine) -> None:
    """
    And so does one that answers a task's question.
    """
    async with calling(a2a_app(fake, skills.ALL, DIRECT)) as calls:
        params = {"message": said(), "metadata": {"skill": "wait"}, "configuration": {"returnImmediately": True}}
        task = (await calls.result("SendMessage", params))["task"]
        asked = await calls.send("Hi", metadata={"skill": "ask"})
        await calls.send("Ada", taskId=asked["id"])
        number = {"message": said(taskId=asked["id"], parts=[{"data": {"number": 2}}])}
        answer = await calls.result("SendMessage", number)

    assert task["status"]["state"] == "TASK_STATE_WORKING"
    assert answer["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_a_skill_rejects_at_its_first_step(gateway: Calls) -> None:
    """
    The task is there, rejected, and says why.
    """
    task = await gateway.send("Do it", metadata={"skill": "picky"})

    assert task["status"]["state"] == "TASK_STATE_REJECTED"
    assert task["status"]["message"]["parts"] == [{"text": "Say please."}]


# --- owners


async def test_a_task_is_its_owners_alone(callers: Calls) -> None:
    """
    For anybody else it does not exist, whatever they do with it.
    """
    result = await callers.result("SendMessage", {"message": said(), "metadata": {"skill": "ask"}}, **as_("ada"))
    id = result["task"]["id"]
    tried = [
        await callers.error("GetTask", {"id": id}, **as_("bob")),
        await callers.error("CancelTask", {"id": id}, **as_("bob")),
        await callers.error("SubscribeToTask", {"id": id}, **as_("bob")),
        await callers.error("SendMessage", {"message": said(taskId=id)}, **as_("bob")),
        await callers.error("GetTask", {"id": id}),
    ]

    assert {error["code"] for error in tried} == {-32001}
    assert (await callers.result("GetTask", {"id": id}, **as_("ada")))["id"] == id


async def test_a_private_skill_is_for_callers_that_are_known(callers: Calls) -> None:
    """
    The card that everybody reads leaves it out, and so does the gateway; the extended card has it.
    """
    public = (await callers.rest("GET", "/.well-known/agent-card.json")).json()
    extended = await callers.result("GetExtendedAgentCard", **as_("ada"))
    refused = await callers.error("SendMessage", {"message": said(), "metadata": {"skill": "files"}})
    unknown = await callers.error("GetExtendedAgentCard")
    task = await callers.result("SendMessage", {"message": said(), "metadata": {"skill": "files"}}, **as_("ada"))

    assert public["capabilities"]["extendedAgentCard"]
    assert "files" not in [skill["id"] for skill in public["skills"]]
    assert "files" in [skill["id"] for skill in extended["skills"]]
    assert (refused["code"], unknown["code"]) == (-32602, -32004)
    assert task["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


# --- content


async def test_files_and_data_go_both_ways(gateway: Calls) -> None:
    """
    By value and by address, with names and types; whole numbers stay whole.
    """
    task = await gateway.send(metadata={"skill": "files"})
    parts = task["artifacts"][0]["parts"]
    both = [{"text": "Hi"}, {"data": {"n": 7, "deep": [None, True]}}]
    echoed = await gateway.send(parts=both, metadata={"skill": "echo"})

    assert parts == [
        {"raw": "AP8=", "filename": "two.bin", "mediaType": "application/octet-stream"},
        {"url": "https://example.org/a.png", "mediaType": "image/png"},
        {"data": {"n": 7}},
    ]
    assert echoed["artifacts"][0]["parts"] == both


async def test_a_skill_gets_whole_numbers_as_ints(fake: FakeEngine, gateway: Calls) -> None:
    """
    An order's number is no 4711.0 in a prompt, and can be counted to. What has a fraction, or more digits than a double
    tells apart, stays a float.
    """
    data = {"order": 4711, "deep": [0, {"much": -(2**53)}], "more": 1e300, "half": 2.5}
    task = await gateway.send(parts=[{"data": data}], metadata={"skill": "echo"})
    record = await fake.record(task["id"])

    assert json.dumps(record.messages[0].content.data, sort_keys=True) == json.dumps(data, sort_keys=True)


@pytest.mark.parametrize("part", [{"data": None}, {"text": "hi", "data": None}], ids=["alone", "beside a text"])
async def test_data_that_is_null_is_refused_as_what_it_is(gateway: Calls, part: dict[str, Any]) -> None:
    """
    A2A's JSON reads a null there as data, which takes the place of the text before it.
    """
    error = (await gateway.rpc("SendMessage", {"message": said(parts=[part]), "metadata": {"skill": "echo"}}))["error"]

    assert error["code"] == -32602
    assert "parts[0].data is null" in error["message"]
    assert "leave `data` out" in error["message"]


@pytest.mark.parametrize("named", ["*", "*/*", "text/*", "[!x]*", "TEXT/*; charset=utf-8"])
async def test_a_pattern_is_no_media_type_of_a_part(gateway: Calls, named: str) -> None:
    """
    A part has one type, so a caller that names many gets no file to a skill that takes text and data.
    """
    message = said(parts=[{"raw": "AP8=", "mediaType": named}])
    refused = await gateway.error("SendMessage", {"message": message, "metadata": {"skill": "echo"}})

    assert refused["code"] == -32005


# --- repeated sends


async def test_a_send_with_a_key_may_be_repeated(gateway: Calls) -> None:
    """
    The second one is answered with the first one's task, also where the client, which is retried itself, has another id
    for the message; another body under the same key is refused; another key, or none, is another task.
    """
    request = {"message": said(), "metadata": {"skill": "ask"}}
    key = {"Idempotency-Key": "k-1"}
    first = await gateway.result("SendMessage", request, **key)
    second = await gateway.result("SendMessage", {**request, "message": said(messageId="m-2")}, **key)
    another = await gateway.error("SendMessage", {**request, "message": said("Something else")}, **key)
    fresh = await gateway.result("SendMessage", request, **{"Idempotency-Key": "k-2"})
    keyless = await gateway.result("SendMessage", request)

    assert first == second
    assert another["code"] == -32602
    assert len({result["task"]["id"] for result in (first, fresh, keyless)}) == 3


async def test_a_key_is_known_before_a_worker_has_taken_its_message(gateway: Calls, fake: FakeEngine) -> None:
    """
    Another message under it is refused also while no worker runs.
    """
    fake.worker = False
    at_once = {"returnImmediately": True}
    request = {"message": said(), "metadata": {"skill": "ask"}, "configuration": at_once}
    key = {"Idempotency-Key": "k-1"}
    first = await gateway.result("SendMessage", request, **key)

    assert await gateway.result("SendMessage", request, **key) == first
    another = await gateway.error("SendMessage", {**request, "message": said("Something else")}, **key)
    assert another["code"] == -32602


async def test_an_answer_with_a_key_may_be_repeated(gateway: Calls) -> None:
    """
    Also when the task has gone on, or ended, since.
    """
    task = await gateway.send(metadata={"skill": "ask"})
    answer = {"message": said("Ada", taskId=task["id"])}
    last = {"message": {**said(taskId=task["id"]), "parts": [{"data": {"number": 3}}]}}
    await gateway.result("SendMessage", answer, **{"Idempotency-Key": "a"})
    await gateway.result("SendMessage", last, **{"Idempotency-Key": "b"})
    other_id = {"message": said("Ada", taskId=task["id"], messageId="m-2")}
    again = await gateway.result("SendMessage", other_id, **{"Idempotency-Key": "a"})
    wrong = await gateway.error("SendMessage", last, **{"Idempotency-Key": "a"})

    assert again["task"]["status"]["message"]["parts"] == [{"text": "Ada: 3"}]
    assert [message["role"] for message in again["task"]["history"]].count("ROLE_USER") == 3
    assert wrong["code"] == -32602


@pytest.mark.parametrize("decision", ["approved", "denied"])
async def test_a_decision_with_a_key_may_be_repeated(gateway: Calls, decision: str) -> None:
    """
    It was taken, so whoever lost the answer gets the task, also where the task has ended since. The other decision is
    refused, and so is the same one without a key.
    """
    task = await bought(gateway, "tea")
    key = {"Idempotency-Key": "d"}
    other = "denied" if decision == "approved" else "approved"
    done = await gateway.result("SendMessage", deciding(task, decision=decision), **key)
    again = await gateway.result("SendMessage", deciding(task, decision=decision), **key)
    contrary = await gateway.error("SendMessage", deciding(task, decision=other), **key)
    stray = await gateway.error("SendMessage", deciding(task, gate=f"{task['id']}/1.7/1.1"), **key)
    keyless = await gateway.error("SendMessage", deciding(task, decision=decision))

    assert again == done
    assert {error["code"] for error in (contrary, stray, keyless)} == {-32004}


async def test_a_stream_of_a_repeated_decision_ends_where_the_task_waits() -> None:
    """
    As of every message that is sent again: the task waits at its other gate by now, and the decision's turn is over.
    """
    engine = FakeEngine([Several])
    async with calling(a2a_app(engine, [Several], Settings(url=BASE))) as calls:
        request = {"message": said(parts=[{"data": {"gates": [{}, {}]}}]), "metadata": {"skill": "several"}}
        task = (await calls.result("SendMessage", request))["task"]
        gate = next(part["data"] for part in task["status"]["message"]["parts"] if "data" in part)
        decision = {"message": said(taskId=task["id"], parts=[{"data": {**gate, "decision": "approved"}}])}
        key = {"Idempotency-Key": "d"}
        first = await calls.result("SendMessage", decision, **key)
        async with asyncio.timeout(5):
            again = await calls.rest("POST", "/message:stream", decision, **key)

    assert first["task"]["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert again.text.count("data: ") == 1


async def test_an_approver_may_repeat_a_decision(callers: Calls) -> None:
    """
    Although the task is another's, and shown to its approvers only while it asks them. Nobody else learns of it,
    whatever they claim to have decided.
    """
    task = await bought(callers, "yacht", **as_("ada"))
    key = {"Idempotency-Key": "d"}
    done = await callers.result("SendMessage", deciding(task), **key, **as_("boss"))
    again = await callers.result("SendMessage", deciding(task), **key, **as_("boss"))
    others = [
        await callers.error("SendMessage", deciding(task), **key, **as_("eve")),
        await callers.error("SendMessage", deciding(task, approver="boss"), **key, **as_("eve")),
        await callers.error("SendMessage", deciding(task, approver="boss"), **key),
        await callers.error("SendMessage", deciding(task, decision="denied"), **key, **as_("boss")),
        await callers.error("SendMessage", {"message": said(taskId=task["id"])}, **key, **as_("boss")),
        await callers.error("SendMessage", deciding({**task, "id": "none"}), **key, **as_("boss")),
        await callers.error("SendMessage", deciding(task), **as_("boss")),
    ]

    assert again == done
    assert {error["code"] for error in others} == {-32001}


@flow_skill(id="pay", description="Pays once the boss has approved it, and tells its owner.", input=skills.Order)
class Pay:
    @step(start=True)
    async def begin(self, ctx: Ctx, order: skills.Order) -> Transition:
        policy = GatePolicy(approvers=("boss",))
        return ctx.await_approval("pay", f"Pay {order.item}?", show=order.model_dump(), policy=policy, order=order)

    @step(resume_from="begin")
    async def paid(self, ctx: Ctx, order: skills.Order) -> Transition:
        ctx.say(f"I pay {order.item}.")
        ctx.say(f"Private: {await ctx.tool(skills.held, name=order.item)}")
        return ctx.complete(f"Private: {await ctx.tool(skills.held, name=order.item)}")


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_an_approver_sees_nothing_that_follows_its_decision(method: str) -> None:
    """
    Nor does it wait for that: the answer is the task as of the decision, also where the decision is sent again after
    the task's end. Its owner gets the rest.
    """
    fake = FakeEngine([Pay])
    async with calling(known(a2a_app(fake, [Pay], Settings(url=BASE)))) as calls:

        async def decided() -> str:
            headers = {"A2A-Version": "1.0", "Idempotency-Key": "d", **as_("boss")}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": deciding(task)}
            async with asyncio.timeout(5):
                answer = await calls.http.post(f"{BASE}/", json=body, headers=headers)
            return answer.text.partition("data: ")[2] if method == "SendStreamingMessage" else answer.text

        request = {"message": said(parts=[{"data": {"item": "yacht"}}])}
        task = (await calls.result("SendMessage", request, **as_("ada")))["task"]
        first = json.loads(await decided())["result"]["task"]
        await fake.reply(task["id"], "held", "one")
        between = json.loads(await decided())["result"]["task"]
        await fake.reply(task["id"], "held", "two")
        later = json.loads(await decided())["result"]["task"]
        owners = await calls.result("GetTask", {"id": task["id"]}, **as_("ada"))

    assert first == between == later
    assert first["status"]["state"] == "TASK_STATE_WORKING"
    assert [message["parts"][0] for message in first["history"]][-1] == {"text": "I pay yacht."}
    assert [message["parts"][0].get("text") for message in owners["history"]][-2:] == ["Private: one", "Private: two"]


class Absent(FakeEngine):
    """An engine that knows little of a task until it was asked for it so often while its worker is away."""

    away = 0

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        record = await super().record(task_id)
        if not self.away:
            return record
        self.away -= 1
        start = {"seq": 0, "messages": record.messages[:1], "artifacts": (), "waits": ()}
        return record.model_copy(update={**start, "note": "no worker answers"})

    async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""
        if self.away:
            raise NoWorker("no worker answers")
        async for entry in super().journal(task_id, after=after):
            yield entry


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway that waits for a worker for a moment only."""
    monkeypatch.setattr("refold.a2a.streams.patience.AGAIN_S", 0.001)
    monkeypatch.setattr("refold.a2a.streams.patience.WORKER_S", 0.1)


@pytest.mark.usefixtures("quick")
async def test_an_answer_that_is_sent_again_waits_for_the_worker() -> None:
    """
    Which alone knows that the task has taken it, and works on; without one, nobody says that the task takes nothing.
    """
    fake = Absent(skills.ALL)
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE))) as calls:
        task = await calls.send("Hi", metadata={"skill": "ask"})
        working = await calls.send("x", metadata={"skill": "wait"}, configuration={"returnImmediately": True})
        answer, key = {"message": said("Ada", taskId=task["id"])}, {"Idempotency-Key": "a"}
        first = await calls.result("SendMessage", answer, **key)
        fake.away = 3
        again = await calls.result("SendMessage", answer, **key)
        fake.away = 10_000
        refused = await calls.error("SendMessage", {"message": said(taskId=working["id"])}, **key)

    assert again == first
    assert refused["code"] == -32603
    assert "may still take what it was sent" in refused["message"]


@pytest.mark.usefixtures("quick")
async def test_a_decision_waits_for_the_worker() -> None:
    """
    Which alone knows that the gate needs a signature.
    """
    fake = Absent(skills.ALL)
    async with calling(known(a2a_app(fake, skills.ALL, Settings(url=BASE)))) as calls:
        task = await bought(calls, "yacht", **as_("boss"))
        fake.away = 3
        done = await calls.result("SendMessage", deciding(task), **as_("boss"))

    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.usefixtures("quick")
async def test_an_approver_waits_for_the_worker() -> None:
    """
    Which alone knows that the task asks it. If the worker stays away, the task is not found, as by a stranger.
    """
    fake = Absent(skills.ALL)
    async with calling(known(a2a_app(fake, skills.ALL, Settings(url=BASE)))) as calls:
        task = await bought(calls, "yacht", **as_("ada"))
        fake.away = 3
        seen = await calls.result("GetTask", {"id": task["id"]}, **as_("boss"))
        fake.away = 10_000
        late = await calls.error("GetTask", {"id": task["id"]}, **as_("boss"))
        fake.away = 3
        done = await calls.result("SendMessage", deciding(task), **as_("boss"))

    assert seen["status"] == task["status"]
    assert late["code"] == -32001
    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


@pytest.mark.usefixtures("quick")
async def test_a_stranger_learns_nothing_of_a_task_whose_worker_is_away() -> None:
    """
    Whatever it claims to have decided there, it gets the error of a task that does not exist.
    """
    fake = Absent(skills.ALL)
    async with calling(known(a2a_app(fake, skills.ALL, Settings(url=BASE)))) as calls:
        task = await bought(calls, "yacht", **as_("ada"))
        fake.away = 10_000
        claims = [deciding({**task, "id": id}) for id in (task["id"], "none")]
        theirs, none = [
            await calls.error("SendMessage", claim, **{"Idempotency-Key": "d", **as_("eve")}) for claim in claims
        ]

    assert theirs["code"] == none["code"] == -32001
    assert str(theirs).replace(task["id"], "none") == str(none)


async def test_keys_are_the_callers_own(callers: Calls) -> None:
    """
    Two callers may take the same one.
    """
    request = {"message": said(), "metadata": {"skill": "echo"}}
    one = await callers.result("SendMessage", request, **{"Idempotency-Key": "k", **as_("ada")})
    other = await callers.result("SendMessage", request, **{"Idempotency-Key": "k", **as_("bob")})

    assert one["task"]["id"] != other["task"]["id"]


@pytest.mark.parametrize("key", ["", "x" * 256, "two words"])
async def test_a_key_is_visible_ascii(gateway: Calls, key: str) -> None:
    """
    Anything else is a mistake that is told.
    """
    error = await gateway.error(
        "SendMessage", {"message": said(), "metadata": {"skill": "echo"}}, **{"Idempotency-Key": key}
    )

    assert error["code"] == -32602


# --- gates


async def bought(calls: Calls, item: str, **headers: str) -> Any:
    """A task that waits at its gate."""
    request = {"message": said(parts=[{"data": {"item": item}}]), "metadata": {"skill": "buy"}}
    return (await calls.result("SendMessage", request, **headers))["task"]


def deciding(task: Any, **more: Any) -> dict[str, Any]:
    """A message that decides at the task's gate, with what it showed."""
    (shown,) = [part["data"] for part in task["status"]["message"]["parts"] if "data" in part]
    return {"message": said(taskId=task["id"], parts=[{"data": {**shown, "decision": "approved", **more}}])}


async def test_a_gate_shows_what_is_decided_on_as_data(gateway: Calls) -> None:
    """
    Its id, a digest of what it shows, its kind, and the arguments; beside the question for people.
    """
    task = await bought(gateway, "tea")
    text, data = task["status"]["message"]["parts"]

    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert text == {"text": "Buy tea?"}
    assert data["data"].keys() == {"gate", "digest", "kind", "arguments"}
    assert (data["data"]["kind"], data["data"]["arguments"]) == ("approval", {"item": "tea"})


async def test_a_gate_may_ask_for_a_sign_in(gateway: Calls) -> None:
    """
    Then what is missing comes by another way, and the status says so.
    """
    task = await bought(gateway, "club card")
    done = await gateway.result("SendMessage", deciding(task))

    assert task["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"
    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


async def test_plain_text_passes_no_gate(gateway: Calls) -> None:
    """
    Whatever it says, it decides nothing.
    """
    task = await bought(gateway, "tea")
    error = await gateway.error("SendMessage", {"message": said("approved", taskId=task["id"])})
    after = await gateway.result("GetTask", {"id": task["id"]})

    assert error["code"] == -32004
    assert after["status"] == task["status"]


@pytest.mark.parametrize(("decision", "state"), [("approved", "TASK_STATE_COMPLETED"), ("denied", "TASK_STATE_FAILED")])
async def test_data_decides(gateway: Calls, decision: str, state: str) -> None:
    """
    What was shown, sent back with a decision.
    """
    task = await bought(gateway, "tea")
    done = await gateway.result("SendMessage", deciding(task, decision=decision))

    assert done["task"]["status"]["state"] == state


async def test_the_decisions_of_one_message_are_taken_together() -> None:
    """
    A data part for each gate: all of them, or none; those of two people are two messages.
    """
    engine = FakeEngine([Several])
    async with calling(a2a_app(engine, [Several], Settings(url=BASE))) as calls:
        request = {"message": said(parts=[{"data": {"gates": [{}, {}]}}]), "metadata": {"skill": "several"}}
        task = (await calls.result("SendMessage", request))["task"]
        shown = [part["data"] for part in task["status"]["message"]["parts"] if "data" in part]
        first, second = [{**one, "decision": "approved"} for one in shown]

        def both(**more: str) -> dict[str, Any]:
            return {"message": said(taskId=task["id"], parts=[{"data": first}, {"data": {**second, **more}}])}

        stale = await calls.error("SendMessage", both(digest="0" * 32))
        two = await calls.error("SendMessage", both(approver="bob"))
        assert (stale["code"], two["code"]) == (-32004, -32602)
        assert "none of the 2 decisions was taken" in stale["message"]
        assert len((await engine.look(task["id"])).waiting_for) == 2
        done = await calls.result("SendMessage", both(decision="denied"))

    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert (await engine.look(task["id"])).messages[-1].text == "g0 approved, g1 denied"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        pytest.param({"digest": "0" * 32}, -32004, id="what another gate showed"),
        pytest.param({"digest": ""}, -32004, id="nothing that a gate showed"),
        pytest.param({"gate": "none/1.1"}, -32004, id="another gate"),
        pytest.param({"decision": "maybe"}, -32602, id="no decision"),
        pytest.param({"sudo": True}, -32602, id="more than a decision"),
        pytest.param({"changes": {"item": "yacht"}}, -32004, id="what may not be changed"),
    ],
)
async def test_a_decision_that_does_not_fit_is_refused(gateway: Calls, change: dict[str, Any], code: int) -> None:
    """
    And the task waits on.
    """
    task = await bought(gateway, "tea")
    error = await gateway.error("SendMessage", deciding(task, **change))

    assert error["code"] == code, error
    assert (await gateway.result("GetTask", {"id": task["id"]}))["status"] == task["status"]


async def test_those_who_may_decide_see_the_gate_and_decide_in_their_own_name(callers: Calls) -> None:
    """
    The owner may not where it is not on the list; others do not find the task; nobody decides as somebody else.
    """
    task = await bought(callers, "yacht", **as_("ada"))
    seen = await callers.result("GetTask", {"id": task["id"]}, **as_("boss"))
    owner = await callers.error("SendMessage", deciding(task), **as_("ada"))
    claims = await callers.error("SendMessage", deciding(task, approver="boss"), **as_("ada"))
    stranger = await callers.error("SendMessage", deciding(task), **as_("eve"))
    chatty = await callers.error("SendMessage", {"message": said(taskId=task["id"])}, **as_("boss"))
    done = await callers.result("SendMessage", deciding(task), **as_("boss"))

    assert seen["status"] == task["status"]
    assert [error["code"] for error in (owner, claims, stranger, chatty)] == [-32004, -32004, -32001, -32004]
    assert done["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


# --- how long a call waits


async def test_a_call_may_return_at_once(gateway: Calls, fake: FakeEngine) -> None:
    """
    Where that is asked for, with the task as it is; its history cut where that is asked for, too.
    """
    configuration = {"returnImmediately": True, "historyLength": 0}
    task = await gateway.send("x", metadata={"skill": "wait"}, configuration=configuration)
    await fake.reply(task["id"], "held", "done")
    whole = await gateway.result("GetTask", {"id": task["id"]})
    last = await gateway.result("GetTask", {"id": task["id"], "historyLength": 1})

    assert (task["status"]["state"], "history" in task) == ("TASK_STATE_WORKING", False)
    assert whole["status"]["state"] == "TASK_STATE_COMPLETED"
    assert last["history"] == whole["history"][-1:]


async def test_cancel_stops_a_task(gateway: Calls) -> None:
    """
    Whether it works or waits; then it is canceled, and cannot be once more.
    """
    task = await gateway.send("x", metadata={"skill": "wait"}, configuration={"returnImmediately": True})
    canceled = await gateway.result("CancelTask", {"id": task["id"]})
    again = await gateway.error("CancelTask", {"id": task["id"]})

    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
    assert again["code"] == -32002


# --- messages to a task at work


async def test_a_message_to_a_task_at_work_may_be_kept(fake: FakeEngine) -> None:
    """
    Until the task asks: then it is answered at once.
    """
    app = a2a_app(fake, skills.ALL, Settings(url=BASE, on_busy="queue"))
    async with calling(app) as calls:
        later = {"returnImmediately": True}
        task = await calls.send("x", metadata={"skill": "later"}, configuration=later)
        kept = await calls.send("Ada", taskId=task["id"], configuration=later)
        await fake.reply(task["id"], "held", "x")
        done = await calls.result("GetTask", {"id": task["id"]})

    assert kept["status"]["state"] == "TASK_STATE_WORKING"
    assert done["status"]["state"] == "TASK_STATE_COMPLETED"
    assert [message["parts"][0]["text"] for message in done["history"]] == ["x", "Ada", "Who?", "Ada"]


async def test_a_message_may_interrupt_a_task_at_work() -> None:
    """
    A step that declares it meets the message at once; elsewhere it is kept.
    """
    served = [skills.Steered, skills.Later]
    app = a2a_app(FakeEngine(served), served, Settings(url=BASE, on_busy="interrupt"))
    async with calling(app) as calls:
        later = {"returnImmediately": True}
        task = await calls.send("x", metadata={"skill": "steered"}, configuration=later)
        met = await calls.send("enough", taskId=task["id"])
        held = await calls.send("x", metadata={"skill": "later"}, configuration=later)
        kept = await calls.send("Ada", taskId=held["id"], configuration=later)

    assert met["status"]["state"] == "TASK_STATE_COMPLETED"
    assert met["history"][-1]["parts"][0]["text"] == "Stopped: enough"
    assert kept["status"]["state"] == "TASK_STATE_WORKING"
