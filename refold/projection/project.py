"""Follows all tasks of a server: their journals into the tables, and their transitions to hooks.

Runs beside workers and gateways, and reads from the server what they have recorded. So it delays no task, sees no
replay, and may be away for as long as journals are kept: it goes on where it was.

What a round reads:
1. the journals of tasks that the server's index lists with another state, status or time than before: so each
   transition, at once;
2. now and then those of open tasks that are listed as before, since an entry need not move a task: ever less often
   while nothing comes, and every `QUIET_S` in the end. Hooks are told of the transitions before that, and a round reads
   no more of them once one was asked in vain, which takes ten seconds where no worker answers;
3. the index only as far back as `LATE_S` before the newest change, and all of it every `ALL_S`.
So a round in which nothing has happened asks the server for one list, however many tasks there are.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Protocol

import structlog

from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry
from refold.engine import EngineError, Listed, Place, RunGone, TaskFilter, TaskNotFound
from refold.engine.arguments import defining, takes
from refold.projection.rows import TaskRow, TransitionRow
from refold.projection.tables import Emptied, Gap, Projection, ProjectionUnavailable, RowRefused

log = structlog.get_logger(__name__)

AT_ONCE = 10
"""How many tasks are read together."""

PAGE = 500
"""How many entries are written in one transaction, and how many tasks are listed at once."""

SOON_S = 2.0
"""The pause before an open task that is listed as before is read again, in seconds; doubles while nothing comes."""

QUIET_S = 600.0
"""The longest pause before an open task that is listed as before is read again, in seconds."""

LATE_S = 60.0
"""By how much the index may lag behind a change, in seconds, and changes may be out of order there."""

ALL_S = 600.0
"""The pause between two looks at the whole index, in seconds."""

Hook = Callable[[TransitionRow], Awaitable[None] | None]
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
        unread: Why some tasks are not projected, by task: their journals could not be read, or the database refuses
            their rows. A later round tries again.
    """

    tasks: int = 0
    transitions: int = 0
    unread: dict[str, str] = field(default_factory=dict)


class Found(Enum):
    """What was found in a task's journal."""

    NEW = auto()
    NOTHING = auto()
    UNREAD = auto()
    """It cannot be read now, or the database refuses the task's rows."""
    GONE = auto()
    """The server knows no such task any more."""


@dataclass(slots=True)
class _Look:
    """When a task is read again although it is listed as before.

    Attributes:
        pause: The pause before, in seconds.
        due: When, by the projector's clock.
    """

    pause: float
    due: float


class Projector:
    """Brings a projection up to date, round by round."""

    @takes(defining("Projector", "projector"))
    def __init__(
        self,
        source: Source,
        projection: Projection,
        hooks: Sequence[Hook] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Do nothing yet.

        Args:
            source: The engine.
            projection: The tables.
            hooks: Each is told of every transition.
            clock: Seconds, monotonic; for tests.

        Raises:
            DefinitionError: An argument is of another type, such as a hook alone in place of a list.
        """
        self._source, self._projection, self._hooks, self._clock = source, projection, tuple(hooks), clock
        self._known: dict[str, Listed] = {}  # as each was listed when it was read
        self._looks: dict[str, _Look] = {}
        self._moved_at: datetime | None = None  # the newest change in the index
        self._all_at = 0.0

    async def once(self) -> Round:
        """Project what is new in all tasks, then call the hooks. The first round of a projector reads every journal.

        Raises:
            ProjectionUnavailable: The database does not answer; what was written stays.
            EngineError: The server does not answer.
        """
        done, now, failed = Round(), self._clock(), set[str]()
        async for listed in self._listed(now):
            await self._read([one for one in listed if self._known.get(one.task_id) != one], now, done)
        await self._tell(done, failed)
        due = [self._known[id] for id, look in self._looks.items() if look.due <= now]
        for start in range(0, len(due), AT_ONCE):
            batch = due[start : start + AT_ONCE]
            await self._read(batch, now, done)
            if any(one.task_id in done.unread for one in batch):
                break  # where no worker answers, each may have waited for ten seconds: a later round asks the others
        if due:
            await self._tell(done, failed)
        return done

    async def follow(self, every_s: float = 2.0) -> None:
        """Go on for ever. While the server or the database is away, it waits, and says so in the log.

        Args:
            every_s: The pause between two rounds, in seconds.
        """
        away = ""
        while True:
            try:
                done = await self.once()
            except (EngineError, ProjectionUnavailable) as error:
                if str(error) != away:  # said once, and not every two seconds
                    log.warning("projection_awaited", error=str(error))
                away = str(error)
            else:
                away = ""
                for task_id, why in done.unread.items():
                    log.warning("journal_unread", task_id=task_id, error=why)
            await asyncio.sleep(every_s)

    async def _listed(self, now: float) -> AsyncIterator[list[Listed]]:
        whole = self._moved_at is None or now - self._all_at >= ALL_S
        since = None if whole or self._moved_at is None else self._moved_at - timedelta(seconds=LATE_S)
        newest, after = self._moved_at, None
        if whole and self._known:  # another process may have emptied the tables, and been killed before it filled them
            for task_id in await asyncio.to_thread(self._projection.cleared):
                self._known.pop(task_id, None)
        here: set[str] = set()
        while True:
            page = [*await self._source.find(TaskFilter(moved_since=since), after=after, limit=PAGE)]
            newest = max((*(one.moved_at for one in page), *([newest] if newest else [])), default=None)
            here.update(one.task_id for one in page)
            yield page
            if len(page) < PAGE:
                break
            after = page[-1].place
        # A client that starts a task writes when, and its clock may be ahead; no change has come from the future.
        self._moved_at = newest and min(newest, datetime.now(UTC))
        if whole:  # tasks that the server has deleted are kept in mind no longer
            self._all_at = now
            self._known = {id: one for id, one in self._known.items() if id in here}
            self._looks = {id: look for id, look in self._looks.items() if id in here}

    async def _read(self, tasks: Sequence[Listed], now: float, done: Round) -> None:
        for start in range(0, len(tasks), AT_ONCE):
            some = tasks[start : start + AT_ONCE]
            for one, found in zip(
                some, await asyncio.gather(*(self._catch_up(one, done) for one in some)), strict=True
            ):
                self._known[one.task_id] = one
                look = self._looks.pop(one.task_id, None)
                if found is Found.GONE or (one.over and found is not Found.UNREAD):
                    continue
                pause = SOON_S if look is None or found is Found.NEW else 2 * look.pause
                pause = min(pause, LATE_S if found is Found.UNREAD else QUIET_S)
                self._looks[one.task_id] = _Look(pause, now + pause)

    async def _catch_up(self, task: Listed, done: Round) -> Found:
        """Project what is new in a task."""
        found = Found.NOTHING
        try:
            row = await asyncio.to_thread(self._projection.row, task.task_id)
            row, entries = await self._unprojected(task, row)
            async for page in _pages(entries):
                row = await asyncio.to_thread(self._projection.take, task.task_id, task.skill, page, after=row.seq)
                found = Found.NEW
        except TaskNotFound:
            return Found.GONE  # it was deleted in between
        except (EngineError, InputRejected, Emptied, Gap, RowRefused) as error:
            done.unread[task.task_id] = str(error)
            return Found.UNREAD
        finally:
            done.tasks += found is Found.NEW
        return found

    async def _unprojected(self, task: Listed, row: TaskRow) -> tuple[TaskRow, AsyncGenerator[Entry]]:
        """A task's row, and the entries after it.

        If the row belongs to another history of the same id (an earlier task, or one from before a reset), the row is
        deleted and an empty one returned. Its newest entry shows it: another history lacks it, or has it with another
        time.
        """
        if not row.seq:
            return row, self._source.journal(task.task_id)
        entries = self._source.journal(task.task_id, after=row.seq - 1)
        try:
            newest = await anext(entries, None)
        except RunGone:  # that entry comes back no more, so nothing tells the histories apart
            return row, self._source.journal(task.task_id, after=row.seq)
        if newest is not None and newest.at == row.updated_at:
            return row, entries
        await entries.aclose()
        if await asyncio.to_thread(self._projection.forget, row):
            row = TaskRow(task_id=task.task_id, skill=task.skill)
        else:
            row = await asyncio.to_thread(self._projection.row, task.task_id)  # compared in its turn
        return await self._unprojected(task, row)

    async def _tell(self, done: Round, failed: set[str]) -> None:
        """Tell hooks of what is new, except in tasks of this round for which one has failed; adds those to `failed`."""
        after = ""
        while self._hooks and (waiting := await asyncio.to_thread(self._projection.untold, after)):
            for mine in waiting:
                after = mine[0].task_id
                if after not in failed:
                    told = await self._tell_task(mine)
                    done.transitions += told
                    failed.update([after] if told < len(mine) else [])

    async def _tell_task(self, transitions: Sequence[TransitionRow]) -> int:
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
