"""The timeline: a task's past for callers that ask for it, and nothing of it for anybody else."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Literal

import pytest

from refold.a2a import Settings, a2a_app
from refold.a2a.settings import TIMELINE
from refold.core.fold.journal import Entry
from refold.engine import NotConnected
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import BASE, Calls, calling, said
from tests.a2a.tasks.test_sending import as_, bought, known

ASK = {"A2A-Extensions": TIMELINE}


async def reported(calls: Calls) -> str:
    """A task that called a tool twice, and has ended."""
    task = await calls.send("one two", metadata={"skill": "report"})
    return str(task["id"])


@pytest.mark.parametrize("shown", ["none", "status", "journal"])
async def test_the_past_is_shown_as_far_as_the_settings_say(shown: Literal["none", "status", "journal"]) -> None:
    """
    To callers that ask; without asking, no name of a tool or a step is anywhere in a task.
    """
    engine = FakeEngine(skills.ALL, answers={"held": "done"})
    async with calling(a2a_app(engine, skills.ALL, Settings(url=BASE, timeline=shown))) as calls:
        id = await reported(calls)
        plain = await calls.result("GetTask", {"id": id})
        answer = await calls.rest("GET", f"/tasks/{id}", **ASK)
        card = (await calls.rest("GET", "/.well-known/agent-card.json")).json()
    past: Any = answer.json()["metadata"].get(TIMELINE)
    declared = [one["uri"] for one in card["capabilities"].get("extensions", [])]

    assert "held" not in json.dumps(plain)
    assert TIMELINE not in plain["metadata"]
    assert declared == ([] if shown == "none" else [TIMELINE])
    assert answer.headers.get("a2a-extensions") == (None if shown == "none" else TIMELINE)
    if shown == "none":
        assert past is None
        return
    assert [one["state"] for one in past["statuses"]] == ["TASK_STATE_WORKING", "TASK_STATE_COMPLETED"]
    assert all(one["timestamp"].endswith("Z") for one in past["statuses"])
    if shown == "status":
        assert "held" not in answer.text
        return
    assert [entry["event"] for entry in past["entries"]] == ["user_message", "tool_result", "tool_result"]
    assert [one["name"] for entry in past["entries"] for one in entry.get("commands", [])] == ["held", "held"]


class Unread(FakeEngine):
    """An engine whose server goes away before a journal is read."""

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""
        self.fault = NotConnected("no Temporal server answers")
        return super().journal(task_id, after=after)


async def test_a_past_that_cannot_be_read_is_left_out() -> None:
    """
    The task has taken the message by then: a caller that is told to try again would send it twice.
    """
    engine = Unread(skills.ALL)
    async with calling(a2a_app(engine, skills.ALL, Settings(url=BASE, timeline="journal"))) as calls:
        params = {"message": said(), "metadata": {"skill": "ask"}}
        task = (await calls.result("SendMessage", params, **ASK))["task"]

    assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    assert TIMELINE not in task["metadata"]


async def test_the_past_of_anothers_task_is_not_there(fake: FakeEngine) -> None:
    """
    As the task itself.
    """
    async with calling(known(a2a_app(fake, skills.ALL, Settings(url=BASE, timeline="journal")))) as calls:
        asked = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x"}]}}
        params = {**asked, "metadata": {"skill": "ask"}}
        task = (await calls.result("SendMessage", params, **as_("ada"), **ASK))["task"]
        error = await calls.error("GetTask", {"id": task["id"]}, **as_("bob"), **ASK)

    assert task["metadata"][TIMELINE]["entries"]
    assert error["code"] == -32001
    assert TIMELINE not in json.dumps(error)


async def test_an_approver_sees_the_task_without_its_past(fake: FakeEngine) -> None:
    """
    Reading and deciding is all that an open gate of another's task allows.
    """
    async with calling(known(a2a_app(fake, skills.ALL, Settings(url=BASE, timeline="journal")))) as calls:
        task = await bought(calls, "yacht", **as_("ada"))
        read = await calls.result("GetTask", {"id": task["id"]}, **as_("boss"), **ASK)
        own = await calls.result("GetTask", {"id": task["id"]}, **as_("ada"), **ASK)

    assert own["metadata"].pop(TIMELINE)["entries"]
    assert read == own
