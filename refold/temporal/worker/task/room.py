"""How many effects a task begins at once: no more than Temporal takes.

The server refuses a workflow task that brings a run's open activities or children over 2,000, again and again, and
terminates a workflow whose workflow task sends more than 4 MB. So what has no room waits: for an effect that comes
back, or for the next workflow task, which a timer of a millisecond brings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

from refold.core.commands import CallChat, CallSkill, Effect
from refold.core.fold.wanted import Perform
from refold.temporal.data.payloads import THRESHOLD_BYTES

MOST_AT_ONCE = 1_000
MOST_BYTES = 3 * 1024 * 1024
EACH_BYTES = 1024
"""What an effect sends beside its arguments: names, timeouts, headers."""

NEXT = timedelta(milliseconds=1)


class Room:
    """One run's.

    Args:
        goes_on: Begins what the task wants and was not begun. Called from workflow code, in the next workflow task.
    """

    def __init__(self, goes_on: Callable[[], object]) -> None:
        self._goes_on = goes_on
        self._free = MOST_AT_ONCE
        self._history = self._bytes = 0
        self._next: asyncio.Future[None] | None = None

    def left_by(self, out: int) -> None:
        """So many effects are out."""
        self._free = MOST_AT_ONCE - out

    @property
    def is_free(self) -> bool:
        """Whether there is room for one more effect, if it is small."""
        return self._free > 0 and self._next is None

    def takes(self, want: Perform) -> bool:
        """Whether an effect begins now; if so, it takes its room."""
        length = workflow.info().get_current_history_length()  # the same throughout a workflow task
        if length != self._history:
            self._history, self._bytes = length, 0
        size = _size(want.command)
        if self._bytes and self._bytes + size > MOST_BYTES:
            self._next = asyncio.ensure_future(workflow.sleep(NEXT))
            self._next.add_done_callback(self._is_next)
            return False
        self._bytes += size
        self._free -= 1
        return True

    def _is_next(self, _: object) -> None:
        self._next = None
        self._goes_on()


def _size(command: Effect) -> int:
    """Its bytes in a workflow task, at most: of larger arguments there is only an address."""
    if isinstance(command, CallChat | CallSkill):  # these send a conversation, or how far a part came
        return THRESHOLD_BYTES + EACH_BYTES
    return min(len(command.model_dump_json()), THRESHOLD_BYTES) + EACH_BYTES
