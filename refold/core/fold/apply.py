"""The fold: one event in; the next snapshot and one journal entry out.

Rule 1: every change to a task happens in `advance`.
Rule 2: nothing here reads a clock, draws a random number or waits.
Rule 3: the skill is called only while the task is running; what comes in meanwhile is journaled and held.
Rule 4: what cannot be taken is refused, and changes nothing but the number and the count of refusals.

`advance` is one turn of the crank; what a turn does is in `turn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime

from refold.core.authoring.skill import Live, Skill, skill_id
from refold.core.events import Event
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.turn import Turn
from refold.core.lineage.previous import Previous


def planned(
    skill: Skill,
    task_id: str,
    at: datetime,
    *,
    stream: bool = False,
    parent: str | None = None,
    owner: str | None = None,
    context: str | None = None,
    previous: Previous | None = None,
    started_by: tuple[str, ...] = (),
) -> Snapshot:
    """A task before its first event."""
    return Snapshot(
        task_id=task_id,
        skill=skill_id(skill),
        at=at,
        skill_version=skill.options.version,
        stream=stream,
        parent=parent,
        owner=owner,
        context=context,
        threads={} if previous is None else previous.threads,
        previous=None if previous is None else previous.task_id,
        started_by=started_by,
    )


def advance(
    skill: Skill,
    snapshot: Snapshot,
    event: Event,
    at: datetime,
    *,
    live: Live | None = None,
    patched: Callable[[str], bool] | None = None,
) -> tuple[Snapshot, Entry]:
    """Take one event. The only way a task ever changes.

    Args:
        skill: The task's skill.
        snapshot: The task as it is.
        event: What happened.
        at: When; an earlier time than the snapshot's counts as the snapshot's.
        live: The cache of this task, if whoever runs it keeps one.
        patched: Answers `ctx.patched(id)` the first time it is asked; None answers True.

    Returns:
        The task as it is now, and the entry that says what happened. Never raises for what the event or the skill
        does: the first is refused, the second fails the task.
    """
    turn = Turn(skill, snapshot, event, max(at, snapshot.at), live, patched or (lambda _: True))
    turn.take()
    return turn.snapshot(), turn.entry()


def fold(skill: Skill, base: Snapshot, entries: Iterable[Entry]) -> Snapshot:
    """The snapshot after these entries: what `advance` gave when they were made."""
    snapshot, live = base, Live()
    for entry in entries:
        turn = Turn(skill, snapshot, entry.event, entry.at, live, None, recorded=entry.patches)
        turn.take()
        snapshot = turn.snapshot()
    return snapshot
