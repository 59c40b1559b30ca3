"""A fleet whose codec, storage and ledger go away at random moments: no tool runs twice, each task ends as it would.

No worker is killed. One kind of call may run twice: `may_be_repeated`.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.worker import Replayer

from refold import Status
from refold.effects import attempt
from refold.effects.ledger import ledgered_call
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, StorageUnusable
from refold.temporal.dev import DevServer
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal.conftest import PATIENT
from tests.temporal.data import law_skills
from tests.temporal.data.law_skills import AWAY, RUNS, answered
from tests.temporal.test_task import settled, text

pytestmark = [pytest.mark.sweep, pytest.mark.timeout(LONG_S)]

TASKS, STEPS = 4, 5
LONGEST_S = 1.5
"""The longest time that a service is away, or is there, in seconds."""


@dataclass(frozen=True)
class Mounted(Folder):
    """A folder, unless it is away."""

    async def put(self, key: str, data: bytes) -> None:
        self._asked()
        await super().put(key, data)

    async def get(self, key: str) -> bytes:
        self._asked()
        return await super().get(key)

    def _asked(self) -> None:
        if AWAY.storage:
            raise StorageUnusable(self.place, "it is not mounted")


Away = Callable[[float, Path], Awaitable[None]]
"""Takes a service away for so many seconds; the path is the ledger's."""


async def codec_away(seconds: float, _: Path) -> None:
    AWAY.codec = True
    await asyncio.sleep(seconds)
    AWAY.codec = False


async def storage_away(seconds: float, _: Path) -> None:
    AWAY.storage = True
    await asyncio.sleep(seconds)
    AWAY.storage = False


async def ledger_away(seconds: float, file: Path) -> None:
    """Another program holds the file."""
    with closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        await asyncio.sleep(seconds)
        holder.execute("ROLLBACK")


@asynccontextmanager
async def outages(seed: int, ledger: Path) -> AsyncIterator[None]:
    """Each service is away and there again, each at moments of its own."""

    async def comes_and_goes(rng: random.Random, away: Away) -> None:
        while True:
            await asyncio.sleep(rng.uniform(0, LONGEST_S))
            await away(rng.uniform(0, LONGEST_S), ledger)

    going = [
        asyncio.create_task(comes_and_goes(random.Random(f"{seed} {number}"), away))
        for number, away in enumerate((codec_away, storage_away, ledger_away))
    ]
    try:
        yield
    finally:
        for one in going:
            one.cancel()
        await asyncio.gather(*going, return_exceptions=True)
        AWAY.codec = AWAY.storage = False


def may_be_repeated(what: str, call: str) -> bool:
    """Whether no record keeps a call's outcome: a failure within a workflow task that could not end."""
    return what == "fails" and call.startswith("walks_in_ledger_while_away")


@pytest.mark.parametrize("seed", range(3 if THOROUGH else 1))
async def test_each_tool_runs_once_and_each_task_ends_as_it_would(
    hasty_server: DevServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """
    Two workers; both ways; results that are small, large and failures. Each history replays.
    """
    RUNS.clear()
    monkeypatch.setattr(attempt, "PAUSES_S", (0.01, 0.2))
    monkeypatch.setattr(ledgered_call, "LEDGER_PAUSES_S", (0.01, 0.2))
    monkeypatch.setenv("REFOLD_LEDGER", str(tmp_path / "ledger.db"))
    storage, codec, queue = Mounted(tmp_path / "values", make=True), law_skills.Codec(), f"law-{uuid4().hex[:8]}"
    own = await Client.connect(hasty_server.address, data_converter=data_converter(Folder(storage.path), codec.inner))
    engine = TemporalEngine(own, queue, patience=PATIENT)
    async with AsyncExitStack() as stack:
        for _ in range(2):
            client = await Client.connect(hasty_server.address, data_converter=data_converter(storage, codec))
            plugin = RefoldPlugin([law_skills], law_skills.TOOLS, storage=storage, codec=codec)
            await stack.enter_async_context(make_worker(client, plugin, task_queue=queue))
        skills = ["walks_while_away", "walks_in_ledger_while_away"] * (TASKS // 2)
        ids = [(await engine.start(skill, text(str(STEPS)))).task_id for skill in skills]
        async with outages(seed, tmp_path / "ledger.db"):
            await asyncio.gather(*(own.get_workflow_handle(id).result() for id in ids))
        ended = [await settled(engine, id) for id in ids]

    repeated = {call: times for call, times in RUNS.items() if times > 1}
    assert {call for call in repeated if not may_be_repeated(*call)} == set(), repeated
    assert len(RUNS) == TASKS * STEPS * 3
    assert {(one.status, one.messages[-1].text) for one in ended} == {(Status.COMPLETED, answered(STEPS))}
    replayer = Replayer(
        workflows=[],
        plugins=[RefoldPlugin([law_skills], law_skills.TOOLS, storage=Folder(storage.path), codec=codec.inner)],
        debug_mode=True,
    )
    for id in ids:
        await replayer.replay_workflow(await own.get_workflow_handle(id).fetch_history())
