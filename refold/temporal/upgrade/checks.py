"""Whether a task can move to the code at hand: what has happened is replayed, and the author's `upgrade` is tried."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowHistory,
    WorkflowQueryFailedError,
)
from temporalio.service import RPCError

from refold.compatibility import carried, entered, resumed
from refold.core.commands import CallSkill
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Perform, wanted
from refold.engine import TaskView
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import refusals, why_unanswered
from refold.temporal.upgrade.replay_check import ReplayCheck
from refold.temporal.worker.registry import workflows_of

BEFORE = (
    "with the old code on the workers and at hand, `refold upgrade --before-deploy`, and deploy then; or make the "
    "change under `ctx.patched`"
)
BACK = "put the code that recorded it back on the workers; `refold upgrade --dry-run` then says what helps"
STAY = "keep the old code for it until it has left the step, or make the change under `ctx.patched`"
NEWER = "keep the newer code for it, which has saved its state: code of an older `version=` cannot read that"
CONVERT = "raise the skill's `version=`, and write an `upgrade` that says what becomes of it"
"""The ways out of what does not fit: seal the task first, which helps where the new code can go on from its snapshot;
put the old code back, if no worker has it, since only that knows the snapshot; leave the task where it is; leave it to
newer code, after a rollback; or say what becomes of what it has saved."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a task cannot move.

    Attributes:
        why: What does not fit.
        way_out: What to do about it; empty where `why` says it.
    """

    why: str
    way_out: str = ""


class Checks:
    """Checks open tasks against the code at hand; performs nothing and sends nothing but queries."""

    def __init__(self, connection: Connection, skills: Sequence[Any], tools: Sequence[Callable[..., Any]]) -> None:
        """Prepare the code at hand.

        Raises:
            DefinitionError: A skill or tool is defined wrongly.
        """
        self._connection = connection
        self._skills = {cls.type_name: cls.skill for cls in workflows_of(skills)}
        self._replay = ReplayCheck(skills, tools)
        self._replaying = asyncio.Lock()  # one replay at a time: each keeps a CPU busy

    async def history(self, task: WorkflowExecutionDescription) -> WorkflowHistory:
        """The history of a task's open run.

        Raises:
            EngineError: The server refuses, or does not answer.
        """
        with refusals(f"read the history of task {task.id!r}"):
            return await self._connection.client.get_workflow_handle(task.id, run_id=task.run_id).fetch_history()

    async def replayed(self, task: WorkflowExecutionDescription, history: WorkflowHistory) -> Misfit | None:
        """What of a task's history the code at hand does not fit."""
        if (unknown := self._unknown(task)) is not None:
            return unknown
        async with self._replaying:
            why = await self._replay.why_not(history)
        if not why:
            return None
        snapshot = await self._snapshot(task)
        if isinstance(snapshot, Misfit) or await self._stands_still(task):
            return Misfit(why, BACK)
        if (objection := self._objection(task, snapshot)) is None:
            return Misfit(why, BEFORE)
        return Misfit(why, NEWER if objection.way_out == NEWER else STAY)

    async def state(self, task: WorkflowExecutionDescription) -> Snapshot | Misfit:
        """A task's snapshot, as its worker gives it, if the code at hand can go on from it and loses nothing of it."""
        if (unknown := self._unknown(task)) is not None:
            return unknown
        snapshot = await self._snapshot(task)
        return snapshot if isinstance(snapshot, Misfit) else self._objection(task, snapshot) or snapshot

    async def _snapshot(self, task: WorkflowExecutionDescription) -> Snapshot | Misfit:
        try:
            return await self._connection.query(task.id, "snapshot", kind=Snapshot, run_id=task.run_id)
        except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError) as error:
            return Misfit(await why_unanswered(self._connection.client, error, task))

    async def _stands_still(self, task: WorkflowExecutionDescription) -> bool:
        """Whether the code of the task's worker does not fit, either: its snapshot is what that code makes of it."""
        try:
            return bool((await self._connection.query(task.id, "status", kind=TaskView, run_id=task.run_id)).differs)
        except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError):
            return True  # the code of the worker that answered before does not answer now

    def _objection(self, task: WorkflowExecutionDescription, snapshot: Snapshot) -> Misfit | None:
        """Why the code at hand cannot go on from a snapshot, or would lose some of it."""
        skill = self._skills[task.workflow_type]
        if why := resumed(skill, snapshot).why_not:
            way_out = NEWER if snapshot.skill_version > skill.options.version else STAY
            return Misfit(f"the code at hand cannot go on from where it stands: {why}", way_out)
        # A run that has begun goes on without such a value, so this is the last moment to keep it.
        if why := carried(skill, snapshot).why_not:
            return Misfit(why, CONVERT)
        if why := entered(skill, snapshot).why_not:
            return Misfit(why, STAY)
        return None

    def _unknown(self, task: WorkflowExecutionDescription) -> Misfit | None:
        if task.workflow_type in self._skills:
            return None
        known = ", ".join(sorted(self._skills)) or "none"
        return Misfit(
            f"its skill {task.workflow_type!r} is not in the modules at hand, which have: {known}",
            "name its module with --module, or leave it out with --skill",
        )


def under_way(task: Snapshot) -> tuple[str, ...]:
    """The effects of a task that must end before it can be sealed: `tool book`."""
    performed = (one.command for one in wanted(task).values() if isinstance(one, Perform))
    return tuple(f"{one.kind} {one.subject}" for one in performed if not isinstance(one, CallSkill))
