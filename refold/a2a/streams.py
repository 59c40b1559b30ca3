"""Following a task: its journal's entries as A2A's events."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from a2a.server.events import Event

from refold.a2a.convert import task_of
from refold.core.record import TaskRecord
from refold.engine import Engine


class Streams:
    """Follows tasks for callers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def follow(self, record: TaskRecord, *, after: int, over_pauses: bool) -> AsyncGenerator[Event, None]:
        """The task, and what follows.

        Args:
            record: The task as it was just read; the first event shows it.
            after: What came up to this entry is known to the caller.
            over_pauses: Go on until the task ends; otherwise until it waits for somebody, too.
        """
        yield task_of(record)
