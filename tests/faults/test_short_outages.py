"""What tasks on the short way come through: workers, ledgers and servers that go away in the middle of a stretch."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from temporalio.client import Client

from refold import Content, Status
from refold.core.fold.journal import Entry
from refold.temporal import TemporalEngine
from refold.temporal.client.index import search
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer, dev_server
from tests.faults.processes import Ledger, Workers, until
from tests.servers import HASTY
from tests.services.postgres import Postgres, postgres
from tests.services.serving import free_port
from tests.temporal.test_task import collected, settled

pytestmark = [pytest.mark.timeout(300), pytest.mark.sweep]  # seconds each; `test_short` kills a worker in every run

SERVED = ("tests.faults.short_skills",)
STEPS = 20
FAR = Content.from_data({"steps": STEPS})


@pytest.fixture(scope="module")
def server(hasty_server: DevServer) -> DevServer:
    """A server that takes a workflow task for lost after two seconds."""
    return hasty_server


@pytest.fixture
async def engine(server: DevServer, queue: str, values: Path) -> TemporalEngine:
    """Over it."""
    return await engine_of(server.address, queue, values)


async def engine_of(address: str, queue: str, values: Path) -> TemporalEngine:
    client = await Client.connect(address, data_converter=data_converter(Folder(values)))
    await search.register(client)
    return TemporalEngine(client, queue)


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    """For ledgers."""
    with postgres() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgres"])
def receipts(request: pytest.FixtureRequest, tmp_path: Path, queue: str) -> str:
    """Where the receipts are kept, on one host and on several."""
    if request.param == "sqlite":
        return str(tmp_path / "receipts.db")
    found: Postgres = request.getfixturevalue("database")
    return found.another(queue.replace("-", "_"))


async def arrived(
    engine: TemporalEngine, task_id: str, ledger: Ledger, *, twice: int = 1, steps: int = STEPS
) -> list[Entry]:
    """Wait for the end of a walk: each step was made once, and at most so many looks taken twice."""
    done = await settled(engine, task_id)
    entries = await collected(engine.journal(task_id))
    noted = Counter(line.what for line in ledger.lines)
    repeated = {what: times for what, times in noted.items() if times > 1}

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "there")
    assert len(noted) == 2 * steps
    assert [what for what in repeated if what.startswith("tread")] == []
    assert len(repeated) <= twice, repeated
    assert [entry.seq for entry in entries] == list(range(1, 2 * steps + 2))
    return entries


async def local(engine: TemporalEngine, task_id: str) -> int:
    """How many effects took the short way to the end."""
    history = await engine.client.get_workflow_handle(task_id).fetch_history()
    return sum(event.marker_recorded_event_attributes.marker_name == "core_local_activity" for event in history.events)


async def test_a_worker_is_killed_and_one_of_another_host_goes_on(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, receipts: str
) -> None:
    """
    SIGKILL in the middle of a stretch, twice.
    """
    workers.env["REFOLD_LEDGER"] = receipts
    first = await workers.start(queue, modules=SERVED)
    view = await engine.start("short_walk", FAR)
    await ledger.until("tread 3")
    await first.kill()
    second = await workers.start(queue, modules=SERVED)
    await ledger.until("look 9")
    await second.kill()
    await workers.start(queue, modules=SERVED)

    await arrived(engine, view.task_id, ledger, twice=2)


async def test_a_worker_is_told_to_stop_in_the_middle(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, receipts: str
) -> None:
    """
    SIGTERM: what was begun is done and recorded, and nothing is repeated.
    """
    workers.env["REFOLD_LEDGER"] = receipts
    first = await workers.start(queue, modules=SERVED)
    view = await engine.start("short_walk", FAR)
    await ledger.until("tread 3")
    first.ask_to_stop()
    assert await first.gone() == 0
    await workers.start(queue, modules=SERVED)

    await arrived(engine, view.task_id, ledger)


async def stopped_without_lock(pid: int, receipts: str) -> None:
    """Stop a process between its writes: one that is stopped within a write to SQLite's file lets nobody write."""

    async def stopped() -> bool:
        os.kill(pid, signal.SIGSTOP)
        if receipts.startswith("postgresql") or not _is_locked(Path(receipts)):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    await until(stopped, bool)


def _is_locked(receipts: Path) -> bool:
    with closing(sqlite3.connect(receipts, timeout=0, isolation_level=None)) as other:
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return True
        other.execute("ROLLBACK")
        return False


async def test_a_worker_stalls_and_another_one_overtakes_it(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, receipts: str
) -> None:
    """
    SIGSTOP until its workflow task is given to another worker, which goes on; then SIGCONT: what it still does is
    repeated at most, and what it brings changes nothing.
    """
    workers.env["REFOLD_LEDGER"] = receipts
    # Each of its requests that waits at the server would be given an attempt of the workflow task, for a longer time.
    stalled = await workers.start(queue, modules=SERVED, pollers=2)
    view = await engine.start("short_walk", FAR)
    await ledger.until("tread 3")
    await stopped_without_lock(stalled.process.pid, receipts)
    try:
        await workers.start(queue, modules=SERVED)
        await ledger.until("tread 9")
    finally:
        os.kill(stalled.process.pid, signal.SIGCONT)

    await arrived(engine, view.task_id, ledger, twice=2)


async def test_two_workers_share_many_tasks_and_one_dies(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, database: Postgres
) -> None:
    """
    Two hosts, one PostgreSQL, eight tasks: one worker is killed in the middle, no step is made twice.
    """
    workers.env["REFOLD_LEDGER"] = database.another(queue.replace("-", "_"))
    first = await workers.start(queue, modules=SERVED)
    await workers.start(queue, modules=SERVED)
    views = [await engine.start("short_walk", FAR) for _ in range(8)]
    await ledger.until("tread 3", 4)
    await first.kill()
    ended = [await settled(engine, view.task_id) for view in views]

    treads = Counter(line.invocation_id for line in ledger.lines if line.what.startswith("tread"))
    assert {view.status for view in ended} == {Status.COMPLETED}
    assert (len(treads), set(treads.values())) == (8 * STEPS, {1})


@pytest.mark.parametrize(("before", "after"), [("history", "ledger"), ("ledger", "history")])
async def test_workers_of_both_ways_on_one_queue(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path, before: str, after: str
) -> None:
    """
    A fleet that is half deployed: tasks of either way go on at either worker, and one of the workers is killed.
    """
    workers.env["REFOLD_LEDGER"] = str(tmp_path / "receipts.db")
    first = await workers.start(queue, modules=SERVED, env={"REFOLD_DURABILITY": before})
    views = [await engine.start("any_walk", FAR) for _ in range(3)]
    await ledger.until("tread 2", 3)
    await workers.start(queue, modules=SERVED, env={"REFOLD_DURABILITY": after})
    views += [await engine.start("any_walk", FAR) for _ in range(3)]
    await ledger.until("tread 4", 4)
    await first.kill()
    ended = [await settled(engine, view.task_id) for view in views]

    treads = Counter(line.invocation_id for line in ledger.lines if line.what.startswith("tread"))
    assert {view.status for view in ended} == {Status.COMPLETED}
    assert (len(treads), set(treads.values())) == (6 * STEPS, {1})
    ways = {await local(engine, view.task_id) > 0 for view in views}
    assert before != "ledger" or True in ways


async def test_a_ledger_that_is_locked(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    Another program holds the file's lock for longer than a write waits: the task waits, and goes on. The walk is longer
    than it takes to get the lock.
    """
    steps = 10 * STEPS
    receipts = tmp_path / "receipts.db"
    workers.env["REFOLD_LEDGER"] = str(receipts)
    worker = await workers.start(queue, modules=SERVED)
    view = await engine.start("short_walk", Content.from_data({"steps": steps}))
    await ledger.until("tread 3")
    with closing(sqlite3.connect(receipts, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await until(_written(worker.log), lambda log: "ledger_awaited" in log)
        assert (await engine.look(view.task_id)).status is Status.WORKING  # it can be asked meanwhile
        other.execute("ROLLBACK")

    await arrived(engine, view.task_id, ledger, twice=0, steps=steps)


def _written(log: Path):  # type: ignore[no-untyped-def]
    async def read() -> str:
        return await asyncio.to_thread(log.read_text)

    return read


async def test_a_database_that_is_stopped(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    PostgreSQL crashes and comes back, then the worker is killed. The walk is longer than PostgreSQL takes to stop.
    """
    steps = 10 * STEPS
    with postgres() as own:
        workers.env["REFOLD_LEDGER"] = own.url
        worker = await workers.start(queue, modules=SERVED)
        view = await engine.start("short_walk", Content.from_data({"steps": steps}))
        await ledger.until("tread 3")
        own.stop()
        await until(_written(worker.log), lambda log: "ledger_awaited" in log or "receipt_owed" in log)
        own.start()
        await ledger.until("tread 9")
        await worker.kill()
        await workers.start(queue, modules=SERVED)

        await arrived(engine, view.task_id, ledger, steps=steps)


async def test_a_server_that_is_killed(queue: str, ledger: Ledger, values: Path, tmp_path: Path) -> None:
    """
    The Temporal server dies in the middle of a stretch, and starts again on its data: nothing is made twice.
    """
    port, db = free_port(), tmp_path / "state.db"
    env = {"REFOLD_LEDGER": str(tmp_path / "receipts.db"), "FAULTS_LEDGER": str(ledger.path)}
    async with Workers(f"127.0.0.1:{port}", values, env=env) as workers:
        async with dev_server(port=port, db=db, settings=HASTY) as server:
            await workers.start(queue, modules=SERVED)
            engine = await engine_of(server.address, queue, values)
            view = await engine.start("short_walk", FAR)
            await ledger.until("tread 3")
            os.kill(server.pid, signal.SIGKILL)
        async with dev_server(port=port, db=db, settings=HASTY):
            await arrived(engine, view.task_id, ledger, twice=0)
