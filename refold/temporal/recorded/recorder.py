"""Writes the marks of one task, and compares them where the task is rebuilt from its history.

1. An activation that takes events leaves a mark (`writing`).
2. A replayed activation is compared with the mark that it left (`comparing`). The history is read meanwhile, within a
   time that is below the SDK's deadline of 2 seconds. Where that is not enough, the replay goes on; but the task acts,
   and answers, only once the history has been read: the next attempt finds it read.
   What sdk-core gives at once is told apart by the history's workflow tasks (`refold.temporal.data.workflow_tasks`).
3. Where a digest differs, the replay goes on for as long as the commands are those of the history, so that queries are
   answered with what was recorded. An update is rejected, and any other activation fails, with the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import TYPE_CHECKING

from temporalio.api.enums.v1 import WorkflowTaskFailedCause
from temporalio.api.failure.v1 import Failure
from temporalio.exceptions import ApplicationError

from refold.divergence import Difference
from refold.effects.asking import ASK_AGAIN
from refold.temporal.data.wire import CODE_DIFFERS
from refold.temporal.data.workflow_tasks import NONE, WorkflowTasks
from refold.temporal.recorded.comparing import WORDS_S, Comparison, NotReadYet, awaited
from refold.temporal.recorded.handover import Recorded, listening
from refold.temporal.recorded.reading import Reader, Run
from refold.temporal.recorded.writing import Payloads, carriers, mark

if TYPE_CHECKING:
    # The SDK's own, so not for certain there at run time; `committed` makes no recorder where it is not.
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

    Activate = Callable[[WorkflowActivation, WorkflowTasks], WorkflowActivationCompletion]

PATIENCE_S = 0.5
"""How long, in seconds, the first activation after a replay, and a query that follows it, wait for the history. The
SDK's deadline is 2 s, and the activation has work of its own."""

REPLAY_S = 0.3
"""How long the first activation of a replay waits, in which the workflow may have much to do."""

FIRST = 3
"""The number of the event that starts a run's first workflow task, as a rule. With a higher one, it may be another."""

CAUSE = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR

Fails = Callable[[Exception, Failure], None]
"""Writes an exception into a failure, encrypted where the worker's converter does so."""


class Recorder:
    """Writes and compares the marks of one task.

    Args:
        activate: Activates its workflow, where it is rebuilt with the workflow tasks of its run.
        run: Of the task.
        reader: Reads what was recorded; None compares nothing.
        fails: Writes failures.
        payloads: Writes values.
        completion: Makes an empty completion.
        is_ahead: Whether the task was given outcomes that are not in history yet, and that no mark may cover.
    """

    def __init__(
        self,
        activate: Activate,
        run: Run,
        reader: Reader | None,
        fails: Fails,
        payloads: Payloads,
        completion: Callable[[], WorkflowActivationCompletion],
        is_ahead: Callable[[], bool],
    ) -> None:
        self._activate = activate
        self._run = run
        self._reader = reader
        self._fails = fails
        self._payloads = payloads
        self._completion = completion
        self._is_ahead = is_ahead
        self._task: Recorded | None = None
        self._marked = 0  # how many entries have a mark
        self._comparison: Comparison | None = None
        self._difference: Difference | None = None
        self._over = 0  # the event that started the workflow task that the load ended with, if it was completed before

    def activate(self, act: WorkflowActivation, *, asked: bool) -> WorkflowActivationCompletion:
        """Activate the workflow.

        Args:
            act: See the SDK.
            asked: It is a query.
        """
        patience = PATIENCE_S if asked or not act.is_replaying else REPLAY_S if self._task is None else 0
        until = monotonic() + patience
        if self._task is None and self._reader is not None and (act.is_replaying or act.history_length > FIRST):
            self._comparison = Comparison(self._run, self._reader)
        workflow_tasks, live = NONE, asked or not act.is_replaying
        if self._comparison is not None:
            try:
                workflow_tasks = self._comparison.workflow_tasks(
                    act.history_length, len(act.jobs), until, replaying=not live
                )
                self._over = act.history_length if workflow_tasks.upto > act.history_length else 0
                if live:
                    self._compare(self._comparison, until)
            except NotReadYet:
                return self._failed(act, ASK_AGAIN, None)
        if self._comparison is not None and live:
            self._comparison.end()
            self._difference, self._comparison = self._comparison.difference, None
        if self._difference is not None and not asked:
            return self._refused(act, self._difference)
        completion = self._activated(act, workflow_tasks)
        if self._task is not None and self._task.unfit is not None:
            self._difference = self._task.unfit
            if self._comparison is not None:
                self._comparison.end(self._difference)
                self._comparison = None
            return completion if asked else self._failed(act, str(self._difference), self._difference)
        if self._comparison is not None:
            return self._replayed(self._comparison, act, completion, until)
        return completion

    def completed(self, started: int) -> bool:
        """Whether history shows, within `PATIENCE_S`, that the workflow task that began with event `started` was
        completed by this worker, after it loaded the task; or that it brought nothing, and was dropped."""
        if self._reader is None or started == self._over:
            return False
        try:
            return awaited(self._reader.completed(self._run, started), monotonic() + PATIENCE_S)
        except NotReadYet:
            return False

    def _activated(self, act: WorkflowActivation, workflow_tasks: WorkflowTasks) -> WorkflowActivationCompletion:
        with listening() as made:
            completion = self._activate(act, workflow_tasks)
        for command in () if act.is_replaying else completion.successful.commands:
            # The SDK names the update in each command of its handler, some 40 bytes for what the journal says.
            command.ClearField("event_group_markers")
        if made:
            self._task = made[0]
        if self._task is not None and completion.HasField("successful") and not self._is_ahead():
            self._mark(self._task, completion, write=not act.is_replaying)
        return completion

    def _mark(self, task: Recorded, completion: WorkflowActivationCompletion, *, write: bool) -> None:
        if len(task.entries) <= self._marked or not carriers(completion):
            return
        if write:
            new = task.entries[self._marked :]
            mark(completion, self._run.workflow_id, task.digests[-1], new, self._payloads)
        self._marked = len(task.entries)

    # --- a task that is rebuilt

    def _replayed(
        self,
        comparison: Comparison,
        act: WorkflowActivation,
        completion: WorkflowActivationCompletion,
        until: float,
    ) -> WorkflowActivationCompletion:
        """What a replayed activation is completed with."""
        unbegun = self._task is not None and self._task.unbegun is not None
        try:
            self._compare(comparison, max(until, monotonic() + WORDS_S) if unbegun else until)
            if self._task is not None and comparison.difference is None and _goes_on(completion):
                comparison.compare_end(self._task, act.history_length + 1, max(until, monotonic() + WORDS_S))
        except NotReadYet:  # the history is read on while the replay goes on
            if unbegun:  # whether the task began decides what the replay is to say
                return self._failed(act, ASK_AGAIN, None)
        fits = comparison.fits(act.history_length + 1, completion)
        found = comparison.difference
        if found is None or (fits and not comparison.strict):
            return completion
        return self._failed(act, str(found), found)

    def _compare(self, comparison: Comparison, until: float) -> None:
        if self._task is not None:
            comparison.compare(self._task, until)

    def _refused(self, act: WorkflowActivation, found: Difference) -> WorkflowActivationCompletion:
        """Reject updates, which leaves nothing in history; fail the workflow task if anything else came."""
        if not all(job.HasField("do_update") for job in act.jobs):
            return self._failed(act, str(found), found)
        completion = self._completion()
        completion.run_id = act.run_id
        for job in act.jobs:
            answer = completion.successful.commands.add().update_response
            answer.protocol_instance_id = job.do_update.protocol_instance_id
            self._fails(ApplicationError(str(found), type=CODE_DIFFERS), answer.rejected)
        return completion

    def _failed(self, act: WorkflowActivation, why: str, found: Difference | None) -> WorkflowActivationCompletion:
        completion = self._completion()
        completion.run_id = act.run_id
        error = ApplicationError(why)
        if found is not None:
            # The server asks nothing any more once a workflow task has failed, so the failure tells.
            shown = [self._task.stopped()] if self._task is not None and not act.is_replaying else []
            error = ApplicationError(why, *shown, type=CODE_DIFFERS)
            completion.failed.force_cause = CAUSE
        self._fails(error, completion.failed.failure)
        return completion


def _goes_on(completion: WorkflowActivationCompletion) -> bool:
    """Whether the run ends for a new one."""
    return any(one.HasField("continue_as_new_workflow_execution") for one in completion.successful.commands)
