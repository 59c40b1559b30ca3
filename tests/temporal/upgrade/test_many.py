"""Sleeping tasks, upgraded by one command that is killed half way, while new tasks start."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from refold.temporal import TemporalEngine
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import dev_server
from refold.temporal.upgrade.builds import builds_of
from refold.temporal.upgrade.upgrade import AT_ONCE, PATIENCE
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected, settled, text
from tests.temporal.upgrade import new_skills, sealed_skills
from tests.temporal.upgrade.sealed_skills import WEEK_S, paid
from tests.temporal.upgrade.test_upgrade import make_current, worker
from tests.waiting import a_moment

ROOT = Path(__file__).parents[3]
QUEUE, PACE = "many", 20

MOST_CALLS = 10

pytestmark = pytest.mark.server

MANY = [
    pytest.param(12, marks=[pytest.mark.timeout(600)]),
    pytest.param(
        1_000 if THOROUGH else 200,
        id="many",
        marks=[pytest.mark.sweep, pytest.mark.timeout(LONG_S)],
    ),
]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """To a server of these tests' own: the command moves all open tasks."""
    async with dev_server(time_skipping=True) as server:
        values = Folder(tmp_path)
        yield await Client.connect(server.address, namespace=server.namespace, data_converter=data_converter(values))


class Command:
    """`refold upgrade`, called once or several times; `told` is of the last call."""

    def __init__(self, client: Client, values: Path, *options: str) -> None:
        address = client.service_client.config.target_host
        module = "tests.temporal.upgrade.new_skills"
        self._call = [sys.executable, "-m", "refold.cli", "upgrade", "--module", module, "--json", *options]
        self._call += ["--address", address, "--pace", str(PACE)]
        self._environment = {**os.environ, "REFOLD_STORAGE": str(values)}
        self.told: list[dict[str, Any]] = []

    async def run(self, *, killed_after: int | None = None) -> int | None:
        """The exit code; with SIGKILL after so many lines."""
        self.told = []
        process = await asyncio.create_subprocess_exec(
            *self._call, cwd=ROOT, env=self._environment, stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async for line in process.stdout:
            self.told.append(json.loads(line))
            if len(self.told) == killed_after:
                process.kill()
        return await process.wait()


@pytest.mark.parametrize(
    "deployment",
    [pytest.param(None, id="one worker restarted"), pytest.param("shop", id="versions", marks=pytest.mark.sweep)],
)
@pytest.mark.parametrize("tasks", MANY)
async def test_many_sleeping_tasks_are_moved(
    client: Client, tmp_path: Path, tasks: int, deployment: str | None
) -> None:
    """
    All are moved, none twice, no effect fires, the pace is kept; the command that is killed half way and called again
    ends the same. The gates are where they were, weeks later: whoever is let through, pays once.
    """
    paid.clear()
    engine = TemporalEngine(client, QUEUE, patience=PATIENT)
    values = Folder(tmp_path)
    options = () if deployment else ("--to", "b2")
    async with AsyncExitStack() as running:
        old = await running.enter_async_context(AsyncExitStack())
        await old.enter_async_context(worker(client, values, sealed_skills, QUEUE, "b1", deployment))
        if deployment:
            await running.enter_async_context(worker(client, values, new_skills, QUEUE, "b2", deployment))
            await make_current(client, deployment, "b1")
        ids = await sleeping(engine, tasks)
        if deployment:
            await make_current(client, deployment, "b2")
        else:
            await old.aclose()
            await running.enter_async_context(worker(client, values, new_skills, QUEUE, "b2"))

        command = Command(client, tmp_path, *options)
        starting = asyncio.create_task(new_ones(engine))
        await command.run(killed_after=tasks // 3)
        assert len(command.told) >= tasks // 3
        calls = 1
        while await command.run() == 1 and calls < MOST_CALLS:  # on a loaded machine, some wait for their worker
            calls += 1
        starting.cancel()
        new = [f"new-{number}" for number in range(await starting)]

        outcomes = {one["task_id"]: one["outcome"] for one in command.told}
        assert set(outcomes.values()) <= {"moved", "already moved"}, [one for one in command.told if "why" in one]
        assert outcomes.keys() >= set(ids)
        assert len(command.told) == len(outcomes)
        runs = await runs_of(client, ids[0], tasks + len(new))
        assert {len(runs[id]) for id in ids} == {2}
        assert {len(runs[id]) for id in new} <= {1}
        assert {builds_of(await client.get_workflow_handle(id).describe()) for id in ids} == {frozenset({"b2"})}
        assert not paid
        pace_was_kept([max(runs[id]) for id in ids], 1 + calls)
        for id in ids[:: max(1, tasks // 25)]:
            await wait_weeks(engine, id, 1)
            await engine.decide(id, approved=True, approver="ada")
            view = await settled(engine, id)
            kinds = [entry.event.kind for entry in await collected(engine.journal(id))]
            assert view.messages[-1].text == f"paid {id}, with ada's leave"
            assert (kinds.count("reminder_due"), kinds.count("notified"), paid[id]) == (1, 1, 1)


async def sleeping(engine: TemporalEngine, count: int) -> list[str]:
    """Tasks that have waited for three weeks, and were reminded."""
    ids = [f"old-{number}" for number in range(count)]
    places = asyncio.Semaphore(16)

    async def start(id: str) -> None:
        async with places:
            await engine.start("pays", text(id), task_id=id)
            await wait_weeks(engine, id, 3)
            while (await engine.look(id)).seq < 3:
                await a_moment()

    await asyncio.gather(*map(start, ids))
    return ids


async def wait_weeks(engine: TemporalEngine, task_id: str, weeks: float) -> None:
    handle = engine.client.get_workflow_handle(task_id)
    await TimeSkipper(engine.client).fast_forward(handle, timedelta(seconds=weeks * WEEK_S))


async def new_ones(engine: TemporalEngine) -> int:
    """Start a task now and then, until canceled; how many."""
    number = 0
    try:
        while True:
            await asyncio.shield(engine.start("pays", text("new"), task_id=f"new-{number}"))
            number += 1
            await asyncio.sleep(0.5)
    except asyncio.CancelledError:
        return number


async def runs_of(client: Client, last: str, tasks: int) -> dict[str, list[float]]:
    """When each run of each task began, by task id, once the index has all."""
    while True:
        found: dict[str, list[float]] = {}
        async for one in client.list_workflows("WorkflowType = 'pays'"):
            found.setdefault(one.id, []).append(one.start_time.timestamp())
        if len(found) >= tasks and len(found[last]) > 1:
            return found


def pace_was_kept(moments: list[float], calls: int) -> None:
    """In no stretch of time were more tasks sealed than the pace allows.

    Each call, the killed one too, asks at most `AT_ONCE` tasks at one moment; one that has answered goes on in a new
    run within `PATIENCE`, or is asked again by another call. A turn's exact times are `test_pace`'s.
    """
    on_the_way = 1 + AT_ONCE + PACE * PATIENCE.total_seconds()
    moments = sorted(moments)
    for first, moment in enumerate(moments):
        for later, other in enumerate(moments[first:]):
            assert later <= (other - moment) * PACE + calls * on_the_way
