"""What a task is given within one local activity, without a server: a workflow that the test itself is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pydantic_core import to_json
from temporalio.api.common.v1 import Payload
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from refold.effects.short.stretch import RUNS, STRETCH, AskedEffect, Record, Run
from refold.temporal.data.wire import STRETCH_END
from refold.temporal.worker.activation.batches import BATCH, Batches
from refold.temporal.worker.short.joined import LATE, LOST, NEWER, Joined

LARGE = 9
"""The number of an activity of its own, which brings a large result."""

SECOND = 3
"""The number of the workflow's second effect."""


class Flow:
    """A workflow that begins with two effects, and does something with each outcome.

    Attributes:
        told: What it was told, in order: the number of the activity, or the name of the job.

    Args:
        then: What it fails with after an outcome, if it fails.
        gives_up: After which outcome it gives up its second effect.
        asks: After which outcome it asks for a third effect.
    """

    def __init__(self, then: Callable[[int], str | None], *, gives_up: int = LARGE, asks: int = 0) -> None:
        self.told: list[int | str] = []
        self._then, self._gives_up, self._asks = then, gives_up, asks

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        done = WorkflowActivationCompletion()
        done.successful.SetInParent()
        for job in act.jobs:
            if job.HasField("fire_timer"):
                for seq, kind in ((1, STRETCH_END), (2, "tool.a"), (SECOND, "tool.b")):
                    _ask(done, seq, kind)
            if job.HasField("resolve_activity"):
                self.told.append(job.resolve_activity.seq)
                if job.resolve_activity.seq == self._gives_up:
                    done.successful.commands.add().request_cancel_local_activity.seq = SECOND
                if job.resolve_activity.seq == self._asks:
                    _ask(done, 4, "tool.c")
                if (message := self._then(job.resolve_activity.seq)) is not None:
                    done.successful.commands.add().fail_workflow_execution.failure.message = message
            if job.HasField("signal_workflow"):
                self.told.append(job.signal_workflow.signal_name)
        return done


def _ask(done: WorkflowActivationCompletion, seq: int, kind: str) -> None:
    asked = done.successful.commands.add().schedule_local_activity
    asked.seq, asked.activity_id, asked.activity_type = seq, f"t/1.{seq}", kind


class Worker:
    """Core, and the activity, of such a workflow."""

    def __init__(self, flow: Flow) -> None:
        self.joined = Joined(
            flow.activate,
            lambda error, failure: None,
            lambda value: Payload(data=to_json(value)),
            WorkflowActivationCompletion,
        )
        self.activate = Batches(self.joined.activate, self.joined.late).activate
        act = WorkflowActivation(history_length=5)
        act.jobs.add().fire_timer.seq = 1
        [command] = self.activate(act).successful.commands
        self.asked = command.schedule_local_activity
        self.run: Run = RUNS[Payload.FromString(self.asked.arguments[0].SerializeToString()).data.decode().strip('"')]

    def begun(self) -> list[AskedEffect]:
        return list(self.run.take(None).asked)

    def large(self, seq: int = LARGE) -> list[int]:
        """A large result has come. Returns the numbers of the activities that core is asked for then."""
        end = WorkflowActivation(history_length=5)
        end.jobs.add().resolve_activity.seq = seq
        end.jobs[-1].resolve_activity.is_local = True
        return asked(self.activate(end))

    def ended(self, records: list[Record], *signals: str, length: int = 5) -> WorkflowActivationCompletion:
        end = WorkflowActivation(history_length=length)
        for name in signals:
            end.jobs.add().signal_workflow.signal_name = name
        end.jobs.add().resolve_activity.seq = self.asked.seq
        end.jobs[-1].resolve_activity.is_local = True
        end.jobs[-1].resolve_activity.result.completed.result.data = to_json(records)
        return self.activate(end)


def asked(done: WorkflowActivationCompletion) -> list[int]:
    """The numbers of the local activities that core is asked for."""
    return [one.schedule_local_activity.seq for one in done.successful.commands]


A: Record = ["1.2 tool.a", 1_000, "a"]
B: Record = ["1.3 tool.b", 1_001, "b"]
LARGE_A: Record = ["1.2 tool.a", None]
LARGE_B: Record = ["1.3 tool.b", None]


def test_one_activity_for_two_effects() -> None:
    """
    Core is asked for it alone, and the stretch ends after both outcomes were given.
    """
    flow = Flow(lambda _: None)
    worker = Worker(flow)

    assert worker.asked.activity_type == STRETCH
    assert [one.label for one in worker.begun()] == ["1.2 tool.a", "1.3 tool.b"]
    assert not worker.run.take(A).over
    worker.run.take(B)
    assert flow.told == [2, 3]
    done = worker.ended([A, B])
    assert (flow.told, done.HasField("successful"), list(done.successful.commands)) == ([2, 3, 1], True, [])


def test_what_comes_along_with_the_end_is_told_before_it_live_and_in_a_replay() -> None:
    """
    A replay is given a signal and the activity's end at once, whenever the signal came.
    """
    live, replay = Flow(lambda _: None), Flow(lambda _: None)
    worker = Worker(live)
    worker.run.take(A)
    worker.run.take(B)
    worker.ended([A, B], "message")
    Worker(replay).ended([A, B], "message")

    assert live.told == [2, 3, "message", 1]
    assert replay.told == ["message", 2, 3, 1]  # held by the task until the stretch has ended: the same to it


def test_a_run_that_ends_with_an_outcome_is_given_no_other() -> None:
    """
    Another effect was under way: its outcome is nobody's, live and in a replay.
    """
    flow = Flow(lambda seq: "it fails" if seq == 2 else None)
    worker = Worker(flow)
    worker.begun()

    assert worker.run.take(A).over
    done = worker.ended([A])
    assert [one.WhichOneof("variant") for one in done.successful.commands] == ["fail_workflow_execution"]
    replayed = Worker(Flow(lambda seq: "it fails" if seq == 2 else None)).ended([A, B])
    assert [one.WhichOneof("variant") for one in replayed.successful.commands] == ["fail_workflow_execution"]


def test_large_results_come_one_by_one_before_the_stretch_goes_on() -> None:
    """
    Each by a local activity of its own: of all at once, a replay would tell the task in one activation.
    """
    flow = Flow(lambda _: None, asks=2)
    worker = Worker(flow)

    assert asked(worker.ended([LARGE_A, LARGE_B])) == [2]
    assert worker.large(2) == [SECOND]
    assert flow.told == [2]
    [next_stretch] = worker.large(SECOND)
    assert flow.told == [2, SECOND]
    assert next_stretch == worker.asked.seq + 1


def test_a_large_result_in_the_form_of_earlier_releases_is_brought_alike_live_and_in_a_replay() -> None:
    """
    Nothing else is asked for beside it.
    """
    live, replay = Flow(lambda _: None), Flow(lambda _: None)
    worker, again = Worker(live), Worker(replay)
    for record in (A, LARGE_B):
        worker.run.take(record)

    for one, flow in ((worker, live), (again, replay)):
        assert asked(one.ended([A, LARGE_B[:1]])) == [SECOND]
        assert one.large(SECOND) == []
        assert flow.told == [2, SECOND, 1]


@pytest.mark.parametrize(
    "recorded", [[["1.2 tool.a", 1_000, "a", "more"]], [["1.2 tool.a", "more"]], [{"label": "1.2 tool.a"}], {"a": [A]}]
)
def test_a_record_in_a_form_that_is_not_known_is_left_to_another_release(recorded: list[Record]) -> None:
    """
    The log of the worker says so, and the task goes on where it is known.
    """
    flow = Flow(lambda _: None)

    assert Worker(flow).ended(recorded).failed.failure.message == NEWER
    assert flow.told == []


def test_a_large_result_that_is_given_up_is_not_brought() -> None:
    """
    Core never had its activity, so it has none to cancel.
    """
    flow = Flow(lambda _: None, gives_up=2)
    worker = Worker(flow)

    assert asked(worker.ended([LARGE_A, LARGE_B])) == [2]
    assert worker.large(2) == []
    assert flow.told == [2, SECOND, 1]


@pytest.mark.parametrize("before", [1, 2])
def test_an_outcome_that_an_earlier_release_recorded_of_an_effect_that_was_given_up_is_passed_over(before: int) -> None:
    """
    That release asked for other effects while a large result was on its way. The outcome is nobody's, whether the task
    heard of it before it gave it up or not.
    """
    live, replay = Flow(lambda _: None), Flow(lambda _: None)
    worker, again = Worker(live), Worker(replay)
    worker.begun()
    for record in (A, B)[:before]:
        worker.run.take(record)
    worker.large()
    for record in (A, B)[before:]:
        assert not worker.run.take(record).over
    again.large()

    for one in (worker, again):
        assert one.ended([A, B]).HasField("successful")
    assert 2 in live.told
    assert replay.told == [LARGE, 3, 2, 1]


def test_outcomes_that_history_does_not_get_fail_the_workflow_task() -> None:
    """
    The activity failed after the task was given an outcome: another attempt reads it in the ledger.
    """
    worker = Worker(Flow(lambda _: None))
    worker.run.take(A)
    end = WorkflowActivation(history_length=5)
    end.jobs.add().resolve_activity.seq = worker.asked.seq
    end.jobs[-1].resolve_activity.result.failed.failure.message = "timeout"

    assert worker.joined.activate(end).failed.failure.message == f"{LOST} (timeout)"
    assert worker.run.take(B).over


@pytest.mark.parametrize("signals", [1, BATCH, BATCH + 1])
def test_an_end_that_comes_late_along_with_something_else_is_taken_as_a_replay_takes_it(signals: int) -> None:
    """
    History may have the marker before what else came: the workflow task is tried again. However much else came: it may
    fill a batch by itself.
    """
    flow = Flow(lambda _: None)

    assert Worker(flow).ended([A, B], *["message"] * signals, length=8).failed.failure.message == LATE
    assert flow.told == []
    assert Worker(Flow(lambda _: None)).ended([A, B], length=8).HasField("successful")


def test_a_run_that_left_the_cache_is_given_nothing() -> None:
    """
    Its activity ends by itself.
    """
    flow = Flow(lambda _: None)
    worker = Worker(flow)
    gone = WorkflowActivation()
    gone.jobs.add().remove_from_cache.message = "full"
    worker.joined.activate(gone)

    assert worker.run.take(A).over
    assert flow.told == []
