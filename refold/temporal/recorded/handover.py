"""How a task's workflow, made inside the SDK's sandbox, and what activates it from outside find each other.

The SDK activates a workflow in one thread from begin to end, so the thread knows whose workflow is being made there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from refold.core.fold.journal import Entry
from refold.divergence import Difference
from refold.temporal.data.wire import Stopped


class Recorded(Protocol):
    """A task as its recorder sees it."""

    @property
    def entries(self) -> Sequence[Entry]:
        """This run's entries, in order."""

    @property
    def digests(self) -> Sequence[bytes]:
        """The digest before the run's first entry, then the one after each entry."""

    @property
    def base(self) -> int:
        """The number of the last entry before this run."""

    def differ(self, difference: Difference, recorded: Callable[[Sequence[Entry]], Sequence[Entry]]) -> None:
        """From now on, show this run's entries as `recorded` gives them, with the difference as a note."""

    def go_on_as_recorded(self) -> None:
        """Make the recorded state the task's state before the next event, since a decision is about what was shown."""

    @property
    def unfit(self) -> Difference | None:
        """Why the code cannot go on from the snapshot that this run began with; None if nothing speaks against it."""

    @property
    def unbegun(self) -> Difference | None:
        """Why the code refuses to recover or fork the other task; None if it does not, or if the run has no such start.

        That is a difference only where history shows that the task began.
        """

    def stopped(self) -> Stopped:
        """What the task shows while it accepts no event."""


class _Here(threading.local):
    made: list[Recorded] | None = None


_here = _Here()


def announce(task: Recorded) -> None:
    """Pass a new workflow to the recorder that activates it in this thread. Called by the workflow."""
    if _here.made is not None:
        _here.made.append(task)


@contextmanager
def listening() -> Iterator[list[Recorded]]:
    """Find the task that is made inside the block, if one is: the list holds it afterwards."""
    _here.made = found = list[Recorded]()
    try:
        yield found
    finally:
        _here.made = None
