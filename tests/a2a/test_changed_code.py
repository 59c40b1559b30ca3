"""A task whose code has changed, over A2A: what was recorded is shown with a note, and nothing is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import Task
from google.protobuf.json_format import ParseDict
from temporalio.client import Client

from refold import Status
from refold.a2a import Settings, a2a_app
from refold.temporal.data.storage import Folder
from tests.a2a.conftest import Calls, free_socket, serving
from tests.a2a.streams.events import Events, subscribed
from tests.temporal.recorded import purchase
from tests.temporal.recorded.deploying import Site, changed

NOTE = "the agent's code has changed under this task, which takes nothing meanwhile; this is its record"
TEXT = {"Pay 5 cents to the shop?": "Pay 500 cents to a stranger?", '"cents": 5}': '"cents": 500}'}


def without_note(task: dict[str, Any]) -> dict[str, Any]:
    """A task without its note, which is there, and without the number of the event that brought it."""
    assert task["metadata"]["refold"].pop("note") == NOTE
    task["metadata"]["refold"].pop("id", None)
    return task


def granted(task: dict[str, Any]) -> dict[str, Any]:
    """The decision of a caller who approves what the task shows."""
    gate = task["status"]["message"]["parts"][1]["data"]
    data = {"gate": gate["gate"], "digest": gate["digest"], "decision": "approved", "approver": "ada"}
    return {"messageId": "m-1", "role": "ROLE_USER", "taskId": task["id"], "parts": [{"data": data}]}


async def first(calls: Calls, task_id: str) -> list[dict[str, Any]]:
    """The first event of a subscription over JSON-RPC, and of one over REST."""
    async with subscribed(calls.http, calls.base, task_id) as events:
        [frame] = await events.take(1)
    path = f"{calls.base}/tasks/{task_id}:subscribe"
    async with calls.http.stream("GET", path, headers=calls.headers) as response:
        [other] = await Events(response).take(1)
    return [frame.data["result"]["task"], other.data["task"]]


async def test_what_was_recorded_is_shown_and_nothing_is_taken(
    client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    GetTask, ListTasks and subscriptions show the recorded texts with a note, over JSON-RPC and REST. An approval is
    refused with words that say why. With the code back, the approval is taken, and what was approved is paid once.
    """
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(client, values)
    sock = free_socket()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    app = a2a_app(site.engine, [purchase.Purchase], Settings(url=url))
    async with serving(app, sock) as address, httpx.AsyncClient(timeout=60) as http:
        calls = Calls(http, address)
        async with site.deployed(purchase):
            id = await site.bought(0)
            task = await calls.result("GetTask", {"id": id})
        approval = {"message": granted(task)}

        async with site.deployed(changed(tmp_path, TEXT)):
            assert without_note(await calls.result("GetTask", {"id": id})) == task
            assert without_note((await calls.rest("GET", f"/tasks/{id}")).json()) == task
            for listed in (
                await calls.result("ListTasks", {"historyLength": 10, "includeArtifacts": True}),
                (await calls.rest("GET", "/tasks?historyLength=10&includeArtifacts=true")).json(),
            ):
                [found] = [one for one in listed["tasks"] if one["id"] == id]
                assert ParseDict(without_note(found), Task()) == ParseDict(task, Task())
            assert [without_note(one) for one in await first(calls, id)] == [task, task]
            refused = await calls.error("SendMessage", approval)
            over_rest = await calls.rest("POST", "/message:send", approval)

        assert refused["code"] == -32004
        assert "code has changed under this task" in refused["message"]
        assert over_rest.status_code == 400
        assert refused["message"] in json.dumps(over_rest.json())
        async with site.deployed(purchase):
            assert (await calls.result("SendMessage", approval))["task"]["status"][
                "state"
            ] == "TASK_STATE_INPUT_REQUIRED"
            assert (await site.go_on(id, 2)).status is Status.COMPLETED
    assert purchase.PAID.count((id, 5)) == 1
    assert (id, 500) not in purchase.PAID
