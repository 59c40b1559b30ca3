"""While storage cannot take a large result, the worker holds it, however late storage goes away."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from refold import Content, Ctx, Status, Transition, flow_skill, step, tool
from refold.effects import attempt
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker, workflow_for
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, StorageUnusable
from refold.temporal.dev import DevServer
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import settled, text

REFUSALS = 6
"""How often storage refuses a value before it is back: more often than Temporal repeats an activity at once."""

LONG = 50_000

RUNS: list[str] = []


class Away(Folder):
    """Takes no long text for a while."""

    puts = 0

    async def put(self, key: str, data: bytes) -> None:
        Away.puts += len(data) >= LONG  # the journal is packed
        if Away.puts <= REFUSALS:
            raise StorageUnusable(self.place, "it is away")
        await super().put(key, data)


@tool(effect="at_least_once")
async def writes(name: str) -> str:
    """Writes a long text."""
    RUNS.append(name)
    return "x" * LONG


@flow_skill(id="writes_while_away")
class Writes:
    """Has a long text written."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete(str(len(await ctx.tool(writes, {"name": content.text}))))


WritesWorkflow = workflow_for(Writes)


async def test_a_tool_runs_once(hasty_server: DevServer, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Storage is away when it ends, and comes back: its result is then written, and sent as it was written, once.
    """
    monkeypatch.setattr(attempt, "PAUSES_S", (0.01, 0.1))
    storage = Away(folder.path)
    client = await Client.connect(hasty_server.address, data_converter=data_converter(storage))
    plugin = RefoldPlugin([Writes], [writes], storage=storage, sandboxed=False)
    async with make_worker(client, plugin, task_queue="storage-away"):
        engine = TemporalEngine(client, "storage-away", patience=PATIENT)
        ended = await settled(engine, (await engine.start("writes_while_away", text("a letter"))).task_id)

    assert (RUNS, Away.puts) == (["a letter"], REFUSALS + 1)
    assert (ended.status, ended.messages[-1].text) == (Status.COMPLETED, "50000")
