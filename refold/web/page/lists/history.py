"""What was decided, over all tasks: who, what, when, and with which comment.

No index knows decisions, so they are read from journals: of the tasks that changed last, some hundred for one page.
What was read stays in memory, so that the next look reads what the journal of a task that waits for people has more,
and of any other task nothing, unless its state has changed. It reads the last known entry once more, to see that the
journal is the same: a task's id can be used again, and Temporal can reset a task.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import monotonic

from starlette.responses import Response

from refold.core.commands import AskApproval
from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import DecisionMade, is_among
from refold.core.lifecycle import TaskState
from refold.engine import Engine, EngineError, Listed, TaskFilter
from refold.web.page.frame import Call, check_accept
from refold.web.page.lists.listing import place_in, written
from refold.web.page.people import Person

PAGE = 50
"""How many decisions one page has, at least, where there are as many."""

READ = 100
"""How many tasks are looked through for one page, at most."""

AT_ONCE = 10
"""How many journals are read together."""

ENOUGH_S = 5.0
"""After how many seconds no more are read for one page."""

OF_ONE = 50
"""How many decisions of one task are kept: the newest."""

GATES = 200
"""How many gates of one task are known by name."""

KEPT = 5_000
"""How many tasks' decisions are kept in memory: those that were looked at last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A decision that was made.

    Attributes:
        task_id: The task.
        skill: Its skill.
        seq: Its entry.
        at: When.
        slot: The gate's name.
        decision: The decision.
        linked: Whether the person who looks may see the task.
    """

    task_id: str
    skill: str
    seq: int
    at: datetime
    slot: str
    decision: DecisionMade
    linked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of a task.

    Attributes:
        owner: Whose it is.
        seq: Up to which entry its journal was read.
        at: The time of that entry.
        moved_at: When its state had changed by then.
        slots: The names of the gates that it opened last, by their ids.
        made: The decisions that it took, oldest first.
    """

    owner: str | None = None
    seq: int = 0
    at: datetime | None = None
    moved_at: datetime | None = None
    slots: dict[str, str] = field(default_factory=dict)
    made: tuple[Made, ...] = ()

    def after(self, listed: Listed, entry: Entry) -> Known:
        """What is known after one more entry."""
        opened = {one.invocation_id: one.command.slot for one in entry.commands if isinstance(one.command, AskApproval)}
        slots = dict([*self.slots.items(), *opened.items()][-GATES:]) if opened else self.slots
        made, event = self.made, entry.event
        if isinstance(event, DecisionMade) and not entry.refused:
            new = Made(
                task_id=listed.task_id,
                skill=listed.skill,
                seq=entry.seq,
                at=entry.at,
                slot=slots.get(event.gate, event.gate),
                decision=event,
            )
            made = (*made, new)[-OF_ONE:]
        return replace(self, seq=entry.seq, at=entry.at, slots=slots, made=made)

    def is_current(self, listed: Listed) -> bool:
        """Whether the task can have taken no decision since: where none is awaited, one changes the state before."""
        return listed.lifecycle is not TaskState.PAUSED and listed.moved_at == self.moved_at


class History:
    """The decisions of all tasks, and the page that shows them.

    Args:
        engine: Runs the tasks.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: OrderedDict[str, Known] = OrderedDict()

    async def decisions(self, call: Call) -> Response:
        """`GET /decisions?person=&skill=&after=`: what was decided in the tasks that changed last."""
        check_accept(call.request)
        given = {name: call.asked(name).strip() for name in ("person", "skill")}
        wanted = TaskFilter(skill=given["skill"] or None)
        tasks = await self._engine.find(wanted, after=place_in(call.asked("after")), limit=READ)
        found, silent, read = list[Made](), 0, 0
        until = monotonic() + ENOUGH_S
        while read < len(tasks) and len(found) < PAGE and (not read or monotonic() < until):
            some = tasks[read : read + AT_ONCE]
            read += len(some)
            for known in await asyncio.gather(*map(self._of, some)):
                if known is None:
                    silent += 1
                else:
                    found += _seen(known, call.person, given["person"])
        found.sort(key=lambda one: (one.at, one.task_id, one.seq), reverse=True)
        return call.page(
            "decisions.html",
            decisions=found,
            given=given,
            silent=silent,
            read=read,
            following=written(tasks[read - 1].place) if read and (read < len(tasks) or read == READ) else "",
            first=not call.asked("after"),
        )

    async def _of(self, listed: Listed) -> Known | None:
        """What is known of a task now; None if its journal cannot be read."""
        known = self._known.get(listed.task_id)
        if known is None or not known.is_current(listed):
            try:
                known = await self._read(listed, known)
            except (EngineError, InputRejected):  # the latter of a worker that cannot read what is asked
                return None
            known = replace(known, moved_at=listed.moved_at)
        self._known[listed.task_id] = known
        self._known.move_to_end(listed.task_id)
        while len(self._known) > KEPT:
            self._known.popitem(last=False)
        return known

    async def _read(self, listed: Listed, known: Known | None) -> Known:
        if known is not None and known.seq > 0:
            async with aclosing(self._engine.journal(listed.task_id, after=known.seq - 1)) as entries:
                last = await anext(entries, None)
                if last is not None and (last.seq, last.at) == (known.seq, known.at):
                    async for entry in entries:
                        known = known.after(listed, entry)
                    return known
            # The id was used again after a purge, or Temporal reset the task: what was read is of another journal.
        known = Known()
        async for one in self._engine.past(listed.task_id):
            known = replace(known, owner=one.owner) if isinstance(one, Snapshot) else known.after(listed, one)
        return known


def _seen(known: Known, person: Person, approver: str) -> list[Made]:
    """The decisions of a task that a person may see: all of a task of their own, and else what they decided."""
    linked = person.sees_all or known.owner == person.name
    return [
        replace(one, linked=linked)
        for one in known.made
        if (linked or is_among(person.name, [one.decision.approver])) and approver in ("", one.decision.approver)
    ]
