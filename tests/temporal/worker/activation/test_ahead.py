"""Queries that come as a task has been loaded: refused where they may show what no workflow task has brought yet."""

from __future__ import annotations

import pytest
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob

from refold.core.events import UserMessage
from refold.effects.asking import ASK_AGAIN
from refold.temporal.data.wire import TaskStart
from tests.temporal import skills
from tests.temporal.data.test_workflow_tasks import SIGNAL, Written
from tests.temporal.recorded.test_comparing import Readings
from tests.temporal.test_task import text
from tests.temporal.worker.activated import Activated, queried, signaled

STARTED = 7
"""The event that starts the workflow task that brings a signal."""


@pytest.mark.parametrize(
    ("upto", "completed", "answered"),
    [
        pytest.param(STARTED, True, True, id="this load completed it"),
        pytest.param(STARTED, False, False, id="nobody completed it yet, or another worker"),
        pytest.param(STARTED + 1, True, False, id="this worker completed it before it loaded the task again"),
        pytest.param(STARTED, None, False, id="the server does not tell in time"),
    ],
)
async def test_a_query_after_a_load_is_answered_if_the_load_ended_with_its_own_workflow_task(
    upto: int, completed: bool | None, answered: bool
) -> None:
    """
    The history, read as the task was loaded, ends with the start of that workflow task; now it has its end, too.
    """
    reader = Readings(Written((), (SIGNAL,)), upto)
    reader.reading.set_result(reader.known)
    if completed is not None:
        reader.is_completed.set_result(completed)
    run = Activated(skills.GatedWorkflow, "t", reader=reader)
    run.activated(
        3, run.initialized(TaskStart(message=UserMessage(content=text("go"))).model_dump(mode="json")), replaying=True
    )
    assert not run.activated(STARTED, signaled("message", "one")).HasField("failed")

    asked = run.activated(STARTED, queried("status"), replaying=True)

    assert asked.HasField("failed") is not answered
    assert asked.failed.failure.message == ("" if answered else ASK_AGAIN)
    if answered:
        assert asked.successful.commands[0].respond_to_query.HasField("succeeded")


@pytest.mark.parametrize("completed", [True, False])
async def test_a_query_after_a_workflow_task_is_answered_once_that_is_in_history(completed: bool) -> None:
    """
    A worker that has the task in its cache may be given a query before the workflow task that the server has started:
    core takes that task's events for the query, and what the task asks for then is lost.
    """
    reader = Readings(Written((), ()), 0)
    reader.is_completed.set_result(completed)
    run = Activated(skills.GatedWorkflow, "t", reader=reader)
    run.activated(3, run.initialized(TaskStart(message=UserMessage(content=text("go"))).model_dump(mode="json")))
    assert not run.activated(STARTED, signaled("message", "one")).HasField("failed")

    asked = run.activated(STARTED, queried("status"), replaying=True)

    assert asked.HasField("failed") is not completed
    assert run.activated(STARTED, queried("status"), replaying=True).HasField("failed") is not completed


@pytest.mark.parametrize("begun", [True, False])
async def test_a_task_that_the_sdk_gave_up_as_it_was_loaded_takes_nothing_more(*, begun: bool) -> None:
    """
    Core keeps a run that it loads for a query, also where the SDK has given that up after two seconds. Whatever comes
    next is refused, so that core loads the run anew: a half-loaded one would answer with commands beside, and never be
    asked again. The thread may have ended a moment later, or not begun for want of CPU.
    """
    run = Activated(skills.GatedWorkflow, "t")
    begins = run.initialized(TaskStart(message=UserMessage(content=text("go"))).model_dump(mode="json"))
    if begun:
        run.activated(3, begins, replaying=True)
    evicted = WorkflowActivationJob()
    evicted.remove_from_cache.SetInParent()

    run.instance.get_thread_id()  # asked by the SDK as it gives up, to say where the thread stands

    for next_one in (queried("status"), signaled("message", "one")):
        assert run.activated(3, next_one, replaying=True).failed.failure.message == ASK_AGAIN
    assert not run.activated(3, evicted).HasField("failed")
