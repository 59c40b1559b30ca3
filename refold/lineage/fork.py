"""How a task is forked: a new task continues from an entry of another task, to try a different course.

The other task does not change, and continues if it is open. The fork copies its state, receipts and open commands, with
ids of its own, so that no tool takes the fork's calls for the other task's. A fork is *dry* unless it is made with
`live`: no effect takes place, and each command fails at once as `DryRun`, a failure like any other to the skill.
Source: DESIGN section 6.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from refold.core.authoring.skill import Skill
from refold.core.commands import AskUser, Notify
from refold.core.errors import InputRejected
from refold.core.events import Forked
from refold.core.fold.apply import fold, with_kept_patches
from refold.core.fold.journal import Entry, no_entry
from refold.core.fold.snapshot import Fork, Snapshot
from refold.core.lifecycle import TaskState
from refold.core.lineage.ids import anew, own_id, renamed, without_open_failures
from refold.core.lineage.upgrade import upgraded

SKIPS_REFUSED = "refold.fork_skips_refused"
"""The patch by which a fork leaves out the events that the other task refused; forks of earlier releases did not."""

ANSWERED = "refold.fork_answered"
"""The patch by which a message answers a question of a dry fork that a callback's call answers in the other task."""


def unforkable(task_id: str, first: int, entries: Sequence[Entry], seq: int) -> str:
    """Why a task cannot be forked at an entry; empty if it can.

    Args:
        task_id: The task to fork.
        first: The number of the task's first entry.
        entries: The known entries of the task.
        seq: The entry to fork at.
    """
    last = entries[-1].seq if entries else first - 1
    if not first <= seq <= last:
        return no_entry(task_id, seq, first, last)
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
    patched: Callable[[str], bool] = lambda _: True,
) -> tuple[Snapshot, Forked]:
    """The fork's first snapshot and first event.

    Args:
        skill: The task's skill, in its current code.
        base: The task before the first of the entries.
        entries: The task's journal after `base`, up to entry `seq` at least.
        task_id: The fork's id.
        at: Now; timeouts of open questions and gates begin again.
        seq: The entry to fork at.
        live: Whether effects take place in the fork.
        by: Who makes the fork.
        patched: Answers a patch of refold's own, asked only where it matters: False for a fork that an earlier release
            began.

    Raises:
        InputRejected: There is no such entry, the task has not begun or has ended by that entry, or the current code
            takes another way up to there.
        SkillError: The current code cannot read the task's state.
    """
    if why := unforkable(base.task_id, base.seq + 1, entries, seq):
        raise InputRejected(why)
    kept = [entry for entry in entries if entry.seq <= seq]
    taken = [entry for entry in kept if not entry.refused]
    skips = len(taken) < len(kept) and patched(SKIPS_REFUSED)
    snapshot = fold(skill, upgraded(skill, base), taken if skips else kept, patched=patched)
    if skips:
        if not snapshot.has_begun:
            raise InputRejected(
                f"task {base.task_id!r} had not begun by entry {seq}, having refused what came: branch off at a later "
                "entry, or start a new one"
            )
        snapshot = snapshot.changed({"seq": seq, "refused": snapshot.refused + len(kept) - len(taken)})
    if snapshot.ended:
        raise InputRejected(
            f"with today's code, task {base.task_id!r} ends before entry {seq} is over: {snapshot.reason}; change the "
            "skill, or branch off at an earlier entry"
        )
    if snapshot.refused > base.refused + sum(bool(entry.refused) for entry in kept):
        raise InputRejected(
            f"with today's code, task {base.task_id!r} refuses what it took up to entry {seq}, so that effects would "
            "be made again; put the code back, or branch off at an earlier entry"
        )
    made = Fork(task_id=base.task_id, seq=seq, live=live, scope=task_id)
    branch = with_kept_patches(_branch(snapshot, made, at, patched), patched)
    return branch, Forked(task_id=base.task_id, seq=seq, live=live, by=by)


def _branch(snapshot: Snapshot, made: Fork, at: datetime, patched: Callable[[str], bool]) -> Snapshot:
    ids = {id: own_id(made.scope, id) for id in snapshot.pending}
    pending = {
        ids[id]: anew(one.model_copy(update={"given": None}), ids[id])
        for id, one in snapshot.pending.items()
        if not isinstance(one.command, Notify)
    }  # not `given`: an operator's outcome is that of the other task's effect
    waits = snapshot.waits
    # A call goes to the other task. In a live fork effects may follow from it, so nobody answers in the caller's place.
    if not made.live and any(isinstance(one.ask, AskUser) and one.ask.callback for one in waits) and patched(ANSWERED):
        waits = tuple(wait.without_callback() for wait in waits)
    return snapshot.changed(
        {
            "task_id": made.scope,
            "known_as": snapshot.known_as or snapshot.task_id,
            "at": at,
            "lifecycle": TaskState.PLANNED,
            "state": renamed(snapshot.state, ids),
            "pending": pending,
            "waits": tuple(wait.anew(made.scope, at).model_copy(update={"grants": ()}) for wait in waits),
            "held": without_open_failures(snapshot.held, snapshot.pending),
            "done": (),  # the other task compensates its own effects
            "undone": (),
            "parent": None,
            "recovered_from": None,
            "fork": made,
        }
    )
