"""A whole task that goes on in a new run and its parts: each end is reported, in whatever order a server delivers, and
however many signals the other one was sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold import Content
from refold.core.commands import AskUser
from refold.core.events import ChildAsked, UserMessage
from refold.core.waits import Wait
from refold.engine.refusals import not_needed
from refold.temporal.data.wire import TaskStart
from refold.temporal.worker.task.signals import FULL
from tests.temporal import part_skills
from tests.temporal.worker.activated import (
    BEGAN,
    Activated,
    cancel_requested,
    delivered,
    fired,
    part_started,
    signaled,
    updated,
)

SIGNAL = "signal_external_workflow_execution"
REPORT_END = f"{SIGNAL} report_end"


async def test_a_part_that_had_not_started_is_told_again() -> None:
    """
    The request to report its end overtakes the part's start: it is sent again once the part has started, and the seal
    waits for no more than that.
    """
    task = Activated(part_skills.MiddleWorkflow, "whole")
    start = TaskStart(message=UserMessage(content=Content.from_text("go")))

    task.begin(start.model_dump(mode="json"))
    asked = task.act(updated("seal", None))
    overtook = task.act(delivered(1, failure="ExternalWorkflowExecutionNotFound"))
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


def asking() -> tuple[Activated, str]:
    """A part that reports its question."""
    part = Activated(part_skills.LowWorkflow, "whole/1.1", part_of="whole")
    start = TaskStart(message=UserMessage(content=Content.from_text("go")), parent="whole")
    return part, part.begin(start.model_dump(mode="json"))[-1]


def ending() -> tuple[Activated, str]:
    """A part that reports its end."""
    part = Activated(part_skills.LimitedWorkflow, "whole/1.1", part_of="whole")
    message = UserMessage(content=Content.from_data({"timeout_s": "soon"}))
    start = TaskStart(message=message, parent="whole").model_dump(mode="json")
    return part, part.act(part.initialized(start), signaled("report_end", True))[-1]


def whole() -> Activated:
    task = Activated(part_skills.MiddleWorkflow, "whole")
    task.begin(TaskStart(message=UserMessage(content=Content.from_text("go"))).model_dump(mode="json"))
    task.act(part_started(1))
    return task


def sealing() -> tuple[Activated, str]:
    """A whole task that asks its part for its end."""
    task = whole()
    return task, task.act(updated("seal", None))[-1]


def answering() -> tuple[Activated, str]:
    """A whole task that passes an answer on to its part."""
    task = whole()
    question = AskUser(id="size", message=Content.from_text("Size?"))
    wait = Wait(gate="whole/1.1/1.1", ask=question, since=BEGAN)
    task.act(signaled("child", ChildAsked(invocation_id="whole/1.1", waits=(wait,))))
    return task, task.act(signaled("message", "large"))[-1]


@pytest.mark.parametrize("sending", [asking, ending, sealing, answering])
async def test_a_signal_is_sent_until_the_receiver_takes_it(sending: Callable[[], tuple[Activated, str]]) -> None:
    """
    The server refuses the 10,001st signal of a run: what a part asks, its end and an answer to it would be lost.
    """
    task, sent = sending()

    refused = task.act(delivered(1, failure=FULL))
    again = task.act(fired(1))
    refused_again = task.act(delivered(2, failure=FULL))

    assert sent.startswith(SIGNAL)
    assert (refused, again, refused_again) == (["set_patch_marker", "start_timer"], [sent], ["start_timer"])


async def test_a_part_that_its_task_has_canceled_sends_nothing_again() -> None:
    """
    The task waits until the part has closed, in the run that takes no more signals: each would wait for the other.
    """
    part = Activated(part_skills.CountsLowWorkflow, "whole/1.1", part_of="whole")
    start = TaskStart(message=UserMessage(content=Content.from_text("go")), parent="whole")
    part.begin(start.model_dump(mode="json"))
    part.act(delivered(1), signaled("report_end", True))

    ended = part.act(signaled("message", "3"))
    waits = part.act(delivered(2, failure=FULL))
    once = part.act(cancel_requested(not_needed("whole")))
    last = part.act(delivered(3, failure=FULL))

    assert (ended[-1], waits[-1], once[-1]) == (f"{SIGNAL} part_ended", "start_timer", f"{SIGNAL} part_ended")
    assert last == ["complete_workflow_execution"]


async def test_a_recorded_run_whose_signal_was_lost_is_replayed_as_it_was() -> None:
    """
    An earlier release did not send it again: a run that began with it has no marker, and no timer.
    """
    task, _ = asking()

    lost = task.activated(6, delivered(1, failure=FULL), replaying=True)

    assert list(lost.successful.commands) == []


ASKS = {"gate": "whole/1.1/1.1", "ask": {"kind": "newer_question", "id": "size"}, "since": "2026-01-01T00:00:00Z"}
FAILED = {"kind": "newer_kind", "type": "http_503", "message": "busy"}


@pytest.mark.parametrize("replaying", [False, True])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        pytest.param("part_ended", {"newer_field": 1}, id="an end with a field"),
        pytest.param("part_ended", {"failure": FAILED}, id="an end with a value"),
        pytest.param("child", {"newer_field": 1}, id="a field"),
        pytest.param("child", {"waits": [ASKS]}, id="a kind of question"),
    ],
)
async def test_what_a_part_of_a_newer_release_sends_is_left_to_its_workers(
    name: str, more: dict[str, Any], replaying: bool
) -> None:
    """
    It has a field or a value that this release does not know. Refused, it would be lost, and the whole would wait for
    ever. What an earlier release has refused stays refused.
    """
    task = Activated(part_skills.MiddleWorkflow, "whole")
    start = TaskStart(message=UserMessage(content=Content.from_text("go")))
    sent = {"invocation_id": "whole/1.1", **more}

    task.begin(start.model_dump(mode="json"))
    done = task.activated(6, signaled(name, sent), replaying=replaying)

    assert done.HasField("failed") is not replaying
    assert replaying or done.failed.failure.message.startswith("a part that another release of refold runs sent this: ")


@pytest.mark.parametrize("name", ["part_ended", "child"])
async def test_what_names_no_open_part_is_refused_whatever_its_fields(name: str) -> None:
    """
    Anybody may have sent it, and no worker would take it.
    """
    task = Activated(part_skills.MiddleWorkflow, "whole")
    start = TaskStart(message=UserMessage(content=Content.from_text("go")))

    task.begin(start.model_dump(mode="json"))
    task.act(signaled(name, {"invocation_id": "whole/9.9", "newer_field": 1}))


@pytest.mark.parametrize("part_of", ["whole", None])
async def test_a_part_that_a_newer_release_started_with_more_is_left_to_its_workers(part_of: str | None) -> None:
    """
    Refused, the part would fail, and its whole with it. A client hears at once that its start is refused.
    """
    part = Activated(part_skills.LowWorkflow, "whole/1.1", part_of=part_of)
    start = TaskStart(message=UserMessage(content=Content.from_text("go")), parent=part_of).model_dump(mode="json")
    done = part.activated(3, part.initialized({**start, "newer_field": 1}))

    assert done.HasField("failed") is (part_of is not None)
    if part_of is not None:
        assert "another release of refold started this part: newer_field" in done.failed.failure.message
