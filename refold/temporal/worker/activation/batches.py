"""A task takes the events of a workflow task in batches, so that no activation exceeds the SDK's deadline of 2 seconds.

The deadline (TMPRL1101) is for one activation of a workflow, and ten thousand queued signals come in one. Here a task
is given at most `BATCH` of them at once:

1. Between two batches the worker asks sdk-core for another activation of the same workflow task: it starts an activity
   and cancels it in one completion. Neither command reaches the server, and nothing is written to history.
2. After `PER_TASK` of them the worker completes the workflow task before the server's timeout for it (10 seconds), and
   starts a timer of a millisecond, which brings the next workflow task. This writes five events. A job counts once more
   for every `CROWD` activities that are open.
3. An update is taken in the workflow task that brought it; the server rejects it otherwise. So only what else comes
   waits for the next workflow task, and an update is not counted: a rejected one is missing in a replay, and so is a
   workflow task that brought nothing else, which therefore takes none of what waits. Nor is a patch counted, which only
   a replay is told of.
4. A task ends, or continues in a new run, only after the last batch, since a new run is not given what the old one
   left. In all other batches the history's length reads 0 (`more_comes`).
5. A request to cancel comes in a later batch than what the SDK gives to the workflow before it. Otherwise a task that
   continues in a new run because of that would leave the request behind.

The numbers count jobs, never time, so a replay takes the same batches. Where it is given the events of several workflow
tasks at once (`refold.temporal.data.workflow_tasks`), it takes those of each by themselves, as they were taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio import workflow

from refold.temporal.data.workflow_tasks import NONE, WorkflowTask, WorkflowTasks

if TYPE_CHECKING:
    # The SDK's own, so not for certain there at run time; `committed` activates without batches where it is not.
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

BATCH = 50
"""The most jobs that a workflow is given at once, updates and patches aside. Histories depend on it and `PER_TASK`."""

PER_TASK = 1_000
"""The most jobs, updates and patches aside, that a workflow is given in one workflow task."""

CROWD = 250
"""So many open activities make a job count once more towards `PER_TASK`: what a task takes is looked at beside all that
is open, and with a thousand open takes some ten milliseconds on a busy machine. Histories depend on it."""

OWN = 2**31
"""The number of the activity that never runs, and of the timer. The SDK counts its own from 1."""

ENDS = {
    "complete_workflow_execution",
    "fail_workflow_execution",
    "cancel_workflow_execution",
    "continue_as_new_workflow_execution",
}
"""The commands that end a run."""

Activate = Callable[["WorkflowActivation"], "WorkflowActivationCompletion"]
Refuse = Callable[["WorkflowActivation"], "WorkflowActivationCompletion | None"]


def more_comes() -> bool:
    """Whether the workflow's current batch is not the last one. Called from workflow code only."""
    return workflow.info().get_current_history_length() == 0


class _Part:
    """The jobs of a workflow task that the workflow has not received yet.

    Args:
        workflow_task: The workflow task; None is the one that the worker has been given.
        jobs: What came with it.
    """

    def __init__(self, workflow_task: WorkflowTask | None, jobs: Sequence[WorkflowActivationJob]) -> None:
        self.workflow_task = workflow_task
        self.jobs = _in_order(job for job in jobs if not _is_own(job))
        self.fired = any(job.fire_timer.seq == OWN for job in jobs)

    def add(self, jobs: Sequence[WorkflowActivationJob]) -> None:
        """Add later jobs."""
        if jobs:
            self.jobs = _in_order([*self.jobs, *jobs])


class Batches:
    """Gives one workflow its jobs in batches.

    Args:
        activate: Activates the workflow.
        refused: Completes an activation that the workflow is not given at all; else None.
    """

    def __init__(self, activate: Activate, refused: Refuse = lambda _: None) -> None:
        self._perform = activate
        self._refused = refused
        self._open = 0  # activities
        self._rest: list[_Part] = []
        self._taken = 0  # of the first part
        self._waits = False  # for the timer
        self._seen = 0  # the start of the last workflow task
        self._at = Timestamp()  # the time of the last activation

    def activate(self, act: WorkflowActivation, workflow_tasks: WorkflowTasks = NONE) -> WorkflowActivationCompletion:
        """Activate the workflow with the first of the jobs that it has not been given yet.

        Args:
            act: See the SDK.
            workflow_tasks: The workflow tasks of the run that is rebuilt.
        """
        if (refused := self._refused(act)) is not None:
            return refused
        parts = [_Part(*part) for part in workflow_tasks.parted(act, self._seen)]
        self._seen = max(self._seen, act.history_length)
        own = [job for job in act.jobs if _is_own(job)]
        if not own and (_asks(act.jobs) or not (self._rest or len(parts) > 1 or _needs_batches(act.jobs))):
            self._at = act.timestamp
            return self._activate(act)
        if self._rest and any(job.HasField("resolve_activity") for job in own):
            self._rest[0].add(parts[0].jobs)
        else:
            self._rest = [*(self._rest or [_Part(None, ())]), *parts]
            self._next_part()
        part = self._rest[0]
        jobs, part.jobs = _split(part.jobs, BATCH if self._taken < PER_TASK else 0)
        self._taken += BATCH * (1 + max(0, self._open) // CROWD) * any(map(_counts, jobs))
        if part.jobs and self._taken >= PER_TASK:
            jobs += [job for job in part.jobs if job.HasField("do_update")]
            part.jobs = [job for job in part.jobs if not job.HasField("do_update")]
        batch = _batch(act, part, jobs)
        if part.workflow_task is not None and batch.timestamp.ToNanoseconds() < self._at.ToNanoseconds():
            batch.timestamp.CopyFrom(self._at)  # as sdk-core does if the clock of a local activity's worker is ahead
        self._at = batch.timestamp
        completion = self._activate(batch)
        ended = any(command.WhichOneof("variant") in ENDS for command in completion.successful.commands)
        if completion.HasField("failed") or ended:
            self._rest = []
        elif not part.jobs or (self._taken >= PER_TASK and len(self._rest) > 1):
            self._next_part()
        if self._rest:
            self._ask_for_more(completion)
        return completion

    def _activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        self._open -= sum(_ends_activity(job) for job in act.jobs)
        completion = self._perform(act)
        self._open += sum(command.HasField("schedule_activity") for command in completion.successful.commands)
        return completion

    def _next_part(self) -> None:
        """Move on to the next workflow task; jobs left from the one before come first."""
        left = self._rest.pop(0).jobs
        if self._rest:
            part = self._rest[0]
            self._waits = self._waits and not part.fired
            self._taken = PER_TASK if self._waits and not any(map(_counts, part.jobs)) else 0
            part.jobs = _in_order([*left, *part.jobs])

    def _ask_for_more(self, completion: WorkflowActivationCompletion) -> None:
        commands = completion.successful.commands
        if self._taken < PER_TASK:
            activity = commands.add().schedule_activity
            activity.seq, activity.activity_id, activity.activity_type = OWN, "refold.batch", "refold.batch"
            activity.task_queue = "refold.batch"
            activity.start_to_close_timeout.FromSeconds(1)
            commands.add().request_cancel_activity.seq = OWN
        elif not self._waits:
            timer = commands.add().start_timer
            timer.seq = OWN
            timer.start_to_fire_timeout.FromMilliseconds(1)
            self._waits = True


def _batch(act: WorkflowActivation, part: _Part, jobs: Iterable[WorkflowActivationJob]) -> WorkflowActivation:
    """An activation with these jobs, as it came with the part's workflow task."""
    batch = type(act)()
    batch.CopyFrom(act)
    del batch.jobs[:]
    batch.jobs.extend(jobs)
    if part.workflow_task is not None:
        batch.timestamp.CopyFrom(part.workflow_task.at)
        batch.history_length, batch.history_size_bytes = part.workflow_task.started, part.workflow_task.size
        batch.continue_as_new_suggested, batch.is_replaying = part.workflow_task.suggested, True
    if part.jobs:
        batch.history_length, batch.continue_as_new_suggested = 0, False
    return batch


def _needs_batches(jobs: Sequence[WorkflowActivationJob]) -> bool:
    return len(jobs) > BATCH or (len(jobs) > 1 and any(job.HasField("cancel_workflow") for job in jobs))


def _is_own(job: WorkflowActivationJob) -> bool:
    return OWN in (job.resolve_activity.seq, job.fire_timer.seq)


def _ends_activity(job: WorkflowActivationJob) -> bool:
    return job.HasField("resolve_activity") and not job.resolve_activity.is_local


def _counts(job: WorkflowActivationJob) -> bool:
    """Whether a replay is given the job for certain, and the worker that lived it was, too."""
    return not (job.HasField("do_update") or job.HasField("notify_has_patch"))


def _asks(jobs: Iterable[WorkflowActivationJob]) -> bool:
    return any(job.HasField("query_workflow") or job.HasField("remove_from_cache") for job in jobs)


def _in_order(jobs: Iterable[WorkflowActivationJob]) -> list[WorkflowActivationJob]:
    """In the order in which the SDK would take them from one activation, but for the workflow's start: it is first."""
    return sorted(jobs, key=_place)


def _place(job: WorkflowActivationJob) -> int:
    match job.WhichOneof("variant"):
        case "initialize_workflow" | "notify_has_patch":
            return 0
        case "signal_workflow" | "do_update":
            return 1
        case _:
            return 2


def _split(
    jobs: list[WorkflowActivationJob], count: int
) -> tuple[list[WorkflowActivationJob], list[WorkflowActivationJob]]:
    """As many of the first jobs as hold this many that count, and the rest; what stands before a request to cancel is
    split from it. The jobs are in order."""
    before = bisect_left(jobs, 2, key=_place)
    if before and any(job.HasField("cancel_workflow") for job in jobs[before:]):
        some, rest = _split(jobs[:before], count)
        return some, [*rest, *jobs[before:]]
    for place, job in enumerate(jobs):
        if _counts(job):
            if count == 0:
                return jobs[:place], jobs[place:]
            count -= 1
    return jobs, []
