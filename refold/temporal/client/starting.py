"""Starting tasks: new ones, and those that go on from another one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from shlex import quote
from weakref import WeakKeyDictionary

from pydantic_core import PydanticSerializationError
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.common import Priority, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError

from refold.conversation import check_previous, previous_of
from refold.core.chat import Previous
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import Status, TaskState
from refold.engine import NotConnected, TaskExists, TaskNotFound, TaskView
from refold.engine.view import not_begun
from refold.temporal.client import views
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import server_away, server_refused, timed_out, unwritable, why_unanswered
from refold.temporal.client.fleet import unserved
from refold.temporal.client.index import search
from refold.temporal.client.journal import JournalReader
from refold.temporal.client.lineage import Origin
from refold.temporal.client.record import start_of
from refold.temporal.data.inputs import input_of
from refold.temporal.data.priority import priority_of
from refold.temporal.data.wire import TaskResult, TaskStart

SUMMARY_CHARS = 160
"""How much of a task's first message the Temporal UI shows."""

STARTS_AT_ONCE = 32
"""How many starts of one event loop are under way at a time; given all at once, a server answers none in time."""

_ONCE = WorkflowIDReusePolicy.REJECT_DUPLICATE

FIRST_LOOKS_AT_ONCE = 128
"""How many new tasks are read together; each look takes seconds where no worker answers."""

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[asyncio.Semaphore, asyncio.Semaphore]] = WeakKeyDictionary()
LOOK_S = 0.5
"""The pause, in seconds, between two looks at whether a worker without its skill has taken a new task."""


async def start(
    connection: Connection,
    skill: str,
    argument: TaskStart,
    task_id: str,
    summary: str,
    *,
    origin: Origin | None = None,
    batch: bool = False,
    check_within: timedelta | None = None,
) -> TaskView:
    """Start a task, and see how it begins. Many starts at once wait for each other.

    Args:
        connection: To the server.
        skill: Its skill's id.
        argument: What the workflow starts with.
        task_id: Its id.
        summary: What the Temporal UI says of it.
        origin: What it goes on from.
        batch: The work of other tasks goes before its own.
        check_within: It only asks whether a worker takes it: no list or count has it, and the server ends it after this
            time. None for a task that is to do something.

    Raises:
        TaskExists: There is one with this id.
        UnknownSkill: No worker on the task queue has such a skill.
        InputRejected: The skill refused its input.
        NotConnected: The server does not answer; the task may have started.
        EngineError: The server refuses.
    """
    starts, looks = _turns.setdefault(
        asyncio.get_running_loop(), (asyncio.Semaphore(STARTS_AT_ONCE), asyncio.Semaphore(FIRST_LOOKS_AT_ONCE))
    )
    async with starts:
        priority = priority_of(argument.owner, batch=batch if origin is None else origin.batch)
        await _started(connection, skill, argument, task_id, summary, origin, priority, check_within)
    async with looks:
        try:
            if argument.start_delay_s is not None:
                description = await connection.describe(task_id)
                return views.unanswered(description, not_begun(task_id, description.execution_time))
            return await _first_look(connection, task_id)
        except NotConnected as error:
            note = f"it has started, and this is all that is known: {error}"
            return TaskView(
                task_id=task_id, skill=skill, status=Status.SUBMITTED, lifecycle=TaskState.PLANNED, note=note
            )


async def _started(
    connection: Connection,
    skill: str,
    argument: TaskStart,
    task_id: str,
    summary: str,
    origin: Origin | None,
    priority: Priority,
    check_within: timedelta | None,
    reuse: WorkflowIDReusePolicy = _ONCE,
) -> None:
    from_task = None if origin is None else origin.task_id
    try:
        await connection.client.start_workflow(
            skill,
            input_of(argument),
            id=task_id,
            task_queue=connection.task_queue,
            id_reuse_policy=reuse,
            execution_timeout=check_within,
            search_attributes=search.at_start(
                skill if check_within is None else search.UNLISTED,
                datetime.now(UTC),
                task_id=task_id,
                owner=argument.owner,
                context=argument.context,
                origin=from_task,
                later=argument.later,
            ),
            start_delay=None if argument.start_delay_s is None else timedelta(seconds=argument.start_delay_s),
            memo=None if origin is None else origin.memo,
            static_summary=summary[:SUMMARY_CHARS],
            priority=priority,
            result_type=TaskResult,
        )
    except WorkflowAlreadyStartedError:
        if reuse is _ONCE and await views.never_began(connection, task_id):
            reuse = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
            return await _started(connection, skill, argument, task_id, summary, origin, priority, check_within, reuse)
        raise TaskExists(task_id) from None
    except PydanticSerializationError as error:
        raise unwritable(error) from None
    except RPCError as error:
        if server_away(error) or timed_out(error):
            raise NotConnected(
                f"the Temporal server does not say whether task {task_id!r} has started ({error.message}); is it up? "
                f"`refold show {quote(task_id)}` looks for the task. To start it again under this id is safe: an id "
                "starts one task"
            ) from None
        raise server_refused(error, f"start task {task_id!r}") from None


async def _first_look(connection: Connection, task_id: str) -> TaskView:
    view = await _begins(connection, task_id)
    if isinstance(view, TaskView) and view.lifecycle is not TaskState.PLANNED:
        return view
    description = await connection.describe(task_id)
    if description.status is WorkflowExecutionStatus.RUNNING:
        if isinstance(view, TaskView):
            return view  # it is held
        why = view if isinstance(view, str) else ""
        if isinstance(view, Exception):
            unknown = await unserved.why_not_begun(connection, description)
            why = unknown or await why_unanswered(connection.client, view, description)
        return views.unanswered(description, why)
    return await views.view_of_closed(connection, description, new=True)


async def _begins(connection: Connection, task_id: str) -> TaskView | Exception | str:
    """A new task as its worker sees it; or the error that came instead, or why it has not begun."""
    asking = asyncio.ensure_future(views.status(connection, task_id))
    try:
        while not (await asyncio.wait([asking], timeout=LOOK_S))[0]:
            if why := await unserved.why_not_begun(connection, await connection.describe(task_id)):
                return why
        return asking.result()
    finally:
        asking.cancel()


async def previous(connection: Connection, task_id: str, owner: str | None) -> Previous:
    """The conversation that a new task continues.

    Raises:
        InputRejected: The task is another owner's.
    """
    description = await connection.describe(task_id)
    if description.status is not WorkflowExecutionStatus.RUNNING and search.untaken(description):
        snapshot = await _untaken(connection, description)
    else:
        snapshot = await JournalReader(connection, task_id).latest()
    check_previous(snapshot, owner)
    return previous_of(snapshot)


async def _untaken(connection: Connection, description: WorkflowExecutionDescription) -> Snapshot:
    """A task that was ended from outside before a worker took it: none can be asked, and it stands as it began."""
    start = await start_of(connection, description)
    if start.recover is not None:
        return await JournalReader(connection, start.recover.base.task_id).latest()
    if start.fork is not None:
        return await JournalReader(connection, start.fork.journal.base.task_id).at(start.fork.seq)
    return Snapshot(
        task_id=description.id,
        skill=description.workflow_type,
        at=description.start_time,
        owner=start.owner,
        threads={} if start.previous is None else start.previous.threads,
    )


async def free_number(connection: Connection, stem: str, *, after: int) -> int:
    """The first number above `after` that makes, behind the stem, the id of no task."""
    number = after + 1
    while True:
        try:
            await connection.describe(f"{stem}{number}")
        except TaskNotFound:
            return number
        number += 1
