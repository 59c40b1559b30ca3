"""A2A's methods over a gateway: what is sent, what comes back."""

from __future__ import annotations

import httpx
import pytest

from tests.a2a.conftest import Calls


async def test_a_message_starts_a_task_of_the_skill_it_names(gateway: Calls) -> None:
    """
    The answer is the finished task: its status, its history with the client's own message id, its artifacts.
    """
    task = await gateway.send("Hello", metadata={"skill": "echo"}, contextId="c-1")

    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["contextId"] == "c-1"
    assert [message["messageId"] for message in task["history"]] == ["m-1", f"{task['id']}:1.2"]
    assert task["artifacts"] == [{"artifactId": "echo", "name": "echo", "parts": [{"text": "Hello"}]}]


async def test_a_message_answers_the_task_that_it_names(gateway: Calls) -> None:
    """
    The context is the task's; a reply that does not fit leaves the task as it was.
    """
    task = await gateway.send("Hi", metadata={"skill": "ask"})
    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert task["status"]["message"]["parts"] == [{"text": "Who are you?"}]

    task = await gateway.send("Ada", taskId=task["id"])
    again = await gateway.error("SendMessage", {"message": {**_reply(task), "parts": [{"text": "many"}]}})
    done = await gateway.result("SendMessage", {"message": {**_reply(task), "parts": [{"data": {"number": 3}}]}})

    assert again["code"] == -32004
    assert done["task"]["status"]["message"]["parts"] == [{"text": "Ada: 3"}]


def _reply(task: dict[str, str]) -> dict[str, object]:
    return {"messageId": "m-2", "role": "ROLE_USER", "taskId": task["id"]}


async def test_a_task_is_read_whole_by_rest_and_by_rpc(gateway: Calls) -> None:
    """
    Both tell the same.
    """
    task = await gateway.send("Hello", metadata={"skill": "echo"})

    assert await gateway.result("GetTask", {"id": task["id"]}) == task
    assert (await gateway.rest("GET", f"/tasks/{task['id']}")).json() == task


@pytest.mark.server
async def test_a_task_on_temporal_ends_before_its_sender_hears_of_it(served: str) -> None:
    """
    A blocking call waits for the end; the ended task is read whole from storage.
    """

    async with httpx.AsyncClient() as http:
        calls = Calls(http, served)
        task = await calls.send("Hello", metadata={"skill": "echo"}, contextId="c-1")
        asked = await calls.send("Hi", metadata={"skill": "ask"})

        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert task["contextId"] == "c-1"
        assert task["artifacts"] == [{"artifactId": "echo", "name": "echo", "parts": [{"text": "Hello"}]}]
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
