"""A worker that forgets a task: the SDK cancels what the task's workflow waits for, and nothing of it may go on."""

from __future__ import annotations

from datetime import timedelta

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob

from refold import Content, skill_of
from refold.core.events import GateTimedOut, UserMessage
from refold.core.fold.apply import advance, planned
from refold.core.fold.snapshot import Snapshot
from refold.temporal.data.wire import TaskStart
from tests.temporal import skills
from tests.temporal.worker.activated import BEGAN, Activated, cancel_requested

GATED = skill_of(skills.Gated)


def at_its_gate() -> Snapshot:
    return advance(GATED, planned(GATED, "t", BEGAN), UserMessage(content=Content.from_text("go")), BEGAN)[0]


def in_grace() -> Snapshot:
    """A task that has failed, and takes a late grant."""
    late = BEGAN + timedelta(hours=1)
    return advance(GATED, at_its_gate(), GateTimedOut(gate="t/1.1"), late)[0]


@pytest.mark.parametrize(
    ("task", "jobs"),
    [(at_its_gate(), []), (in_grace(), []), (in_grace(), [cancel_requested()])],
    ids=["open", "in-grace", "in-grace-and-canceled"],
)
async def test_nothing_of_a_task_that_is_forgotten_waits(task: Snapshot, jobs: list[WorkflowActivationJob]) -> None:
    """
    In whatever order the SDK cancels: it keeps what a task waits for in a set, so that several runs are tried.
    """
    for _ in range(10):
        run = Activated(skills.GatedWorkflow, "t")
        run.begin(TaskStart(snapshot=task).model_dump(mode="json"))
        for job in jobs:
            run.act(job)
        forgotten = WorkflowActivationJob()
        forgotten.remove_from_cache.message = "full"

        assert run.act(forgotten) == []
