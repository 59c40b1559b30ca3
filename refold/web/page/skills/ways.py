"""Which way tasks took through their skill: computed from their journals, as the journal names no steps.

Rule 1: a journal is folded with the skill's code that is loaded here, in a thread. Where that code does otherwise than
  was recorded, the way is not known.
Rule 2: a request folds a bounded number of entries. The way of an ended task is kept: nothing changes it any more.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import pairwise

from refold.core.authoring.skill import Skill
from refold.core.errors import InputRejected, SkillError
from refold.core.fold.apply import fold
from refold.core.fold.draft import Draft, watcher
from refold.core.fold.journal import Entry, Issued
from refold.core.fold.snapshot import Snapshot
from refold.core.lineage.upgrade import upgraded
from refold.engine import Engine, EngineError, Listed, TaskView
from refold.static.diagram.layout import BEGIN, FINISH, Move

MOST_ENTRIES = 1_000
"""How many entries of one task are folded: its newest."""

FEW_ENTRIES = 200
"""How many of each, where the ways of several tasks are counted: its first."""

AT_ONCE = 5
"""How many tasks are read together."""

KEPT = 2_000
"""How many ways of ended tasks are kept."""

Stretch = tuple[Snapshot, Sequence[Entry]]
"""A task before some entries, and the entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """A step or state that a task entered.

    Attributes:
        name: Its name.
        seq: The entry with which the task entered it; the one before the first that is known, if it was there by then.
    """

    name: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The way that a task took.

    Attributes:
        places: The steps or states that it entered, in order.
        begun: Its beginning is known; otherwise it begins at the first place.
        ended: It has ended.
    """

    places: tuple[Entered, ...] = ()
    begun: bool = False
    ended: bool = False

    @property
    def at(self) -> str:
        """Where the task is; empty if it is nowhere."""
        return self.places[-1].name if self.places and not self.ended else ""

    @property
    def moves(self) -> Counter[Move]:
        """How often it took each move."""
        names = [one.name for one in self.places]
        return Counter(pairwise([*[BEGIN] * self.begun, *names, *[FINISH] * self.ended])) if names else Counter()


def followed(skill: Skill, stretches: Sequence[Stretch]) -> Way:
    """The way of a task, from its journal. Folds it, so this takes some 0.2 ms for each entry.

    Args:
        skill: Its skill.
        stretches: The journal, run by run.

    Raises:
        SkillError: Today's code does otherwise than was recorded, or cannot read a state that was saved.
    """
    places: list[Entered] = []
    changed: list[int] = []
    begun, last = False, 0
    snapshot: Snapshot | None = None
    recorded = {entry.seq: entry for _, entries in stretches for entry in entries}

    def watch(draft: Draft) -> None:
        nonlocal last
        if draft.seq <= last:
            return  # a recovered task folds what came before once more, within one event
        last = draft.seq
        places.extend(Entered(name=name, seq=draft.seq) for name in draft.entered)
        entry = recorded[draft.seq]
        done = (bool(draft.refused), tuple(draft.moves), _asked(draft.issued))
        if done != (bool(entry.refused), entry.moves, _asked(entry.commands)):
            changed.append(draft.seq)

    token = watcher.set(watch)
    try:
        for base, entries in stretches:
            base = upgraded(skill, base)
            last = base.seq
            if snapshot is None:
                begun = base.state is None
                places += [] if begun else [Entered(name=skill.where(base.state), seq=base.seq)]
            snapshot = fold(skill, base, entries)
    finally:
        watcher.reset(token)
    if changed:
        raise SkillError(f"the skill's code has changed since: it does otherwise than entry {changed[0]} says")
    return Way() if snapshot is None else Way(places=tuple(places), begun=begun, ended=snapshot.ended)


def _asked(issued: Iterable[Issued]) -> list[tuple[str, str]]:
    """What was asked for, but not in which words: another prompt is no other way."""
    return [(one.invocation_id, one.command.kind) for one in issued]


async def way_of(engine: Engine, skill: Skill, view: TaskView) -> Way:
    """The way of one task, over its newest entries.

    Raises:
        InputRejected: The skill's code has changed since, so that its way is not known.
        EngineError: The journal cannot be read.
    """
    if view.differs:
        raise InputRejected(f"the skill's code has changed since: {view.differs}")
    stretches = await _newest(engine, view) if view.seq > MOST_ENTRIES else None
    if stretches is None:
        stretches = await _stretches(engine, view.task_id, MOST_ENTRIES)
    try:
        return await asyncio.to_thread(followed, skill, stretches)
    except SkillError as error:
        raise InputRejected(str(error)) from None


async def _newest(engine: Engine, view: TaskView) -> list[Stretch] | None:
    """The newest entries of a long task; None where it has fewer of its own, as it goes on for another one."""
    try:
        base = await engine.at(view.task_id, view.seq - MOST_ENTRIES)
    except InputRejected:
        return None
    if base.state is None and base.seq:
        return None  # its code differs, and only what anyone could read is known
    entries = [entry async for entry in engine.journal(view.task_id, after=base.seq) if entry.seq <= view.seq]
    return [(base, entries)]


async def _stretches(engine: Engine, task_id: str, most: int) -> list[Stretch]:
    """The first entries of a task."""
    found: list[tuple[Snapshot, list[Entry]]] = []
    async with aclosing(engine.past(task_id)) as past:
        async for one in past:
            if isinstance(one, Snapshot):
                found.append((one, []))
            elif most:
                found[-1][1].append(one)
                most -= 1
            else:
                break
    return [(base, entries) for base, entries in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The ways of several tasks together.

    Attributes:
        moves: How often they took each move.
        tasks: How many tasks are counted.
        unread: How many could not be.
    """

    moves: Counter[Move]
    tasks: int
    unread: int


class Ways:
    """The ways of ended tasks that were asked for, kept while the process runs."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[object, ...], Counter[Move]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    async def counted(self, engine: Engine, skill: Skill, tasks: Sequence[Listed]) -> Counted:
        """Which moves these tasks took, each over its first entries."""
        moves = Counter[Move]()
        unread = 0
        for start in range(0, len(tasks), AT_ONCE):
            some = (self._of(engine, skill, one) for one in tasks[start : start + AT_ONCE])
            for found in await asyncio.gather(*some):
                if found is None:
                    unread += 1
                else:
                    moves += found
        return Counted(moves=moves, tasks=len(tasks) - unread, unread=unread)

    async def _of(self, engine: Engine, skill: Skill, task: Listed) -> Counter[Move] | None:
        """The moves of one task; None where they cannot be known."""
        key = (task.skill, task.task_id, task.status_at)
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        try:
            stretches = await _stretches(engine, task.task_id, FEW_ENTRIES)
            way = await asyncio.to_thread(followed, skill, stretches)
        except (EngineError, InputRejected, SkillError):
            return None
        if task.over:
            self._kept[key] = way.moves
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return way.moves
