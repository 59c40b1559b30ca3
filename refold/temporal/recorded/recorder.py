"""Writes the marks of one task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.temporal.recorded.here import Recorded, listening
from refold.temporal.recorded.writing import carriers, mark

if TYPE_CHECKING:
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion

    from refold.temporal.worker.batches import Activate


class Recorder:
    """One task's."""

    def __init__(self, activate: Activate, task_id: str) -> None:
        self._activate = activate
        self._task_id = task_id
        self._task: Recorded | None = None
        self._marked = 0

    def activate(self, act: WorkflowActivation) -> WorkflowActivationCompletion:
        with listening() as made:
            completion = self._activate(act)
        for command in completion.successful.commands:
            # The SDK names the update in each command of its handler, some 40 bytes for what the journal says.
            command.ClearField("event_group_markers")
        if made:
            self._task = made[0]
        if self._task is not None and completion.HasField("successful"):
            self._mark(self._task, completion, write=not act.is_replaying)
        return completion

    def _mark(self, task: Recorded, completion: WorkflowActivationCompletion, *, write: bool) -> None:
        if len(task.entries) <= self._marked or not carriers(completion):
            return
        new = task.entries[self._marked :]
        if write:
            mark(completion, self._task_id, task.digests[-1], new)
        self._marked = len(task.entries)
