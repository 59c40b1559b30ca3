"""Follows all tasks of a server: their journals into the tables, and their transitions to hooks.

Runs beside workers and gateways, and reads from the server what they have recorded. So it delays no task, sees no
replay, and may be away for as long as journals are kept: it goes on where it was.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from refold.core.fold.journal import Entry
from refold.engine import EngineError, Listed, Place, TaskFilter, TaskNotFound
from refold.projection.rows import Transition
from refold.projection.tables import Projection, ProjectionUnavailable

log = structlog.get_logger(__name__)

AT_ONCE = 10
"""How many tasks are read together."""

PAGE = 500
"""How many entries are written in one transaction, and how many tasks are listed at once."""

OVER_S = 7200.0
"""For how long after its last entry an ended task may still get another, such as a late grant, in seconds. After that
it is not read again before the projector's next start."""

Hook = Callable[[Transition], Awaitable[None] | None]
"""Told of each transition at least once, a task's in order; an exception has it told again later."""


class Source(Protocol):
    """What tasks are read from: an `Engine`."""

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """See `Engine.find`."""

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""


@dataclass(slots=True)
class Round:
    """What one round has done.

    Attributes:
        tasks: How many tasks had new entries.
        transitions: How many transitions hooks were told of.
        unread: Why the journals of some tasks could not be read, by task; the next round tries again.
    """

    tasks: int = 0
    transitions: int = 0
    unread: dict[str, str] = field(default_factory=dict)


class Projector:
    """Brings a projection up to date, round by round."""

    def __init__(self, source: Source, projection: Projection, hooks: Sequence[Hook] = ()) -> None:
        """Do nothing yet.

        Args:
            source: The engine.
            projection: The tables.
            hooks: Each is told of every transition.
        """
        self._source, self._projection, self._hooks = source, projection, tuple(hooks)
        self._over: set[str] = set()

    async def once(self) -> Round:
        """Project what is new in all tasks, then tell the hooks.

        Raises:
            ProjectionUnavailable: The database does not answer; what was written stays.
            EngineError: The server does not answer.
        """
        done = Round()
        async for listed in self._tasks():
            for start in range(0, len(listed), AT_ONCE):
                await asyncio.gather(*(self._catch_up(one, done) for one in listed[start : start + AT_ONCE]))
        await self._tell(done)
        return done

    async def follow(self, every_s: float = 2.0) -> None:
        """Go on for ever. While the server or the database is away, it waits, and says so in the log.

        Args:
            every_s: The pause between two rounds, in seconds.
        """
        while True:
            try:
                done = await self.once()
            except (EngineError, ProjectionUnavailable) as error:
                log.warning("projection_awaited", error=str(error))
            else:
                for task_id, why in done.unread.items():
                    log.warning("journal_unread", task_id=task_id, error=why)
            await asyncio.sleep(every_s)

    async def _tasks(self) -> AsyncIterator[list[Listed]]:
        after: Place | None = None
        while True:
            page = await self._source.find(TaskFilter(), after=after, limit=PAGE)
            yield [one for one in page if one.task_id not in self._over]
            if len(page) < PAGE:
                return
            after = page[-1].place

    async def _catch_up(self, task: Listed, done: Round) -> None:
        row = await asyncio.to_thread(self._projection.row, task.task_id)
        try:
            new = False
            async for page in _pages(self._source.journal(task.task_id, after=row.seq)):
                row = await asyncio.to_thread(self._projection.take, task.task_id, task.skill, page)
                new = True
        except TaskNotFound:
            return  # it was deleted in between
        except EngineError as error:
            done.unread[task.task_id] = str(error)
            return
        done.tasks += new
        if (
            row.settled
            and row.updated_at is not None
            and datetime.now(UTC) - row.updated_at > timedelta(seconds=OVER_S)
        ):
            self._over.add(task.task_id)

    async def _tell(self, done: Round) -> None:
        while self._hooks and (waiting := await asyncio.to_thread(self._projection.untold)):
            told = 0
            for mine in waiting:
                told += await self._tell_task(mine)
            done.transitions += told
            if not told:
                return

    async def _tell_task(self, transitions: Sequence[Transition]) -> int:
        told = 0
        for one in transitions:
            for hook in self._hooks:
                try:
                    if inspect.isawaitable(came := hook(one)):
                        await came
                except Exception as error:  # noqa: BLE001 - a hook may raise anything, and is asked again later
                    log.warning("hook_failed", task_id=one.task_id, number=one.number, error=type(error).__name__)
                    return told
            await asyncio.to_thread(self._projection.told, one)
            told += 1
        return told


async def _pages(entries: AsyncGenerator[Entry]) -> AsyncIterator[list[Entry]]:
    page: list[Entry] = []
    async for entry in entries:
        page.append(entry)
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page
