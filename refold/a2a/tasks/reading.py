"""Reads a task for a caller: to a caller that may not see it, a task does not exist."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

from a2a.utils.errors import TaskNotFoundError

from refold.a2a.caller import may_read, owns
from refold.a2a.streams.patience import answered, watched
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.engine import Engine, NoWorker, TaskNotFound
from refold.record import TaskRecord, record_of, with_entry


class Reader:
    """Reads tasks for callers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def record(self, task_id: str, caller: str | None) -> TaskRecord:
        """A task that the caller may see. While its worker is away, the record has no gates, so a caller that may be an
        approver waits for the worker.

        Raises:
            TaskNotFoundError: There is no such task, or it is another owner's.
        """
        record = await self._found(task_id)
        if caller is not None and not owns(caller, record):
            with suppress(NoWorker):
                record = await answered(self.engine, record)
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

    async def after(self, record: TaskRecord, caller: str | None) -> TaskRecord:
        """A task that has taken a message; for an approver as of the entry that closed the last of its gates.

        Args:
            record: The task before the message.
            caller: Whose message it is; the caller may see `record`.
        """
        if owns(caller, record):
            return await self._found(record.task_id)
        return await _shown(self.engine.journal(record.task_id, after=record.seq), caller, record) or record

    async def shown_to(self, caller: str, task_id: str) -> TaskRecord | None:
        """A task as of the entry that closed the last gate at which it asked the caller; None if it never did."""
        return await _shown(self.engine.past(task_id), caller, None)

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


async def _shown(
    past: AsyncGenerator[Snapshot | Entry] | AsyncGenerator[Entry], caller: str | None, now: TaskRecord | None
) -> TaskRecord | None:
    """The newest state of a task in which the caller may see it, with the entry that ended that; None if there is none.

    Args:
        past: What happened to the task after `now`.
        caller: Not the owner.
        now: The task before that, which the caller may see; None if `past` begins with the task itself.
    """
    shown = now
    async with aclosing(past):
        async for one in past:
            before = now
            if isinstance(one, Snapshot):
                now = record_of(one)
            else:
                assert now is not None, "a task's past begins with the task before its first entry"
                now = with_entry(now, one)
            if may_read(caller, now) or (before is not None and may_read(caller, before)):
                shown = now
    return shown


def not_found(task_id: str) -> TaskNotFoundError:
    """The same error for a task that does not exist and for one of another owner."""
    return TaskNotFoundError(f"no task {task_id!r}")
