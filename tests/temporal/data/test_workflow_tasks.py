"""What each workflow task of a history brought."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

from refold.temporal.data.workflow_tasks import NONE, WorkflowTasks, workflow_tasks_of
from refold.temporal.worker.activation import batches
from refold.temporal.worker.activation.batches import BATCH, CROWD, OWN, PER_TASK, Batches

TASK = ("workflow_task_scheduled", "workflow_task_started", "workflow_task_completed")
SIGNAL, ACTIVITY, TIMER = "workflow_execution_signaled", "activity_task_completed", "timer_fired"
OWN_TIMER = "own_timer_fired"
"""The end of the timer after which the rest of many jobs is taken."""
REFUSED = "refused_update"
"""An update that the workflow rejects: no history tells of it, nor of a workflow task that brought nothing else."""
CANCEL = "workflow_execution_cancel_requested"
JOBS = {SIGNAL: "signal_workflow", CANCEL: "cancel_workflow", ACTIVITY: "resolve_activity", TIMER: "fire_timer"}


class Written:
    """A history as a server writes it, where each workflow task is scheduled before its events come. An event's time is
    its number, in seconds."""

    def __init__(self, *workflow_tasks: tuple[str, ...]) -> None:
        self.events: list[HistoryEvent] = []
        self.add("workflow_execution_started")
        for workflow_task in workflow_tasks:
            self.workflow_task(workflow_task)

    def workflow_task(self, brings: Sequence[str]) -> list[HistoryEvent]:
        """A workflow task: its events, and those of the server around them."""
        scheduled, *rest = TASK
        return [self.add(name) for name in (scheduled, *brings, *rest)]

    def add(self, name: str) -> HistoryEvent:
        event = HistoryEvent(event_id=len(self.events) + 1)
        event.event_time.FromSeconds(event.event_id)
        getattr(event, f"{name.removeprefix('own_')}_event_attributes").SetInParent()
        if name == OWN_TIMER:
            event.timer_fired_event_attributes.timer_id = str(OWN)
        self.events.append(event)
        return event


def merged(events: list[HistoryEvent]) -> WorkflowActivation:
    """The activation in which core gives a replay all of them at once."""
    act = WorkflowActivation(history_length=events[-2].event_id, is_replaying=True)
    act.timestamp.CopyFrom(events[-2].event_time)
    seq = 0
    for event in events:
        for name, kind in JOBS.items():
            if event.WhichOneof("attributes") == f"{name}_event_attributes":
                seq += 1
                job = act.jobs.add()
                getattr(job, kind).SetInParent()
                if kind in ("resolve_activity", "fire_timer"):
                    getattr(job, kind).seq = OWN if event.timer_fired_event_attributes.timer_id else seq
    # As core orders them: signals first.
    act.jobs.sort(key=lambda job: not job.HasField("signal_workflow"))
    return act


class Workflow:
    """Takes what it is given, and keeps it: the time of each activation in seconds, its length and its jobs.

    Each signal begins two activities.
    """

    def __init__(self) -> None:
        self.given: list[tuple[int, int, list[str]]] = []

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        kinds: list[str] = [job.WhichOneof("variant") or "" for job in act.jobs]
        self.given.append((act.timestamp.seconds, act.history_length, kinds))
        completion = WorkflowActivationCompletion(run_id=act.run_id)
        for _ in range(2 * kinds.count("signal_workflow")):
            completion.successful.commands.add().schedule_activity.SetInParent()
        return completion

    def remembered(self) -> list[tuple[int, int, list[str]]]:
        """What it was given, without the refused updates, which a replay is not given."""
        given = [(at, length, [kind for kind in kinds if kind != "do_update"]) for at, length, kinds in self.given]
        return [one for one in given if one[2]]


def take(taking: Batches, act: WorkflowActivation, workflow_tasks: WorkflowTasks = NONE) -> bool:
    """One activation, and those that it asks for: core resolves the activity that nobody performs.

    Returns:
        Whether a timer was started, which a history holds.
    """
    completion = taking.activate(act, workflow_tasks)
    while any(command.schedule_activity.seq == OWN for command in completion.successful.commands):
        more = WorkflowActivation(history_length=act.history_length, timestamp=act.timestamp)
        more.jobs.add().resolve_activity.seq = OWN
        completion = taking.activate(more, workflow_tasks)
    return any(command.HasField("start_timer") for command in completion.successful.commands)


def activated(act: WorkflowActivation, workflow_tasks: WorkflowTasks) -> list[tuple[int, int, list[str]]]:
    """What the workflow is given."""
    workflow = Workflow()
    take(Batches(workflow.activate), act, workflow_tasks)
    return workflow.given


def test_events_of_two_workflow_tasks_are_taken_apart() -> None:
    """
    Each at its own time, and those of the first one first, whatever they are.
    """
    events = Written((), (ACTIVITY,), (SIGNAL, SIGNAL)).events

    given = activated(merged(events), workflow_tasks_of(events))

    assert given == [(7, 7, ["resolve_activity"]), (12, 12, ["signal_workflow", "signal_workflow"])]


def test_without_its_history_an_activation_is_taken_as_it_comes() -> None:
    """
    A server may keep a worker from reading histories.
    """
    events = Written((), (ACTIVITY,), (SIGNAL,)).events

    assert activated(merged(events), NONE) == [(11, 11, ["signal_workflow", "resolve_activity"])]


def test_a_kind_that_history_tells_otherwise_is_not_taken_apart() -> None:
    """
    The end of an activity that nobody waits for any more is an event without a job: which one it is, is not known.
    """
    events = Written((), (ACTIVITY, SIGNAL), (ACTIVITY, TIMER)).events
    act = merged(events)
    del act.jobs[[job.HasField("resolve_activity") for job in act.jobs].index(True)]

    assert activated(act, workflow_tasks_of(events)) == [
        (8, 8, ["signal_workflow"]),
        (13, 13, ["resolve_activity", "fire_timer"]),
    ]


def test_a_crowded_task_takes_fewer_in_a_workflow_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Each costs more where much is open beside it, and the server waits ten seconds for all.
    """
    monkeypatch.setattr(batches, "BATCH", 1)
    monkeypatch.setattr(batches, "PER_TASK", 6)
    monkeypatch.setattr(batches, "CROWD", 2)
    events = Written((), (SIGNAL,) * 9).events
    workflow = Workflow()

    assert take(Batches(workflow.activate), merged(events))

    # With no activity open a signal counts once, with two open twice, with four three times: 1 + 2 + 3.
    assert [kinds for _, _, kinds in workflow.given] == [["signal_workflow"]] * 3


def test_a_request_to_cancel_comes_by_itself() -> None:
    """
    After what the SDK takes before it. What comes last is given with the history's length, which lets a run end.
    """
    events = Written((), (ACTIVITY, CANCEL, SIGNAL)).events

    kinds = [["signal_workflow"], ["resolve_activity", "cancel_workflow"]]
    assert activated(merged(events), NONE) == [(9, 0, kinds[0]), (9, 9, kinds[1])]


TURNS = st.lists(
    st.lists(st.sampled_from([SIGNAL, ACTIVITY, TIMER, CANCEL, REFUSED]), max_size=5), min_size=1, max_size=8
)


@given(TURNS, st.randoms(use_true_random=False))
@pytest.mark.parametrize(("batch", "per_task", "crowd"), [(1, 2, 9), (1, 9, 1), (2, 8, 3), (BATCH, PER_TASK, CROWD)])
def test_a_replay_is_given_what_the_task_was_given(
    batch: int, per_task: int, crowd: int, workflow_tasks: list[list[str]], random: Random
) -> None:
    """
    Whatever each workflow task brought, in whatever batches, and whichever of them core merges: the same jobs at the
    same times in the same order as when each workflow task came by itself. Core merges none that started a timer.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(batches, "BATCH", batch)
        patched.setattr(batches, "PER_TASK", per_task)
        patched.setattr(batches, "CROWD", crowd)
        lived, written, waits = Workflow(), Written(), False
        taking, together = Batches(lived.activate), [list[HistoryEvent]()]
        for brings in [*workflow_tasks, *[[]] * 10]:
            fires = waits and (not brings or random.random() < 0.5)
            told = [*(one for one in brings if one != REFUSED), *[OWN_TIMER] * fires]
            events = written.workflow_task(told)
            act = merged(events)
            for _ in range(brings.count(REFUSED)):
                act.jobs.add().do_update.SetInParent()
            started = bool(act.jobs) and take(taking, act)
            waits = started or (waits and not fires)
            if brings and not told:
                del written.events[-len(events) :]
                continue
            together[-1] += events
            if started:
                written.add("timer_started")
            if started or random.random() < 0.3:
                together.append([])
        replayed = Workflow()
        again = Batches(replayed.activate)
        for events in together:
            if events and (act := merged(events)).jobs:
                take(again, act, workflow_tasks_of(written.events))

    assert replayed.remembered() == lived.remembered()
