"""Which tasks of the engine in memory are parts of which, and what a part's end is to the task that asked for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

from refold.core.events import SkillOutcome
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import finished
from refold.core.lifecycle import Ending, TaskState
from refold.core.lineage.ids import own_id
from refold.core.retry_policy import Failure
from refold.lineage.recover import sent_again
from refold.testing.answers import permanent
from refold.testing.fake_engine.task import Task

Tasks: TypeAlias = Mapping[str, Task]
"""All tasks of an engine, by id, in the order in which they started."""


def over(tasks: Tasks, task: Task) -> bool:
    """Whether a task and its parts have ended, and nothing more is wanted for any of them."""
    return finished(task.now) and all(over(tasks, one) for one in tasks.values() if one.asked_by == task.now.task_id)


def above(tasks: Tasks, task: Task) -> Iterator[str]:
    """The tasks that this one is a part of."""
    while task.asked_by is not None:
        yield task.asked_by
        task = tasks[task.asked_by]


def counted_as(tasks: Tasks, task: Task) -> str:
    """The task under which this one's events are counted, to find loops: itself, or the part that it is below.

    So a task may have many parts, and parts that call parts without end are found.
    """
    return [task.now.task_id, *above(tasks, task)][-2:][0]


def below(tasks: Tasks, failed: Task) -> Iterator[str]:
    """The parts of a failed task that did not complete and that recovery may send again, and theirs."""
    end = next((place for place, entry in enumerate(failed.entries) if entry.ends), None)
    again = set[str]()
    if end is not None:
        again = sent_again(failed.snapshots[end], failed.snapshots[end + 1], failed.entries[end])
    for id, task in tasks.items():
        if task.asked_by == failed.now.task_id and task.now.ending is not Ending.COMPLETED and id in again:
            yield id
            yield from below(tasks, task)


def going_on(tasks: Tasks, task_id: str) -> Snapshot | None:
    """The task that recovers this one: directly, or through recovered tasks that failed."""
    for id, task in tasks.items():
        if task.snapshots[0].recovered_from == task_id and task.asked_by is None:
            found = going_on(tasks, id) if task.now.lifecycle is TaskState.FAILED else task.now
            if found is not None:
                return found
    return None


def earlier_part(tasks: Tasks, task: Task, id: str) -> Task | None:
    """The child that a child of a recovered task continues: of the task that failed, or of one recovered before."""
    failed = task.now.recovered_from
    while failed is not None and own_id(failed, id) not in tasks:
        earlier = tasks.get(failed)  # `begin` takes a task that goes on for one of another engine
        failed = None if earlier is None else earlier.now.recovered_from
    return None if failed is None else tasks[own_id(failed, id)]


def outcome_of(part: Snapshot) -> SkillOutcome:
    """The outcome of a completed part."""
    said = [message.text for message in part.messages if message.role == "agent"]
    return SkillOutcome(task_id=part.task_id, text=said[-1] if said else "", artifacts=part.artifacts)


def failure_of(part: Snapshot) -> Failure:
    """How a part that did not complete fails its command, as on Temporal."""
    if part.ending is Ending.CANCELED:
        return permanent("it was canceled from outside", type="canceled")
    return permanent(part.reason, type="TaskRejected" if part.ending is Ending.REJECTED else "TaskFailed")
