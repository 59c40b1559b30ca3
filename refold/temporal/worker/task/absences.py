"""What a task makes of inputs that its worker cannot get (`refold.temporal.data.absent`), the same on every replay.

1. Where the task refuses one, a patch marker in history says so. A replay refuses it too, even if it is there by then.
2. Without that marker the input was read when it came. A replay that cannot get it any more fails the workflow task,
   which waits until the value or the key is back.
3. What refold itself sends is never refused: the task would wait for a part's outcome, or its state would be gone.

Updates need no marker. One that cannot be read is rejected, which leaves nothing in history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temporalio import workflow

from refold.engine import StorageError
from refold.temporal.data.inputs import Absent, Got, Unread

PATCH = "refold.absent."
"""What the ids of the markers begin with; the number of the input in its run follows."""


class InputAbsent(StorageError):
    """This worker cannot read an input now: its value or its key is missing. Fails the workflow task, which is retried.

    Its message stays readable where others are encrypted: whoever looks may lack the key, too.
    """


class Absences:
    """The inputs of one run that its worker once could not get, numbered in their order."""

    def __init__(self) -> None:
        self._seen = 0

    def judged(self, inputs: Sequence[Any], *, from_outside: bool) -> list[Any]:
        """The inputs of a signal or a start, each read or refused; every replay decides the same.

        Args:
            inputs: As they arrived.
            from_outside: A client sent them, so that they may be refused.

        Raises:
            InputAbsent: One cannot be got, and the workflow task waits for it.
        """
        return [self._judged(one, from_outside) if isinstance(one, Absent | Got) else one for one in inputs]

    def _judged(self, one: Absent | Got, from_outside: bool) -> Any:
        self._seen += 1
        marker, replaying = f"{PATCH}{self._seen}", workflow.unsafe.is_replaying()
        asks = replaying or (isinstance(one, Absent) and one.sure and from_outside)
        if asks and workflow.patched(marker):  # writes the marker, unless this is a replay
            return Unread(one.why, one.size)
        return got([one])[0]


def got(inputs: Sequence[Any]) -> list[Any]:
    """Inputs that a task has taken, or is about to.

    Raises:
        InputAbsent: One of them cannot be got.
    """
    for one in inputs:
        if isinstance(one, Absent):
            raise InputAbsent(f"an input of this task cannot be read: {one.now}")
    return [one.value if isinstance(one, Got) else one for one in inputs]
