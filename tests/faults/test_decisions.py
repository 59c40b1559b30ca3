"""Decisions at several gates, and a worker that is killed with them in its hands."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from pydantic import JsonValue
from temporalio.api.enums.v1 import PendingWorkflowTaskState

from refold import Content, DecisionMade, Status
from refold.temporal import TemporalEngine
from refold.temporal.dev import DevServer
from tests.faults.processes import Workers, until
from tests.temporal.test_task import collected, settled


@pytest.fixture(scope="module")
def server(hasty_server: DevServer) -> DevServer:
    """A server that gives what a killed worker had to the next one after two seconds instead of ten."""
    return hasty_server


@pytest.mark.sweep
async def test_decisions_that_a_killed_worker_had_are_all_taken(
    workers: Workers, engine: TemporalEngine, queue: str
) -> None:
    """
    The server has given them to a worker that stands still, and is killed: the next one takes them all, once each.
    """
    modules = ("tests.temporal.gate_skills", "activities")
    worker = await workers.start(queue, modules=modules)
    plan: dict[str, JsonValue] = {"amounts": list(range(5)), "on_denied": "continue"}
    view = await settled(engine, (await engine.start("bundle", Content.from_data(plan))).task_id)
    task = engine.client.get_workflow_handle(view.task_id)
    said = {"decision": "approved", "approver": "ada"}
    decisions = [{"gate": one.gate, "digest": one.digest, **said} for one in view.waiting_for]

    async def given() -> bool:
        pending = (await task.describe()).raw_description.pending_workflow_task
        return pending.state == PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED

    os.kill(worker.process.pid, signal.SIGSTOP)
    deciding = asyncio.create_task(task.execute_update("decide", args=decisions))
    await until(given, bool)
    await worker.kill()
    await workers.start(queue, modules=modules)
    await deciding

    done = await settled(engine, view.task_id)
    assert done.status is Status.COMPLETED
    entries = await collected(engine.journal(view.task_id))
    made = [(one.seq, one.event.gate) for one in entries if isinstance(one.event, DecisionMade)]
    assert made == [(2 + number, one.gate) for number, one in enumerate(view.waiting_for)]
