"""A workflow for Temporal, written by hand: each step an activity.

The variant `plain` has the SDK's defaults; `tuned` autoscaling pollers and a short first retry; `local` is `tuned` with
local activities; `fast` is `tuned` with heartbeat and sticky timeouts of a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy
from temporalio.worker import PollerBehaviorAutoscaling, Worker

from bench.peers.work import effect, server

QUEUE = "paces"


@dataclass(frozen=True, slots=True)
class Plan:
    """The argument of the workflow."""

    task: str
    steps: int
    way: str


@activity.defn
async def step(task: str, number: int) -> str:
    """One step."""
    return effect(task, number)


@workflow.defn(name="paces")
class Paces:
    """All steps of a task."""

    @workflow.run
    async def run(self, plan: Plan) -> int:
        """One after the other."""
        patience: dict[str, Any] = {"start_to_close_timeout": timedelta(seconds=10)}
        if plan.way != "plain":
            patience["retry_policy"] = RetryPolicy(initial_interval=timedelta(milliseconds=100))
        if plan.way == "fast":
            patience["heartbeat_timeout"] = timedelta(seconds=1)
        execute = workflow.execute_local_activity if plan.way == "local" else workflow.execute_activity
        results = [await execute(step, args=[plan.task, number], **patience) for number in range(1, plan.steps + 1)]
        return len(results)


@dataclass(frozen=True, slots=True)
class Side:
    """A worker, with its client."""

    client: Client
    way: str

    async def perform(self, task: str, steps: int) -> None:
        """Start it, or wait for the one that is open."""
        done = await self.client.execute_workflow(
            Paces.run,
            Plan(task, steps, self.way),
            id=task,
            task_queue=QUEUE,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        assert done == steps

    async def kept(self, task: str) -> int:
        """The events of its history."""
        history = await self.client.get_workflow_handle(task).fetch_history()
        return sum(event.ByteSize() for event in history.events)


@contextlib.asynccontextmanager
async def serving(variant: str) -> AsyncIterator[Side]:
    """The worker."""
    client = await Client.connect(server("address"))
    options: dict[str, Any] = {}
    if variant != "plain":
        options["workflow_task_poller_behavior"] = PollerBehaviorAutoscaling()
        options["activity_task_poller_behavior"] = PollerBehaviorAutoscaling()
    if variant == "fast":
        options["sticky_queue_schedule_to_start_timeout"] = timedelta(seconds=1)
    async with Worker(client, task_queue=QUEUE, workflows=[Paces], activities=[step], **options):
        yield Side(client, variant)
