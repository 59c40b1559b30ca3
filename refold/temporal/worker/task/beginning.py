"""What a run of a task begins with: a snapshot and, if the task recovers another or is a fork, its first event."""

from __future__ import annotations

from typing import NamedTuple

from temporalio import workflow

from refold.compatibility import resumed
from refold.core.authoring.skill import Skill
from refold.core.events import Event
from refold.core.fold.apply import planned
from refold.core.fold.snapshot import Snapshot
from refold.divergence import Difference
from refold.lineage.fork import fork
from refold.lineage.recover import recover
from refold.temporal.data.wire import TaskStart


class Beginning(NamedTuple):
    """What a run begins with.

    Attributes:
        task: The task before the run's first event.
        first: The first event of a task that recovers another or is a fork; None for other tasks.
        difference: Why this code cannot go on from the snapshot that the run was given; None if it can.
    """

    task: Snapshot
    first: Event | None = None
    difference: Difference | None = None


def beginning(skill: Skill, start: TaskStart) -> Beginning:
    """What a run begins with; called from workflow code only.

    Raises:
        InputRejected: The other task cannot be recovered or forked.
        SkillError: The skill's code raised it while the other task was recovered or forked.
    """
    if start.snapshot is not None:
        found = resumed(skill, start.snapshot)
        if found.snapshot is not None and not found.why_not:
            return Beginning(found.snapshot)
        id, at = start.snapshot.task_id, start.snapshot.seq
        return Beginning(start.snapshot, difference=Difference(task_id=id, seq=at, upto=at, why=found.why_not))
    task_id, now = workflow.info().workflow_id, workflow.now()
    if start.recover is not None:
        base, entries = start.recover.base, start.recover.entries
        task, first = recover(
            skill, base, entries, task_id, now, by=start.by, in_turn=start.in_turn, patched=workflow.patched
        )
        return Beginning(task.changed({"parent": start.parent}), first)
    if start.fork is not None:
        branch, past = start.fork, start.fork.journal
        made = fork(
            skill,
            past.base,
            past.entries,
            task_id,
            now,
            seq=branch.seq,
            live=branch.live,
            by=branch.by,
            patched=workflow.patched,
        )
        return Beginning(*made)
    return Beginning(unstarted(skill, start))


def unstarted(skill: Skill, start: TaskStart) -> Snapshot:
    """A task before its first event; called from workflow code only."""
    return planned(
        skill,
        workflow.info().workflow_id,
        workflow.now(),
        stream=start.stream,
        parent=start.parent,
        budget=start.budget,
        owner=start.owner,
        context=start.context,
        previous=start.previous,
        started_by=start.started_by,
    )


def refused_difference(start: TaskStart, task_id: str, error: Exception) -> Difference | None:
    """What differs if a task that this code refuses to recover or fork has begun; None for any other start.

    Args:
        start: What the task was started with.
        task_id: The new task's id.
        error: What `beginning` raised.
    """
    if start.recover is not None:
        at, what = max([start.recover.base.seq, *(entry.seq for entry in start.recover.entries)]), "recover"
    elif start.fork is not None:
        at, what = start.fork.seq, "fork"
    else:
        return None
    return Difference(task_id=task_id, seq=at, upto=at, why=f"the code would not {what} the task before: {error}")
