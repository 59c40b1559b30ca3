"""refold: a skill whose steps are tools.

The variant `history` is the regular way, `ledger` the one with outcomes in the ledger first, both with the default
settings of a worker; `fast-recovery` is `history` with that profile; `at_most_once` is `fast-recovery` with steps that
have a receipt and a probe.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.worker import PollerBehaviorAutoscaling

from bench.logs import quiet_logs
from bench.peers.work import effect, folder, happened, server
from refold import Ctx, Transition, flow_skill, step, tool
from refold.core.content import Content
from refold.core.events import UserMessage
from refold.effects import Done, NotDone, current
from refold.temporal import RefoldPlugin, make_worker, workflow_for
from refold.temporal.data.inputs import input_of
from refold.temporal.data.storage import ENV
from refold.temporal.data.wire import TaskStart
from refold.temporal.worker.profile import DEFAULT, FAST_RECOVERY

QUEUE = "paces"


class Plan(BaseModel):
    """What a task does."""

    task: str
    steps: int
    once: bool = False


@tool(effect="idempotent")
async def one(task: str, number: int) -> str:
    """One step."""
    return effect(task, number)


def made(key: str) -> Done | NotDone:
    """Whether the step whose worker was lost was made."""
    task, _, position = current().invocation_id.rpartition("/")
    number = int(position.rpartition(".")[2])
    text = happened(task, number)
    return NotDone() if text is None else Done(text)


@tool(effect="at_most_once", probe=made)
async def once(task: str, number: int) -> str:
    """One step, with a receipt."""
    return effect(task, number)


@flow_skill(id="paces", input=Plan)
class Paces:
    """All steps of a task."""

    @step(start=True)
    async def run(self, ctx: Ctx, plan: Plan) -> Transition:
        """One after the other."""
        called = once if plan.once else one
        results = [await ctx.tool(called, task=plan.task, number=number) for number in range(1, plan.steps + 1)]
        return ctx.complete(str(len(results)))


PacesWorkflow = workflow_for(Paces)


@dataclass(slots=True)
class Side:
    """A worker, with its client.

    Attributes:
        once: Whether steps have receipts.
        stored: Bytes of stored values when `kept` was last asked.
    """

    client: Client
    once: bool
    stored: int

    async def perform(self, task: str, steps: int) -> None:
        """Start it, or wait for the one that is open."""
        plan = Plan(task=task, steps=steps, once=self.once)
        handle = await self.client.start_workflow(
            "paces",
            input_of(TaskStart(message=UserMessage(content=Content.from_data(plan.model_dump())))),
            id=task,
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        await handle.result()

    async def kept(self, task: str) -> int:
        """The events of its histories, its records in the ledger, and what has been stored since last asked."""
        before, self.stored = self.stored, _stored()
        total, run = self.stored - before + _records(task), ""
        while True:
            history = await self.client.get_workflow_handle(task, run_id=run or None).fetch_history()
            total += sum(event.ByteSize() for event in history.events)
            run = history.events[0].workflow_execution_started_event_attributes.continued_execution_run_id
            if not run:
                return total


@contextlib.asynccontextmanager
async def serving(variant: str) -> AsyncIterator[Side]:
    """The worker."""
    (folder() / "values").mkdir(exist_ok=True)
    os.environ[ENV] = str(folder() / "values")
    os.environ["REFOLD_LEDGER"] = str(folder() / "ledger.db")
    quiet_logs()
    plugin = RefoldPlugin(
        [sys.modules[__name__]],
        [one, once],
        durability="ledger" if variant == "ledger" else "history",
        recovery=DEFAULT if variant in ("history", "ledger") else FAST_RECOVERY,
    )
    client = await Client.connect(server("address"), plugins=[plugin])
    pollers = PollerBehaviorAutoscaling()
    worker = make_worker(
        client,
        plugin,
        task_queue=QUEUE,
        workflow_task_poller_behavior=pollers,
        activity_task_poller_behavior=pollers,
    )
    async with worker:
        yield Side(client, variant == "at_most_once", _stored())


def _stored() -> int:
    return sum(file.stat().st_size for file in (folder() / "values").rglob("*") if file.is_file())


def _records(task: str) -> int:
    file = folder() / "ledger.db"
    if not file.exists():
        return 0
    with contextlib.closing(sqlite3.connect(file)) as ledger:
        columns = [name for _, name, *_ in ledger.execute("PRAGMA table_info(refold_receipts)")]
        if not columns:
            return 0
        lengths = " + ".join(f"coalesce(length({name}), 0)" for name in columns)
        found = ledger.execute(f"SELECT coalesce(sum({lengths}), 0) FROM refold_receipts WHERE task_id = ?", (task,))
        return int(found.fetchone()[0])
