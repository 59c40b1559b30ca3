"""How many effects a task begins at once: no more than Temporal takes.

The server refuses a workflow task that brings a run's open activities or children over 2,000, again and again, and
terminates a workflow whose workflow task sends more than 4 MB. So an effect waits where there is no room for it: until
another effect has ended, or until the next workflow task, which a timer of a millisecond brings.

Earlier releases counted characters, and all arguments of a command as one, and began to count anew in the last batch of
a workflow task. Where that admits more, a patch marker in history says that a run counts as this one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from pydantic_core import to_json
from temporalio import workflow

from refold.core.commands import CallActivity, CallChat, CallSkill, CallWorkflow, Effect
from refold.core.fold.wanted import Perform
from refold.temporal.data.payloads import THRESHOLD_BYTES

MOST_AT_ONCE = 1_000
MOST_BYTES = 3 * 1024 * 1024
EACH_BYTES = 1024
"""What an effect sends beside its arguments: names, timeouts, headers."""

NEXT = timedelta(milliseconds=1)

PATCH = "refold.room_in_bytes"


class Room:
    """How many more effects one run may begin in its current workflow task.

    Args:
        begin_rest: Begins what the task wants and has not begun. Called from workflow code, in the next workflow task.
    """

    def __init__(self, begin_rest: Callable[[], object]) -> None:
        self._begin_rest = begin_rest
        self._free = MOST_AT_ONCE
        self._history = self._bytes = self._chars = 0
        self._next: asyncio.Future[None] | None = None

    def count_open(self, number: int) -> None:
        """Note how many effects are under way."""
        self._free = MOST_AT_ONCE - number

    @property
    def is_free(self) -> bool:
        """Whether there is room for one more effect, if it is small."""
        return self._free > 0 and self._next is None

    def admit(self, want: Perform) -> bool:
        """Whether an effect begins now. An effect that does is counted."""
        length = workflow.info().get_current_history_length()  # 0 in all batches of a workflow task but the last
        if length != self._history:
            self._chars = 0
            if self._history:
                self._bytes = 0
            self._history = length
        chars, size = _sizes(want.command)
        full_before = bool(self._chars) and self._chars + chars > MOST_BYTES
        if self._bytes and self._bytes + size > MOST_BYTES and (full_before or workflow.patched(PATCH)):
            self._next = asyncio.ensure_future(workflow.sleep(NEXT))
            self._next.add_done_callback(self._is_next)
            return False
        self._chars += chars
        self._bytes += size
        self._free -= 1
        return True

    def _is_next(self, _: object) -> None:
        self._next = None
        self._begin_rest()


def _sizes(command: Effect) -> tuple[int, int]:
    """A command's size as earlier releases counted it, and the most bytes that it adds to a workflow task.

    An argument of more than `THRESHOLD_BYTES` is stored, and counts as that many.
    """
    if isinstance(command, CallChat | CallSkill):  # what they send is not in the command
        return THRESHOLD_BYTES + EACH_BYTES, THRESHOLD_BYTES + EACH_BYTES
    written = command.model_dump_json()
    chars = min(len(written), THRESHOLD_BYTES)
    if isinstance(command, CallActivity | CallWorkflow):
        size = max(chars, sum(min(len(to_json(one)), THRESHOLD_BYTES) for one in command.args))
    else:
        size = chars if written.isascii() else min(len(written.encode()), THRESHOLD_BYTES)
    return chars + EACH_BYTES, size + EACH_BYTES
