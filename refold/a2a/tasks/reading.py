"""Reads a task for a caller: to a caller that may not see it, a task does not exist."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from a2a.utils.errors import TaskNotFoundError

from refold.a2a.caller import may_read, owns
from refold.engine import Engine, NoWorker, TaskNotFound
from refold.record import TaskRecord

AGAIN_S = 1.0
"""Seconds before looking for a worker again."""


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
        """
        if record.ended or record.paused:
            return record
        while True:
            try:
                async with aclosing(self.engine.watch(record.task_id, after=record.seq)) as news:
                    async for _ in news:
                        pass
                return await self._found(record.task_id)
            except NoWorker:
                # The task waits for a worker, so the caller waits too.
                await asyncio.sleep(AGAIN_S)


def not_found(task_id: str) -> TaskNotFoundError:
    """The same error for a task that does not exist and for one of another owner."""
    return TaskNotFoundError(f"no task {task_id!r}")
