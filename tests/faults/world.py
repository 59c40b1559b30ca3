"""A world in which anything may fail at any moment: three workers, server, receipts' database, storage and the shop.

`faults` brings about faults that the seed chooses, of the workers and of what they need; then everything is mended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from temporalio.service import RetryConfig

from refold.temporal import TemporalEngine
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer, dev_server
from tests.faults.conftest import engine_of
from tests.faults.processes import WorkerProcess, Workers
from tests.services.postgres import Postgres
from tests.services.unreliable import UnreliableShop

QUEUE = "random-faults"
HIRED_WITHIN_S = 30.0
"""For how long a worker is started again; nothing is away for longer than this."""

OLD: tuple[str, ...] = ("tests.faults.errands", "activities")
NEW: tuple[str, ...] = (*OLD, "tests.faults.errands_new")


class World:
    """Everything that the tasks of one run need.

    Attributes:
        engine: The clients' engine.
        shop: What the tasks do is in its ledger.
        values: The folder of large values.
        happened: The faults so far, in order, for the report.
    """

    def __init__(
        self, seed: int, folder: Path, database: Path, *, env: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Start nothing yet.

        Args:
            seed: Chooses the faults.
            folder: For values, logs and the server's file.
            database: For PostgreSQL; its sockets want a short path.
            env: More environment for the workers.
        """
        self._env = dict(env)
        self.chance = random.Random(seed)
        self.shop = UnreliableShop(seed)
        self.happened: list[str] = []
        self._folder = folder
        self.values = folder / "values"
        self._database = database
        self._stack = AsyncExitStack()
        self._servers = AsyncExitStack()
        self._crew: list[tuple[WorkerProcess, tuple[str, ...]]] = []

    async def __aenter__(self) -> Self:
        self.values.mkdir()
        self._stack.enter_context(self.shop)
        self._postgres = await asyncio.to_thread(Postgres, self._database)
        self._stack.callback(_stop, self._postgres)
        await self._stack.enter_async_context(self._servers)
        server = await self._serve(None)
        self._port = int(server.address.rpartition(":")[2])
        env = {
            **self.shop.environment,
            "REFOLD_LEDGER": self._postgres.url,
            "REFOLD_STORAGE": str(self.values),
        } | self._env
        self._workers = await self._stack.enter_async_context(Workers(server.address, self._folder, env=env))
        retries = RetryConfig(max_elapsed_time_millis=2_000)
        self.engine: TemporalEngine = await engine_of(server.address, QUEUE, Folder(self.values), retries)
        self._crew = [(await self._hire(modules), modules) for modules in (NEW, NEW, OLD)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker, _modules in self._crew:
            worker.process.send_signal(signal.SIGCONT)
        await self._stack.aclose()

    async def _serve(self, port: int | None) -> DevServer:
        self._server = await self._servers.enter_async_context(dev_server(port=port, db=self._folder / "state.db"))
        return self._server

    async def _hire(self, modules: tuple[str, ...]) -> WorkerProcess:
        end = asyncio.get_running_loop().time() + HIRED_WITHIN_S
        while True:
            try:
                # Its leases last 30 s, longer than any stop: docs/limits.md says what happens otherwise.
                return await self._workers.start(QUEUE, modules=modules, recovery="default")
            except AssertionError:
                if asyncio.get_running_loop().time() > end:
                    raise
                # What it needs is away just now: it said so and ended, and is started again, as a supervisor does.
                self.happened.append("a worker could not start")

    # --- faults

    async def trouble_the_crew(self) -> None:
        """One fault of a worker, and its end."""
        await self._one_of({self._kill_worker: 6, self._stop_worker: 2, self._redeploy: 2})

    async def trouble_around(self) -> None:
        """One fault of what the workers need, and its end."""
        await self._one_of({self._unreliable_shop: 3, self._database_away: 2, self._storage_away: 2})

    async def _one_of(self, faults: dict[Callable[[], Coroutine[Any, Any, None]], int]) -> None:
        (fault,) = self.chance.choices(list(faults), list(faults.values()))
        self.happened.append(fault.__name__.strip("_"))
        await fault()

    async def kill_server(self) -> None:
        """SIGKILL of the server, and another one on its file."""
        self.happened.append("kill_server")
        os.kill(self._server.pid, signal.SIGKILL)
        await self._servers.aclose()
        await self._serve(self._port)

    async def kill_workers(self, *, every_s: float, seconds: float) -> None:
        """SIGKILL of one worker after the other, each replaced."""

        async def kill(place: int) -> None:
            end = asyncio.get_running_loop().time() + seconds
            await asyncio.sleep(place * every_s)
            while asyncio.get_running_loop().time() < end:
                self.happened.append("kill_worker")
                pause = asyncio.create_task(asyncio.sleep(len(self._crew) * every_s))
                await self._replace(place, self._crew[place][1])
                await pause

        await asyncio.gather(*(kill(place) for place in range(len(self._crew))))

    async def calm(self) -> None:
        """No more faults; three workers of the newest release."""
        self.shop.trouble_share = 0.0
        for place, (_, modules) in enumerate(self._crew):
            if modules == OLD:
                await self._replace(place, NEW)

    async def _replace(self, place: int, modules: tuple[str, ...]) -> None:
        worker, _ = self._crew[place]
        worker.process.send_signal(signal.SIGKILL)
        await worker.gone()
        self._crew[place] = (await self._hire(modules), modules)

    async def _kill_worker(self) -> None:
        place = self.chance.randrange(len(self._crew))
        await self._replace(place, self._crew[place][1])

    async def _stop_worker(self) -> None:
        worker, _ = self.chance.choice(self._crew)
        worker.process.send_signal(signal.SIGSTOP)
        await self._for_a_while()
        worker.process.send_signal(signal.SIGCONT)

    async def _redeploy(self) -> None:
        """SIGTERM, and the other release in its place: a deploy, or a rollback."""
        place = self.chance.randrange(len(self._crew))
        worker, modules = self._crew[place]
        worker.ask_to_stop()
        others = [one for number, (_, one) in enumerate(self._crew) if number != place]
        other = NEW if modules == OLD or NEW not in others else OLD
        await worker.gone()
        self._crew[place] = (await self._hire(other), other)

    async def _unreliable_shop(self) -> None:
        self.shop.trouble_share = 0.4
        await self._for_a_while()
        self.shop.trouble_share = 0.0

    async def _database_away(self) -> None:
        await asyncio.to_thread(self._postgres.stop)
        await self._for_a_while()
        await asyncio.to_thread(self._postgres.start)

    async def _storage_away(self) -> None:
        away = self.values.rename(self.values.with_name("away"))
        await self._for_a_while()
        away.rename(self.values)

    async def _for_a_while(self) -> None:
        await asyncio.sleep(self.chance.uniform(1.0, 6.0))


def _stop(postgres: Postgres) -> None:
    with contextlib.suppress(Exception):
        postgres.stop()


@contextlib.asynccontextmanager
async def faults(world: World, *, seconds: float, servers: int) -> AsyncIterator[None]:
    """Bring about faults beside the block, for so long; everything is mended when it ends.

    Args:
        world: Where.
        seconds: How long new faults begin.
        servers: How often the server is killed meanwhile.
    """
    clock = asyncio.get_running_loop().time

    end = clock() + seconds
    due = [clock() + seconds * (number + 1) / (servers + 1) for number in range(servers)]

    async def strike(trouble: Callable[[], Awaitable[None]]) -> None:
        while clock() < end:
            await trouble()
            await asyncio.sleep(world.chance.uniform(0.2, 2.0))

    async def around() -> None:
        if due and clock() >= due[0]:
            due.pop(0)
            await world.kill_server()
        else:
            await world.trouble_around()

    striking = [asyncio.create_task(strike(world.trouble_the_crew)), asyncio.create_task(strike(around))]
    try:
        await asyncio.sleep(0)
        yield
    finally:
        try:
            await asyncio.gather(*striking)
        finally:
            await world.calm()
