"""A research loop whose worker is killed, at each point of its way, comes to the same journal and artifact."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from refold import Status
from refold.core.fold.journal import Entry
from refold.temporal import TemporalEngine
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from tests.faults.conftest import engine_of
from tests.faults.model import Model
from tests.faults.processes import WorkerProcess, Workers, until
from tests.sweeps import THOROUGH
from tests.temporal.test_task import RESEARCH_LOOPS, collected, settled, text, without_ids

QUEUE = "kill-points"
CALLS_OUT = {1: 1, 2: 2, 3: 3, 4: 4, 6: 5, 7: 6}
"""Which model call is under way once the journal has so many entries; after 5 the task waits, after 8 it is done."""

ENTRIES = 8
SOME = (1, 3, 5, 6, 8)
"""The first call, one in the middle, the wait, the first call after it, and the end."""

HISTORY_EVENTS = 47
EVENTS = range(1, HISTORY_EVENTS + 1, 1 if THOROUGH else 2)


class Crew:
    """One worker at a time, replaced when it is killed; and the model that it asks."""

    def __init__(self, workers: Workers, engine: TemporalEngine, model: Model) -> None:
        self.workers = workers
        self.engine = engine
        self.model = model
        self.worker: WorkerProcess | None = None

    async def ready(self) -> None:
        """A worker is there."""
        if self.worker is None or not self.worker.alive:
            self.worker = await self.workers.start(QUEUE)

    async def lose(self) -> None:
        """The worker is killed."""
        assert self.worker is not None
        await self.worker.kill()

    async def undisturbed(self, skill: str) -> tuple[list[object], str]:
        """What a task tells and hands over when nothing happens to its worker."""
        await self.ready()
        self.model.begin()
        view = await self.engine.start(skill, text("Tides"))
        await settled(self.engine, view.task_id)
        await self.engine.send(view.task_id, text("For sailors"))
        await settled(self.engine, view.task_id)
        return await self.told(view.task_id)

    async def told(self, task_id: str) -> tuple[list[object], str]:
        """A task's journal, ids aside, and its artifact."""
        view = await self.engine.look(task_id)
        assert view.status is Status.COMPLETED
        return without_ids(await collected(self.engine.journal(task_id)), task_id), str(view.artifacts[0].text)


@pytest.fixture(scope="module")
async def crew(server: DevServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Crew]:
    """The crew of all runs: the worker that saw one run through begins the next."""
    folder = tmp_path_factory.mktemp("kill-points")
    with Model() as model:
        env = {**model.environment, "REFOLD_MODEL": "openai:demo"}
        async with Workers(server.address, folder, env=env) as workers:
            yield Crew(workers, await engine_of(server.address, QUEUE, Folder(folder)), model)


@pytest.fixture(scope="module")
async def undisturbed(crew: Crew) -> tuple[list[object], str]:
    """What every run must come to, in whichever style."""
    return await crew.undisturbed("research_loop")


async def journal_reaches(crew: Crew, task_id: str, seq: int) -> None:
    """Wait until the journal has so many entries, and the model call that follows is under way, if one does."""
    async for item in crew.engine.watch(task_id):
        if isinstance(item, Entry) and item.seq == seq:
            break
    if seq in CALLS_OUT:
        await until(crew.model.hangs, bool)


def _some_of_all() -> list[Any]:
    """Each style at each entry; `make test` takes five of the entries, each in one style."""
    return [
        pytest.param(
            skill,
            seq,
            id=f"{skill}-{seq}",
            marks=[] if seq in SOME and seq % len(RESEARCH_LOOPS) == number else pytest.mark.sweep,
        )
        for seq in range(1, ENTRIES + 1)
        for number, skill in enumerate(RESEARCH_LOOPS)
    ]


@pytest.mark.parametrize(("skill", "seq"), _some_of_all())
async def test_a_kill_after_an_entry_changes_nothing(
    crew: Crew, undisturbed: tuple[list[object], str], skill: str, seq: int
) -> None:
    """
    SIGKILL with the call that the entry asked for under way: that one is asked again under its key, no other is.
    """
    await crew.ready()
    crew.model.begin(lose=CALLS_OUT.get(seq))
    view = await crew.engine.start(skill, text("Tides"))
    if seq > 5:
        await settled(crew.engine, view.task_id)
        await crew.engine.send(view.task_id, text("For sailors"))
    await journal_reaches(crew, view.task_id, seq)

    await crew.lose()
    if seq < ENTRIES:
        await crew.ready()
        await settled(crew.engine, view.task_id)
    if seq <= 5:
        await crew.engine.send(view.task_id, text("For sailors"))
        await settled(crew.engine, view.task_id)

    assert await crew.told(view.task_id) == undisturbed
    assert list(crew.model.answered.values()) == [1] * 6
    assert sorted(crew.model.asked.values()) == ([1] * 5 + [2] if seq in CALLS_OUT else [1] * 6)


@pytest.mark.sweep
@pytest.mark.parametrize("number", EVENTS)
async def test_a_kill_after_a_history_event_changes_nothing(
    crew: Crew, undisturbed: tuple[list[object], str], number: int
) -> None:
    """
    SIGKILL as soon as Temporal has recorded its n-th event, styles in turn: calls whose end is recorded are not asked
    again, and none is asked more than once more.
    """
    skill = RESEARCH_LOOPS[number % len(RESEARCH_LOOPS)]
    await crew.ready()
    crew.model.begin()
    view = await crew.engine.start(skill, text("Tides"))
    if number > await paused_at(crew, view.task_id, number):
        await crew.engine.send(view.task_id, text("For sailors"))
        await history_reaches(crew, view.task_id, number)

    await crew.lose()
    completed = await completed_calls(crew, view.task_id)
    asked = len(crew.model.asked)  # now, since a call of the lost worker may have been on its way
    await crew.ready()
    paused = await settled(crew.engine, view.task_id)
    if paused.waiting_for:
        await crew.engine.send(view.task_id, text("For sailors"))
        await settled(crew.engine, view.task_id)

    assert await crew.told(view.task_id) == undisturbed
    repeated = [key for key, times in crew.model.asked.items() if times > 1]
    assert len(crew.model.asked) == 6
    assert len(repeated) <= asked - completed
    assert all(crew.model.asked[key] == 2 for key in repeated)


async def history_reaches(crew: Crew, task_id: str, number: int) -> int:
    """Wait until history has its `number`-th event, or the task has ended; how many it has then."""
    seen = 0
    handle = crew.engine.client.get_workflow_handle(task_id)
    async for event in handle.fetch_history_events(wait_new_event=True):
        seen = event.event_id
        if seen >= number:
            break
    return seen


async def paused_at(crew: Crew, task_id: str, number: int) -> int:
    """Wait until history has its `number`-th event, or the task waits for a person; how many it has then."""
    seen = 0
    handle = crew.engine.client.get_workflow_handle(task_id)
    async for event in handle.fetch_history_events(wait_new_event=True):
        seen = event.event_id
        if seen >= number or event.event_type == EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES:
            break
    return seen


async def completed_calls(crew: Crew, task_id: str) -> int:
    """How many model calls have their end in history."""
    history = await crew.engine.client.get_workflow_handle(task_id).fetch_history()
    kinds = [event.event_type for event in history.events]
    return kinds.count(EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED)
