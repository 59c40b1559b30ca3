"""What comes to a part while a stretch performs its effects, in orders that a server takes rarely."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs
from temporalio.bridge.proto.workflow_activation import WorkflowActivationJob
from temporalio.bridge.proto.workflow_commands import ScheduleLocalActivity
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from refold import Content
from refold.core.events import UserMessage
from refold.effects.short.stretch import RUNS, STRETCH, Record
from refold.temporal.data.wire import LEDGER_ACTIVITY, TaskStart
from refold.temporal.worker.short.stretch import AT_ONCE
from tests.temporal.worker.activated import BEGAN, CONVERTER, Activated, delivered, fired, signaled
from tests.temporal.worker.short.short_skills import ShortErrandWorkflow


class Part:
    """A part that was answered: it reports that it waits for nobody, and has begun a stretch meanwhile.

    Attributes:
        stretch: The local activity that performs the stretch.
        run: The run, for that activity.
        looked: The outcome of the stretch's only effect. Then the part asks again.

    Args:
        effect: What the part does in the stretch.
    """

    def __init__(self, effect: str = "glance a") -> None:
        self._part = Activated(ShortErrandWorkflow, "whole/1.1", part_of="whole")
        start = TaskStart(message=UserMessage(content=Content.from_text(f"ask one\n{effect}\nask two")), parent="whole")
        self._length = 0
        self.act(self._part.initialized(start.model_dump(mode="json")))
        self.act(delivered(1))
        self.act(signaled("message", "green"))
        self.act(ended(self.asked(LEDGER_ACTIVITY), "the ledger"))
        self.act(fired(1))
        self.stretch = self.asked(STRETCH)
        self.run = RUNS[CONVERTER.payload_converter.from_payload(self.stretch.arguments[0])]
        [asked] = self.run.take(None).asked
        self.looked: Record = [asked.label, BEGAN.timestamp() * 1_000, "a"]

    def act(self, *jobs: WorkflowActivationJob) -> list[str]:
        """The kinds of the commands that a workflow task with these jobs brings."""
        completion = self.activated(*jobs)
        assert not completion.HasField("failed"), completion.failed.failure.message
        self._commands = completion.successful.commands
        return [str(command.WhichOneof("variant")) for command in self._commands]

    def activated(self, *jobs: WorkflowActivationJob, replaying: bool = False) -> WorkflowActivationCompletion:
        """A workflow task with these jobs."""
        self._length += 3
        return self._part.activated(self._length, *jobs, replaying=replaying)

    def asked(self, kind: str) -> ScheduleLocalActivity:
        """The local activity of this type that the last workflow task asked for."""
        asked = [one.schedule_local_activity for one in self._commands]
        return next(one for one in asked if one.activity_type == kind)


def ended(asked: ScheduleLocalActivity, result: Any) -> WorkflowActivationJob:
    job = WorkflowActivationJob()
    job.resolve_activity.seq, job.resolve_activity.is_local = asked.seq, True
    job.resolve_activity.result.completed.result.CopyFrom(CONVERTER.payload_converter.to_payload(result))
    return job


@pytest.mark.parametrize("first", ["outcome", "delivery"])
async def test_the_next_report_waits_for_the_end_of_the_stretch(first: str) -> None:
    """
    The last report is delivered before the outcome that makes the part ask, or after it: both times the question is
    reported once the stretch has ended.
    """
    part = Part()

    if first == "outcome":
        part.run.take(part.looked)
    during = part.act(delivered(2))
    if first == "delivery":
        part.run.take(part.looked)
    at_end = part.act(ended(part.stretch, [part.looked]))
    after = part.act(fired(2))

    assert (during, at_end[-1], after) == (["set_patch_marker"], "start_timer", ["signal_external_workflow_execution"])


async def test_thousands_of_held_messages_are_taken_in_several_workflow_tasks() -> None:
    """
    A worker may find ten thousand messages beside a stretch, and the SDK gives it two seconds for an activation.
    """
    part = Part()
    part.run.take(part.looked)
    messages = [signaled("message", f"message {n}") for n in range(2 * AT_ONCE + 10)]
    for start in range(0, len(messages), 50):
        part.act(*messages[start : start + 50])

    part.act(ended(part.stretch, [part.looked]))
    with capture_logs() as logs:
        taken = [part.act(fired(timer))[-1] for timer in (2, 3, 4)]

    assert taken == ["start_timer", "start_timer", "complete_workflow_execution"]
    refused = [line for line in logs if line["event"] == "event_refused"]
    assert len(refused) == len(messages) - 1  # the first was the answer


@pytest.mark.parametrize("replaying", [False, True])
async def test_a_recorded_result_of_a_newer_release_is_left_to_its_workers(replaying: bool) -> None:
    """
    Its worker died after it had recorded a model's answer, which has a field that this release does not know. An
    activity of its own could not bring it either, and what history says of that one no newer worker could replay.
    """
    part = Part("Say something.")
    label, at, _ = part.looked
    answer = [label, at, {"value": "green", "newer_field": 1}]

    if replaying:  # as an earlier release recorded it
        done = part.activated(ended(part.stretch, [answer]), replaying=True)
        assert "schedule_activity" in [str(one.WhichOneof("variant")) for one in done.successful.commands]
    else:
        assert part.run.take(answer).over
        failed = part.activated(ended(part.stretch, [answer])).failed.failure.message
        assert failed.startswith("another release of refold returned this result: newer_field: ")
