"""The recorded scenarios once more, each task and part sealed again and again: the journals are those recorded."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client, WorkflowUpdateFailedError
from temporalio.service import RPCError

from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import dev_server
from tests.records import on_server
from tests.records.on_server import PATIENT, SCENARIOS, TOOLS, Letter, On, calls, multiply, trouble
from tests.records.replaying import HISTORIES, SKILLS

_DIGEST = re.compile(r'"digest": "[0-9a-f]{32}"')
_SLEPT = re.compile(r'"864\d\d"')
"""What the patient one tells: a day in seconds, and those that the server took."""
_MOMENT = re.compile(r"(\d{4}-\d\d-\d\dT)?\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
SIDE_BY_SIDE = (
    "compensation.r1", "early", "gather", "gather-caught", "order_desk", "parallel", "parts", "parts_failed.r1/1.1",
)  # fmt: skip
"""Tasks to which several things come at once, in any order."""

pytestmark = [pytest.mark.server]


class Sealing(On):
    """Seals what is open, with its parts, before and after whatever it does."""

    def __init__(self, engine: TemporalEngine) -> None:
        super().__init__(engine, engine)
        self.played: list[Any] = []

    async def settled(self, task_id: str) -> TaskView:
        await self.seal(task_id)
        view = await super().settled(task_id)
        await self.seal(task_id)
        return view

    async def once(self, task_id: str, holds: Callable[[TaskView], bool]) -> TaskView:
        async def sealing() -> None:
            while True:
                await self.seal(task_id)
                await asyncio.sleep(0.2)

        beside = asyncio.create_task(sealing())
        try:
            return await super().once(task_id, holds)
        finally:
            beside.cancel()
            await asyncio.gather(beside, return_exceptions=True)

    async def forward(self, task_id: str, seconds: float) -> None:
        await self.seal(task_id)
        await super().forward(task_id, seconds)

    async def seal(self, task_id: str) -> None:
        open = f"WorkflowId STARTS_WITH '{task_id}' AND ExecutionStatus = 'Running'"
        for id in {task_id, *[one.id async for one in self.engine.client.list_workflows(open)]}:
            with suppress(WorkflowUpdateFailedError, RPCError):  # it is being sealed, or has ended
                await self.engine.client.get_workflow_handle(id).execute_update("seal")


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sealing]:
    """A server of these scenarios' own, since their tasks' ids are fixed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_LEDGER", str(tmp_path_factory.mktemp("ledger") / "ledger.db"))
        patch.setenv("REFOLD_APPROVAL_KEY", "key-of-the-records")
        values = Folder(tmp_path_factory.mktemp("values"))
        settings = {"history.workflowIdReuseMinimalInterval": '"0s"'}
        async with dev_server(time_skipping=True, settings=settings) as server:
            converter = data_converter(values)
            client = await Client.connect(server.address, namespace=server.namespace, data_converter=converter)
            plugin = RefoldPlugin(SKILLS, TOOLS, model="scripted:demo", storage=values)
            more: dict[str, Any] = {"activities": [multiply], "workflows": [Letter]}
            async with make_worker(client, plugin, task_queue="records", **more):
                engine = TemporalEngine(client, "records", patience=PATIENT)
                yield Sealing(engine)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
async def test_a_seal_changes_nothing(on: Sealing, scenario: Callable[[On], Awaitable[None]]) -> None:
    """
    Questions, gates, reminders, deadlines, sleeps, parts, blocked commands, compensation and late grants survive; each
    effect takes place once.
    """
    calls.clear()
    trouble.clear()
    if scenario is on_server.order_desk and on_server.refund_late not in on.played:
        await on_server.refund_late(on)  # it paid for the same order, and receipts are for all tasks
    on.played.append(scenario)

    with capture_logs() as logs:
        await scenario(on)

    performed = Counter(log["invocation_id"] for log in logs if log["event"] == "effect_done")
    assert set(performed.values()) <= {1}, performed
    for task_id, recorded in journals(scenario.__name__).items():
        told = [_timeless(entry.model_dump(mode="json")) async for entry in on.engine.journal(task_id)]
        while _sent_again(told):
            told.pop()
        if task_id in SIDE_BY_SIDE:
            told, recorded = _events(told), _events(recorded)
        assert told == recorded, task_id


def journals(scenario: str) -> dict[str, list[Any]]:
    """The recorded journals of a scenario's tasks, by task id."""
    found: dict[str, list[Any]] = {}
    mine = re.compile(rf"{scenario}([-.].*|_1\.1|_steps|_table)?\.jsonl")
    for path in sorted(HISTORIES.glob("*.jsonl"), key=_run):
        lines = [json.loads(line) for line in path.read_text().splitlines()] if mine.fullmatch(path.name) else []
        entries = [line["entry"] for line in lines if "entry" in line]
        if entries:
            found.setdefault(_task(path), []).extend(map(_timeless, entries))
    return found


def _run(path: Path) -> tuple[str, int]:
    stem, _, number = path.stem.partition(".run")
    return stem, int(number or 0)


def _task(path: Path) -> str:
    return path.stem.partition(".run")[0].replace("_1.1", "/1.1").replace(".recovered", ".r1")


def _sent_again(entries: list[Any]) -> bool:
    """Whether the last entry refuses an answer that the part has: the new run of its parent cannot know that it has."""
    *before, last = entries
    id = last["event"].get("delivery_id") if last.get("refused") else None
    return id is not None and any(one["event"].get("delivery_id") == id for one in before)


def _events(entries: list[Any]) -> list[str]:
    # Ids count what came before.
    return sorted(re.sub(r'/\d+\.\d+|"id": "[^"]*"', "", json.dumps(entry["event"])) for entry in entries)


def _timeless(entry: Any) -> Any:
    # When these were recorded, a recovered task was named otherwise, and a gate's digest covered less.
    text = _DIGEST.sub('"digest": "DIGEST"', _MOMENT.sub("MOMENT", json.dumps(entry)))
    text = _SLEPT.sub('"A DAY"', text)
    return json.loads(text.replace(".recovered", ".r1"))
