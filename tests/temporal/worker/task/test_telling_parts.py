"""A whole task that goes on in a new run and its parts: each end is reported, in whatever order a server delivers."""

from __future__ import annotations

from refold import Content
from refold.core.events import UserMessage
from refold.temporal.data.wire import TaskStart
from tests.temporal import part_skills
from tests.temporal.worker.activated import (
    Activated,
    cancel_requested,
    delivered,
    part_started,
    signaled,
    updated,
)

REPORT_END = "signal_external_workflow_execution report_end"


async def test_a_part_that_had_not_started_is_told_again() -> None:
    """
    The request to report its end overtakes the part's start: it is sent again once the part has started, and the seal
    waits for no more than that.
    """
    task = Activated(part_skills.MiddleWorkflow, "whole")
    start = TaskStart(message=UserMessage(content=Content.from_text("go")))

    task.begin(start.model_dump(mode="json"))
    asked = task.act(updated("seal", None))
    overtook = task.act(delivered(1, failure="no such workflow"))
    started = task.act(part_started(1))
    told = task.act(delivered(2))

    assert [asked[-1], overtook, started] == [REPORT_END, [], [REPORT_END]]
    assert told == ["continue_as_new_workflow_execution"]


async def test_a_canceled_part_reports_its_end_though_it_was_asked_late() -> None:
    """
    The request to report its end comes after the part was canceled by a signal, and before its own request to be
    canceled comes round.
    """
    part = Activated(part_skills.LowWorkflow, "whole/1.1", part_of="whole")
    start = TaskStart(message=UserMessage(content=Content.from_text("go")), parent="whole")
    part.begin(start.model_dump(mode="json"))
    part.act(delivered(1))

    part.act(signaled("cancel", "bye"))
    part.act(delivered(2))
    part.act(signaled("report_end", True))
    last = [part.act(cancel_requested()), part.act(delivered(3))]

    assert last == [["signal_external_workflow_execution part_ended"], ["cancel_workflow_execution"]]


async def test_a_part_whose_start_is_refused_reports_it() -> None:
    """
    Where no worker had taken the part before its task went on in a new run, which hears nothing else of it.
    """
    part = Activated(part_skills.LimitedWorkflow, "whole/1.1", part_of="whole")
    message = UserMessage(content=Content.from_data({"timeout_s": "soon"}))
    start = TaskStart(message=message, parent="whole").model_dump(mode="json")

    first = part.act(part.initialized(start), signaled("report_end", True))
    last = part.act(delivered(1))

    assert (first[-1], last) == ("signal_external_workflow_execution part_ended", ["fail_workflow_execution"])
