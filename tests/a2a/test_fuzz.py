"""Thousands of wrong and hostile calls over every binding: each is answered, none with an error of ours.

After each of them the callers' lists answer, and nobody has read what another said.
"""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.a2a import Settings, WebhookPush, a2a_app
from refold.effects.webhooks.post import Poster
from refold.effects.webhooks.ssrf import Screen
from refold.testing import FakeEngine
from refold.webhooks import Webhook
from tests.a2a import skills
from tests.a2a.conftest import BASE, said
from tests.a2a.tasks.test_push import Kept
from tests.a2a.tasks.test_sending import as_, known
from tests.sweeps import LONG_S, THOROUGH

EXAMPLES, MOST = 400, 3_500 if THOROUGH else 1_500
"""How many calls are made each time, over both bindings; and by the sweep, over each."""
PUBLIC = "https://93.184.216.34/hook"
SERVED = [skills.Echo, skills.Ask, skills.Buy, skills.Picky, skills.Files]

INSIDE = [
    "http://127.0.0.1/",
    "http://[::1]:9000/",
    "https://localhost/",
    "http://169.254.169.254/",
    "file:///etc/passwd",
]
"""Where nobody's webhook may lead."""

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from(["echo", "buy", "ROLE_AGENT", "TASK_STATE_WORKING", "../x", "1e999", "\x00", "' OR ''='"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def hostile(draw: st.DrawFn) -> Any:
    """What somebody would send on purpose: deep data, long names, control characters, numbers without end."""
    match draw(st.integers(0, 4)):
        case 0:
            value = draw(json_values)
            for as_list in draw(st.lists(st.booleans(), min_size=20, max_size=60)):
                value = [value] if as_list else {"a": value}
            return value
        case 1:
            return "x" * draw(st.sampled_from([255, 256, 257, 1000, 1001, 100_000]))
        case 2:
            return draw(st.text(alphabet="\r\n\x00\x7f\u202eé🙂", min_size=1, max_size=8))
        case 3:
            return draw(st.sampled_from(INSIDE))
        case _:
            return draw(st.sampled_from([2**63, -(2**63), 10**300, 1e308, -0.0, [[]] * 1000, {"": {}}]))


values = json_values | hostile()
REQUEST = {
    "message": said(contextId="c-1", metadata={"slot": "x"}, parts=[{"text": "Hi"}, {"data": {"n": 1}}]),
    "configuration": {"acceptedOutputModes": ["text/plain"], "historyLength": 2, "returnImmediately": True},
    "metadata": {"skill": "echo"},
}
OLD_REQUEST = {
    "message": {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "Hi"}]},
    "configuration": {"blocking": False, "historyLength": 1, "pushNotificationConfig": {"url": PUBLIC}},
    "metadata": {"skill": "echo"},
}
RPC = [
    ("1.0", "SendMessage", REQUEST),
    ("1.0", "SendMessage", {"message": said(taskId="TASK"), "metadata": {}}),
    ("1.0", "SendMessage", {"message": said(taskId="OPEN", parts=[{"data": {"gate": "x", "decision": "approved"}}])}),
    ("1.0", "SendStreamingMessage", REQUEST),
    ("1.0", "GetTask", {"id": "TASK", "historyLength": 1}),
    ("1.0", "ListTasks", {"contextId": "c", "status": "TASK_STATE_WORKING", "pageSize": 5, "pageToken": "x"}),
    ("1.0", "CancelTask", {"id": "TASK"}),
    ("1.0", "GetTask", {"id": "THEIRS"}),
    ("1.0", "CancelTask", {"id": "THEIRS"}),
    ("1.0", "SubscribeToTask", {"id": "THEIRS"}),
    ("1.0", "SendMessage", {"message": said(taskId="THEIRS")}),
    ("1.0", "ListTasks", {"contextId": "THEIRS", "includeArtifacts": True, "historyLength": 9}),
    ("1.0", "SubscribeToTask", {"id": "TASK"}),
    ("1.0", "CreateTaskPushNotificationConfig", {"taskId": "TASK", "url": PUBLIC, "id": "w"}),
    ("1.0", "CreateTaskPushNotificationConfig", {"taskId": "TASK", "url": INSIDE[0], "id": "w"}),
    ("1.0", "GetTaskPushNotificationConfig", {"taskId": "TASK", "id": "w"}),
    ("1.0", "ListTaskPushNotificationConfigs", {"taskId": "THEIRS", "pageSize": 5}),
    ("1.0", "DeleteTaskPushNotificationConfig", {"taskId": "TASK", "id": "w"}),
    ("1.0", "GetExtendedAgentCard", {}),
    ("", "message/send", OLD_REQUEST),
    ("", "message/stream", OLD_REQUEST),
    ("", "tasks/get", {"id": "TASK", "historyLength": 1}),
    ("", "tasks/cancel", {"id": "TASK"}),
    ("", "tasks/pushNotificationConfig/set", {"taskId": "TASK", "pushNotificationConfig": {"url": INSIDE[0]}}),
    ("", "tasks/resubscribe", {"id": "TASK"}),
]
REST = [
    ("POST", "/message:send", REQUEST),
    ("POST", "/message:stream", REQUEST),
    ("POST", "/echo/message:send", REQUEST),
    ("GET", "/tasks/THEIRS", None),
    ("POST", "/tasks/THEIRS:cancel", {}),
    ("GET", "/tasks?contextId=THEIRS&historyLength=9", None),
    ("GET", "/tasks/TASK?historyLength=1", None),
    ("GET", "/tasks?pageSize=5&status=TASK_STATE_WORKING&includeArtifacts=true", None),
    ("POST", "/tasks/TASK:cancel", {}),
    ("POST", "/tasks/TASK:subscribe", {}),
    ("POST", "/tasks/TASK/pushNotificationConfigs", {"url": PUBLIC}),
    ("GET", "/tasks/TASK/pushNotificationConfigs/w", None),
    ("DELETE", "/tasks/THEIRS/pushNotificationConfigs/w", None),
    ("POST", "/v1/message:send", {"message": {"messageId": "m", "role": "ROLE_USER", "content": [{"text": "Hi"}]}}),
    ("GET", "/v1/tasks/TASK", None),
    ("GET", "/v1/tasks/TASK?historyLength=5", None),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something is in a JSON value, the value itself first."""
    found = [path]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += places(inner, (*path, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, value: Any) -> Any:
    """The value with one to three things in it changed, gone, or added."""
    root = [copy.deepcopy(value)]
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(root)[1:] or [(0,)]))
        holder: Any = root
        for key in path[:-1]:
            holder = holder[key]
        match draw(st.sampled_from(["replace", "remove", "add"])):
            case "replace":
                holder[path[-1]] = draw(values)
            case "remove" if len(path) > 1:
                del holder[path[-1]]
            case _ if isinstance(holder, dict):
                holder[draw(st.text(max_size=8))] = draw(values)
            case _:
                holder[path[-1]] = draw(values)
    return root[0]


Call = tuple[str, str, bytes | None, str]
"""Verb, path, body, version."""


@st.composite
def wrong_rpc(draw: st.DrawFn) -> Call:
    version, method, params = draw(st.sampled_from(RPC))
    body = draw(mutated({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
    version = draw(st.sampled_from([version] * 8 + ["", "1.0", "0.3", "2.0", "x"]))
    return "POST", "/", draw(cut(body)), version


@st.composite
def wrong_rest(draw: st.DrawFn) -> Call:
    verb, path, params = draw(st.sampled_from(REST))
    path = draw(st.sampled_from([path, path + draw(st.text("ab&=?%1 é", max_size=5)), path.replace("5", "x")]))
    return verb, path, None if params is None else draw(cut(draw(mutated(params)))), "1.0"


@st.composite
def cut(draw: st.DrawFn, body: Any) -> bytes:
    """The value as JSON, now and then with its end gone."""
    raw = json.dumps(body).encode()
    return raw[: draw(st.integers(0, len(raw)))] + draw(st.binary(max_size=3)) if draw(st.integers(0, 9)) == 0 else raw


class Screened(Kept):
    """Webhooks in memory, that lead where a gateway's may lead."""

    async def check(self, task_id: str, webhook: Webhook) -> None:
        await POSTER.check(webhook)


POSTER = Poster(Screen())
SECRET = "the password is hunter2"
HOOKS = Screened()
APP = known(a2a_app(FakeEngine(SERVED), SERVED, Settings(url=BASE), push=WebhookPush(HOOKS)))
TASKS: dict[str, str] = {}
"""A task that has ended, one that waits at a gate, and one of another caller, by the names they have above."""


async def _make_tasks(http: httpx.AsyncClient) -> None:
    made = [
        ("TASK", "echo", {"text": "x"}, "bob"),
        ("OPEN", "buy", {"data": {"item": "tea"}}, "bob"),
        ("THEIRS", "ask", {"text": SECRET}, "ada"),
    ]
    for name, skill, part, owner in made:
        request = {"message": said(parts=[part]), "metadata": {"skill": skill}}
        answer = await http.post(f"{BASE}/message:send", json=request, headers={"A2A-Version": "1.0", **as_(owner)})
        TASKS[name] = answer.json()["task"]["id"]


async def is_told(call: Call) -> None:
    """No 500, no internal error, no stack trace, no hang, no word of another caller's; and the list answers."""
    verb, path, body, version = call
    async with httpx.AsyncClient(transport=httpx.ASGITransport(APP)) as http:
        if not TASKS:
            await _make_tasks(http)
        for name, id in TASKS.items():
            path = path.replace(name, id)
            body = body and body.replace(name.encode(), id.encode())
        headers = {"Content-Type": "application/json", **as_("bob")} | ({"A2A-Version": version} if version else {})
        async with asyncio.timeout(60):
            answer = await http.request(verb, f"{BASE}{path}", content=body, headers=headers)
        whose = {"A2A-Version": "1.0", **as_("bob")}
        listed = await http.get(f"{BASE}/tasks?historyLength=9&includeArtifacts=true&pageSize=20", headers=whose)

    assert answer.status_code < 500, answer.text
    assert "-32603" not in answer.text
    assert "Traceback" not in answer.text
    assert "/refold/" not in answer.text
    assert SECRET not in answer.text + listed.text
    assert listed.status_code == 200
    assert not {hook.url for hooks in HOOKS.by_task.values() for hook in hooks.values()} & set(INSIDE)
    assert TASKS["THEIRS"] not in HOOKS.by_task


ANY_SPEED: Any = {"suppress_health_check": list(HealthCheck)}


@pytest.mark.slow
@settings(max_examples=EXAMPLES, **ANY_SPEED)
@given(call=wrong_rpc() | wrong_rest())
async def test_a_wrong_call_is_told_what_is_wrong_with_it(call: Call) -> None:
    """
    Over both bindings; see `is_told`.
    """
    await is_told(call)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@settings(max_examples=MOST, **ANY_SPEED)
@given(call=wrong_rpc())
async def test_thousands_of_wrong_calls_by_json_rpc(call: Call) -> None:
    """
    With those by REST and by gRPC, more than ten thousand where there is time (REFOLD_SWEEP=all).
    """
    await is_told(call)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
@settings(max_examples=MOST, **ANY_SPEED)
@given(call=wrong_rest())
async def test_thousands_of_wrong_calls_by_rest(call: Call) -> None:
    """
    See `is_told`.
    """
    await is_told(call)
