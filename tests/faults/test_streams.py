"""Streams through gateways that die, of tasks whose workers die, on a server that goes away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

from refold.temporal.dev import DevServer, dev_server
from tests.a2a.conftest import said
from tests.a2a.streams.events import Frame, opened, subscribed
from tests.faults.processes import PATIENCE_S, Ledger, Workers
from tests.faults.skills import LEDGER
from tests.services.serving import free_port

STEPS = 20
ENTRIES = STEPS + 1


class Reader:
    """A client that reads one stream, and comes again where it is cut: to another gateway, with its last id.

    Attributes:
        frames: All that it has read.
        cuts: How many frames it had read whenever it was cut.
    """

    def __init__(self, http: httpx.AsyncClient, gateways: list[str]) -> None:
        self.http = http
        self.gateways = gateways
        self.frames: list[Frame] = []
        self.cuts: list[int] = []
        self._came = asyncio.Condition()
        self._reading: asyncio.Task[None] | None = None

    def send(self, folder: Path) -> None:
        """Start the task, and read on."""
        params = {
            "message": {**said(), "parts": [{"data": {"gate": str(folder), "count": STEPS}}]},
            "metadata": {"skill": "stairs"},
        }
        stream = opened(self.http, self.gateways[0], "SendStreamingMessage", params)
        self._reading = asyncio.create_task(self._read(stream))

    def subscribe(self, task_id: str) -> None:
        """Follow a task."""
        self._reading = asyncio.create_task(self._read(subscribed(self.http, self.gateways[0], task_id)))

    async def _read(self, stream: contextlib.AbstractAsyncContextManager[AsyncIterator[Frame]]) -> None:
        while True:
            try:
                async with stream as frames:
                    async for frame in frames:
                        await self._take(frame)
                return
            except httpx.TransportError:
                self.cuts.append(len(self.frames))
                self.gateways = self.gateways[1:]
                stream = subscribed(self.http, self.gateways[0], self.task_id, self.frames[-1].id)

    async def _take(self, frame: Frame) -> None:
        async with self._came:
            self.frames.append(frame)
            self._came.notify_all()

    @property
    def task_id(self) -> str:
        """The task's id, from the first frame."""
        id: str = self.frames[0].told["id"]
        return id

    async def reaches(self, seq: int) -> None:
        """Wait until the entry was seen."""
        async with asyncio.timeout(PATIENCE_S), self._came:
            await self._came.wait_for(lambda: bool(self.frames) and self.frames[-1].seq >= seq)

    async def ends(self) -> None:
        """Wait until the stream has ended."""
        assert self._reading is not None
        async with asyncio.timeout(PATIENCE_S):
            await self._reading


def ids(frames: list[Frame]) -> list[str | None]:
    """The frames' ids."""
    return [frame.id for frame in frames]


@pytest.mark.parametrize(
    "restarts", [pytest.param(False, id="same-server", marks=pytest.mark.sweep), pytest.param(True, id="restarted")]
)
async def test_a_stream_survives_whatever_dies(
    tmp_path: Path, values: Path, ledger: Ledger, queue: str, restarts: bool
) -> None:
    """
    The worker is killed, perhaps the server restarted, then a gateway killed, then the worker again: whoever watches at
    another gateway sees each entry once, in order; whoever was cut goes on there and misses nothing; each of twenty
    effects is done once.
    """
    port, db, folder = free_port(), tmp_path / "state.db", tmp_path / "gates"
    folder.mkdir()
    address = f"127.0.0.1:{port}"

    def let_through(first: int, last: int) -> None:
        for number in range(first, last + 1):
            (folder / str(number)).touch()

    async with AsyncExitStack() as stack:
        workers = await stack.enter_async_context(Workers(address, values, env={LEDGER: str(ledger.path)}))
        http = await stack.enter_async_context(httpx.AsyncClient(timeout=None))
        server = await stack.enter_async_context(contextlib.AsyncExitStack())
        await server.enter_async_context(dev_server(port=port, db=db))

        command = ["tests.faults.gateway", address, queue]
        worker, one, two = await asyncio.gather(workers.start(queue), workers.launch(command), workers.launch(command))
        cut = Reader(http, [one.about["url"], two.about["url"]])
        cut.send(folder)
        await cut.reaches(1)
        watcher = Reader(http, [two.about["url"]])
        watcher.subscribe(cut.task_id)
        let_through(1, 4)
        await cut.reaches(5)
        await ledger.until("begun", 5)

        await worker.kill()
        if restarts:
            await server.aclose()
            await server.enter_async_context(dev_server(port=port, db=db))
        worker = await workers.start(queue)
        let_through(5, 9)
        await cut.reaches(10)
        await one.kill()
        let_through(10, 14)
        await watcher.reaches(15)
        await ledger.until("begun", 15)
        await worker.kill()
        await workers.start(queue)
        let_through(15, STEPS)

        await watcher.ends()
        await cut.ends()

    entries = [f"{seq}.1" for seq in range(1, ENTRIES + 1)]
    assert watcher.cuts == []
    assert watcher.frames[0].id == f"{watcher.frames[0].seq}.0"
    assert ids(watcher.frames[1:]) == entries[watcher.frames[0].seq :]
    # After the cut the task comes as of the last id before it, then what follows that.
    [place] = cut.cuts
    before, again, after = cut.frames[:place], cut.frames[place], cut.frames[place + 1 :]
    assert (again.seq, again.told["id"]) == (before[-1].seq, cut.task_id)
    assert ids(before[1:] + after) == entries[before[0].seq :]
    assert after[-1].state == watcher.frames[-1].state == "TASK_STATE_COMPLETED"
    done = ledger.noted("done")
    assert len(done) == len(set(done)) == STEPS


async def test_a_gateway_that_is_asked_to_stop_ends_its_streams(
    workers: Workers, server: DevServer, queue: str, tmp_path: Path
) -> None:
    """
    SIGTERM: the stream's response is whole, and its client comes again elsewhere; the gateway does not wait for it.
    """
    command = ["tests.faults.gateway", server.address, queue]
    _, one, two = await asyncio.gather(workers.start(queue), workers.launch(command), workers.launch(command))
    async with httpx.AsyncClient(timeout=None) as http:
        cut = Reader(http, [one.about["url"]])
        cut.send(tmp_path)
        await cut.reaches(1)
        one.ask_to_stop()
        await cut.ends()
        await one.gone()
        (tmp_path / "1").touch()
        async with subscribed(http, two.about["url"], cut.task_id, cut.frames[-1].id) as stream:
            [again, after] = await stream.take(2)

    assert cut.cuts == []
    assert (again.seq, after.seq) == (1, 2)
