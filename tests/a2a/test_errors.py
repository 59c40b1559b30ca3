"""Every error of the protocol, over JSON-RPC and REST, in 1.0 and in 0.3; and none that tells of our insides."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from refold.a2a import Settings, a2a_app
from refold.a2a.errors import as_a2a
from refold.a2a.settings import Extension
from refold.engine import EngineError, NotConnected, NoWorker, Taken, TaskFilter, TaskView
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, calling, said


@dataclass(frozen=True, kw_only=True)
class Case:
    """One call that is refused.

    Attributes:
        code: JSON-RPC's.
        status: HTTP's, over REST.
        reason: In `google.rpc.ErrorInfo`.
        method: JSON-RPC's; its 0.3 name where `old` is given.
        params: JSON-RPC's. `TASK` stands for a task that has ended, `OPEN` for one that asks, `BUSY` for one at work.
        rest: The same call over REST; None where there is none.
        body: Its body.
        old: The code that 0.3 tells; None where 0.3 has no such method.
    """

    code: int
    status: int
    reason: str
    method: str
    params: Any = field(default_factory=dict)
    rest: str | None = None
    body: Any = None
    old: int | None = None


NOT_FOUND: dict[str, Any] = {"code": -32001, "status": 404, "reason": "TASK_NOT_FOUND"}
UNSUPPORTED: dict[str, Any] = {"code": -32004, "status": 400, "reason": "UNSUPPORTED_OPERATION"}
INVALID: dict[str, Any] = {"code": -32602, "status": 400, "reason": "INVALID_PARAMS"}
NO_PUSH: dict[str, Any] = {"code": -32003, "status": 400, "reason": "PUSH_NOTIFICATION_NOT_SUPPORTED"}
CONTENT: dict[str, Any] = {"code": -32005, "status": 400, "reason": "CONTENT_TYPE_NOT_SUPPORTED"}
NOT_CANCELABLE: dict[str, Any] = {"code": -32002, "status": 400, "reason": "TASK_NOT_CANCELABLE"}


def send(**message: Any) -> dict[str, Any]:
    """The same message over both."""
    request = {"message": said(**message), "metadata": {"skill": "echo"}}
    return {"method": "SendMessage", "params": request, "rest": "POST /message:send", "body": request}


def sends(request: dict[str, Any]) -> dict[str, Any]:
    return {"method": "SendMessage", "params": request, "rest": "POST /message:send", "body": request}


CASES = {
    "get an unknown task": Case(
        **NOT_FOUND, method="GetTask", params={"id": "none"}, rest="GET /tasks/none", old=-32001
    ),
    "get without an id": Case(**INVALID, method="GetTask"),
    "get a negative history": Case(
        **INVALID,
        method="GetTask",
        params={"id": "TASK", "historyLength": -1},
        rest="GET /tasks/TASK?historyLength=-1",
    ),
    "cancel an unknown task": Case(
        **NOT_FOUND, method="CancelTask", params={"id": "none"}, rest="POST /tasks/none:cancel", old=-32001
    ),
    "cancel an ended task": Case(
        **NOT_CANCELABLE, method="CancelTask", params={"id": "TASK"}, rest="POST /tasks/TASK:cancel", old=-32002
    ),
    "subscribe to an unknown task": Case(
        **NOT_FOUND, method="SubscribeToTask", params={"id": "none"}, rest="POST /tasks/none:subscribe"
    ),
    "subscribe to an ended task": Case(
        **UNSUPPORTED, method="SubscribeToTask", params={"id": "TASK"}, rest="GET /tasks/TASK:subscribe"
    ),
    "answer an unknown task": Case(**NOT_FOUND, **send(taskId="none")),
    "answer an ended task": Case(**UNSUPPORTED, **send(taskId="TASK")),
    "answer a task at work": Case(**UNSUPPORTED, **send(taskId="BUSY")),
    "answer in another context": Case(**INVALID, **send(taskId="OPEN", contextId="another")),
    "send no message": Case(**INVALID, **sends({})),
    "send no parts": Case(**INVALID, **send(parts=[])),
    "send an empty part": Case(**INVALID, **send(parts=[{}])),
    "send a part of null": Case(**INVALID, **send(parts=[{"data": None}])),
    "send a file that is not base64": Case(**INVALID, **send(parts=[{"text": "Hello"}, {"raw": "***"}])),
    "send a file that is partly base64": Case(**INVALID, **send(parts=[{"raw": "aGk=garbage"}])),
    "send without a message id": Case(**INVALID, **send(messageId="")),
    "send without a role": Case(**INVALID, **send(role="ROLE_UNSPECIFIED")),
    "send in the agent's name": Case(**INVALID, **send(role="ROLE_AGENT")),
    "send what the skill does not take": Case(
        **CONTENT, **send(parts=[{"url": "https://example.org/a.png", "mediaType": "image/png"}])
    ),
    "send, and read only images": Case(
        **CONTENT,
        **sends(
            {"message": said(), "configuration": {"acceptedOutputModes": ["image/png"]}, "metadata": {"skill": "echo"}}
        ),
    ),
    "send to no skill": Case(**INVALID, **sends({"message": said()})),
    "send to an unknown skill": Case(**INVALID, **sends({"message": said(), "metadata": {"skill": "none"}})),
    "send to a skill that is a number": Case(**INVALID, **sends({"message": said(), "metadata": {"skill": 7}})),
    "send data that does not fit": Case(
        **INVALID, **sends({"message": said(parts=[{"data": {"no": 1}}]), "metadata": {"skill": "buy"}})
    ),
    "send with a negative history": Case(
        **INVALID,
        **sends({"message": said(), "configuration": {"historyLength": -1}, "metadata": {"skill": "echo"}}),
    ),
    "send with a webhook": Case(
        **NO_PUSH,
        **sends(
            {
                "message": said(),
                "configuration": {"taskPushNotificationConfig": {"url": "https://example.org"}},
                "metadata": {"skill": "echo"},
            }
        ),
    ),
    "list too many": Case(**INVALID, method="ListTasks", params={"pageSize": 101}, rest="GET /tasks?pageSize=101"),
    "list none": Case(**INVALID, method="ListTasks", params={"pageSize": 0}, rest="GET /tasks?pageSize=0"),
    "create a webhook": Case(
        **NO_PUSH,
        method="CreateTaskPushNotificationConfig",
        params={"taskId": "TASK", "url": "https://example.org"},
        rest="POST /tasks/TASK/pushNotificationConfigs",
        body={"url": "https://example.org"},
    ),
    "get a webhook": Case(
        **NO_PUSH,
        method="GetTaskPushNotificationConfig",
        params={"taskId": "TASK", "id": "w"},
        rest="GET /tasks/TASK/pushNotificationConfigs/w",
    ),
    "list webhooks": Case(
        **NO_PUSH,
        method="ListTaskPushNotificationConfigs",
        params={"taskId": "TASK"},
        rest="GET /tasks/TASK/pushNotificationConfigs",
    ),
    "delete a webhook": Case(
        **NO_PUSH,
        method="DeleteTaskPushNotificationConfig",
        params={"taskId": "TASK", "id": "w"},
        rest="DELETE /tasks/TASK/pushNotificationConfigs/w",
    ),
    "get a card that there is not": Case(
        **UNSUPPORTED, method="GetExtendedAgentCard", rest="GET /extendedAgentCard", old=-32004
    ),
}
OLD = {
    "GetTask": "tasks/get",
    "CancelTask": "tasks/cancel",
    "GetExtendedAgentCard": "agent/getAuthenticatedExtendedCard",
}


@pytest.fixture
async def tasks(fake: FakeEngine, gateway: Calls) -> dict[str, str]:
    """A task that has ended, one that asks, and one at work, by the names they have in the cases."""
    ended = await gateway.send("Hello", metadata={"skill": "echo"})
    asks = await gateway.send("Hello", metadata={"skill": "ask"})
    busy = await gateway.send("x", metadata={"skill": "wait"}, configuration={"returnImmediately": True})
    return {"TASK": ended["id"], "OPEN": asks["id"], "BUSY": busy["id"]}


def with_tasks(value: Any, tasks: dict[str, str]) -> Any:
    """The value, with the tasks' ids in place of their names."""
    text = json.dumps(value)
    for name, id in tasks.items():
        text = text.replace(name, id)
    return json.loads(text)


@pytest.mark.parametrize("name", CASES)
async def test_json_rpc_tells_the_error(name: str, gateway: Calls, tasks: dict[str, str]) -> None:
    """
    Its code, and as data the reason, in the protocol's domain.
    """
    case = CASES[name]
    error = await gateway.error(case.method, with_tasks(case.params, tasks))

    assert (error["code"], error["data"][0]["reason"]) == (case.code, case.reason), error
    assert error["data"][0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert error["data"][0]["domain"] == "a2a-protocol.org"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.rest])
async def test_rest_tells_the_error(name: str, gateway: Calls, tasks: dict[str, str]) -> None:
    """
    As HTTP's status, with the same reason.
    """
    case = CASES[name]
    assert case.rest is not None
    verb, path = with_tasks(case.rest, tasks).split(" ")
    answer = await gateway.rest(verb, path, with_tasks(case.body, tasks))

    assert answer.status_code == case.status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["details"][0]["reason"]) == (case.status, case.reason)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.old])
async def test_version_0_3_tells_the_error(name: str, gateway: Calls, tasks: dict[str, str]) -> None:
    """
    Under its own method names, without a version header.
    """
    case = CASES[name]
    gateway.headers = {}
    error = await gateway.error(OLD[case.method], with_tasks(case.params, tasks))

    assert error["code"] == case.old, error


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param(b"{", -32700, id="no JSON"),
        pytest.param(b"[]", -32600, id="a list"),
        pytest.param(b"7", -32600, id="a number"),
        pytest.param(b"null", -32600, id="null"),
        pytest.param(b'[{"jsonrpc":"2.0","id":1,"method":"GetTask"}]', -32600, id="a batch"),
        pytest.param(b'{"id":1,"method":"GetTask"}', -32600, id="no version"),
        pytest.param(b'{"jsonrpc":"1.0","id":1,"method":"GetTask"}', -32600, id="another version"),
        pytest.param(b'{"jsonrpc":"2.0","id":1}', -32600, id="no method"),
        pytest.param(b'{"jsonrpc":"2.0","id":{},"method":"GetTask"}', -32600, id="an id that is an object"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"Nothing"}', -32601, id="an unknown method"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":[]}', -32602, id="params that are a list"),
        pytest.param(b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":7}}', -32602, id="an id of 7"),
    ],
)
async def test_what_is_no_call_is_told_so(body: bytes, code: int, gateway: Calls) -> None:
    """
    With the code that JSON-RPC has for it.
    """
    headers = {"Content-Type": "application/json", **gateway.headers}
    answer = await gateway.http.post(f"{gateway.base}/", content=body, headers=headers)

    assert answer.status_code in (200, 400)
    assert answer.json()["error"]["code"] == code, answer.text
    assert "Traceback" not in answer.text


FILE = said(parts=[{"raw": "***", "mediaType": "text/plain"}])
OLD_PARTS = [{"kind": "file", "file": {"bytes": "***"}}]
OLD_FILE = {"kind": "message", "messageId": "m-1", "role": "user", "parts": OLD_PARTS}


@pytest.mark.parametrize(
    ("path", "version", "call"),
    [
        ("/", "1.0", {"id": 7, "method": "SendStreamingMessage", "params": {"message": FILE}}),
        ("/", "0.3", {"id": 7, "method": "message/send", "params": {"message": OLD_FILE}}),
        ("/message:stream", "1.0", {"message": FILE}),
        ("/echo/message:send", "1.0", {"message": FILE}),
        ("/v1/message:send", "0.3", {"message": {"role": "ROLE_USER", "content": [{"file": {"fileWithBytes": "*"}}]}}),
        ("/v1/message:send", "0.3", {"request": {"role": "ROLE_USER", "content": [{"file": {"fileWithBytes": "*"}}]}}),
        ("/v1/message:send", "0.3", {"message": {"content": [{"file": {"file_with_bytes": "*"}}]}}),
        ("/v1/message:send", "0.3", {"request": {"content": [{"file": {"fileWithBytes": "aGVsbG8gQWRh"}}]}}),
    ],
)
async def test_a_file_that_is_not_base64_is_named(path: str, version: str, call: Any, gateway: Calls) -> None:
    """
    In every version and binding: protobuf's parser would skip what is no base64, and take the rest.
    """
    body = {"jsonrpc": "2.0", **call}
    answer = await gateway.http.post(f"{gateway.base}{path}", json=body, headers={"A2A-Version": version})

    told = answer.json()
    assert "parts[0] has a file that is not base64" in told["error"]["message"]
    assert (answer.status_code, told.get("id")) == ((200, 7) if path == "/" else (400, None))


@pytest.mark.timeout(60)
async def test_a_file_of_blanks_is_refused_at_once(gateway: Calls) -> None:
    """
    Each character is looked at once. In the square of their number, these would take seven minutes, and the gateway
    would answer nobody meanwhile.
    """
    refused = await gateway.error("SendMessage", {"message": said(parts=[{"raw": " " * 200_000 + "!"}])})

    assert "parts[0] has a file that is not base64" in refused["message"]


@pytest.mark.parametrize("raw", ["aGk=", "aGk", "_-__", "a\nGk=\n", ""])
async def test_every_form_of_base64_is_taken(raw: str, gateway: Calls) -> None:
    """
    Without padding, for addresses, in lines; and a file may be empty.
    """
    sent = await gateway.result(
        "SendMessage", {"message": said(parts=[{"raw": raw, "mediaType": "text/plain"}]), "metadata": {"skill": "echo"}}
    )

    assert sent["task"]["status"]["state"] == "TASK_STATE_COMPLETED"


RAW = b"Ada" * 4 + b"\xff\xff\xff\xfb\xef\xbe!"  # still base64 if a parser skips the eight characters that differ
URL_SAFE = base64.urlsafe_b64encode(RAW).decode()
STANDARD = base64.b64encode(RAW).decode()


@pytest.mark.parametrize("text", [STANDARD, URL_SAFE, URL_SAFE.rstrip("="), f"{STANDARD[:8]}\n{STANDARD[8:]}"])
async def test_a_file_is_taken_whole_or_not_at_all(text: str, gateway: Calls) -> None:
    """
    Over each version and binding: parsers skip what they do not know, and take the rest for the file.
    """

    def twice(file: str) -> str:
        return base64.b64encode(file.encode()).decode()

    metadata = {"skill": "copy"}
    old = {"kind": "message", "messageId": "m-1", "role": "user"}
    old_call = {"message": {**old, "parts": [{"kind": "file", "file": {"bytes": text}}]}, "metadata": metadata}
    old_rest = {"messageId": "m-1", "role": "ROLE_USER", "content": [{"file": {"fileWithBytes": twice(text)}}]}
    sent = [
        await gateway.rpc("SendMessage", {"message": said(parts=[{"raw": text}]), "metadata": metadata}),
        await gateway.rpc("message/send", old_call, **{"A2A-Version": "0.3"}),
        (
            await gateway.rest(
                "POST", "/v1/message:send", {"request": old_rest, "metadata": metadata}, **{"A2A-Version": "0.3"}
            )
        ).json(),
    ]

    refused = ["error" in one for one in sent]
    assert refused == ([False, False, False] if "+" in text else [False, True, True])
    for one, whole in zip(sent, (STANDARD, STANDARD, twice(STANDARD)), strict=True):
        task = one.get("result", one)
        assert "error" in one or f'"{whole}"' in json.dumps(task.get("task", task)["artifacts"])


async def test_what_is_no_json_is_of_the_wrong_type(gateway: Calls) -> None:
    """
    JSON-RPC is JSON; a body of another type is not read.
    """
    headers = {"Content-Type": "text/plain", **gateway.headers}
    answer = await gateway.http.post(f"{gateway.base}/", content=b"{}", headers=headers)

    assert answer.status_code == 415


@pytest.mark.parametrize("path", ["/message:send", "/message:stream", "/v1/message:send", "/v1/message:stream"])
async def test_rest_tells_of_a_body_that_is_no_json(gateway: Calls, path: str) -> None:
    """
    The call was wrong, not the agent.
    """
    headers = {"Content-Type": "application/json", "A2A-Version": "0.3" if path.startswith("/v1") else "1.0"}
    answer = await gateway.http.post(f"{gateway.base}{path}", content=b"{", headers=headers)

    assert answer.status_code == 400
    assert answer.json()["error"]["status"] == "INVALID_ARGUMENT"


@pytest.mark.parametrize(
    ("verb", "path", "status"),
    [("GET", "/nothing", 404), ("GET", "/echo/nothing", 404), ("DELETE", "/tasks/x", 404), ("GET", "/", 405)],
)
async def test_what_is_not_there_is_told_as_json(gateway: Calls, verb: str, path: str, status: int) -> None:
    """
    An unknown address, and a verb that an address does not know.
    """
    answer = await gateway.rest(verb, path)

    assert answer.status_code == status
    assert answer.json()["error"]["details"][0]["reason"] == "METHOD_NOT_FOUND"
    assert ("allow" in answer.headers) is (status == 405)


async def test_a_stream_of_0_3_that_does_not_begin_is_an_error(gateway: Calls, tasks: dict[str, str]) -> None:
    """
    Over REST, too: not a stream that breaks off.
    """
    gateway.headers = {}
    unknown = await gateway.rest("GET", "/v1/tasks/nobody:subscribe")
    ended = await gateway.rest("GET", f"/v1/tasks/{tasks['TASK']}:subscribe")
    unfit = await gateway.rest("POST", "/v1/message:stream", {"message": {"messageId": "m", "role": "ROLE_USER"}})

    answers = [
        (answer.status_code, answer.json()["error"]["details"][0]["reason"]) for answer in (unknown, ended, unfit)
    ]
    assert answers == [(404, "TASK_NOT_FOUND"), (400, "UNSUPPORTED_OPERATION"), (400, "INVALID_PARAMS")]


async def test_the_version_may_be_a_part_of_the_address(gateway: Calls) -> None:
    """
    For callers that set no headers; a header comes first.
    """
    gateway.headers = {}
    rest = await gateway.rest("GET", "/tasks?A2A-Version=1.0")
    header = await gateway.rest("GET", "/tasks?A2A-Version=1.0", **{"A2A-Version": "2.0"})

    assert (rest.status_code, header.status_code) == (200, 400)


async def test_a_version_that_is_not_spoken_is_refused(gateway: Calls) -> None:
    """
    1.0 methods under 1.0 only, and 0.3's under 0.3 only.
    """
    newer = await gateway.error("GetTask", {"id": "x"}, **{"A2A-Version": "2.0"})
    rest = await gateway.rest("GET", "/tasks/x", **{"A2A-Version": "2.0"})

    assert newer["code"] == -32009
    assert (rest.status_code, rest.json()["error"]["details"][0]["reason"]) == (400, "VERSION_NOT_SUPPORTED")


@pytest.mark.parametrize("method", ["tasks/get", "message/send", "message/stream", "tasks/pushNotificationConfig/get"])
async def test_a_method_of_0_3_in_a_call_of_1_0_is_refused(method: str, gateway: Calls) -> None:
    """
    As the caller's mistake, with the way out; and so is one of 1.0 in a call that says no version, which is one of 0.3.
    """
    params = {"message": said("Hello"), "id": "x"}
    newer = await gateway.error(method, params)
    in_address = await gateway.http.post(f"{BASE}/?A2A-Version=1.0", json={"jsonrpc": "2.0", "id": 1, "method": method})
    gateway.headers = {}
    older = await gateway.error("GetTask", {"id": "x"})

    assert (newer["code"], in_address.json()["error"]["code"], older["code"]) == (-32009, -32009, -32009)
    assert f"{method!r} is a method of A2A 0.3; leave A2A-Version out" in newer["message"]
    assert "'GetTask' is a method of A2A 1.0; send the header A2A-Version: 1.0" in older["message"]


async def test_without_0_3_its_methods_are_unknown(fake: FakeEngine) -> None:
    """
    Nobody is sent back to a version that is not served.
    """
    async with calling(a2a_app(fake, skills.ALL, Settings(url=BASE, serves_0_3=False))) as calls:
        assert (await calls.error("tasks/get", {"id": "x"}))["code"] == -32601


async def test_an_extension_may_be_required(fake: FakeEngine) -> None:
    """
    Whoever does not name it is refused before anything is done; the card says which one it is.
    """
    uri = "https://example.org/ext"
    settings = Settings(url=BASE, extensions=(Extension(uri=uri, required=True),))
    async with calling(a2a_app(fake, [skills.Echo], settings)) as calls:
        error = await calls.error("SendMessage", {"message": said()})
        task = await calls.result("SendMessage", {"message": said()}, **{"A2A-Extensions": uri})
        card = (await calls.rest("GET", "/.well-known/agent-card.json")).json()

        asked = {"A2A-Extensions": f"{uri}, urn:unknown"}
        answer = await calls.rest("GET", f"/tasks/{task['task']['id']}", **asked)
        refusals = [
            await calls.rest("POST", "/message:send", {"message": said()}),
            await calls.rest("POST", "/message:stream", {"message": said()}),
            await calls.rest("GET", "/tasks"),
        ]

    assert answer.headers["a2a-extensions"] == uri
    assert {refusal.status_code for refusal in refusals} == {400}
    assert (error["code"], error["data"][0]["reason"]) == (-32008, "EXTENSION_SUPPORT_REQUIRED")
    assert task["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    assert card["capabilities"]["extensions"] == [{"uri": uri, "required": True}]


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(NotConnected("no Temporal server answers at 10.0.0.7:7233"), id="no server"),
        pytest.param(NoWorker("no worker on task queue 'secret'"), id="no worker"),
        pytest.param(EngineError("the disk /var/lib/secret is full"), id="trouble"),
    ],
)
async def test_trouble_inside_is_nobody_elses(fault: EngineError, gateway: Calls, fake: FakeEngine) -> None:
    """
    The caller hears that something is wrong, over every way of calling, and no more.
    """
    fake.fault = fault
    rpc = await gateway.error("GetTask", {"id": "x"})
    rest = await gateway.rest("GET", "/tasks/x")
    old = Calls(gateway.http, gateway.base, {})
    older = await old.error("tasks/get", {"id": "x"})

    assert (rpc["code"], rest.status_code, older["code"]) == (-32603, 500, -32603)
    for told in (json.dumps(rpc), rest.text, json.dumps(older)):
        assert "10.0.0.7" not in told
        assert "secret" not in told
        assert "Traceback" not in told


@pytest.mark.parametrize("method", ["SendMessage", "CancelTask"])
async def test_what_a_worker_may_still_take_is_not_sent_again(method: str, gateway: Calls, fake: FakeEngine) -> None:
    """
    The server keeps an answer, or the request to cancel, for the worker that comes back.
    """
    task = await gateway.send(metadata={"skill": "ask"})
    fake.worker = False
    params = {"id": task["id"]} if method == "CancelTask" else {"message": said("Ada", taskId=task["id"])}
    error = await gateway.error(method, params)

    assert error["code"] == -32603
    assert "look at the task before you send it again" in error["message"]


class Leaving(FakeEngine):
    """An engine whose server goes away under a call, once the task has taken what the call sent.

    Attributes:
        leaves: Whether it does so with the next call.
        known: Whether the engine knows that the task has taken it.
    """

    leaves = False
    known = False

    async def start(self, *words: Any, **how: Any) -> TaskView:
        """See `Engine.start`."""
        return self._left(await super().start(*words, **how))

    async def send(self, *words: Any, **how: Any) -> TaskView:
        """See `Engine.send`."""
        return self._left(await super().send(*words, **how))

    async def decide_together(self, *words: Any, **how: Any) -> TaskView:
        """See `Engine.decide_together`."""
        return self._left(await super().decide_together(*words, **how))

    def _left(self, view: TaskView) -> TaskView:
        if self.leaves:
            self.fault = NotConnected("the Temporal server does not answer")
            raise Taken("the task has taken it") if self.known else self.fault
        return view


@pytest.mark.parametrize("what", ["start", "answer", "decision"])
async def test_what_a_server_may_have_taken_is_not_sent_again(what: str) -> None:
    """
    The error names the task, which the caller of a new one has not seen yet, and says to look first.
    """
    engine = Leaving(skills.ALL)
    async with calling(a2a_app(engine, skills.ALL, Settings(url=BASE))) as calls:
        order = said(parts=[{"data": {"item": "tea"}}])
        params: Any = {"message": order, "metadata": {"skill": "buy"}}
        if what == "answer":
            task = await calls.send(metadata={"skill": "ask"})
            params = {"message": said("Ada", taskId=task["id"])}
        elif what == "decision":
            task = (await calls.result("SendMessage", params))["task"]
            (shown,) = [part["data"] for part in task["status"]["message"]["parts"] if "data" in part]
            params = {"message": said(taskId=task["id"], parts=[{"data": {**shown, "decision": "approved"}}])}
        engine.leaves = True
        error = await calls.error("SendMessage", params)
        engine.fault = None
        (task_id,) = [one.task_id for one in await engine.find(TaskFilter())]

    assert error["code"] == -32603
    assert f"Task '{task_id}' may have taken the message: get the task before you send" in error["message"]


async def test_what_a_task_is_known_to_have_taken_is_said_to_be_taken() -> None:
    """
    The engine knows that the task has taken the answer, and not how the task stands now.
    """
    engine = Leaving(skills.ALL)
    engine.known = True
    async with calling(a2a_app(engine, skills.ALL, Settings(url=BASE))) as calls:
        task = await calls.send(metadata={"skill": "ask"})
        engine.leaves = True
        error = await calls.error("SendMessage", {"message": said("Ada", taskId=task["id"])})

    assert error["code"] == -32603
    assert f"Task '{task['id']}' has taken the message" in error["message"]
    assert "do not send the message again" in error["message"]


def test_the_number_of_an_internal_error_is_in_the_log() -> None:
    """
    In the same event and field as where a request fails before it reaches a method.
    """
    structlog.reset_defaults()
    with capture_logs() as logs:
        told = as_a2a(RuntimeError("hunter2"))

    [line] = [line for line in logs if line["event"] == "request_failed"]
    assert told.message.endswith(f"in the log as {line['reference']}")
    assert "hunter2" not in told.message
