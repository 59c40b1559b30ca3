"""How a task branches off from an entry of another one, to try what would have become of it.

The other task stays as it is, and goes on if it is open. The branch has its state, receipts and open commands, under
ids of its own: whoever receives what it asks for must not take it for the other task's. A branch is *dry* unless it is
said to be live: no effect takes place in it, and each command fails as `DryRun` at once, which the skill meets as it
meets any failure. Source: DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from refold.core.authoring.skill import Skill
from refold.core.commands import Notify
from refold.core.errors import InputRejected
from refold.core.events import CommandFailed, Forked
from refold.core.fold.apply import fold
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Fork, Snapshot
from refold.core.lifecycle import TaskState
from refold.core.lineage.ids import anew, renamed
from refold.core.lineage.upgrade import upgraded


def unforkable(task_id: str, first: int, entries: Sequence[Entry], seq: int) -> str:
    """Why no task can branch off there; empty if one can.

    Args:
        task_id: The task to branch off from.
        first: The number of its first entry.
        entries: Those of its entries that are known.
        seq: Where.
    """
    last = entries[-1].seq if entries else first - 1
    if not first <= seq <= last:
        return f"task {task_id!r} has the entries {first} to {last}, not {seq}"
    end = next((entry.seq for entry in entries if entry.ends), None)
    if end is None or seq < end:
        return ""
    earlier = f"branch off at entry {end - 1} or earlier, or recover it" if end > first else "start a new one"
    return f"task {task_id!r} ended with entry {end}, so that nothing follows from entry {seq}: {earlier}"


def fork(
    skill: Skill,
    base: Snapshot,
    entries: Sequence[Entry],
    task_id: str,
    at: datetime,
    *,
    seq: int,
    live: bool = False,
    by: str | None = None,
) -> tuple[Snapshot, Forked]:
    """The branch, planned, and its first event.

    Args:
        skill: Today's code of the task's skill.
        base: The task before the first of the entries.
        entries: Its journal from there, up to entry `seq` at least.
        task_id: The branch's id.
        at: Now; open gates and waits begin anew.
        seq: The entry to branch off from.
        live: Its effects take place.
        by: Who wants it.

    Raises:
        InputRejected: There is no such entry, or the task had ended by then.
        SkillError: Today's code cannot read the task's state.
    """
    if why := unforkable(base.task_id, base.seq + 1, entries, seq):
        raise InputRejected(why)
    snapshot = fold(skill, upgraded(skill, base), [entry for entry in entries if entry.seq <= seq])
    if snapshot.ended:
        raise InputRejected(
            f"with today's code, task {base.task_id!r} ends before entry {seq} is over: {snapshot.reason}; change the "
            "skill, or branch off at an earlier entry"
        )
    made = Fork(task_id=base.task_id, seq=seq, live=live, scope=task_id)
    return _branch(snapshot, made, at), Forked(task_id=base.task_id, seq=seq, live=live, by=by)


def _branch(snapshot: Snapshot, made: Fork, at: datetime) -> Snapshot:
    ids = {id: f"{made.scope}/{id.rpartition('/')[2]}" for id in snapshot.pending}
    pending = {
        ids[id]: anew(one.model_copy(update={"given": None}), ids[id])
        for id, one in snapshot.pending.items()
        if not isinstance(one.command, Notify)
    }  # what a person said of an effect holds for the other task's
    return snapshot.changed(
        {
            "task_id": made.scope,
            "known_as": snapshot.known_as or snapshot.task_id,
            "at": at,
            "lifecycle": TaskState.PLANNED,
            "state": renamed(snapshot.state, ids),
            "pending": pending,
            "waits": tuple(wait.anew(made.scope, at).model_copy(update={"grants": ()}) for wait in snapshot.waits),
            "held": tuple(event for event in snapshot.held if not isinstance(event, CommandFailed)),
            "done": (),  # what the other task did is not the branch's to undo
            "undone": (),
            "parent": None,
            "recovered_from": None,
            "fork": made,
        }
    )
