"""Memory on a real server: each owner's own, and a replay has what was remembered then."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from refold import Status
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal import memory_skills
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import settled, text


@pytest.fixture(scope="module")
async def engine(
    client: Client, values: Folder, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker; all that ended is replayed, after everything was remembered."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SESSIONS_URL", raising=False)
        patch.setenv("REFOLD_LEDGER", str(tmp_path_factory.mktemp("memory") / "ledger.db"))
        plugin = RefoldPlugin([memory_skills], memory_skills.TOOLS, model="scripted:demo", storage=values)
        async with make_worker(client, plugin, task_queue="memory"):
            yield TemporalEngine(client, "memory", patience=PATIENT)
        await replay_all(client, plugin, "memory")


async def said(engine: TemporalEngine, skill: str, message: str, owner: str | None) -> str:
    """The last words of a task of this owner."""
    view = await engine.start(skill, text(message), owner=owner)
    done = await settled(engine, view.task_id)
    assert done.status is Status.COMPLETED, done.reason
    return done.messages[-1].text


async def test_an_agent_remembers_over_tasks(engine: TemporalEngine) -> None:
    """
    For its owner; another owner, and a task without one, know nothing of it.
    """
    before = await said(engine, "teller", "What do you know?", "ann")
    await said(engine, "keeper", "I like tea.", "ann")

    assert before == "Known: []"
    assert "Likes tea." in await said(engine, "teller", "What do you know?", "ann")
    assert await said(engine, "teller", "What do you know?", "ben") == "Known: []"
    assert await said(engine, "teller", "What do you know?", None) == "Known: []"


async def test_a_session_is_its_owners(engine: TemporalEngine) -> None:
    """
    Without any setting: the application's sessions are kept in the ledger's database.
    """
    assert await said(engine, "talks", "one", "ann") == ""
    assert await said(engine, "talks", "two", "ann") == "one: re one"
    assert await said(engine, "talks", "three", "ben") == ""
    assert await said(engine, "talks", "four", None) == ""


async def test_a_live_fork_answers_a_turn_of_its_own(engine: TemporalEngine) -> None:
    """
    What the other task said stays in its turn.
    """
    view = await engine.start("talks", text("one"), owner="eve")
    await settled(engine, view.task_id)
    fork = await engine.fork(view.task_id, at=2, live=True)
    done = await settled(engine, fork.task_id)

    assert done.status is Status.COMPLETED, done.reason
    assert await said(engine, "talks", "two", "eve") == "one: re one; one: re one"
