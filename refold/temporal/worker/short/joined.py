"""Delivers the outcomes of local effects to a task one by one, though a single local activity returns them all.

A local activity of the SDK's leaves a marker in history, some 390 bytes of which are the SDK's own, and its outcome
comes by way of sdk-core. Here the effects that a task asks for within a stretch are performed by one:

1. Where the task asks for local activities, sdk-core is asked for one in their place (`refold.effects.short.stretch`).
2. That activity performs the effects, in this process, and gives their outcomes to the task at once, in the order in
   which the effects were asked for: activations that sdk-core does not know of. If the task asks for local activities
   then, they are performed next. All its other commands are kept.
3. The activity ends once the task waits for no more of them. Its result is the record of the outcomes, and its
   completion is answered with the commands that were kept.
4. The task's stretch ends after that. When a stretch begins, the task asks for the local activity `refold.stretch_end`.
   sdk-core is never asked for it: it is resolved here, after the activity of rule 3 has ended. What sdk-core brings
   before that or along with it (a message, a request to cancel) is given to the task first, and the task holds it until
   its stretch has ended. So it does not matter after which outcome it came.
5. A replay gives the recorded outcomes to the task in the same order, at the same times, and keeps the same commands. A
   worker that dies meanwhile leaves nothing in history; the next one finds the results in the ledger.

The activations of rule 2 are copies of the activation in which sdk-core was asked for the activity. Their time is that
of the newest outcome so far.

A large result has no place in that record: a local activity of its own brings it, after rule 3. Of several, each is
asked for once the one before was given to the task; and the next activity of rule 1 after the last one. So an
activation brings one of them, in a replay, too.

If a local activity ends just as sdk-core completes the workflow task, sdk-core writes its marker with that workflow
task, and brings its end with the next one, along with whatever else has come. A replay is given the end first. So here
the workflow task fails, and its next attempt is given everything as any replay is (`LATE`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure

from refold.core.lineage.ids import place
from refold.effects.short.stretch import (
    RUNS,
    STRETCH,
    AskedEffect,
    NextWants,
    Record,
    error_of,
    is_failure,
    is_known,
    is_large,
)
from refold.temporal.data.wire import LEDGER_ACTIVITY, STRETCH_END
from refold.temporal.worker.activation.batches import ENDS, OWN, Activate

if TYPE_CHECKING:
    # The SDK's own, so not for certain there at run time; `committed` joins nothing where it is not.
    from temporalio.bridge.proto.activity_result import ActivityResolution
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation
    from temporalio.bridge.proto.workflow_commands import ScheduleLocalActivity, WorkflowCommand
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

LATE = "a local activity ended with the workflow task before; the workflow task is tried again in its order"
NEWER = "another release of refold recorded what the task's effects brought, in a form that this worker does not know"
LOST = "outcomes that the task was given did not reach history; the workflow task is tried again"

_DIFFERS = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR


@dataclass(eq=False)
class _Out:
    """The local activity that performs a task's effects.

    Attributes:
        joined: The task's.
        seq: The activity's number.
        act: The activation that the task's next ones are copies of.
        kept: The commands with which the activity's completion is answered.
        given: How many outcomes the task was given.
        new: Effects that the task has asked for, and the activity does not know of yet.
        dropped: The ids of effects that the task does not want any more, as far as the activity does not know it.
        nobodys: The labels of all that it does not want any more.
    """

    joined: Joined
    seq: int
    act: WorkflowActivation
    kept: WorkflowActivationCompletion
    given: int = 0
    new: list[ScheduleLocalActivity] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)
    nobodys: set[str] = field(default_factory=set)

    @property
    def untold(self) -> dict[str, Record]:
        """See `Run`."""
        return self.joined.untold

    def take(self, record: Record | None) -> NextWants:
        """See `Run`."""
        return self.joined.take(self, record)


class Joined:
    """Stands between the SDK's worker and the workflow of one task.

    Attributes:
        untold: See `Run`.

    Args:
        activate: Activates its workflow.
        fails: Writes an exception into a failure.
        payload: Writes a value.
        completion: Makes an empty completion.
    """

    def __init__(
        self,
        activate: Activate,
        fails: Callable[[Exception, Failure], None],
        payload: Callable[[Any], Payload],
        completion: Callable[[], WorkflowActivationCompletion],
    ) -> None:
        self._inner = activate
        self._fails = fails
        self._payload = payload
        self._completion = completion
        self._lock = threading.Lock()
        self._asked: dict[int, ScheduleLocalActivity] = {}  # by their numbers, in the order of the commands
        self._canceled: list[int] = []
        self._large: dict[int, ScheduleLocalActivity] = {}  # likewise, those with large results
        self._alone: set[int] = set()  # those of them that sdk-core has
        self._end: int | None = None  # the number of the activity whose end is the end of the stretch
        self._out: _Out | None = None
        self._count = 0
        self._length = 0  # of the history, as far as the task was activated with it
        self._gone = False  # from the worker's cache
        self._over = False  # since the run has ended
        self.untold: dict[str, Record] = {}

    @property
    def is_ahead(self) -> bool:
        """Whether the task was given outcomes that are not in history yet."""
        return self._out is not None and self._out.given > 0

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Activate the workflow; see the SDK."""
        with self._lock:
            if any(job.HasField("remove_from_cache") for job in act.jobs):
                self._gone = True
                return self._inner(act)
            out = self._out
            results = [job.resolve_activity.result for job in act.jobs if out and _is_end(job, out.seq)]
            if out is None or not results:
                completion = self._activated(act)
            else:
                completion = self._ended(out, results[0], act)
            for seq in [job.resolve_activity.seq for job in act.jobs]:
                self._alone.discard(seq)
                self._large.pop(seq, None)
            # Only in the last batch of a workflow task: in the others, the task is told that more comes, and would take
            # the outcomes as if it did.
            if self._out is None and act.history_length > 0 and completion.HasField("successful"):
                self._ask_for_next(completion, act)
            return completion

    def _ask_for_next(self, completion: WorkflowActivationCompletion, act: WorkflowActivation) -> None:
        if self._large:
            seq, large = next(iter(self._large.items()))
            if seq not in self._alone:
                self._bring_alone(completion, seq, large)
        elif self._asked:
            self._ask(completion, act)
        elif self._end is not None and not self._alone:
            self._end_stretch(completion, act)

    def _bring_alone(self, completion: WorkflowActivationCompletion, seq: int, large: ScheduleLocalActivity) -> None:
        self._alone.add(seq)
        completion.successful.commands.add().schedule_local_activity.CopyFrom(large)

    def late(self, act: WorkflowActivation) -> WorkflowActivationCompletion | None:
        """Fail the workflow task if the end of a local activity came with the next workflow task, and something else
        with it. Asked of each activation as it comes, before `Batches` takes it apart."""
        is_new, self._length = act.history_length > self._length, max(self._length, act.history_length)
        ends = sum(job.HasField("resolve_activity") and job.resolve_activity.is_local for job in act.jobs)
        if not is_new or act.is_replaying or ends in (0, len(act.jobs)):
            return None
        late = self._completion()
        _fail(late, LATE)
        return late

    def take(self, out: _Out, record: Record | None) -> NextWants:
        """See `Run`."""
        with self._lock:
            if record is not None and self._goes_on(out):
                self._give(out, record, replaying=False)
            if not self._goes_on(out):
                return NextWants(over=True)
            new, out.new, dropped, out.dropped = out.new, [], out.dropped, []
            return NextWants(asked=[_as_asked(one) for one in new], dropped=dropped)

    def _goes_on(self, out: _Out) -> bool:
        return self._out is out and not (self._gone or self._over) and out.kept.HasField("successful")

    # --- the activity

    def _ask(self, completion: WorkflowActivationCompletion, act: WorkflowActivation) -> None:
        """Ask sdk-core for the activity that performs what the task asks for."""
        self._count += 1
        bare, kept = _bare(act), self._succeeded()
        new = list(self._asked.values())
        out = self._out = _Out(joined=self, seq=OWN + self._count, act=bare, kept=kept, new=new)
        RUNS[token := uuid4().hex] = out
        command = completion.successful.commands.add().schedule_local_activity
        command.CopyFrom(new[0])  # with its timeouts, its headers, and its id for people
        command.seq, command.activity_type = out.seq, STRETCH
        del command.arguments[:]
        command.arguments.append(self._payload(token))  # which history does not keep

    def _ended(self, out: _Out, result: ActivityResolution, act: WorkflowActivation) -> WorkflowActivationCompletion:
        """Complete the activation with the activity's end, and the other jobs that came with it."""
        rest = _bare(act)
        rest.jobs.extend(job for job in act.jobs if not _is_end(job, out.seq))
        completion = self._activated(rest) if rest.jobs else self._succeeded()
        if completion.HasField("failed"):
            return completion
        if result.HasField("completed"):
            for record in _records(result)[out.given :]:
                self._give(out, record, replaying=act.is_replaying)
        elif out.given:
            failure = result.failed.failure
            why = failure.cause.message or failure.message
            _fail(out.kept, f"{LOST} ({why})" if why else LOST)
        else:  # it was not begun, or its worker leaves: each effect hears of it
            for seq in list(self._asked):
                self._resolve(out, seq, result, replaying=act.is_replaying)
        self._out = None
        if out.kept.HasField("failed"):
            return out.kept
        _join(completion, out.kept)
        return completion

    def _end_stretch(self, completion: WorkflowActivationCompletion, act: WorkflowActivation) -> None:
        end, result = _bare(act), _resolution(act)
        result.completed.SetInParent()
        assert self._end is not None
        _add_end(end, self._end, result)
        self._end = None
        _join(completion, self._activated(end))

    def _give(self, out: _Out, record: Record, *, replaying: bool) -> None:
        """Give the task the outcome of the first effect that it waits for."""
        if out.kept.HasField("failed") or self._over:
            return
        out.given += 1
        if not is_known(record):
            _fail(out.kept, NEWER)
            return
        seq, asked = next(iter(self._asked.items()), (0, None))
        label = None if asked is None else _label(asked)
        if label != record[0] and record[0] in out.nobodys:
            return  # in a run of an earlier release, which asked for other effects while a large result was on its way
        if asked is None or label != record[0]:
            _fail(out.kept, f"[TMPRL1100] the outcome of {record[0]!r} is recorded, and the code asks for {label!r}")
            out.kept.failed.force_cause = _DIFFERS
            return
        if is_large(record):
            self._large[seq] = self._asked.pop(seq)
            return
        if len(record) == 1:  # an earlier release asked for them all at once
            self._bring_alone(out.kept, seq, self._asked.pop(seq))
            return
        result = _resolution(out.act)
        if is_failure(record):
            self._fails(error_of(record[1]), result.failed.failure)
        else:
            at = datetime.fromtimestamp(record[1] / 1_000, UTC)
            if at > out.act.timestamp.ToDatetime(UTC):
                out.act.timestamp.FromDatetime(at)
            result.completed.result.CopyFrom(self._payload(record[1:]))
        self._resolve(out, seq, result, replaying=replaying)

    def _resolve(self, out: _Out, seq: int, result: ActivityResolution, *, replaying: bool) -> None:
        if self._asked.pop(seq, None) is None or out.kept.HasField("failed"):
            return
        act = _bare(out.act)
        act.is_replaying = replaying
        _add_end(act, seq, result)
        _join(out.kept, self._activated(act))

    def _succeeded(self) -> WorkflowActivationCompletion:
        completion = self._completion()
        completion.successful.SetInParent()
        return completion

    # --- the task

    def _activated(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        completion = self._inner(act)
        self._take_over(completion)
        while self._canceled and completion.HasField("successful"):
            canceled, result = _bare(act), _resolution(act)
            result.cancelled.failure.canceled_failure_info.SetInParent()
            _add_end(canceled, self._canceled.pop(0), result)
            more = self._inner(canceled)
            self._take_over(more)
            _join(completion, more)
        return completion

    def _take_over(self, completion: WorkflowActivationCompletion) -> None:
        """Take the commands about local effects out of a completion."""
        commands = completion.successful.commands
        left = [command for command in commands if not self._takes(command)]
        if len(left) < len(commands):
            del commands[:]
            commands.extend(left)
        if any(command.WhichOneof("variant") in ENDS for command in left):
            self._over = True
            self._asked.clear()
            self._large.clear()

    def _takes(self, command: WorkflowCommand) -> bool:
        out, kind = self._out, command.WhichOneof("variant")
        if kind == "schedule_local_activity":
            asked = type(command.schedule_local_activity)()
            asked.CopyFrom(command.schedule_local_activity)
            if asked.activity_type == LEDGER_ACTIVITY:
                return False
            if asked.activity_type == STRETCH_END:
                self._end = asked.seq
                return True
            self._asked[asked.seq] = asked
            if out is not None:
                out.new.append(asked)
            return True
        if kind != "request_cancel_local_activity":
            return False
        seq = command.request_cancel_local_activity.seq
        waits = self._large if seq in self._large and seq not in self._alone else self._asked
        if (dropped := waits.pop(seq, None)) is None:
            return False
        self._canceled.append(seq)
        if out is not None:
            out.nobodys.add(_label(dropped))
            if dropped in out.new:
                out.new.remove(dropped)
            else:
                out.dropped.append(dropped.activity_id)
        return True


def _label(asked: ScheduleLocalActivity) -> str:
    return f"{place(asked.activity_id)} {asked.activity_type}"


def _as_asked(asked: ScheduleLocalActivity) -> AskedEffect:
    return AskedEffect(
        label=_label(asked),
        id=asked.activity_id,
        type=asked.activity_type,
        args=list(asked.arguments),
        headers=dict(asked.headers),
    )


def _is_end(job: Any, seq: int) -> bool:
    return bool(job.HasField("resolve_activity") and job.resolve_activity.seq == seq)


def _bare(act: WorkflowActivation) -> WorkflowActivation:
    """The activation without jobs."""
    bare = type(act)()
    bare.CopyFrom(act)
    del bare.jobs[:]
    return bare


def _resolution(act: WorkflowActivation) -> ActivityResolution:
    return type(act)().jobs.add().resolve_activity.result


def _add_end(act: WorkflowActivation, seq: int, result: ActivityResolution) -> None:
    end = act.jobs.add().resolve_activity
    end.seq, end.is_local = seq, True
    end.result.CopyFrom(result)


def _join(completion: WorkflowActivationCompletion, more: WorkflowActivationCompletion) -> None:
    """Add what a later activation was completed with."""
    if more.HasField("successful"):
        completion.successful.MergeFrom(more.successful)
    else:
        completion.failed.CopyFrom(more.failed)  # in place of the commands


def _fail(completion: WorkflowActivationCompletion, why: str) -> None:
    completion.failed.failure.message = why


def _records(result: ActivityResolution) -> Sequence[Record]:
    records = from_json(result.completed.result.data)
    return records if isinstance(records, list) else [[]]  # of no form that is known
