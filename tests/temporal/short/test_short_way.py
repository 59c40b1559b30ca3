"""Effects within workflow tasks, on a real server: what they leave in history, and what goes another way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client
from temporalio.worker import Replayer

from refold import Content, DefinitionError, Status
from refold.effects.short import local
from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal.conftest import PATIENT
from tests.temporal.short import short_skills
from tests.temporal.short.short_skills import TOOLS, calls, gates
from tests.temporal.test_task import settled


class Site:
    """A task queue, the workers that serve it one after the other, and their ledger."""

    def __init__(self, client: Client, values: Folder, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.values, self.folder = client, values, folder
        self.engine = TemporalEngine(client, f"short-{uuid4().hex[:8]}", patience=PATIENT)
        self._patch = monkeypatch

    def plugin(self, durability: str | None = None, ledger: str = "receipts.db") -> RefoldPlugin:
        self._patch.setenv("REFOLD_LEDGER", str(self.folder / ledger))
        return RefoldPlugin([short_skills], TOOLS, model="scripted:demo", storage=self.values, durability=durability)

    @asynccontextmanager
    async def worker(self, durability: str | None = None, ledger: str = "receipts.db") -> AsyncIterator[None]:
        plugin = self.plugin(durability, ledger)
        queue = self.engine.connection.task_queue
        soon = timedelta(milliseconds=100)
        async with make_worker(
            self.client,
            plugin,
            task_queue=queue,
            graceful_shutdown_timeout=timedelta(0),
            sticky_queue_schedule_to_start_timeout=soon,
        ):
            yield

    async def start(self, *lines: str, skill: str = "short_errand") -> str:
        view = await self.engine.start(skill, Content.from_text("\n".join(lines)))
        return view.task_id

    async def events(self, task_id: str) -> list[HistoryEvent]:
        history = await self.client.get_workflow_handle(task_id).fetch_history()
        return list(history.events)

    async def kinds(self, task_id: str) -> Counter[str]:
        return Counter(EventType.Name(one.event_type).removeprefix("EVENT_TYPE_") for one in await self.events(task_id))

    async def failed(self, task_id: str) -> list[str]:
        """What its failed workflow tasks said."""
        found = (one.workflow_task_failed_event_attributes.failure.message for one in await self.events(task_id))
        return [message for message in found if message]

    async def until_began(self, what: str, times: int = 1) -> None:
        while calls[what] < times:  # noqa: ASYNC110 - a tool counts, which runs in this process
            await asyncio.sleep(0.01)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """An effect goes over soon."""
    monkeypatch.setattr(local, "HOLD_S", 0.3)


@pytest.fixture
def site(client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A queue of the test's own."""
    calls.clear()
    gates.clear()
    monkeypatch.setattr(local, "HOLD_S", 30.0)  # however busy the machine is
    return Site(client, values, tmp_path, monkeypatch)


def said(view: TaskView) -> str:
    return view.messages[-1].text if view.messages else ""


async def test_many_effects_are_one_workflow_task(site: Site) -> None:
    """
    Twenty tools: no activity, and a history that a worker without the setting replays.
    """
    async with site.worker():
        task_id = await site.start(*[f"count {n}" for n in range(20)])
        done = await settled(site.engine, task_id)

    kinds = await site.kinds(task_id)
    assert (done.status, set(calls.values())) == (Status.COMPLETED, {1})
    assert kinds["ACTIVITY_TASK_SCHEDULED"] == 0
    assert kinds["MARKER_RECORDED"] == 20 + 2
    assert kinds["WORKFLOW_TASK_COMPLETED"] <= 3
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin("history")]).replay_workflow(history)


async def test_a_long_effect_goes_over(site: Site, hasty: None) -> None:
    """
    It holds the task for a second; then a regular activity takes it over, and the task can be asked. It runs once.
    """
    async with site.worker():
        task_id = await site.start("count a", "hold gate", "count b")
        await site.until_began("gate")
        view = await site.engine.look(task_id)
        gates["gate"].set()
        done = await settled(site.engine, task_id)

    assert [call.command for call in view.pending] == ["tool hold"]
    assert (said(done), calls["gate"], calls["gate canceled"]) == ("1 open 1", 1, 0)
    assert (await site.kinds(task_id))["ACTIVITY_TASK_SCHEDULED"] == 1


async def test_a_cancellation_waits_for_a_second_at_most(site: Site, hasty: None) -> None:
    """
    What runs within the workflow task goes over, then hears that it is not wanted; nothing comes after it.
    """
    async with site.worker():
        task_id = await site.start("hold gate", "count never")
        await site.until_began("gate")
        await site.engine.cancel(task_id)
        ended = await settled(site.engine, task_id)
        await site.until_began("gate canceled")

    assert (ended.status, calls["gate"], calls["never"]) == (Status.CANCELED, 1, 0)


async def test_failures_and_retries_are_as_ever(site: Site) -> None:
    """
    A retry is a regular activity; what fails for good, or nobody knows, is told to the skill as it always is.
    """
    async with site.worker():
        task_id = await site.start("moody busy", "moody never", "count after", "large 300000")
        done = await settled(site.engine, task_id)

    assert said(done) == "after 2 never 1 300000"
    assert calls["busy"] == 2
    assert (await site.kinds(task_id))["ACTIVITY_TASK_SCHEDULED"] == 1


async def test_a_worker_with_another_ledger_performs_nothing(site: Site, hasty: None) -> None:
    """
    Its workflow task fails with the reason, and a worker with the right ledger goes on.
    """
    async with site.worker():
        task_id = await site.start("count a", "hold gate", "count b")
        await site.until_began("gate")
        await site.engine.look(task_id)
    gates.pop("gate").set()
    gates["gate"] = asyncio.Event()
    gates["gate"].set()
    async with site.worker(ledger="another.db"):
        while not (failed := await site.failed(task_id)):  # noqa: ASYNC110 - it is the server that knows
            await asyncio.sleep(0.05)
        assert "is not the one that the effects of this task are recorded in" in failed[0]
        assert calls["b"] == 0
    async with site.worker():
        done = await settled(site.engine, task_id)

    assert (said(done), calls["a"], calls["b"]) == ("1 open 1", 1, 1)


@pytest.mark.parametrize(("before", "after"), [("history", "ledger"), ("ledger", "history")])
async def test_a_run_keeps_the_way_that_it_began_with(site: Site, hasty: None, before: str, after: str) -> None:
    """
    A task that was begun by a worker with one setting goes on by a worker with the other one: deploy and rollback.
    """
    async with site.worker(before):
        task_id = await site.start("count a", "hold gate", "count b", skill="plain_errand")
        await site.until_began("gate")
        await site.engine.look(task_id)
    gates.pop("gate").set()
    gates["gate"] = asyncio.Event()
    gates["gate"].set()
    async with site.worker(after):
        done = await settled(site.engine, task_id)

    kinds = await site.kinds(task_id)
    assert (said(done), calls["a"], calls["b"]) == ("1 open 1", 1, 1)
    assert (kinds["ACTIVITY_TASK_SCHEDULED"], kinds["MARKER_RECORDED"] > 0) == (
        (3, False) if before == "history" else (1, True)
    )


async def test_without_a_ledger_the_regular_way(site: Site) -> None:
    """
    A ledger that cannot be used when the run begins: the task is not held up.
    """
    async with site.worker(ledger="no/such/folder/receipts.db"):
        task_id = await site.start("large 10", "Hello")
        done = await settled(site.engine, task_id)

    assert done.status is Status.COMPLETED
    assert (await site.kinds(task_id))["ACTIVITY_TASK_SCHEDULED"] == 2


def test_a_setting_that_is_none_is_refused() -> None:
    """
    By worker and by skill.
    """
    with pytest.raises(DefinitionError, match="'disk' is neither 'history' nor 'ledger'"):
        RefoldPlugin([short_skills], TOOLS, durability="disk")
