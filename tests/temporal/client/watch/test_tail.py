"""Several who watch one task: one tail, the same entries, each at a pace of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from temporalio.client import Client

from refold.core.fold.journal import Entry
from refold.engine import News, TaskNotFound
from refold.temporal import TemporalEngine
from refold.temporal.client.watch import tail
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from tests.temporal.test_task import collected, run, text

ALL = list(range(1, 9))
"""What the research loop journals, with one question at entry 5."""


async def numbers(items: AsyncIterator[News]) -> list[int]:
    """The entries' numbers."""
    return [item.seq async for item in items if isinstance(item, Entry)]


async def until_paused(engine: TemporalEngine) -> str:
    """A research loop that waits for an answer."""
    view = await run(engine, "research_loop", "Tides")
    assert view.seq == 5
    return view.task_id


async def test_all_watchers_of_a_task_share_one_tail(engine: TemporalEngine) -> None:
    """
    Each begins where it wants and gets what it missed, then all get the same; the tail ends with the last of them.
    """
    task_id = await until_paused(engine)
    watches = [asyncio.create_task(numbers(engine.watch(task_id, after=after, follow=True))) for after in (0, 3, 5, 7)]
    assert await numbers(engine.watch(task_id)) == ALL[:5]
    assert len(engine.tails) == 1

    await engine.send(task_id, text("For sailors"))

    assert await asyncio.gather(*watches) == [ALL, ALL[3:], ALL[5:], ALL[7:]]
    assert len(engine.tails) == 0


async def test_nobody_waits_for_a_slow_watcher(engine: TemporalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Who is slow finds all that it missed in the journal, however little is kept for it; the others are at the end long
    before.
    """
    monkeypatch.setattr(tail, "RECENT", 2)
    task_id = await until_paused(engine)
    slow = engine.watch(task_id, follow=True)
    seen = [await anext(slow)]
    quick = asyncio.create_task(numbers(engine.watch(task_id, follow=True)))

    await engine.send(task_id, text("For sailors"))

    assert await quick == ALL
    seen += [entry async for entry in slow]
    assert [entry.seq for entry in seen if isinstance(entry, Entry)] == ALL


async def test_a_watcher_that_leaves_ends_its_own_watch_only(engine: TemporalEngine) -> None:
    """
    The others go on; with the last one the tail ends, though the task does not.
    """
    task_id = await until_paused(engine)
    stays = asyncio.create_task(numbers(engine.watch(task_id, follow=True)))
    async with contextlib.aclosing(engine.watch(task_id, follow=True)) as leaves:
        await anext(leaves)
    await engine.send(task_id, text("For sailors"))
    assert await stays == ALL

    other = await until_paused(engine)
    canceled = asyncio.create_task(numbers(engine.watch(other, follow=True)))
    assert await numbers(engine.watch(other)) == ALL[:5]
    canceled.cancel()
    await asyncio.gather(canceled, return_exceptions=True)

    assert len(engine.tails) == 0


async def test_a_task_that_does_not_exist_cannot_be_watched(engine: TemporalEngine) -> None:
    """
    Whoever watches it is told so, and nothing is left behind.
    """
    with pytest.raises(TaskNotFound):
        await collected(engine.watch("nobody-knows-it", follow=True))

    assert len(engine.tails) == 0


async def test_it_is_not_found_whoever_asks_first(engine: TemporalEngine) -> None:
    """
    The long poll and the watcher ask at the same moment: either answer says the same.
    """
    watched = await asyncio.gather(
        *(collected(engine.watch(f"nobody-{number}")) for number in range(40)), return_exceptions=True
    )

    assert {type(error) for error in watched} == {TaskNotFound}


async def test_a_pause_that_is_over_ends_no_watch(engine: TemporalEngine, server: DevServer, values: Folder) -> None:
    """
    The shared tail has read of the question, and not yet of the answer, which the second watcher knows: it waits for
    what follows. A watcher that begins after the newest entry of a task that waits has nothing to wait for.
    """
    async with way_between(engine, server, values) as (way, watching):
        task_id = await until_paused(engine)
        first = watching.watch(task_id, follow=True)
        seen = [await anext(first) for _ in ALL[:5]]
        assert await numbers(watching.watch(task_id, after=5)) == []
        way.free.clear()
        await engine.send(task_id, text("For sailors"))
        second = asyncio.create_task(numbers(watching.watch(task_id, after=6)))
        await asyncio.sleep(0)  # so far that it waits, or ends
        way.free.set()
        assert await second == ALL[6:]
        seen += [news async for news in first]
        way.cut()

    assert [entry.seq for entry in seen if isinstance(entry, Entry)] == ALL
    assert await numbers(engine.watch(await until_paused(engine), after=100)) == []


@contextlib.asynccontextmanager
async def way_between(
    engine: TemporalEngine, server: DevServer, values: Folder
) -> AsyncIterator[tuple[Way, TemporalEngine]]:
    """A way to the server, and an engine that takes it."""
    way = Way(server.address)
    async with await asyncio.start_server(way.carry, "127.0.0.1", 0) as between:
        address = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"
        client = await Client.connect(address, namespace=server.namespace, data_converter=data_converter(values))
        yield way, TemporalEngine(client, "tests", patience=engine.connection.patience)


class Way:
    """A way to the server that can be cut, as by a proxy that does not like idle connections, or held up."""

    def __init__(self, address: str) -> None:
        self.host, _, self.port = address.rpartition(":")
        self.free = asyncio.Event()
        self.free.set()
        self.open: set[asyncio.StreamWriter] = set()

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Connect one caller."""
        there = await asyncio.open_connection(self.host, int(self.port))
        self.open |= {writer, there[1]}
        await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self.free.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        self.open.discard(writer)

    def cut(self) -> None:
        """Break all connections."""
        for writer in list(self.open):
            writer.transport.abort()


async def test_a_long_poll_that_is_cut_begins_again(engine: TemporalEngine, server: DevServer, values: Folder) -> None:
    """
    Somebody between us and the server breaks all connections, twice: a watcher misses nothing and hears nothing twice.
    """
    async with way_between(engine, server, values) as (way, watching):
        task_id = await until_paused(engine)
        watch = watching.watch(task_id, follow=True)
        seen = [await anext(watch)]
        way.cut()
        seen += [await anext(watch) for _ in range(4)]
        way.cut()
        await engine.send(task_id, text("For sailors"))
        seen += [entry async for entry in watch]
        way.cut()

    assert [entry.seq for entry in seen if isinstance(entry, Entry)] == ALL
