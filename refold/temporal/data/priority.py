"""In which order the server gives out the work of many tasks: interactive before batch, and the owners in turn.

Effects, parts and later runs of a task inherit its priority from its workflow, so it is written to history once. A
server that knows no priorities ignores it.
"""

from __future__ import annotations

from temporalio.client import WorkflowExecution
from temporalio.common import Priority

from refold.temporal.data.search_attributes import OWNER, keyed

BATCH = 4
"""The priority of a batch; a smaller number goes first, and a task without one has 3."""

KEY_CHARS = 16
"""How much of an owner's keyed hash tells it from other owners; the server takes up to 64 bytes."""


def priority_of(owner: str | None, *, batch: bool = False) -> Priority:
    """The priority of a new task.

    Args:
        owner: Whose task it is. The server sees the beginning of what it has as `RefoldOwner`, not the owner. All tasks
            without an owner take their turn together.
        batch: Nobody waits for it: the work of other tasks goes first.
    """
    return Priority(
        priority_key=BATCH if batch else None,
        fairness_key=keyed(OWNER.name, owner)[:KEY_CHARS] if owner else None,
    )


def is_batch(execution: WorkflowExecution) -> bool:
    """Whether a task was started as a batch."""
    return execution.raw_info.priority.priority_key >= BATCH
