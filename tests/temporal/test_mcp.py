"""The tools of an MCP server in a task: called by name, performed once, waited for while the server is away."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from temporalio.client import Client

from refold import CommandFailed, Content, Status, ToolResult
from refold.effects import McpServer
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal import shopper
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected, settled

ROOT = Path(__file__).parents[2]


async def test_a_task_calls_the_tools_of_a_server(
    client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    It finds out what there is, and buys once, with a receipt; the unknown tool's failure names those there are.
    """
    monkeypatch.setenv("REFOLD_LEDGER", f"sqlite:///{tmp_path / 'ledger.db'}")
    notes = tmp_path / "notes"
    server = McpServer(
        name="shop",
        command=sys.executable,
        args=("-m", "tests.services.mcp_server"),
        cwd=ROOT,
        env={"MCP_LEDGER": str(notes)},
    )
    plugin = RefoldPlugin([shopper], model="scripted:demo", storage=values, mcp=[server])
    engine = TemporalEngine(client, "mcp", patience=PATIENT)
    async with make_worker(client, plugin, task_queue="mcp"):
        task = await engine.start("shopper", Content.from_text("shoes"))
        done = await settled(engine, task.task_id)

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "bought shoes-1; no tool 'sell' there")
    assert len(notes.read_text().splitlines()) == 1
    entries = await collected(engine.journal(task.task_id))
    asked = [one.invocation_id for entry in entries if isinstance(one := entry.event, ToolResult | CommandFailed)]
    assert asked == [f"{task.task_id}/{seq}.1" for seq in (1, 2, 3, 4)]
