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
    async with serving(app, sock), httpx.AsyncClient(timeout=30) as http:
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
