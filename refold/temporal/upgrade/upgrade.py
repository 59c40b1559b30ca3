"""`upgrade_tasks`: moves the open tasks of a server to new code, at a bounded pace; called again, it goes on.

For each open task, in the order of the server's index:

1. A task that runs on the wanted code alone is left alone, and so is one that no worker has begun.
2. The code at hand replays the open run, unless a worker of another version of its deployment will seal it; and the
   author's `upgrade` is tried on the task's state. A task that does not fit is named, and not touched.
3. The task is sealed: it goes on in a new run, from its snapshot as data. Then a worker takes the new run.

Nothing is kept between two calls: which tasks have moved is read from the server (`builds`). The index lags a little,
so each task is looked at itself before it is sealed, and the list is read again until it names no new task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from shlex import quote
from typing import Annotated, Any

from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus

from refold.core.errors import InputRejected
from refold.core.values import Value, lean
from refold.engine import EngineError, TaskFilter, TaskNotFound
from refold.engine.arguments import Within, takes
from refold.temporal.client.connection import Connection
from refold.temporal.client.engine import TemporalEngine
from refold.temporal.client.errors import refusals, set_current, why_silent
from refold.temporal.client.index import search
from refold.temporal.upgrade.builds import Target, Targets, builds_of, overriding
from refold.temporal.upgrade.checks import Checks, Misfit, under_way
from refold.temporal.upgrade.pace import Pace
from refold.temporal.upgrade.sealing import is_fresh, seal, still_waits, taken

PACE = 20.0
"""How many tasks are sealed in a second at the most, unless the caller says otherwise."""

PATIENCE = timedelta(seconds=10)
"""How long a sealed task may take to go on in a new run, and a worker to take that, before it counts as waiting."""

AT_ONCE = 16
"""How many tasks are checked and asked together."""


class Outcome(StrEnum):
    """What became of one task."""

    MOVED = "moved"
    ALREADY = "already moved"
    WOULD_MOVE = "would move"
    ENDED = "ended"
    WAITS = "waits"
    CANNOT = "cannot"

    @property
    def done(self) -> bool:
        """Whether nothing is left to do for the task."""
        return self not in (Outcome.WAITS, Outcome.CANNOT)


class TaskUpgrade(Value):
    """What an upgrade did with one task.

    Attributes:
        task_id: The task.
        skill: Its skill's id.
        outcome: What became of it.
        to: The build that it runs on now, or should move to; empty where nobody can say.
        why: What it waits for, or why it cannot move.
        way_out: What to do about it; empty where `why` says it.
    """

    task_id: str
    skill: str
    outcome: Outcome
    to: str = lean("")
    why: str = lean("")
    way_out: str = lean("")


@takes()
async def upgrade_tasks(
    engine: TemporalEngine,
    skills: Sequence[Any],
    tools: Sequence[Callable[..., Any]] = (),
    *,
    task_ids: Sequence[str] = (),
    skill: str | None = None,
    to: str | None = None,
    before_deploy: bool = False,
    dry_run: bool = False,
    pace: Annotated[float, Within(0.01)] = PACE,
) -> AsyncGenerator[TaskUpgrade]:
    """Move open tasks to new code, and say of each what became of it. May be stopped and called again at any time.

    Args:
        engine: Over the server that has the tasks.
        skills: The code at hand: skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.
        task_ids: These tasks only; none means all open tasks of the namespace.
        skill: Tasks of the skill with this id only.
        to: The build id that tasks should move to; None takes the current version of a task's worker deployment, or
            else the one build whose workers poll its task queue. A run of several builds counts as not moved.
        before_deploy: Seal all of them, whatever builds they run on, before code is deployed that does not fit what
            has happened to them. Only a task to which nothing has happened since it was sealed is left alone.
        dry_run: Check all that do not run on `to` alone, whether workers of the code at hand are there yet or not; send
            nothing but queries.
        pace: How many tasks are sealed in a second at the most; 0.01 or more.

    Raises:
        InputRejected: An argument is not what it should be, such as one text for several ids.
        DefinitionError: A skill or tool is defined wrongly.
        TaskNotFound: There is no such task.
        EngineError: The server refuses, or does not answer.
    """
    connection = engine.connection
    targets = None if before_deploy else Targets(connection.client, to, dry_run)
    mover = _Mover(connection, Checks(connection, skills, tools), targets, Pace(1 / pace), dry_run)
    pages = _named(connection, task_ids, skill) if task_ids else _open(connection, TaskFilter(skill=skill))
    async for page in pages:
        working = [asyncio.ensure_future(mover.move(row)) for row in page]
        try:
            for one in asyncio.as_completed(working):
                yield await one
        finally:
            for task in working:
                task.cancel()


async def _named(
    connection: Connection, task_ids: Sequence[str], skill: str | None
) -> AsyncIterator[Sequence[WorkflowExecution]]:
    rows = [await connection.describe(id) for id in dict.fromkeys(task_ids)]
    yield [row for row in rows if skill in (None, search.as_listed(row).skill)]


async def _open(connection: Connection, wanted: TaskFilter) -> AsyncIterator[Sequence[WorkflowExecution]]:
    """The open tasks in pages, each task once, until the index names no new one."""
    query = f"{search.tasks(wanted)} AND ExecutionStatus = 'Running'"
    seen: set[str] = set()
    found = True
    while found:
        found = False
        listed, more = connection.client.list_workflows(query), True
        while more:
            with refusals("list tasks"):
                await listed.fetch_next_page()
            rows = [row for row in listed.current_page or () if row.id not in seen]
            seen.update(row.id for row in rows)
            found = found or bool(rows)
            if rows:
                yield rows
            more = listed.next_page_token is not None


@dataclass
class _Mover:
    """Moves one task after the other.

    Attributes:
        targets: Where to; None seals all, wherever they then go.
    """

    connection: Connection
    checks: Checks
    targets: Targets | None
    pace: Pace
    dry_run: bool

    def __post_init__(self) -> None:
        self._places = asyncio.Semaphore(AT_ONCE)

    async def move(self, row: WorkflowExecution) -> TaskUpgrade:
        """Move a task."""
        try:
            async with self._places:
                now = await self.connection.describe(row.id)
                target = None if self.targets is None else await self.targets.of(now)
                settled = await self._settled(now, target)
                if settled is not None:
                    return settled
                await asyncio.sleep(self.pace.wait_s(time.monotonic()))
                sealed = bool(builds_of(now))  # if not, its new run waits for a worker already
                if sealed:
                    await seal(self.connection, row.id, now.run_id)
            after = await taken(self.connection, row.id, now.run_id if sealed else "", PATIENCE)
            return await self._result(now.run_id if sealed else "", after, target)
        except TaskNotFound:
            return _move(row, Outcome.ENDED)
        except (EngineError, InputRejected) as error:
            return await self._stopped(row, error)

    async def _stopped(self, row: WorkflowExecution, error: Exception) -> TaskUpgrade:
        try:
            ended = (await self.connection.describe(row.id)).status is not WorkflowExecutionStatus.RUNNING
        except TaskNotFound:
            ended = True
        return _move(row, Outcome.ENDED) if ended else _move(row, Outcome.CANNOT, why=str(error))

    async def _settled(self, now: WorkflowExecutionDescription, target: Target | None) -> TaskUpgrade | None:
        """What becomes of a task that is not to be sealed; None of one that is."""
        builds = builds_of(now)
        if now.status is not WorkflowExecutionStatus.RUNNING:
            return _move(now, Outcome.ENDED)
        if not builds:
            first = now.raw_info.first_run_id in ("", now.run_id)
            return _move(now, Outcome.ALREADY, target, why="no worker has begun it") if first else None
        if target is not None and builds == {target.build}:
            return _move(now, Outcome.ALREADY, target)
        if target is not None and (pinned := overriding(now)) and pinned != await self._whole(target):
            command = f"temporal workflow update-options --workflow-id {quote(now.id)}"
            way_out = f"`{command} --versioning-override-behavior unspecified` takes it away"
            return _cannot(now, target, Misfit(f"an override pins it to {pinned}", way_out))
        if target is None or not target.deployment:  # else a worker of the old version seals it
            history = await self.checks.history(now)
            if target is None and is_fresh(history):
                return _move(now, Outcome.ALREADY, why="nothing has happened to it since it was sealed")
            if (misfit := await self.checks.replayed(now, history)) is not None:
                return _cannot(now, target, misfit)
        state = await self.checks.state(now)
        if isinstance(state, Misfit):
            return _cannot(now, target, state)
        return _move(now, Outcome.WOULD_MOVE, target, why=_for(under_way(state))) if self.dry_run else None

    async def _whole(self, target: Target) -> Target:
        return target if self.targets is None else await self.targets.whole(target)

    async def _result(self, before: str, after: WorkflowExecutionDescription, target: Target | None) -> TaskUpgrade:
        """What became of a task that was sealed in run `before`."""
        builds = builds_of(after)
        if after.status is not WorkflowExecutionStatus.RUNNING:
            return _move(after, Outcome.ENDED)
        if after.run_id == before:
            waits = await still_waits(self.connection, after.id)
            way_out = "it goes on in a new run by itself then; the same command again tells whether it has"
            return _move(after, Outcome.WAITS, target, why=_for(waits or ("its worker",)), way_out=way_out)
        if not builds:
            silent = await why_silent(self.connection.client, after)
            return _move(after, Outcome.WAITS, target, why=f"sealed, and its new run waits for a worker: {silent}")
        if target is None or builds == {target.build}:
            return _move(after, Outcome.MOVED, Target(min(builds)) if target is None else target)
        way_out = f"stop those workers and run the same command again: {target} then takes it"
        if target.deployment:  # other tasks are pinned to those workers
            current = set_current(target.deployment, target.build)
            way_out = f"once {target} is current (`{current}`) and no version ramps, the same command moves it"
        return _cannot(
            after, target, Misfit(f"sealed, and a worker of {' and '.join(sorted(builds))} took its new run", way_out)
        )


def _for(waits: Sequence[str]) -> str:
    return f"waits for {', '.join(waits)}" if waits else ""


def _cannot(row: WorkflowExecution, target: Target | None, misfit: Misfit) -> TaskUpgrade:
    return _move(row, Outcome.CANNOT, target, why=misfit.why, way_out=misfit.way_out)


def _move(
    row: WorkflowExecution, outcome: Outcome, target: Target | None = None, *, why: str = "", way_out: str = ""
) -> TaskUpgrade:
    to = "" if target is None else str(target)
    return TaskUpgrade(task_id=row.id, skill=row.workflow_type, outcome=outcome, to=to, why=why, way_out=way_out)
