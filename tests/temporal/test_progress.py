"""Tools report their progress on a real server: watchers see it, and history does not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from time import monotonic

import pytest
from temporalio.client import Client

from refold import Status
from refold.engine import Progress
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal import progressing
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import settled, text


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker; all that ended is replayed."""
    plugin = RefoldPlugin([progressing], progressing.TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue="progress"):
        yield TemporalEngine(client, "progress", patience=PATIENT)
    await replay_all(client, plugin, "progress")


@pytest.fixture(autouse=True)
def unseen() -> Iterator[None]:
    """Tools wait for the test; none is left waiting."""
    progressing.SEEN.clear()
    yield
    progressing.SEEN.set()


async def seen(engine: TemporalEngine, skill: str, said: str, last: str = progressing.LAST) -> list[Progress]:
    """What a watcher sees of a tool's progress, up to a report that contains this."""
    view = await engine.start(skill, text(said))
    found: list[Progress] = []
    async with aclosing(engine.watch(view.task_id)) as news:
        async for one in news:
            if isinstance(one, Progress):
                found.append(one)
                if last in str(one.said):
                    progressing.SEEN.set()
    assert (await settled(engine, view.task_id)).status is Status.COMPLETED
    return found


@pytest.mark.parametrize("said", ["scan 3", "hurry 20000"], ids=["async-def", "def"])
async def test_a_watcher_sees_the_newest_report(engine: TemporalEngine, said: str) -> None:
    """
    Of a coroutine and of a thread, however many there are: a few a second, and the last one surely.
    """
    began = monotonic()
    found = await seen(engine, "reports", said)

    assert found[-1].said == progressing.LAST
    assert found[-1].tool == said.partition(" ")[0]
    assert [one.number for one in found] == sorted({one.number for one in found})
    assert len(found) <= 5 + 10 * (monotonic() - began)


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        pytest.param("object", "(a report of type object, which is no JSON)", id="no-json"),
        pytest.param("text", "xxx", id="5-mb-of-text"),
        pytest.param("list", "4,096 are shown at the most)", id="7-mb-of-data"),
        pytest.param("half", "", id="half-a-character"),
    ],
)
async def test_a_report_never_fails_its_tool(engine: TemporalEngine, kind: str, shown: str) -> None:
    """
    A text that is too long is cut, and of what is no report the watcher reads what it was.
    """
    (found,) = await seen(engine, "reports", f"babble {kind}", shown)

    assert shown in str(found.said)
    assert len(str(found.said).encode()) <= 4_100


async def test_a_heartbeat_of_the_tools_own_is_no_report(engine: TemporalEngine) -> None:
    """
    A watcher sees nothing of it, and goes on to the task's end.
    """
    assert await seen(engine, "reports", "beat 3") == []


@pytest.mark.parametrize("after", [0, 1])
async def test_each_try_reports_anew(engine: TemporalEngine, after: int) -> None:
    """
    A tool that the task tries again is seen again, from its first report on: whoever watches, from the beginning or
    later, tells the tries apart.
    """
    view = await engine.start("reports", text("stumble 3"))
    found: list[Progress] = []
    async with aclosing(engine.watch(view.task_id, after=after)) as news:
        async for one in news:
            if isinstance(one, Progress):
                found.append(one)
                progressing.SEEN.set()

    assert [one.said for one in found] == ["try 1", "try 2", progressing.LAST]
    assert len({one.attempt for one in found}) == 3
    assert found == sorted(found, key=lambda one: one.attempt)


async def test_it_costs_no_event(engine: TemporalEngine) -> None:
    """
    A tool that reports 20,000 times leaves the history of one that reports nothing.
    """
    kinds = []
    progressing.SEEN.set()
    for said in ("hurry 20000", "mute 1"):
        view = await engine.start("reports", text(said))
        await settled(engine, view.task_id)
        history = await engine.client.get_workflow_handle(view.task_id).fetch_history()
        kinds.append([event.event_type for event in history.events])

    assert kinds[0] == kinds[1]


async def test_an_agents_tool(engine: TemporalEngine) -> None:
    """
    Reports as any other does, while nothing around it may still change its result.
    """
    assert [one.tool for one in await seen(engine, "reader", "Read.")][-1] == "scan"
