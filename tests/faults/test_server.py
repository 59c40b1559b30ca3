"""The Temporal server goes away, for a while or for good."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.service import RetryConfig

from refold import Content
from refold.core.fold.journal import Entry
from refold.engine import News, NotConnected
from refold.temporal import connect
from refold.temporal.data.storage import Folder
from refold.temporal.dev import dev_server
from tests.faults.conftest import engine_of
from tests.faults.processes import PATIENCE_S, Ledger, Workers
from tests.faults.skills import LEDGER
from tests.services.serving import free_port
from tests.temporal.test_task import settled, text


class Watch:
    """A watcher of its own pace, from a task's beginning to its end."""

    def __init__(self, items: AsyncIterator[News]) -> None:
        self.seen: asyncio.Queue[int] = asyncio.Queue()
        self._over = asyncio.create_task(self._follow(items))

    async def _follow(self, items: AsyncIterator[News]) -> list[int]:
        numbers = []
        async for item in items:
            if isinstance(item, Entry):
                numbers.append(item.seq)
                self.seen.put_nowait(item.seq)
        return numbers

    async def reaches(self, seq: int) -> None:
        """Wait until it has seen this entry."""
        async with asyncio.timeout(PATIENCE_S):
            while await self.seen.get() < seq:
                pass

    async def whole(self) -> list[int]:
        """The numbers of the entries it saw, once it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._over


async def test_tasks_outlive_the_server(tmp_path: Path, values: Path, ledger: Ledger, queue: str) -> None:
    """
    The server is stopped and started on its file: a task that waits, one that is at work, their worker and a watcher
    all go on, and the effect that was under way is not repeated.
    """
    port, db, gate = free_port(), tmp_path / "state.db", tmp_path / "gate"
    async with Workers(f"127.0.0.1:{port}", values, env={LEDGER: str(ledger.path)}) as workers:
        async with dev_server(port=port, db=db) as server:
            await workers.start(queue, recovery="default")
            engine = await engine_of(server.address, queue, Folder(values))
            waits = await engine.start("research_loop", text("Tides"))
            works = await engine.start("gated", Content.from_data({"gate": str(gate)}))
            watch = Watch(engine.watch(waits.task_id, follow=True))
            await watch.reaches(5)
            await ledger.until("begun")
        gate.touch()
        async with dev_server(port=port, db=db):
            await engine.send(waits.task_id, text("For sailors"))
            assert await watch.whole() == list(range(1, 9))
            assert (await settled(engine, works.task_id)).messages[-1].text == "through"

    assert ledger.noted("begun") == ledger.noted("done") == [f"{works.task_id}/1.1"]


async def test_a_server_that_is_down_is_named() -> None:
    """
    Connecting to nobody says which address was tried, and how to have a server.
    """
    address = f"127.0.0.1:{free_port()}"

    with pytest.raises(NotConnected, match=rf"{address}.*refold dev.*TEMPORAL_ADDRESS"):
        await connect(address=address)


async def test_a_server_that_dies_ends_a_watch(values: Path, queue: str) -> None:
    """
    A watcher of a waiting task is told that the server is gone, and does not wait for ever; so is whoever looks.
    """
    async with dev_server() as server, Workers(server.address, values) as workers:
        await workers.start(queue)
        # Otherwise a question takes nine seconds to fail.
        engine = await engine_of(server.address, queue, Folder(values), RetryConfig(max_elapsed_time_millis=1_000))
        view = await engine.start("research_loop", text("Tides"))
        watch = Watch(engine.watch(view.task_id, follow=True))
        await watch.reaches(5)

    (watched, looked) = await asyncio.gather(watch.whole(), engine.look(view.task_id), return_exceptions=True)

    for error in (watched, looked):
        assert isinstance(error, NotConnected)
        assert "does not answer" in str(error)
        assert "refold dev" in str(error)


async def test_nothing_is_lost_when_the_server_is_killed(
    tmp_path: Path, values: Path, ledger: Ledger, queue: str
) -> None:
    """
    SIGKILL of the server with effects under way: on the same file they are finished, each begun once.
    """
    port, db, gate = free_port(), tmp_path / "state.db", tmp_path / "gate"
    async with Workers(f"127.0.0.1:{port}", values, env={LEDGER: str(ledger.path)}) as workers:
        async with dev_server(port=port, db=db) as server:
            await workers.start(queue, recovery="default")
            engine = await engine_of(server.address, queue, Folder(values))
            way = Content.from_data({"gate": str(gate), "count": 2})
            views = [await engine.start("gated", way) for _ in range(3)]
            await ledger.until("begun", 6)
            os.kill(server.pid, signal.SIGKILL)
        async with dev_server(port=port, db=db):
            gate.touch()
            ended = [await settled(engine, view.task_id) for view in views]

    assert [view.messages[-1].text for view in ended] == ["through, through"] * 3
    assert len(ledger.noted("begun")) == 6
    assert sorted(ledger.noted("begun")) == sorted(ledger.noted("done"))
