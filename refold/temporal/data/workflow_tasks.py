"""Which events each workflow task of a run delivered, for a worker that receives those of several at once.

When a workflow task completes without commands and the next one is scheduled right after it, sdk-core takes the first
for a heartbeat: a replay then gets the events of both in one activation, at the time of the second. The same events are
in history where a message came while the workflow task of an update was scheduled (sdk-core:
`find_end_index_of_next_wft_seq`). There the worker took the first one's events separately, at their own time. This
module reads the workflow tasks from history, so that a replay takes them separately, too.
See docs/decisions/2026-11-23-a-replay-takes-each-workflow-task-by-itself.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.history.v1 import HistoryEvent

if TYPE_CHECKING:
    # The SDK's own, so not for certain there at run time; `committed` makes no use of workflow tasks where it is not.
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation, WorkflowActivationJob

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTask:
    """A workflow task that a worker completed, and that sdk-core may take for a heartbeat.

    Attributes:
        started: The number of the event that started it.
        at: Its time.
        size: The history's size by then, in bytes.
        suggested: The server suggested to go on in a new run.
    """

    started: int
    at: Timestamp
    size: int
    suggested: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowTasks:
    """The workflow tasks of a run, as far as its history was read.

    Attributes:
        workflow_tasks: In their order.
        brought: The number of each event that a workflow is told of, with the field of the job that tells it.
        upto: The number of the last event that was read.
    """

    workflow_tasks: Sequence[WorkflowTask] = ()
    brought: Sequence[tuple[int, str]] = ()
    upto: int = 0

    def within(self, since: int, upto: int) -> list[WorkflowTask]:
        """The workflow tasks after `since` and before `upto` whose events are delivered along with those of `upto`.

        Args:
            since: The start of the workflow task before; 0 before the first.
            upto: The start of that one.
        """
        found = []
        for one in _between(self.workflow_tasks, since, upto, key=lambda one: one.started):
            if _between(self.brought, since, one.started, key=_id):
                found.append(one)
            since = one.started
        return found

    def parted(
        self, act: WorkflowActivation, since: int
    ) -> list[tuple[WorkflowTask | None, list[WorkflowActivationJob]]]:
        """An activation's jobs by the workflow task that delivered them; None stands for its own, which come last.

        Args:
            act: The activation.
            since: The start of the workflow task that was activated before.
        """
        within = self.within(since, act.history_length)
        if not within:
            return [(None, list(act.jobs))]
        starts, last = [one.started for one in within], len(within)
        events = defaultdict[str, list[int]](list)
        for id, kind in _between(self.brought, since, act.history_length, key=_id):
            events[kind].append(bisect_right(starts, id))
        counts = Counter(_kind(job) for job in act.jobs)
        # Some events bring no job, such as the end of what the workflow waits for no more.
        places = {kind: iter(found) for kind, found in events.items() if len(found) == counts[kind]}
        jobs: list[list[WorkflowActivationJob]] = [[] for _ in range(last + 1)]
        for job in act.jobs:
            kind = _kind(job)
            jobs[0 if kind in _FIRST else next(places.get(kind, iter(())), last)].append(job)
        return list(zip([*within, None], jobs, strict=True))


NONE = WorkflowTasks()


def workflow_tasks_of(events: Iterable[HistoryEvent]) -> WorkflowTasks:
    """The workflow tasks in a run's history.

    Args:
        events: From its first event on.
    """
    workflow_tasks, brought = [], []
    event, started, completed = HistoryEvent(), HistoryEvent(), False
    for event in events:
        name = (event.WhichOneof("attributes") or "").removesuffix("_event_attributes")
        if completed and name == "workflow_task_scheduled":
            workflow_tasks.append(_workflow_task(started))
        completed = name == "workflow_task_completed"
        if name == "workflow_task_started":
            started = event
        if (kind := _JOBS.get(name)) is not None:
            brought.append((event.event_id, kind))
    if completed:  # an update's workflow task is not in history while it is under way
        workflow_tasks.append(_workflow_task(started))
    return WorkflowTasks(workflow_tasks=workflow_tasks, brought=brought, upto=event.event_id)


def _between(of: Sequence[T], since: int, upto: int, key: Callable[[T], int]) -> Sequence[T]:
    """The items with a number above `since` and below `upto`, of items in the order of their numbers."""
    return of[bisect_right(of, since, key=key) : bisect_left(of, upto, key=key)]


def _id(brought: tuple[int, str]) -> int:
    return brought[0]


def _workflow_task(started: HistoryEvent) -> WorkflowTask:
    of = started.workflow_task_started_event_attributes
    return WorkflowTask(
        started=started.event_id,
        at=started.event_time,
        size=of.history_size_bytes,
        suggested=of.suggest_continue_as_new,
    )


def _kind(job: Any) -> str:
    local = job.HasField("resolve_activity") and job.resolve_activity.is_local  # its end is no event that comes
    return "" if local else job.WhichOneof("variant") or ""


_FIRST = {"initialize_workflow", "notify_has_patch", "update_random_seed"}

_CHILD, _OTHER = "child_workflow_execution_", "external_workflow_execution"
_JOBS = {
    "workflow_execution_signaled": "signal_workflow",
    "workflow_execution_cancel_requested": "cancel_workflow",
    "timer_fired": "fire_timer",
    **{f"activity_task_{end}": "resolve_activity" for end in ("completed", "failed", "timed_out", "canceled")},
    f"{_CHILD}started": "resolve_child_workflow_execution_start",
    f"start_{_CHILD}failed": "resolve_child_workflow_execution_start",
    **{
        f"{_CHILD}{end}": "resolve_child_workflow_execution"
        for end in ("completed", "failed", "timed_out", "canceled", "terminated")
    },
    f"{_OTHER}_signaled": "resolve_signal_external_workflow",
    f"signal_{_OTHER}_failed": "resolve_signal_external_workflow",
    f"{_OTHER}_cancel_requested": "resolve_request_cancel_external_workflow",
    f"request_cancel_{_OTHER}_failed": "resolve_request_cancel_external_workflow",
}
