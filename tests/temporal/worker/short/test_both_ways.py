"""A skill's journal does not say which way its effects took: the regular one, or the short one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from refold.core.fold.journal import Entry
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import dev_server
from refold.testing.crash_sweep import in_one_order
from tests.records import on_server
from tests.records.on_server import PATIENT, SCENARIOS, TOOLS, Letter, On, multiply
from tests.records.replaying import SKILLS

Scenario = Callable[[On], Awaitable[None]]

RACES = [on_server.parts, on_server.parts_failed, on_server.gather, on_server.early]
"""Their order is the clock's, whichever way effects take: what several parts wait for; a sleep beside a backoff; a
message that is sent while an effect is under way."""

TIME = re.compile(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d([0-9.]+)?(Z|\+00:00)?")


async def played(way: str, scenarios: Sequence[Scenario], folder: Path) -> tuple[dict[str, list[str]], int]:
    """The journals of the scenarios' tasks, by task, without times; and how many effects took the short way."""
    os.environ["REFOLD_LEDGER"] = str(folder / f"{way}.db")
    os.environ["REFOLD_APPROVAL_KEY"] = "key-of-the-records"
    on_server.calls.clear()
    on_server.trouble.clear()
    async with dev_server(time_skipping=True) as server:
        values = Folder(folder)
        client = await Client.connect(server.address, data_converter=data_converter(values))
        plugin = RefoldPlugin(SKILLS, TOOLS, model="scripted:demo", storage=values, durability=way)
        more: dict[str, Any] = {"activities": [multiply], "workflows": [Letter]}
        async with make_worker(client, plugin, task_queue="both", **more):
            engine = TemporalEngine(client, "both", patience=PATIENT)
            on = On(engine, TemporalEngine(client, "both", events_per_run=1, patience=PATIENT))
            for scenario in scenarios:
                await scenario(on)
            journals, local = {}, 0
            async for one in client.list_workflows():
                history = await client.get_workflow_handle(one.id, run_id=one.run_id).fetch_history()
                local += sum(1 for event in history.events if _is_local(event))
                if one.workflow_type != "Letter":
                    journals[one.id] = in_order([entry async for entry in engine.journal(one.id)])
        return journals, local


def in_order(entries: Sequence[Entry]) -> list[str]:
    """A journal without times. What went on at once came back in either order, whichever way it took: here in one."""
    lines = [TIME.sub("TIME", entry.model_dump_json(exclude={"at"})) for entry in entries]
    return [json.dumps(entry) for entry in in_one_order([json.loads(line) for line in lines])]


def _is_local(event: Any) -> bool:
    return bool(event.marker_recorded_event_attributes.marker_name == "core_local_activity")


@pytest.mark.sweep
@pytest.mark.timeout(600)
async def test_the_same_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Every example skill, run both ways: the same entries, byte for byte but for the times, and for the order of what
    goes on at once.
    """
    scenarios = [one for one in SCENARIOS if one not in RACES]
    for name in ("REFOLD_LEDGER", "REFOLD_APPROVAL_KEY"):
        monkeypatch.setenv(name, "")  # put back afterwards
    regular, none = await played("history", scenarios, tmp_path)
    short, some = await played("ledger", scenarios, tmp_path)

    assert (none, some > len(scenarios)) == (0, True)
    assert short.keys() == regular.keys()
    pairs = {task_id: [*zip_longest(journal, short[task_id])] for task_id, journal in regular.items()}
    assert {task_id: [one for one in lines if one[0] != one[1]] for task_id, lines in pairs.items()} == {
        task_id: [] for task_id in regular
    }
