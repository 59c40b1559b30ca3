"""The records of tasks that stand still, so that each is read once: of tasks that have ended, or wait for a person.

Rule 1: what was kept counts only for who has just asked the server how the task stands, and found it as it was then.
  Whatever changes a task is an event in its history, so a history of the same length is the same history.
Rule 2: how the task stood is asked before its record is read. So the record is never older than what it is kept for.
Rule 3: a worker also says whether its code fits the task, of which no event tells. So it is asked about an open task
  again, after `OPEN_S` at the latest.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from pydantic_core import to_json

from refold.record import TaskRecord

MOST_BYTES = 16 * 2**20
"""How much is kept, in bytes as JSON; what was not asked for longest goes first."""

OPEN_S = 10.0
"""Seconds for which the record of an open task is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a task stands, as the server knows it.

    Attributes:
        run_id: Its newest run.
        events: How many events the history of that run has; None while a worker has some to take in.
    """

    run_id: str
    events: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    record: TaskRecord
    standing: Standing | None
    size: int
    at: float


class RecordCache:
    """Records of tasks that stand still, by task."""

    def __init__(self, most_bytes: int = MOST_BYTES, clock: Callable[[], float] = time.monotonic) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._clock = clock
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def __contains__(self, task_id: str) -> bool:
        """Whether the task stood still when it was last read, so that it is worth asking how it stands now."""
        kept = self._kept.get(task_id)
        return kept is not None and (kept.record.ended or self._clock() - kept.at < OPEN_S)

    def of(self, task_id: str, standing: Standing) -> TaskRecord | None:
        """The task as it stands now; None where that is not kept."""
        kept = self._kept.get(task_id)
        if kept is None or kept.standing is None or kept.standing.run_id != standing.run_id:
            return None
        # A run that has ended stays as it is; an open one does until its next event.
        if not kept.record.ended and (standing.events is None or kept.standing.events != standing.events):
            return None
        self._kept.move_to_end(task_id)
        return kept.record

    def keep(self, record: TaskRecord, standing: Standing | None) -> None:
        """Keep a task that stands still, unless it is too large.

        Args:
            record: The task.
            standing: How it stood before its record was read; None if nobody asked, so that only the next reader does.
        """
        size = len(to_json(record))
        self.drop(record.task_id)
        if size > self.most_bytes // 8:
            return
        self._kept[record.task_id] = _Kept(record=record, standing=standing, size=size, at=self._clock())
        self.bytes += size
        while self.bytes > self.most_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, task_id: str) -> None:
        """Keep the task no longer."""
        if task_id in self._kept:
            self.bytes -= self._kept.pop(task_id).size
