"""The records of ended tasks, kept so that they are read from storage once: nothing changes them any more."""

from __future__ import annotations

from collections import OrderedDict

from pydantic_core import to_json

from refold.record import TaskRecord

MOST_BYTES = 16 * 2**20
"""How much is kept, in bytes as JSON; what was not asked for longest goes first."""


class RecordCache:
    """Records of ended tasks, by task. Callers give the run too, since a reset continues a task in another run."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._kept: OrderedDict[str, tuple[str, TaskRecord, int]] = OrderedDict()

    def __contains__(self, task_id: str) -> bool:
        """Whether some run of the task is kept."""
        return task_id in self._kept

    def of(self, task_id: str, run_id: str) -> TaskRecord | None:
        """The task as this run of it ended; None where it is not kept."""
        kept = self._kept.get(task_id)
        if kept is None or kept[0] != run_id:
            return None
        self._kept.move_to_end(task_id)
        return kept[1]

    def keep(self, run_id: str, record: TaskRecord) -> None:
        """Keep the task as this run of it ended, unless it is too large."""
        size = len(to_json(record))
        if size > self.most_bytes // 8:
            return
        self.drop(record.task_id)
        self._kept[record.task_id] = (run_id, record, size)
        self.bytes += size
        while self.bytes > self.most_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, task_id: str) -> None:
        """Keep the task no longer."""
        if task_id in self._kept:
            self.bytes -= self._kept.pop(task_id)[2]
