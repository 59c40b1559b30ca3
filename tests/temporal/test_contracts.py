"""Contracts and the ReAct skill on a real Temporal server, with tools over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from temporalio.client import Client

from activities import TOOLS
from refold import Content, InputRejected, Status
from refold.core.events import UserMessage
from refold.core.fold.journal import Entry
from refold.engine import News, Tokens
from refold.record import Explanation
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.services.library import Library
from tests.temporal import contract_skills
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, run, settled, text
from workflows import react

QUEUE = "contracts"


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker that forgets every workflow at once; what ended in it is replayed at the end."""
    plugin = RefoldPlugin([contract_skills, react], TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE, max_cached_workflows=0):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """The encyclopedia, the dictionary and the sessions."""
    with Library() as library:
        for name, value in library.environment.items():
            monkeypatch.setenv(name, value)
        yield library


def shared(state: Any) -> dict[str, Any]:
    """The state that the steps share, in a snapshot's."""
    found: dict[str, Any] = state["state"]
    return found


async def test_react_asks_its_tools_over_http(engine: TemporalEngine, library: Library) -> None:
    """
    Think, act, observe, answer; what one word means is known, the other's "no" is read by the model.
    """
    library.words["ebb"] = "the tide going out"

    view = await run(engine, "react", "Please define ebb and define xyzzy")

    assert view.status is Status.COMPLETED
    assert "the tide going out" in view.messages[-1].text
    assert sorted(library.asked) == ["/api/v2/entries/en/ebb", "/api/v2/entries/en/xyzzy"]
    last = await engine.at(view.task_id, view.seq)
    outputs = shared(last.state)["action"]["tool_outputs"]
    assert [(one["value"], one["error"] is None) for one in outputs] == [("the tide going out", True), (None, False)]


async def test_explain_by_engine_and_by_query(engine: TemporalEngine, library: Library) -> None:
    """
    Who wrote the observation, when and from what: the same by the journal and by Temporal alone.
    """
    library.words["ebb"] = "the tide going out"
    view = await run(engine, "react", "define ebb")

    found = await engine.explain(view.task_id, "observation")
    handle = engine.client.get_workflow_handle(view.task_id)
    asked = await handle.query("explain", "observation", result_type=Explanation)

    assert asked == found
    assert (found.step, found.to_state) == ("observe", "finished")
    assert {source.field: source.step for source in found.sources} == {
        "session_id": "orchestrator",
        "iteration": "orchestrator",
        "thought": "think",
        "action": "act",
        "settings": "orchestrator",
    }
    with pytest.raises(InputRejected, match="nobody has written 'last_error'"):
        await engine.explain(view.task_id, "last_error")


async def test_a_session_remembers_its_turns(engine: TemporalEngine, library: Library) -> None:
    """
    The second question is told what the first one was, and both turns are closed.
    """
    first = await engine.start("react", Content.from_data({"text": "define ebb", "session_id": "s1"}))
    assert (await settled(engine, first.task_id)).status is Status.COMPLETED
    view = await engine.start("react", Content.from_data({"text": "And a flood?", "session_id": "s1"}))
    assert (await settled(engine, view.task_id)).status is Status.COMPLETED

    assert [turn["asked"] for turn in library.sessions["s1"]] == ["define ebb", "And a flood?"]
    assert all(turn["answered"] for turn in library.sessions["s1"])
    thoughts = [
        issued.command
        for entry in await collected(engine.journal(view.task_id))
        for issued in entry.commands
        if issued.command.id == "think"
    ]
    assert "define ebb - " in str(thoughts[0])


async def test_the_answer_is_read_as_it_is_written(
    engine: TemporalEngine, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The answer's words come before the entry with which the step that asked for them is merged.
    """
    monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "2")
    view = await engine.start("react", text("What is there to say?"), stream=True)
    answer, seen = f"{view.task_id}/2.1", list[News]()

    async for news in engine.watch(view.task_id):
        seen.append(news)
        if isinstance(news, Tokens) and news.invocation_id == answer:
            monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "0")  # once somebody has read of it, the rest may come

    merged = next(n for n, one in enumerate(seen) if isinstance(one, Entry) and "observe" in str(one.audit))
    before = [one for one in seen[:merged] if isinstance(one, Tokens) and one.invocation_id == answer]
    assert before
    assert "You said: What is there to say?".startswith("".join(one.text for one in before))


async def test_an_unauthorized_write_fails_the_task_at_once(engine: TemporalEngine) -> None:
    """
    The task fails with step, field and rule; the state is as it was, and the journal holds the refusal.
    """
    view = await run(engine, "oversteps", "lamp")

    assert view.status is Status.FAILED
    assert view.reason == "step 'begin', field 'note': writes only what it declares (expected one of: price; got note)"
    (*_, last) = await collected(engine.journal(view.task_id))
    (event,) = last.audit
    assert event.err is not None
    assert (event.err.type, event.patch, event.awaited) == ("UnauthorizedWriteError", {}, (f"{view.task_id}/1.1",))
    kept = await engine.at(view.task_id, view.seq)
    assert shared(kept.state) == {"item": "lamp", "price": 0, "note": ""}


async def test_the_state_waits_with_the_task(engine: TemporalEngine) -> None:
    """
    A question pauses the task with what the step wrote before it; the step that meets the answer goes on from there.
    """
    view = await run(engine, "asks_under_contract", "lamp", "in red")

    assert view.messages[-1].text == "lamp for 3"
    (*_, last) = await collected(engine.journal(view.task_id))
    assert isinstance(last.event, UserMessage)
    found = await engine.explain(view.task_id, "note")
    assert (found.step, found.value, found.awaited) == ("noted", "in red", (f"{view.task_id}/2.1",))
