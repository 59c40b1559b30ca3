"""Requests that are hostile, each over real HTTP: refused before anything is done, and nobody else notices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from refold import Artifact, Content, Ctx, Part, Transition, flow_skill, step
from refold.a2a import Settings, a2a_app
from refold.a2a.convert import parts_of
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import Calls, free_socket, said, serving

pytestmark = pytest.mark.slow


def nested(levels: int, *, lists: bool = False) -> Any:
    """Data of so many levels: objects, or lists."""
    value: Any = 1
    for _ in range(levels):
        value = [value] if lists else {"a": value}
    return value


@flow_skill(id="deep", description="Hands over data of as many levels as it is told, in all ways that there are.")
class Deep:
    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        levels, _, lists = content.text.partition(" ")
        data = 10 ** int(levels[1:]) if levels.startswith("e") else nested(int(levels), lists=bool(lists))
        ctx.say(Content.from_data(data))
        ctx.hand_over(Artifact.from_data("deep", data))
        return ctx.await_approval("gate", "All right?", show={"data": data})

    @step(resume_from="begin")
    async def end(self, ctx: Ctx) -> Transition:
        return ctx.complete("done")


SERVED = [*skills.ALL, Deep]


@pytest.fixture
async def calls() -> AsyncIterator[Calls]:
    """Calls to a gateway on a port."""
    sock = free_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    app = a2a_app(FakeEngine(SERVED), SERVED, Settings(url=url))
    async with serving(app, sock), httpx.AsyncClient(timeout=60) as http:
        yield Calls(http, url)


# --- depth


@pytest.mark.parametrize("lists", [False, True])
@pytest.mark.parametrize("levels", [31, 33, 40, 47, 48])
async def test_data_that_the_protocol_cannot_carry_is_refused(calls: Calls, levels: int, *, lists: bool) -> None:
    """
    No task is started, and the caller's list answers as before.
    """
    params = {"message": said(parts=[{"data": nested(levels, lists=lists)}]), "metadata": {"skill": "echo"}}
    error = await calls.error("SendMessage", params)

    assert error["code"] == -32602
    assert "30 levels" in error["message"]
    assert (await calls.result("ListTasks"))["tasks"] == []


@pytest.mark.parametrize("lists", [False, True])
async def test_data_of_the_greatest_depth_comes_back(calls: Calls, *, lists: bool) -> None:
    """
    30 levels pass every method as they came.
    """
    deep = nested(30, lists=lists)
    params = {"message": said(parts=[{"data": deep}]), "metadata": {"skill": "echo"}}
    task = (await calls.result("SendMessage", params))["task"]
    listed = (await calls.result("ListTasks", {"includeArtifacts": True, "historyLength": 9}))["tasks"]

    assert task["artifacts"][0]["parts"][0]["data"] == deep
    assert listed[0]["history"][0]["parts"][0]["data"] == deep


@pytest.mark.parametrize("what", ["29", "31", "33", "47", "90", "47 lists", "90 lists", "e400"])
async def test_what_a_skill_hands_over_is_shown_whatever_it_is(calls: Calls, what: str) -> None:
    """
    Data that the protocol cannot carry is shown as JSON text; each method answers.
    """
    task = await calls.send(what, metadata={"skill": "deep"})
    shown = task["artifacts"][0]["parts"][0]
    read = await calls.result("GetTask", {"id": task["id"]})
    listed = (await calls.result("ListTasks", {"includeArtifacts": True}))["tasks"]
    canceled = await calls.result("CancelTask", {"id": task["id"]})

    if what == "29":
        assert shown["data"] == nested(29)
    else:
        assert shown["text"].startswith(("{", "[", "1"))
        assert shown["mediaType"] == "application/json"
    assert [read["id"], *(one["id"] for one in listed)] == [task["id"]] * 2
    assert canceled["status"]["state"] == "TASK_STATE_CANCELED"


def test_a_part_of_a_skill_keeps_its_own_media_type() -> None:
    """
    Only data without a type of its own is said to be JSON.
    """
    (shown,) = parts_of([Part(data=nested(40), media_type="application/geo+json")])

    assert shown.media_type == "application/geo+json"


# --- sizes

LONG: dict[str, tuple[Any, str]] = {
    "messageId": ("m" * 257, "message_id"),
    "contextId": ("c" * 257, "context_id"),
    "taskId": ("t" * 1001, "task_id"),
    "referenceTaskIds": (["t"] * 101, "reference_task_ids"),
    "extensions": (["e" * 1001], "extensions"),
}
ODD = {"crlf": "a\r\nb", "nul": "a\x00", "delete": "a\x7f"}


@pytest.mark.parametrize("field", LONG)
async def test_an_id_of_any_length_is_refused(calls: Calls, field: str) -> None:
    """
    Nothing is stored, and the refusal does not say the id again.
    """
    given, name = LONG[field]
    error = await calls.error("SendMessage", {"message": said(**{field: given}), "metadata": {"skill": "echo"}})

    assert error["code"] == -32602
    assert f"message.{name}" in error["message"]
    assert len(error["message"]) < 300
    assert (await calls.result("ListTasks"))["totalSize"] == 0


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("field", ["messageId", "contextId", "taskId"])
async def test_an_id_has_no_control_characters(calls: Calls, field: str, odd: str) -> None:
    """
    They would break the lines of a log, and the headers of a webhook.
    """
    error = await calls.error("SendMessage", {"message": said(**{field: ODD[odd]}), "metadata": {"skill": "echo"}})

    assert error["code"] == -32602
    assert "control characters" in error["message"]


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("GetTask", {"id": "x" * 1001}),
        ("CancelTask", {"id": "x\n"}),
        ("SubscribeToTask", {"id": "x" * 1001}),
        ("ListTasks", {"contextId": "c" * 257}),
        ("ListTasks", {"pageToken": "c" * 5000}),
        ("SendMessage", {"message": said(parts=[{"text": "x", "mediaType": "m" * 257}])}),
        ("SendMessage", {"message": said(parts=[{"text": "x", "filename": "m" * 1001}])}),
        ("SendMessage", {"message": said(), "configuration": {"acceptedOutputModes": ["m" * 257]}}),
        ("SendMessage", {"message": said(), "configuration": {"acceptedOutputModes": ["m"] * 101}}),
    ],
)
async def test_every_name_in_a_request_has_a_limit(calls: Calls, method: str, params: Any) -> None:
    """
    Whatever is looked up, matched or stored as a name.
    """
    assert (await calls.error(method, params))["code"] == -32602


async def test_a_list_has_no_history_by_default(calls: Calls) -> None:
    """
    A list of large messages is small.
    """
    for text in "abc":
        await calls.send(text * 1_000_000, metadata={"skill": "wait"}, configuration={"returnImmediately": True})
    answer = await calls.rest("GET", "/tasks")

    assert len(answer.json()["tasks"]) == 3
    assert len(answer.content) < 10_000


async def test_a_page_ends_before_it_is_too_large(calls: Calls) -> None:
    """
    All tasks come, each once, in pages of no more than 3 MiB; one that alone is larger comes short.
    """
    sizes = [100, 1_000_000, 2_000_000, 4_000_000, 1_500_000, 100]
    for size in sizes:
        await calls.send("x" * size, metadata={"skill": "wait"}, configuration={"returnImmediately": True})
    pages: list[Any] = []
    token = ""
    while token or not pages:
        answer = await calls.rest("GET", f"/tasks?historyLength=5&pageToken={token}")
        assert len(answer.content) < 3.1 * 1024 * 1024
        pages.append(answer.json())
        token = pages[-1]["nextPageToken"]
    tasks = [task for page in pages for task in page["tasks"]]

    assert len(pages) == 2
    assert len({task["id"] for task in tasks}) == len(sizes)
    assert ["too large" in task["metadata"]["refold"].get("note", "") for task in tasks].count(True) == 1


# --- what is no call


CALL = b'{"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": "x"}}'


@pytest.mark.parametrize(
    ("status", "code", "content", "headers"),
    [
        pytest.param(413, -32600, b"x" * (16 * 1024 * 1024 + 1), {}, id="too large"),
        pytest.param({"/": 415, "/message:send": 400}, -32005, CALL, {"Content-Type": "text/plain"}, id="no JSON"),
        pytest.param(400, -32700, b'"\xff"', {}, id="no UTF-8"),
        pytest.param(400, -32700, b"[" * 65, {}, id="too deep"),
        pytest.param(413, -32600, b"[0" + b",0" * 50_000 + b"]", {}, id="too many values"),
        pytest.param(400, -32700, b"1" * 4301, {}, id="too long a number"),
        pytest.param(401, -32600, CALL, {"X-API-Key": "nobody's"}, id="unknown caller"),
        pytest.param(421, -32600, CALL, {"Host": "example.org"}, id="another host"),
        pytest.param(403, -32600, CALL, {"Origin": "https://example.org"}, id="a web page"),
    ],
)
@pytest.mark.parametrize("path", ["/", "/message:send"])
async def test_a_refusal_has_the_form_of_the_binding(
    calls: Calls, path: str, status: int | dict[str, int], code: int, content: bytes, headers: dict[str, str]
) -> None:
    """
    JSON-RPC's clients find a code and an id, REST's a status; some errors have one of REST's own.
    """
    status = status if isinstance(status, int) else status[path]
    told = {"Content-Type": "application/json", **calls.headers, **headers}
    answer = await calls.http.post(f"{calls.base}{path}", content=content, headers=told)
    error = answer.json()["error"]

    assert answer.status_code == status
    if path == "/":
        assert answer.json()["jsonrpc"] == "2.0"
        assert answer.json()["id"] == (7 if status == 415 else None)
        assert (error["code"], error["data"][0]["domain"]) == (code, "a2a-protocol.org")
    else:
        assert error["code"] == status


# --- 0.3

OLD = {"kind": "message", "messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "Hi"}]}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        pytest.param("tasks/get", {"id": "x", "historyLength": 2**63}, id="a long history"),
        pytest.param("message/send", {"message": OLD, "configuration": {"historyLength": 2**40}}, id="and in a send"),
        pytest.param("message/stream", {"message": OLD, "configuration": {"historyLength": -(2**40)}}, id="a stream"),
        *(
            pytest.param(
                method,
                {
                    "message": {**OLD, "parts": [{"kind": "data", "data": nested(levels)}]},
                    "metadata": {"skill": "echo"},
                },
                id=f"{levels} levels in {method}",
            )
            for levels in (31, 40, 50)
            for method in ("message/send", "message/stream")
        ),
        pytest.param("message/send", {"message": OLD, "metadata": nested(52)}, id="deep metadata"),
        pytest.param("message/send", {"message": {**OLD, "metadata": nested(52)}}, id="deep metadata of the message"),
    ],
)
async def test_what_0_3_can_say_and_1_0_cannot_is_the_callers_mistake(calls: Calls, method: str, params: Any) -> None:
    """
    The SDK's conversion fails there; its words about it are no error of ours.
    """
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = await calls.http.post(f"{calls.base}/", json=body)
    told = answer.text.removeprefix("data:").partition("data:")[2] or answer.text

    assert "-32602" in told
    assert "Traceback" not in told
    assert (await calls.result("ListTasks"))["totalSize"] == 0


@pytest.mark.parametrize("levels", [29, 31, 35, 40, 45, 48, 60])
@pytest.mark.parametrize("path", ["/v1/message:send", "/v1/message:stream"])
async def test_rest_of_0_3_has_the_same_depth(calls: Calls, path: str, levels: int) -> None:
    """
    30 levels, as everywhere.
    """
    part = {"data": {"data": nested(levels)}}
    request = {"messageId": "m", "role": "ROLE_USER", "content": [part]}
    body = {"request": request, "metadata": {"skill": "echo"}}
    answer = await calls.http.post(f"{calls.base}{path}", json=body)

    assert answer.status_code == (200 if levels <= 30 else 400), answer.text
    assert (await calls.result("ListTasks"))["totalSize"] == (1 if levels <= 30 else 0)


@pytest.mark.parametrize("length", ["x", "1e3", "99999999999999999999", "", "-1", "١"])
async def test_rest_of_0_3_has_numbers_too(calls: Calls, length: str) -> None:
    """
    What is none is refused; an empty one is none given.
    """
    task = await calls.send(metadata={"skill": "echo"})
    old = await calls.http.get(f"{calls.base}/v1/tasks/{task['id']}", params={"historyLength": length})
    new = await calls.rest("GET", f"/tasks/{task['id']}?historyLength={length}")

    assert old.status_code == (200 if length == "" else 400), old.text
    assert new.status_code in (200, 400), new.text
