"""A query never shows events that no workflow task has delivered, and never changes the order of events.

A query that had to wait is delivered together with newer history. sdk-core then activates the workflow with all events
that it has, also those of a workflow task that it has not delivered yet, before it asks the query. When that workflow
task comes with further events, the workflow gets only these. A replay gets both groups at once, and the SDK puts
signals and updates first. So the live order and the replayed one differ, and no worker can go on with the task
(TMPRL1100).

Such a query is refused here with `ASK_AGAIN`, and its sender sends it again (`refold.effects.asking`). sdk-core then
evicts the run, and the workflow task loads it as every replay does. An activation does not say what it is part of. It
is found out as follows:

1. A workflow task brings its own time and the size of the history. Events that come with neither are ahead of one.
2. Events with a time of their own may be ahead, too: of a workflow task that the server has started and another worker
   has, or that waits in sdk-core behind the query. The commands that the workflow then sends would be lost. So where a
   run took events and a query comes next, the worker reads the history. The activation's history length is the number
   of the event that started the workflow task. The query is answered if the next event says that this worker completed
   the task, and was not there yet when the run was loaded: another load may take the same events ahead of the workflow
   task. It is also answered if history has no event of that number: the server drops a workflow task that brought
   nothing but refused updates. Workers are told apart by their identity, so no two may be given the same one.

A query that came along with a workflow task is refused, too, if the workflow failed to take what the task brought.
sdk-core reports only the first failed attempt. It would complete a later attempt with the answer to the query alone:
history would say that the workflow took the event and did nothing, and the code that fits could never be run on it
again.

After the SDK has given up an activation that took too long, everything is refused until the run is evicted. A workflow
that was loaded for a query stays in sdk-core, and the next query would find it half loaded, or not at all. The answer
would carry commands, which sdk-core takes for malformed; then no query and no workflow task of the run would end on
this worker any more.

The only module of the worker that uses the messages between the SDK and sdk-core.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import StorageDriverStoreContext
from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from refold.effects.asking import ASK_AGAIN
from refold.engine import PayloadTooLarge
from refold.temporal.data.inputs import for_tasks
from refold.temporal.recorded.comparing import KINDS
from refold.temporal.recorded.reading import Reader, Run
from refold.temporal.recorded.recorder import Recorder
from refold.temporal.worker.activation.batches import Batches
from refold.temporal.worker.short.joined import Joined
from refold.temporal.worker.task.workflow import SkillWorkflow

if TYPE_CHECKING:
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

try:
    from temporalio.bridge.proto import activity_result, workflow_activation, workflow_commands, workflow_completion

    _READ: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (
            workflow_activation.WorkflowActivation,
            ("jobs", "timestamp", "history_size_bytes", "history_length", "is_replaying", "run_id"),
        ),
        (workflow_activation.WorkflowActivationJob, ("query_workflow", "resolve_activity", "remove_from_cache")),
        (workflow_activation.ResolveActivity, ("seq", "result", "is_local")),
        (activity_result.ActivityResolution, ("completed", "failed", "cancelled")),
        (workflow_commands.WorkflowCommand, ("schedule_local_activity", "request_cancel_local_activity")),
        (
            workflow_commands.ScheduleLocalActivity,
            ("seq", "activity_id", "activity_type", "headers", "arguments"),
        ),
    )
    _WRITTEN: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (workflow_activation.WorkflowActivationJob, ("do_update",)),
        (workflow_activation.DoUpdate, ("protocol_instance_id",)),
        (workflow_commands.WorkflowCommand, ("user_metadata", "event_group_markers", "update_response", *KINDS)),
        (workflow_commands.ScheduleActivity, ("seq", "activity_id", "activity_type")),
        (workflow_commands.StartChildWorkflowExecution, ("seq", "workflow_id", "workflow_type")),
        (workflow_commands.UpdateResponse, ("protocol_instance_id", "completed", "rejected")),
        (workflow_completion.Success, ("commands",)),
        (workflow_completion.Failure, ("failure", "force_cause")),
    )
    _KNOWN, _RECORDS = (
        all(name in kind.DESCRIPTOR.fields_by_name for kind, names in all_names for name in names)
        for all_names in (_READ, _WRITTEN)
    )
except (ImportError, AttributeError):
    _KNOWN = _RECORDS = False
"""Whether the SDK's activations are those of the releases that refold knows. If not, each query is answered, and one
that comes too early may break its task (see above); that is rare, and no worker stands still for it.
Where only `_RECORDS` is false, no marks are written, and none are compared."""


def missing() -> tuple[str, ...]:
    """What this release of the SDK, which refold does not know, leaves tasks without; empty with one that it knows."""
    without = () if _KNOWN else ("batches of events", "one event for many effects", "protection from early queries")
    return without if _RECORDS else (*without, "journal digests in history, which tell changed code")


DIRECT = "legacy_query"
"""sdk-core's id of a query that came by itself; a query with another id came with a workflow task."""


_NOBODY = StorageDriverStoreContext(target=None)


class Committed:
    """An instance of the SDK's that answers no query ahead of a workflow task, and takes events in batches.

    Args:
        inner: The SDK's.
        det: The workflow's. A workflow that is no task gets all its events at once.
        reader: Reads what was recorded of a task that is rebuilt; None compares nothing.
    """

    def __init__(self, inner: WorkflowInstance, det: WorkflowInstanceDetails, reader: Reader | None) -> None:
        self._inner = inner
        self._activate: Callable[[WorkflowActivation], WorkflowActivationCompletion] = inner.activate
        self._recorder: Recorder | None = None
        if is_task(det):
            fails, payload = _writers(det)
            joined = Joined(inner.activate, fails, payload, _completion)
            self._activate = activate = Batches(joined.activate, joined.late).activate
            if _RECORDS:
                self._recorder = _recorder(activate, joined, det, reader, fails, payload)
        self._length = 0
        self._last_task = (0, 0)  # its time, and the size of the history by then
        self._unsure = False  # whether what came last may be ahead of its workflow task
        self._failed = ""  # why it failed to take what came
        self._given_up = False  # by the SDK: sdk-core does not know what it asked for

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """See the SDK."""
        if not _KNOWN:
            return self._inner.activate(act)
        queries = [job.query_workflow.query_id for job in act.jobs if job.HasField("query_workflow")]
        evicted = any(job.HasField("remove_from_cache") for job in act.jobs)
        stale = (self._given_up and not evicted) or self._is_ahead(act, queries)
        refused = ASK_AGAIN if stale else self._failed if queries else ""
        if refused:
            failed = workflow_completion.WorkflowActivationCompletion(run_id=act.run_id)
            failed.failed.failure.message = refused
            return failed
        with _collecting_no_garbage():
            if self._recorder is None or evicted:
                completion = self._activate(act)
            else:
                completion = self._recorder.activate(act, asked=bool(queries))
        if not queries:
            self._failed = completion.failed.failure.message if completion.HasField("failed") else ""
        return completion

    def _is_ahead(self, act: WorkflowActivation, queries: list[str]) -> bool:
        task, more = (act.timestamp.ToNanoseconds(), act.history_size_bytes), act.history_length > self._length
        new, self._last_task, self._length = task != self._last_task, task, act.history_length
        if queries:
            unsure = self._unsure and queries == [DIRECT]
            self._unsure = unsure and not (self._recorder and self._recorder.completed(act.history_length))
            return self._unsure
        if act.is_replaying:
            return False
        self._unsure = True
        return more and not new

    def get_thread_id(self) -> int | None:
        """See the SDK. It asks only as it gives an activation up, which may not have begun yet, or end just now."""
        self._given_up = True
        return self._inner.get_thread_id()

    def get_serialization_context(self, command_info: object) -> None:
        """None: the SDK asks several times for each value, and refold's converter uses no context."""

    def get_external_store_context(self, command_info: object) -> StorageDriverStoreContext:
        """Nobody, as for `get_serialization_context`: a stored value's key is its hash."""
        return _NOBODY

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)  # whatever else the SDK asks of an instance, in whichever release


def _completion() -> WorkflowActivationCompletion:
    return workflow_completion.WorkflowActivationCompletion()


def _writers(det: WorkflowInstanceDetails) -> tuple[Callable[[Exception, Failure], None], Callable[[Any], Payload]]:
    """Functions that write failures and values as the workflow's converters do."""
    failures, converter = det.failure_converter_class(), det.payload_converter_factory()

    def fails(error: Exception, failure: Failure) -> None:
        failures.to_failure(error, converter, failure)

    def payload(value: Any) -> Payload:
        return converter.to_payloads([value])[0]

    return fails, payload


def _recorder(
    activate: Any,
    joined: Joined,
    det: WorkflowInstanceDetails,
    reader: Reader | None,
    fails: Callable[[Exception, Failure], None],
    payload: Callable[[Any], Payload],
) -> Recorder:
    if reader is not None:
        reader.attach()
    run = Run(workflow_id=det.info.workflow_id, run_id=det.info.run_id)

    def payloads(value: Any) -> Payload | None:
        try:
            return payload(value)
        except PayloadTooLarge:
            return None

    return Recorder(activate, run, reader, fails, payloads, _completion, lambda: joined.is_ahead)


_collector = threading.Lock()


@contextmanager
def _collecting_no_garbage() -> Iterator[None]:
    """Pause Python's garbage collector while a workflow is activated, unless another activation has paused it.

    A snapshot of 20,000 messages takes 0.1 s to read, and 0.7 s with the collector looking through all that was read
    so far, again and again: a third of the deadline that the SDK sets an activation.
    """
    if not gc.isenabled() or not _collector.acquire(blocking=False):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _collector.release()


class Unsandboxed(UnsandboxedWorkflowRunner):
    """The SDK's runner without a sandbox, which makes `Committed` instances.

    Args:
        reader: See `Committed`.
    """

    def __init__(self, reader: Reader | None = None) -> None:
        self.reader = reader

    def reading(self, reader: Reader) -> Unsandboxed:
        """The same runner, with this reader."""
        return Unsandboxed(reader)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """See the SDK."""
        return cast(WorkflowInstance, Committed(super().create_instance(tolerant(det)), det, self.reader))


def is_task(det: WorkflowInstanceDetails) -> bool:
    """Whether the workflow is a task, and not one of the program's own."""
    return issubclass(det.defn.cls, SkillWorkflow)


def tolerant(det: WorkflowInstanceDetails) -> WorkflowInstanceDetails:
    """The same details; a task's workflow is given inputs that cannot be read, too (`TaskPayloadConverter`)."""
    if not is_task(det):
        return det
    return replace(det, payload_converter_factory=for_tasks(det.payload_converter_factory))
