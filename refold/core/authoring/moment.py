"""The moment at which the fold calls a skill: the time, and the receipts and messages that the skill can read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from refold.core.chat import Thread
from refold.core.content import Message
from refold.core.fold.snapshot import Receipt


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What the fold passes to a skill in one call.

    Attributes:
        task_id: The task's id.
        known_as: The task id that the skill sees, if the task was recovered or forked: that of the first task.
        seq: The number of the entry that the fold is making.
        at: The entry's time.
        issued: How many commands this entry has before this call.
        receipts: Outcomes that the skill can read, the event's own among them.
        messages: The task's messages so far.
        threads: Conversations with models so far, by name.
        patched: Answers `ctx.patched`: called with the patch id, and with whether the step is being driven again
            through its past.
        enters: Called by the skill with the name of each step or state that it enters.
    """

    task_id: str
    known_as: str = ""
    seq: int
    at: datetime
    issued: int = 0
    receipts: Mapping[str, Receipt] = field(default_factory=dict)
    messages: tuple[Message, ...] = ()
    threads: Mapping[str, Thread] = field(default_factory=dict)
    patched: Callable[[str, bool], bool] = lambda _, again: not again
    enters: Callable[[str], None] = lambda _: None

    def invocation_id(self, position: int) -> str:
        """The id of the command at `position` (0 is the first) of the transition that this call returns."""
        return f"{self.task_id}/{self.seq}.{self.issued + position + 1}"
