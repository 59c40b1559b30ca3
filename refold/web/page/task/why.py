"""Why a task does not go on at this moment: what it waits for, since when, and until when."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime

from refold.core.commands import AskApproval, AskUser
from refold.core.events import Event
from refold.core.fold.journal import Entry
from refold.core.lifecycle import TaskState
from refold.core.lineage.ids import place
from refold.core.waits import Wait
from refold.engine import Engine, PendingView, TaskView
from refold.record import TaskRecord

OLDER = 5
"""How many entries before them are read one by one, to say since when a command that was asked for then waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """One reason why a task does not go on at this moment.

    Attributes:
        text: The reason.
        part: The part of the task that it is about; empty if none.
        since: Since when; None if that is not known.
        until: Until when; None if that is not known, or for ever.
        failure: What went wrong; empty if nothing did.
    """

    text: str
    part: str = ""
    since: datetime | None = None
    until: datetime | None = None
    failure: str = ""


async def why(engine: Engine, record: TaskRecord, view: TaskView, newest: Sequence[Entry]) -> list[Why]:
    """All reasons, people first. Those of an ended task are effects that are still being undone.

    Args:
        engine: Runs the task.
        record: The task.
        view: The same task.
        newest: Its newest entries, for the moment since when; none where they cannot be read.
    """
    asked = await _asked(engine, view, newest)
    found = [_of_wait(wait, record) for wait in record.waits]
    found += [
        # What a blocked command met is told where it is resolved.
        replace(
            _of_pending(one, newest, asked.get(one.invocation_id)), failure="" if one.blocked else one.failure or ""
        )
        for one in view.pending
    ]
    found += _of_parts(view)
    if view.sealing:
        found.append(Why(text=f"it goes on in a new run once these end: {', '.join(view.sealing)}"))
    if view.lifecycle is TaskState.PLANNED and not view.seq:
        found.append(Why(text="it has not begun", since=record.at))
    return found


def only_calls(record: TaskRecord) -> bool:
    """Whether the task waits for nobody but for calls to addresses that it has given away."""
    return bool(record.waits) and all(_called(wait) for wait in record.waits)


def _called(wait: Wait) -> bool:
    return isinstance(wait.ask, AskUser) and wait.ask.callback is not None


def _of_wait(wait: Wait, record: TaskRecord) -> Why:
    text = f"it waits for an answer: {wait.slot}"
    if _called(wait):
        text = f"it waits for a call to the address that it has given away: {wait.slot}"
    elif isinstance(wait.ask, AskApproval):
        text = f"it waits for an approval: {wait.slot}"
        if wait.ask.policy.needed > 1:
            text += f", {len(wait.grants)} of {wait.ask.policy.needed} given"
    part = record.reported_by.get(wait.gate, "")
    return Why(text=f"{text}, in its part" if part else text, part=part, since=wait.since, until=wait.timeout_at)


def _of_pending(one: PendingView, newest: Sequence[Entry], asked: datetime | None) -> Why:
    about = [entry for entry in newest if _id_of(entry.event) == one.invocation_id and not entry.refused]
    last = about[-1].at if about else asked
    if one.blocked:
        since = blocked_since(newest, one.invocation_id)
        if one.due_at is not None:
            return Why(
                text=f"{one.command} is blocked, and waits to ask its dependency again", since=since, until=one.due_at
            )
        return Why(text=f"{one.command} is blocked until an operator resolves it", since=since)
    if one.command.startswith("sleep "):
        return Why(text=f"it sleeps: {one.command.removeprefix('sleep ')}", since=asked, until=one.due_at)
    if one.due_at is not None:
        return Why(text=f"{one.command} failed, and waits for attempt {one.attempt + 1}", since=last, until=one.due_at)
    if one.held:
        return Why(text=f"{one.command} begins when the task goes on", since=asked)
    if one.command.startswith("skill "):
        return Why(text="it waits for its part", part=one.invocation_id, since=asked, until=one.until)
    attempt = f", attempt {one.attempt}" if one.attempt > 1 else ""
    if one.queue is not None:
        return Why(text=f"{one.command} was sent to task queue {one.queue}{attempt}", since=last)
    return Why(text=f"{one.command} is being performed{attempt}", since=last)


def _of_parts(view: TaskView) -> Iterator[Why]:
    """What the task's parts are blocked on."""
    for one in view.unresolved:
        if one.task_id != view.task_id:
            text = f"{one.command} is blocked until an operator resolves it, in its part"
            yield Why(text=text, part=one.task_id, failure=one.failure)


def blocked_since(newest: Sequence[Entry], about: str = "") -> datetime | None:
    """When a task was blocked, or one of its commands: not the last time that its dependency was asked in vain.

    Args:
        newest: The task's newest entries.
        about: The command's id; empty for the task.
    """
    moved = [entry for entry in newest if any(move.to_state is TaskState.BLOCKED for move in entry.moves)]
    if not moved:
        return None
    later = (entry for entry in newest if entry.seq >= moved[-1].seq and about and _id_of(entry.event) == about)
    return next(later, moved[-1]).at


def _id_of(event: Event) -> str:
    return str(getattr(event, "invocation_id", ""))


async def _asked(engine: Engine, view: TaskView, newest: Sequence[Entry]) -> Mapping[str, datetime]:
    """When each pending command was asked for, by its id; without those that another task asked for."""
    seqs = {one.invocation_id: _seq(one.invocation_id, view.task_id) for one in view.pending}
    at = {entry.seq: entry.at for entry in newest}
    older = sorted({seq for seq in seqs.values() if seq and seq not in at}, reverse=True)[:OLDER]
    if newest:
        found = await asyncio.gather(*(_at(engine, view.task_id, seq) for seq in older))
        at |= {seq: moment for seq, moment in zip(older, found, strict=True) if moment is not None}
    return {id: at[seq] for id, seq in seqs.items() if seq in at}


def _seq(id: str, task_id: str) -> int:
    """The entry that asked for a command, as its id says; 0 if it is another task's."""
    number = place(id).partition(".")[0]
    return int(number) if id.rpartition("/")[0] == task_id and number.isascii() and number.isdigit() else 0


async def _at(engine: Engine, task_id: str, seq: int) -> datetime | None:
    async with aclosing(engine.journal(task_id, after=seq - 1)) as entries:
        first = await anext(entries, None)
    return first.at if first is not None and first.seq == seq else None
