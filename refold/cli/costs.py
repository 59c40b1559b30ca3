"""What tasks cost, gathered from their journals: for `refold cost`, `show` and `list`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Protocol

from refold.core.commands import CallSkill
from refold.core.errors import InputRejected
from refold.core.events import Forked, Recovered
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import TERMINAL
from refold.cost import Cost, ModelCall, model_calls, parts_of, total
from refold.engine import Engine, EngineError, TaskView

AT_ONCE = 10
"""How many journals are read together."""

SHOWN_ENTRIES = 5_000
"""`show` adds up what a task cost if its journal has at most so many entries."""


class Journals(Protocol):
    """What journals are read from."""

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spender:
    """A task, and the model calls of its journal.

    Attributes:
        task_id: The task.
        skill: Its skill; empty if it was not asked for.
        owner: Its owner; empty without one, or if it was not asked for.
        calls: Its own calls, oldest first.
        parts: The tasks that it started as its parts.
        took_over: It was recovered or forked, so that parts of another task may have become its own.
    """

    task_id: str
    skill: str = ""
    owner: str = ""
    calls: Sequence[ModelCall] = ()
    parts: Sequence[str] = ()
    took_over: bool = False


@dataclass(slots=True)
class Gathered:
    """Tasks with their parts, each once.

    Attributes:
        tasks: In the order in which they were read, parts after the tasks that started them.
        unread: Why the journals of some tasks could not be read, by task.
    """

    tasks: list[Spender] = field(default_factory=list)
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> list[ModelCall]:
        """All calls, oldest first."""
        return sorted((call for task in self.tasks for call in task.calls), key=lambda call: (call.at, call.task_id))


async def spender(source: Journals, task_id: str, *, skill: str = "", owner: str = "") -> Spender:
    """A task and its calls.

    Raises:
        EngineError, InputRejected: Its journal cannot be read.
    """
    entries = [entry async for entry in source.journal(task_id)]
    calls = tuple(model_calls(task_id, entries))
    took_over = bool(entries) and isinstance(entries[0].event, Recovered | Forked)
    return Spender(task_id=task_id, skill=skill, owner=owner, calls=calls, parts=parts_of(entries), took_over=took_over)


async def _taken_over(engine: Engine, task_id: str) -> list[str]:
    """The parts of another task that a recovered or forked task continues; no entry of its own asks for them."""
    async with aclosing(engine.past(task_id)) as past:
        base = await anext(past)
    assert isinstance(base, Snapshot)
    if base.fork is not None and not base.fork.live:
        return []  # none of them starts
    return [id for id, one in base.pending.items() if isinstance(one.command, CallSkill)]


async def with_parts(engine: Engine, task_ids: Sequence[str], *, parts: bool = True) -> Gathered:
    """These tasks and, unless `parts` is false, the tasks that are parts of them."""
    found, seen, wanted = Gathered(), set(task_ids), list(dict.fromkeys(task_ids))

    async def read(task_id: str) -> Spender | None:
        try:
            record = await engine.record(task_id)
            one = await spender(engine, task_id, skill=record.skill, owner=record.owner or "")
            if not (one.took_over and parts):
                return one
            return replace(one, parts=(*await _taken_over(engine, task_id), *one.parts))
        except (EngineError, InputRejected) as error:
            found.unread[task_id] = str(error)
            return None

    while wanted:
        some, wanted = wanted[:AT_ONCE], wanted[AT_ONCE:]
        for one in await asyncio.gather(*map(read, some)):
            if one is None:
                continue
            found.tasks.append(one)
            new = [part for part in one.parts if part not in seen] if parts else []
            seen.update(new)
            wanted += new
    return found


async def cost_of(source: Journals, view: TaskView) -> Cost | None:
    """What a task's own calls cost; None if its journal is long, or cannot be read now."""
    unanswered = view.note and not view.seq and view.lifecycle not in TERMINAL
    if unanswered or view.seq > SHOWN_ENTRIES:  # who was not told how the task stands would wait as long once more
        return None
    try:
        return total((await spender(source, view.task_id)).calls)
    except (EngineError, InputRejected):  # the latter where its worker cannot read what the task has taken
        return None


async def costed(engine: Engine, views: AsyncIterator[TaskView]) -> AsyncIterator[TaskView]:
    """Tasks with what each one's own calls cost."""
    waiting: list[TaskView] = []

    async def done() -> list[TaskView]:
        costs = await asyncio.gather(*(cost_of(engine, view) for view in waiting))
        return [view.model_copy(update={"cost": cost}) for view, cost in zip(waiting, costs, strict=True)]

    async for view in views:
        waiting.append(view)
        if len(waiting) == AT_ONCE:
            for one in await done():
                yield one
            waiting.clear()
    for one in await done():
        yield one


def grouped(tasks: Sequence[Spender], by: Callable[[Spender, ModelCall], str]) -> list[tuple[str, Cost]]:
    """What calls cost by a name that each one has; the dearest first, and those of unknown price before them."""
    groups: dict[str, list[ModelCall]] = {}
    for task in tasks:
        for call in task.calls:
            groups.setdefault(by(task, call), []).append(call)
    found = [(name, total(calls)) for name, calls in groups.items()]
    return sorted(found, key=lambda one: (one[1].usd is not None, -(one[1].usd or 0.0), one[0]))
