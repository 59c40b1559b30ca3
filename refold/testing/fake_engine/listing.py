"""Which tasks of the engine in memory a filter takes, and their order in a list."""

from __future__ import annotations

from datetime import datetime, timedelta

from refold.core.lifecycle import TaskState
from refold.engine import Listed, TaskFilter
from refold.testing.fake_engine.task import Task
from refold.testing.play import START


def fits(one: Task, wanted: TaskFilter) -> bool:
    """Whether a task fits the filter."""
    task = one.now
    return (
        wanted.skill in (None, task.skill)
        and wanted.lifecycle in (None, task.lifecycle)
        and wanted.status in (None, task.status)
        and (wanted.owner is None or (task.parent is None and wanted.owner == (task.owner or "")))
        and (wanted.context is None or (task.parent is None and wanted.context == (task.context or task.task_id)))
        and (wanted.begins is None or task.task_id.startswith(wanted.begins))
        and (not wanted.waits or bool(task.open_waits) or task.lifecycle is TaskState.BLOCKED)
        and (wanted.since is None or wanted.since <= (task.status_at or task.at))
        and (wanted.moved_since is None or wanted.moved_since <= _moved_at(one))
    )


def listed(one: Task, *, over: bool) -> Listed:
    """A task as lists show it."""
    task = one.now
    return Listed(
        task_id=task.task_id,
        skill=task.skill,
        status=task.status,
        lifecycle=task.lifecycle,
        status_at=task.status_at or task.at,
        moved_at=_moved_at(one),
        over=over,
    )


def _moved_at(task: Task) -> datetime:
    return task.moved_at or task.snapshots[0].at


def order(listed: Listed) -> tuple[timedelta, str]:
    """Sorts tasks: the newest status first."""
    return START - listed.status_at, listed.task_id
