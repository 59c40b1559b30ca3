"""Numbers the attempts of a call over all its tries, so that a watcher tells what one has shown from the next one's.

The task tries a call again by another activity of the same id, whose attempts Temporal counts from 1.
"""

from __future__ import annotations

from collections.abc import Iterable

from refold.core.events import BackoffOver, DependencyResolved
from refold.core.fold.journal import Entry
from refold.engine import TaskView

DISPATCHES = 100
"""More than the times that Temporal dispatches one try (`Profile.max_attempts`)."""


def attempt_of(dispatched: int, retries: int) -> int:
    """An attempt's number, higher than those of all earlier ones.

    Args:
        dispatched: Which attempt of its activity it is, as Temporal counts.
        retries: How often the task has tried the call again.
    """
    return retries * DISPATCHES + dispatched


class Retries:
    """How often a task has tried each of its calls again, as far as its entries were read.

    Attributes:
        known: By invocation id; None where the task has to be asked.
    """

    def __init__(self, after: int) -> None:
        self.known: dict[str, int] | None = None if after else {}

    def read(self, entries: Iterable[Entry]) -> None:
        """Take account of the task's next entries."""
        for entry in entries:
            if entry.refused or self.known is None:
                continue
            match entry.event:
                case BackoffOver(invocation_id=id, retry=retry):
                    self.known[id] = retry
                case DependencyResolved(retry=True):  # it may not say which call
                    self.known = None
                case _:
                    pass

    def missed(self) -> None:
        """Some entries were not read."""
        self.known = None

    def told(self, task: TaskView) -> None:
        """Take what the task says."""
        self.known = {one.invocation_id: one.attempt - 1 for one in task.pending}
