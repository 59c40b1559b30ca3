"""Reads a task for a caller: to a caller that may not see it, a task does not exist."""

from __future__ import annotations

from contextlib import aclosing

from a2a.utils.errors import TaskNotFoundError

from refold.a2a.caller import may_read, owns
from refold.a2a.streams.patience import watched
from refold.engine import Engine, TaskNotFound
from refold.record import TaskRecord


class Reader:
    """Reads tasks for callers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def record(self, task_id: str, caller: str | None) -> TaskRecord:
        """A task that the caller may see.

        Raises:
            TaskNotFoundError: There is no such task, or it is another owner's.
        """
        record = await self._found(task_id)
        if not may_read(caller, record):
            raise not_found(task_id)
        return record

    async def own(self, task_id: str, caller: str | None) -> TaskRecord:
        """A task that the caller owns.

        Raises:
            TaskNotFoundError: There is no such task, or it is another owner's.
        """
        record = await self._found(task_id)
        if not owns(caller, record):
            raise not_found(task_id)
        return record

    async def _found(self, task_id: str) -> TaskRecord:
        try:
            return await self.engine.record(task_id)
        except TaskNotFound:
            raise not_found(task_id) from None

    async def settled(self, record: TaskRecord) -> TaskRecord:
        """The task once it has ended or waits for a person; at once if it does so already.

        Args:
            record: The task as last read.

        Raises:
            NotConnected: The server did not answer for long.
        """
        if record.ended or record.paused:
            return record
        async with aclosing(watched(self.engine, record.task_id, after=record.seq, follow=False)) as news:
            async for _ in news:
                pass
        return await self._found(record.task_id)


def not_found(task_id: str) -> TaskNotFoundError:
    """The same error for a task that does not exist and for one of another owner."""
    return TaskNotFoundError(f"no task {task_id!r}")
