"""One task of the engine in memory, and those who watch it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from refold.core.authoring.skill import Live, Skill
from refold.core.events import CancelRequested, Event
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, wanted
from refold.core.lifecycle import Ending, Status, TaskState
from refold.core.waits import Unresolved, Wait
from refold.engine import News
from refold.engine.view import with_first


@dataclass(slots=True, kw_only=True)
class Task:
    """One task.

    Attributes:
        snapshots: The first, and one after each entry.
        told: All that watchers were sent.
        going: What was begun of what is wanted, by its key in `wanted`.
        first: The first event, until the task begins.
        begins_at: When a delayed start is due.
        refused: Why it failed, if its delayed start did not fit its skill.
        canceling: The request to cancel that no worker has taken yet.
        delivered: The ids of deliveries that `send` brought, whose repetition the server answers for the task.
        woken: Something was sent to it, so that a worker knows it.
        asked_by: The task that this one is a part of.
        reported: The waits and unresolved commands that `asked_by` was told of last.
        listed: The lifecycle state and status that lists show; a new task counts as running, as on Temporal.
        moved_at: When they last changed, or the task was over; None if neither has happened.
    """

    skill: Skill
    snapshots: list[Snapshot]
    entries: list[Entry] = field(default_factory=list)
    told: list[News] = field(default_factory=list)
    live: Live = field(default_factory=Live)
    going: dict[str, object] = field(default_factory=dict)
    first: Event | None = None
    held: bool = False
    begins_at: datetime | None = None
    refused: str = ""
    canceling: CancelRequested | None = None
    delivered: set[str] = field(default_factory=set)
    woken: bool = False
    asked_by: str | None = None
    reported: tuple[tuple[Wait, ...], tuple[Unresolved, ...]] = ((), ())
    listed: tuple[TaskState, Status] = (TaskState.RUNNING, Status.WORKING)
    moved_at: datetime | None = None
    watchers: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def now(self) -> Snapshot:
        last = self.snapshots[-1]
        if not self.refused:
            return last
        failed = {"lifecycle": TaskState.FAILED, "ending": Ending.FAILED, "status_at": last.at, "reason": self.refused}
        return last.changed({**failed, "seq": self.snapshots[0].seq, "refused": 0})

    def after(self, seq: int) -> list[Entry]:
        """The entries after number `seq`; those of a recovered or forked task begin at a later number than 1."""
        return self.entries[max(0, seq - self.snapshots[0].seq) :]

    @property
    def later(self) -> bool:
        """Whether it was started with a hold or a delay, and has not begun."""
        return self.first is not None and (self.held or self.begins_at is not None)

    @property
    def delayed(self) -> bool:
        """Whether it was started with a delay, has not begun, and nothing was sent to it: no worker knows it."""
        return self.first is not None and self.begins_at is not None and not self.woken

    @property
    def shown(self) -> Snapshot:
        """The task as it is shown, with the message that it will begin with if a worker knows it."""
        return self.now if self.delayed else with_first(self.now, self.first)

    @property
    def known(self) -> Snapshot:
        """The task as far as lists know it, which is all that anybody knows of an open task without a worker."""
        now = self.now
        own = {"owner": now.owner, "context": now.context, "parent": now.parent}
        at = now.status_at or now.at
        return Snapshot(task_id=now.task_id, skill=now.skill, at=at, status_at=at, lifecycle=now.lifecycle, **own)

    def moves(self, at: datetime) -> None:
        """Note that lists show something else from this time on."""
        self.listed = (self.now.lifecycle, self.now.status)
        self.moved_at = at + timedelta(microseconds=self.now.seq)  # the clock may stand still between two entries

    def tell(self, news: News) -> None:
        self.told.append(news)
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def more(self) -> None:
        watcher = asyncio.get_running_loop().create_future()
        self.watchers.append(watcher)
        await watcher

    def due(self) -> Iterator[datetime]:
        """When its timers, and its delayed start, come due."""
        if self.first is not None and self.begins_at is not None:
            yield self.begins_at
        yield from (want.due_at for want in wanted(self.now).values() if isinstance(want, Alarm))
