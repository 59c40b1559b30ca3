"""Recovered and forked tasks: the start arguments of `recover` and `fork`, and how such tasks are found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode

from refold.core.commands import CallSkill, Command
from refold.core.errors import InputRejected
from refold.core.events import SkillResult
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import TaskState, derive_status
from refold.core.lineage.ids import place
from refold.effects.keepers import ORIGIN_MEMO, ORIGIN_RUN_MEMO, first_run, recovers
from refold.engine import EngineError, OffspringView, TaskNotFound
from refold.engine.refusals import not_failed, not_over, part_not_over, recovered_before
from refold.lineage.fork import unforkable
from refold.lineage.recover import sent_again
from refold.temporal.client import views
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import server_refused
from refold.temporal.client.index import search
from refold.temporal.client.journal import JournalReader
from refold.temporal.client.record import start_of
from refold.temporal.data.priority import is_batch
from refold.temporal.data.wire import Branch, EarlierPart, Segment, TaskStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The task that a recovered or forked task continues.

    Attributes:
        skill: The skill of both.
        how: Whether the new task recovers the other one, or is a fork of it.
        seq: The other task's entry after which the new one continues.
        batch: The other task was started as a batch, and so is the new one.
        task_queue: The task queue of both.
        first_run: The id of the other task's first run.
    """

    task_id: str
    skill: str
    how: Literal["recovered", "forked"]
    seq: int
    batch: bool
    task_queue: str
    first_run: str

    @property
    def memo(self) -> dict[str, Any]:
        """As the task's memo keeps it."""
        return {ORIGIN_MEMO: {"how": self.how, "seq": self.seq}, ORIGIN_RUN_MEMO: self.first_run}


async def recovery(connection: Connection, task_id: str, *, by: str | None) -> tuple[TaskStart, Origin, str]:
    """What a task that goes on for this one starts from, and its id.

    Raises:
        InputRejected: The task has not failed, is not over, or another one goes on for it.
    """
    description = await _ended(connection, task_id)
    if description.status is WorkflowExecutionStatus.RUNNING:
        # Compensation must end first: only then is it known which effects recovery repeats.
        raise not_over(task_id)
    await _refuse_recovered_above(connection, description)
    new_id = await _next_id(connection, description)
    history = await JournalReader(connection, task_id).end()
    base = history.base
    parts = await _parts(connection, history)
    start = TaskStart(
        recover=history, in_turn=True, by=by, parts=parts, stream=base.stream, owner=base.owner, context=base.context
    )
    return start, _origin(description, base, "recovered", history.entries[-1].seq), new_id


def _origin(
    description: WorkflowExecutionDescription, base: Snapshot, how: Literal["recovered", "forked"], seq: int
) -> Origin:
    return Origin(
        task_id=description.id,
        skill=base.skill,
        how=how,
        seq=seq,
        batch=is_batch(description),
        task_queue=description.task_queue,
        first_run=first_run(description),
    )


async def _ended(connection: Connection, task_id: str) -> WorkflowExecutionDescription:
    """A task that failed or was canceled, as the server knows it.

    A task that ends as Canceled says so before its workflow has closed, which takes one more workflow task.

    Raises:
        InputRejected: It has neither failed nor been canceled.
    """
    description = await connection.describe(task_id)
    if search.as_shown(description)[0] is TaskState.FAILED:
        return description
    view = await views.look(connection, task_id)
    if view.lifecycle is TaskState.FAILED:
        await views.closed(connection, task_id)
        description = await connection.describe(task_id)
    if search.as_shown(description)[0] is not TaskState.FAILED:
        raise not_failed(task_id, view.status)
    return description


async def _next_id(connection: Connection, failed: WorkflowExecutionDescription, asked: str | None = None) -> str:
    """The id of the next task that recovers this one: `{task_id}.r1`, then `.r2` where the first one failed.

    Two recoveries at the same moment choose the same id, which the server gives to one of them. Earlier ones are found
    by their ids, since the server's index lags behind. A task that recovers an earlier task of the same id, which was
    purged, is passed over.

    Args:
        connection: To the server.
        failed: The failed task.
        asked: The task that the error names; None is this one.

    Raises:
        InputRejected: A task that recovers this one, directly or by a chain of recoveries, is open or done.
    """
    number = 0
    async for found in _numbered(connection, failed.id):
        number += 1
        if not await recovers(found, failed):
            continue
        lifecycle, ending = search.as_shown(found)
        if lifecycle is not TaskState.FAILED or found.status is WorkflowExecutionStatus.RUNNING:
            raise recovered_before(asked or failed.id, found.id, derive_status(lifecycle, ending))
        await _next_id(connection, found, asked or failed.id)
    return f"{failed.id}.r{number + 1}"


async def _numbered(connection: Connection, task_id: str) -> AsyncIterator[WorkflowExecutionDescription]:
    """`{task_id}.r1`, `.r2` and so on, as far as there are any."""
    for number in count(1):
        try:
            yield await connection.describe(f"{task_id}.r{number}")
        except TaskNotFound:
            return


async def _refuse_recovered_above(connection: Connection, part: WorkflowExecutionDescription) -> None:
    """Refuse to recover a part of a task that was recovered: that recovery continues the part."""
    above: WorkflowExecutionDescription | None = part
    while above is not None and above.parent_id is not None:
        try:
            above = await connection.describe(above.parent_id)
            await _next_id(connection, above)
        except TaskNotFound:
            above = None


async def _parts(connection: Connection, history: Segment) -> dict[str, EarlierPart]:
    """The progress of a task's parts that failed, or whose outcome the task did not receive."""
    asked: dict[str, Command] = {id: one.command for id, one in history.base.pending.items()}
    asked |= {one.invocation_id: one.command for entry in history.entries for one in entry.commands}
    heard = {entry.event.invocation_id for entry in history.entries if isinstance(entry.event, SkillResult)}
    found: dict[str, EarlierPart] = {}
    for id, command in asked.items():
        if not isinstance(command, CallSkill) or id in heard:
            continue
        try:
            part = await earlier_part(connection, id)
        except (InputRejected, EngineError):
            if await _is_sent_again(connection, history, id):
                raise
            continue
        if part is not None:
            found[id] = part
    # A recovered task may end before it starts a part again; what it began with says how far the part came before.
    waited_for = {id for id in history.base.pending if isinstance(asked[id], CallSkill)}
    unstarted = {place(id) for id in waited_for - heard - found.keys()}
    if unstarted and history.base.recovered_from is not None:
        earlier = await _handed_down(connection, history.base.task_id)
        found |= {id: part for id, part in earlier.items() if place(id) in unstarted}
    return found


async def _handed_down(connection: Connection, task_id: str) -> dict[str, EarlierPart]:
    """How far a recovered task's parts had come in the task before, which may be deleted by now."""
    start = await start_of(connection, await connection.describe(task_id))
    if start == TaskStart():
        raise EngineError(
            f"what task {task_id!r} began with cannot be read, nor how far its parts had come; it cannot be recovered"
        )
    return start.parts


async def _is_sent_again(connection: Connection, history: Segment, id: str) -> bool:
    """Whether recovery may send a command again: False where the skill has handled its failure."""
    end = next(entry for entry in history.entries if entry.ends)
    journal = JournalReader(connection, history.base.task_id)
    return id in sent_again(await journal.at(end.seq - 1), await journal.at(end.seq), end)


async def earlier_part(connection: Connection, id: str) -> EarlierPart | None:
    """The progress of one part; None if it was never started.

    Raises:
        InputRejected: It is not over, or was recovered by itself.
        EngineError: Its journal cannot be read.
    """
    try:
        description = await connection.describe(id)
        if await views.start_was_refused(connection, description):
            return None
    except TaskNotFound:
        return None  # it was never started
    if description.status is WorkflowExecutionStatus.RUNNING:
        description = await _soon_over(connection, id)
    if search.as_shown(description)[0] is TaskState.DONE:
        result = await views.result_of(connection, description)
        return None if result is None else EarlierPart(outcome=result.outcome)
    await _next_id(connection, description)  # raises where the part was recovered by itself
    journal = await JournalReader(connection, id).end()
    return EarlierPart(journal=journal, in_turn=True, parts=await _parts(connection, journal))


async def _soon_over(connection: Connection, id: str) -> WorkflowExecutionDescription:
    """A part that may be about to end: where its task goes on in a new run, it says what came of it just before.

    Raises:
        InputRejected: It has not ended within the connection's patience.
    """
    with suppress(TimeoutError, WorkflowFailureError):
        end = connection.client.get_workflow_handle(id).result()
        await asyncio.wait_for(end, connection.patience.total_seconds())
    description = await connection.describe(id)
    if description.status is WorkflowExecutionStatus.RUNNING:
        raise part_not_over(id)
    return description


async def branch(
    connection: Connection, task_id: str, seq: int, *, live: bool, by: str | None
) -> tuple[TaskStart, Origin]:
    """What a task that branches off from this one starts from.

    Raises:
        InputRejected: There is no such entry, or the task had ended by then.
    """
    journal = await JournalReader(connection, task_id).upto(seq)
    if why := unforkable(task_id, journal.base.seq + 1, journal.entries, seq):
        raise InputRejected(why)
    base, made = journal.base, Branch(journal=journal, seq=seq, live=live, by=by)
    start = TaskStart(fork=made, stream=base.stream, owner=base.owner, context=base.context)
    return start, _origin(await connection.describe(task_id), base, "forked", seq)


async def offspring(
    connection: Connection, task_id: str, described: WorkflowExecutionDescription | None = None
) -> tuple[OffspringView, ...]:
    """The tasks that go on from this one, oldest first.

    Args:
        connection: To the server.
        task_id: The task's id.
        described: The task, to leave out what goes on from an earlier, purged task of the same id. None takes those,
            too: the effects that they go on with have the ids of this task's.
    """
    first = None if described is None else first_run(described)
    try:
        listed = [one async for one in connection.client.list_workflows(search.going_on_from(task_id))]
        # One whose start was refused is deleted at once, and stays in the server's index for half a minute.
        found = [
            one
            for one in listed
            if one.status is not WorkflowExecutionStatus.FAILED or not await views.never_began(connection, one.id)
        ]
        found.sort(key=lambda one: (one.start_time, one.id))
        return tuple(
            [
                OffspringView(task_id=one.id, **await one.memo_value(ORIGIN_MEMO))
                for one in found
                if first is None or await one.memo_value(ORIGIN_RUN_MEMO, first) == first
            ]
        )
    except RPCError as error:
        if (
            error.status is RPCStatusCode.INVALID_ARGUMENT
        ):  # a server that does not know the attribute knows no such task
            return ()
        raise server_refused(error, "list tasks") from None


async def recoveries(connection: Connection, task_id: str) -> list[OffspringView]:
    """The tasks that recover one of this id, found by their ids, since the server's index lags behind.

    A task that recovers an earlier, purged task of the same id is among them.
    """
    found: list[OffspringView] = []
    async for task in _numbered(connection, task_id):
        origin = await task.memo_value(ORIGIN_MEMO, None)
        if origin is None or origin["how"] != "recovered":
            continue
        with suppress(TaskNotFound):  # deleted meanwhile
            if not await views.start_was_refused(connection, task):
                found.append(OffspringView(task_id=task.id, **origin))
    return found
