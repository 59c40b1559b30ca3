"""Schedules of a server: create, look, list, pause, resume, run now, delete.

Each start is a task of its own, under an id that ends with its time, so no two of them share a command's id or the
idempotency key that is made of it. Temporal keeps the schedule and starts the tasks; no process of refold does.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from shlex import quote
from typing import Any
from uuid import uuid4

from pydantic_core import PydanticSerializationError, to_json
from temporalio.api.enums.v1 import WorkflowExecutionStatus as ServersStatus
from temporalio.api.schedule.v1 import SchedulePatch, TriggerImmediatelyRequest
from temporalio.api.workflowservice.v1 import PatchScheduleRequest
from temporalio.client import (
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleListActionStartWorkflow,
    ScheduleListDescription,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleState,
    WorkflowExecutionStatus,
    WorkflowHandle,
)
from temporalio.common import SearchAttributeKey, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.values import shortened
from refold.engine import EngineError, Listed, ScheduleNotFound, ScheduleView
from refold.engine.arguments import Count, methods_take
from refold.engine.refusals import check_skill_id, checked, message_of
from refold.temporal.client import starting, views
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import is_missing, refusals, server_refused, unwritable
from refold.temporal.client.index import search
from refold.temporal.client.index.newest_first import NewestFirst
from refold.temporal.data.inputs import input_of, start_from
from refold.temporal.data.priority import priority_of
from refold.temporal.data.search_attributes import CONTEXT, STATE_AT, STATUS_AT, quoted
from refold.temporal.data.wire import TaskStart
from refold.temporal.schedules.timing import Overlap, Timing, due, overlap_of, times_of

STARTED_BY = SearchAttributeKey.for_keyword("TemporalScheduledById")
"""The schedule that started a task, as the server writes it."""

LARGEST_INPUT = 16 * 1024
"""The most bytes of a schedule's input. A larger value would be kept in the storage, where the purge of one run's task
would take it from all later runs."""

STARTS_WITHIN_S = 30.0
"""How long `run_now` waits, in seconds, until the server has started the task."""

LOOK_S = 0.05

HEARS_WITHIN_S = 1.0
"""How long `look` waits, in seconds, for the pause after a failure. A server asks how a task has ended only where the
next start is due or somebody looks at the schedule, and whoever looks is answered before the server has heard."""

NEVER = timedelta(hours=1)
"""No worker is given a run that only occupies its id before that time, and `FREED_AFTER` ends the run long before."""

FREED_AFTER = timedelta(seconds=20)
"""An id is free again after this time if whoever occupied it has died."""

CHECKED_WITHIN = timedelta(minutes=5)
"""How long the task that asks a worker stays open if the process that began it was killed; no answer takes as long."""

FREE_WITHIN_S = 30
"""How far from now, in seconds, `run_now` looks for a second that no other task of the schedule has in its id."""

LOCKED_WITHIN_S = 30.0
"""How long a patch waits, in seconds, for those that were sent before it; longer than `FREED_AFTER`."""

_QUEUES = (ScheduleOverlapPolicy.BUFFER_ONE, ScheduleOverlapPolicy.BUFFER_ALL)
"""With these a start waits for an open task for as long as that takes; a canceled one mostly ends soon."""

NEXT = 5
"""How many coming times a schedule shows."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+=,-]{0,99}")


class ScheduleExists(EngineError):
    """There is a schedule with this id already."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"schedule {id!r} exists already: `refold schedule show {quote(id)}` shows it; delete it first, or take "
            "another id"
        )


@methods_take()
class Schedules:
    """The schedules of a server. Every method raises `NotConnected` if no server answers."""

    def __init__(self, connection: Connection, events_per_run: int | None = None) -> None:
        self._connection = connection
        self._client = connection.client
        self._events_per_run = events_per_run

    async def create(
        self,
        id: str,
        skill: str,
        content: Content,
        timing: Timing,
        *,
        owner: str | None = None,
        context: str | None = None,
        started_by: str | None = None,
        stream: bool = False,
        paused: bool = False,
        pause_on_failure: bool = False,
        batch: bool = True,
        note: str = "",
    ) -> ScheduleView:
        """Create a schedule whose tasks begin with this content.

        A worker is asked first whether it has the skill and takes the content; see `ScheduleView.unchecked`.

        Args:
            id: 1 to 100 letters, digits and . _ - @ + = , and no schedule's.
            skill: The skill's id.
            content: The first message of each task; at most 16 KiB.
            timing: When tasks start.
            owner: The owner of the tasks.
            context: The conversation of the tasks.
            started_by: Who creates it; a gate may exclude the starter from deciding.
            stream: Stream the model's tokens to watchers.
            paused: It starts nothing until `resume`.
            pause_on_failure: It pauses itself when one of its tasks fails. Not for tasks that start beside open ones
                (`Overlap.ALLOW`), since the server does not watch those.
            batch: Nobody waits for its tasks: see `Engine.start`.
            note: What it is for.

        Raises:
            ScheduleExists: There is one with this id.
            UnknownSkill: The workers have no such skill.
            InputRejected: The skill does not take the content, the content is too large, the id is none, it would not
                pause on a failure, or the times cannot be read, or never come.
        """
        _check_id(id)
        check_skill_id(skill)
        timing.checked()
        if pause_on_failure and timing.overlap is Overlap.ALLOW:
            raise InputRejected(
                "a schedule whose tasks start beside open ones would not pause on a failure, since the server does not "
                f"watch such tasks: take another overlap than {Overlap.ALLOW}, or leave the pause out"
            )
        start = checked(
            TaskStart,
            message=message_of(content),
            stream=stream,
            owner=owner,
            context=context,
            started_by=() if started_by is None else (started_by,),
            events_per_run=self._events_per_run,
        )
        _check_size(start)
        if await self._is_there(id):
            raise ScheduleExists(id)
        unchecked = await self._tried(id, skill, start)
        schedule = Schedule(
            action=_action(id, skill, start, self._connection.task_queue, batch=batch),
            spec=timing.spec,
            policy=SchedulePolicy(
                overlap=timing.overlap.policy, catchup_window=timing.catch_up, pause_on_failure=pause_on_failure
            ),
            state=ScheduleState(note=note or None, paused=paused),
        )
        try:
            with _refusals(id, "create"):
                await self._client.create_schedule(id, schedule)
        except ScheduleAlreadyRunningError:
            raise ScheduleExists(id) from None
        view = await self.look(id)
        if not view.next:
            await self.delete(id)
            raise InputRejected(f"the schedule would never start a task: {timing.text} never comes")
        return view.model_copy(update={"unchecked": unchecked})

    async def look(self, id: str) -> ScheduleView:
        """A schedule as it stands.

        Raises:
            ScheduleNotFound: There is none with this id.
        """
        with _refusals(id, "describe"):
            told = await self._handle(id).describe()
            if told.schedule.policy.pause_on_failure and await self._has_failed(told):
                until = asyncio.get_running_loop().time() + HEARS_WITHIN_S
                while not told.schedule.state.paused and asyncio.get_running_loop().time() < until:
                    await asyncio.sleep(LOOK_S)
                    told = await self._handle(id).describe()
            return await self._seen(told)

    async def _has_failed(self, told: ScheduleDescription) -> bool:
        """Whether the schedule's last task has failed, for which the server pauses the schedule once it has heard."""
        last = next(_ids(one.action for one in reversed(told.info.recent_actions)), None)
        if last is None or told.schedule.state.paused or _has_heard(told):
            return False
        try:
            task = await self._client.get_workflow_handle(last).describe()
        except RPCError as error:
            if is_missing(error):  # it was purged
                return False
            raise
        return task.status in (WorkflowExecutionStatus.FAILED, WorkflowExecutionStatus.TIMED_OUT)

    async def list(self) -> AsyncIterator[ScheduleView]:
        """All schedules of the namespace, in the order in which the server has them; may lag by moments."""
        with refusals("list schedules"):
            async for one in await self._client.list_schedules():
                if (view := _listed(one)) is not None:
                    yield view

    async def runs(self, id: str, *, limit: Count = 20) -> Sequence[Listed]:
        """The tasks that a schedule has started, the newest first; may lag by moments. Also of a deleted schedule."""
        query = f"{STARTED_BY.name} = {quoted(id)} AND ExecutionStatus != 'ContinuedAsNew'"
        rows = NewestFirst(self._client, query, partial(search.within, "StartTime"), lambda row: row.start_time)
        with refusals("list tasks"):
            return [search.as_listed(one) for one in await rows.page(limit)]

    async def of(self, task_id: str) -> str | None:
        """The schedule that started a task; None if none did.

        Raises:
            TaskNotFound: There is no such task.
        """
        return (await self._connection.describe(task_id)).typed_search_attributes.get(STARTED_BY)

    async def pause(self, id: str, note: str = "paused") -> ScheduleView:
        """Start nothing until `resume`. Tasks that are open go on.

        Raises:
            ScheduleNotFound: There is none with this id.
            EngineError: Others have kept it busy for `LOCKED_WITHIN_S`.
        """
        with _refusals(id, "pause"):
            return await self._seen(await self._patch(id, SchedulePatch(pause=note or "paused")))

    async def resume(self, id: str, note: str = "resumed") -> ScheduleView:
        """Start tasks again, from now on; what was due while it was paused is left out.

        Raises:
            ScheduleNotFound: There is none with this id.
            EngineError: Others have kept it busy for `LOCKED_WITHIN_S`.
        """
        with _refusals(id, "resume"):
            return await self._seen(await self._patch(id, SchedulePatch(unpause=note or "resumed")))

    async def run_now(self, id: str) -> str:
        """Start a task now, also while the schedule is paused, and return its id, which ends with the second.

        Raises:
            ScheduleNotFound: There is none with this id.
            InputRejected: The server started none: a task is open and the overlap says that this one is left out or
                waits, or another start came between; or the schedule starts one in every second anyway.
            EngineError: Others have kept it busy for `LOCKED_WITHIN_S`.
        """
        with _refusals(id, "start a task of"):
            before = await self._handle(id).describe()
            claim, second = await self._claimed(before)
            try:
                await claim.terminate(views.NEVER_BEGAN)
                trigger = TriggerImmediatelyRequest()
                trigger.scheduled_time.FromDatetime(second)
                await self._patch(id, SchedulePatch(trigger_immediately=trigger))
                why_not = await self._until_started(before, claim.id)
                if why_not:  # it may wait for an open task, and until then no task keeps its id from the next start
                    await asyncio.sleep((second - datetime.now(UTC)).total_seconds() + 1)
            finally:
                await views.forget(self._connection, claim.id, claim.run_id)
        if not why_not:
            return claim.id
        raise InputRejected(f"schedule {id!r} has started no task now: {why_not}")

    async def _until_started(self, before: ScheduleDescription, new: str) -> str:
        """Wait until the server has started a task; why it has not, if so."""
        overlap, until = before.schedule.policy.overlap, asyncio.get_running_loop().time() + STARTS_WITHIN_S
        while True:
            now = await self._handle(before.id).describe()
            if new in _ids([one.action for one in now.info.recent_actions]):
                return ""
            open_ones = ", ".join(_ids(now.info.running_actions)) or "an earlier task"
            if now.info.num_actions_skipped_overlap > before.info.num_actions_skipped_overlap:
                return f"{open_ones} is open, and its overlap is {overlap_of(overlap)}"
            timed_out = asyncio.get_running_loop().time() >= until
            waits = now.info.running_actions and now.raw_description.info.buffer_size
            if waits and (timed_out or overlap in _QUEUES):
                return f"{new} starts once {open_ones} has ended, as its overlap is {overlap_of(overlap)}"
            if timed_out:
                return f"the server has not begun it in {STARTS_WITHIN_S:g} s; it may yet, and then `show` has it"
            await asyncio.sleep(LOOK_S)

    async def _claimed(self, told: ScheduleDescription) -> tuple[WorkflowHandle[Any, Any], datetime]:
        """Claim the first free second from now on, by a task that never begins.

        A task's id ends with its second, and for a second start in one second the server would use an id anew.
        """
        action = _action_of(told)
        second = datetime.now(UTC).replace(microsecond=0)
        for one in (second + timedelta(seconds=later) for later in range(FREE_WITHIN_S)):
            if not told.schedule.state.paused and due(told.schedule.spec, one):
                continue
            with contextlib.suppress(WorkflowAlreadyStartedError):
                new = f"{action.id}-{one:%Y-%m-%dT%H:%M:%SZ}"
                return await self._occupied(new, WorkflowIDReusePolicy.REJECT_DUPLICATE), one
        raise InputRejected(f"schedule {told.id!r} starts a task in every second of the next {FREE_WITHIN_S} anyway")

    async def _patch(self, id: str, patch: SchedulePatch) -> ScheduleDescription:
        """Start a task, pause or resume; the schedule as it stands once it has taken this patch.

        The server keeps one patch for a schedule that it has not woken yet, and the next one overwrites it. So whoever
        sends a patch holds a lock until the schedule has taken it.
        """
        handle = self._handle(id)
        lock = await self._locked(id)
        try:
            await self._client.workflow_service.patch_schedule(
                PatchScheduleRequest(
                    namespace=self._client.namespace,
                    schedule_id=id,
                    patch=patch,
                    identity=self._client.identity,
                    request_id=uuid4().hex,
                ),
                retry=True,
            )
            return await handle.describe()  # the server answers once the schedule has taken what was sent before
        finally:
            with contextlib.suppress(RPCError):  # `FREED_AFTER` has ended it
                await lock.terminate(views.NEVER_BEGAN)
            await views.forget(self._connection, lock.id, lock.run_id)

    async def _locked(self, id: str) -> WorkflowHandle[Any, Any]:
        until = asyncio.get_running_loop().time() + LOCKED_WITHIN_S
        while asyncio.get_running_loop().time() < until:
            with contextlib.suppress(WorkflowAlreadyStartedError):
                return await self._occupied(f"{id}.patch", WorkflowIDReusePolicy.ALLOW_DUPLICATE)
            await asyncio.sleep(LOOK_S)
        raise EngineError(
            f"schedule {id!r} is busy: others have started tasks of it, paused or resumed it for {LOCKED_WITHIN_S:g} "
            "s; try again"
        )

    async def _occupied(self, workflow_id: str, reuse: WorkflowIDReusePolicy) -> WorkflowHandle[Any, Any]:
        """Occupy a workflow's id by a run that no worker is given."""
        run = await self._client.start_workflow(
            "refold.occupied",
            id=workflow_id,
            task_queue=f"{self._connection.task_queue}.nobody",
            id_reuse_policy=reuse,
            start_delay=NEVER,
            execution_timeout=FREED_AFTER,
        )
        return self._client.get_workflow_handle(workflow_id, run_id=run.first_execution_run_id)

    async def delete(self, id: str) -> None:
        """Delete a schedule. Its tasks stay, and go on.

        Raises:
            ScheduleNotFound: There is none with this id.
        """
        with _refusals(id, "delete"):
            await self._handle(id).delete()

    # ---

    def _handle(self, id: str) -> ScheduleHandle:
        if not _ID.fullmatch(id):
            raise ScheduleNotFound(id)
        return self._client.get_schedule_handle(id)

    async def _is_there(self, id: str) -> bool:
        try:
            await self.look(id)
        except ScheduleNotFound:
            return False
        return True

    async def _tried(self, id: str, skill: str, start: TaskStart) -> str:
        """Ask a worker whether it takes the schedule's task, with a task that never begins.

        Returns:
            Why no worker has answered; empty if one takes the task.
        """
        held = start.model_copy(update={"hold": True, "owner": None, "context": None})  # it is in nobody's list
        trial = f"{id}.check-{uuid4().hex[:8]}"
        try:
            view = await starting.start(
                self._connection, skill, held, trial, f"is checked for schedule {id}", check_within=CHECKED_WITHIN
            )
        except BaseException:  # refused, or interrupted: then the task would stay open, and held, for ever
            with contextlib.suppress(EngineError):
                await self._forgotten(trial)
            raise
        await self._forgotten(trial)
        # A worker that took it says how it is released; any other note says why none has.
        return "" if "`refold release " in view.note else view.note

    async def _forgotten(self, trial: str) -> None:
        """Delete a task that never began."""
        with refusals("delete a task that never began"):
            description = await self._connection.describe(trial)
            if description.status is WorkflowExecutionStatus.RUNNING:
                await self._client.get_workflow_handle(trial).terminate(views.NEVER_BEGAN)
        await views.forget(self._connection, trial, description.run_id)

    async def _seen(self, told: ScheduleDescription) -> ScheduleView:
        info, schedule, action = told.info, told.schedule, _action_of(told)
        start, unread = await self._start_of(action)
        ran = [one.action for one in info.recent_actions]
        return ScheduleView(
            id=told.id,
            skill=str(action.workflow),
            times=times_of(schedule.spec),
            overlap=overlap_of(schedule.policy.overlap),
            paused=schedule.state.paused,
            note=schedule.state.note or "",
            next=tuple(info.next_action_times[:NEXT]),
            owner=None if start is None else start.owner,
            input="" if start is None or start.message is None else _text(start.message.content),
            started=info.num_actions,
            skipped=info.num_actions_skipped_overlap,
            missed=info.num_actions_missed_catchup_window,
            waiting=told.raw_description.info.buffer_size,
            running=tuple(_ids(info.running_actions)),
            last=next(iter(_ids(reversed(ran))), None),
            task_queue=action.task_queue,
            unread=unread,
        )

    async def _start_of(self, action: ScheduleActionStartWorkflow) -> tuple[TaskStart | None, str]:
        """What its tasks begin with; or why it cannot be read here."""
        try:
            return start_from(await self._client.data_converter.decode(action.args)), ""
        except Exception as error:  # noqa: BLE001 - another codec's, another program's: it is shown without
            return None, str(error) or type(error).__name__


def _action_of(told: ScheduleDescription) -> ScheduleActionStartWorkflow:
    if not isinstance(told.schedule.action, ScheduleActionStartWorkflow):
        raise EngineError(f"schedule {told.id!r} starts no workflow, so it is none of refold's")
    return told.schedule.action


def _has_heard(told: ScheduleDescription) -> bool:
    """Whether the server knows how the last task has ended. A server before 1.26.2 does not say what it knows."""
    known = told.raw_description.info.recent_actions[-1].start_workflow_status
    return known not in (
        ServersStatus.WORKFLOW_EXECUTION_STATUS_UNSPECIFIED,
        ServersStatus.WORKFLOW_EXECUTION_STATUS_RUNNING,
    )


def _ids(actions: Sequence[object] | Iterator[object]) -> Iterator[str]:
    return (one.workflow_id for one in actions if isinstance(one, ScheduleActionExecutionStartWorkflow))


def _listed(one: ScheduleListDescription) -> ScheduleView | None:
    if one.schedule is None or not isinstance(one.schedule.action, ScheduleListActionStartWorkflow):
        return None
    info = one.info
    ran = [] if info is None else [done.action for done in info.recent_actions]
    return ScheduleView(
        id=one.id,
        skill=one.schedule.action.workflow,
        times=times_of(one.schedule.spec),
        paused=one.schedule.state.paused,
        note=one.schedule.state.note or "",
        next=() if info is None else tuple(info.next_action_times[:NEXT]),
        last=next(iter(_ids(reversed(ran))), None),
    )


def _action(id: str, skill: str, start: TaskStart, task_queue: str, *, batch: bool) -> ScheduleActionStartWorkflow:
    known = search.at_start(skill, datetime.now(UTC), task_id="", owner=start.owner, context=start.context)
    # The times are those of each task, which its worker writes with its first entry.
    later = {STATUS_AT, STATE_AT} if start.context else {STATUS_AT, STATE_AT, CONTEXT}
    text = "" if start.message is None else _text(start.message.content)
    return ScheduleActionStartWorkflow(
        skill,
        args=[input_of(start)],
        id=id,
        task_queue=task_queue,
        typed_search_attributes=TypedSearchAttributes([pair for pair in known if pair.key not in later]),
        static_summary=" ".join(text.split())[: starting.SUMMARY_CHARS] or None,
        priority=priority_of(start.owner, batch=batch),
    )


def _text(content: Content) -> str:
    return content.text or to_json(content.data).decode()


def _check_id(id: str) -> None:
    if not _ID.fullmatch(id):
        raise InputRejected(
            f"a schedule's id has 1 to 100 letters, digits and . _ - @ + = , and begins with a letter or digit; got "
            f"{shortened(id, 200)!r}"
        )


def _check_size(start: TaskStart) -> None:
    try:
        size = len(start.model_dump_json().encode())
    except PydanticSerializationError as error:
        raise unwritable(error) from None
    if size > LARGEST_INPUT:
        raise InputRejected(
            f"a schedule's input has at most {LARGEST_INPUT:,} bytes, and this one {size:,}: keep large values where "
            "the tasks can fetch them, and give the address"
        )


@contextlib.contextmanager
def _refusals(id: str, what: str) -> Iterator[None]:
    try:
        yield
    except RPCError as error:
        if is_missing(error):
            raise ScheduleNotFound(id) from None
        if error.status is RPCStatusCode.INVALID_ARGUMENT:
            way_out = "; give a name such as Europe/Berlin, or UTC" if "unknown time zone" in error.message else ""
            raise InputRejected(f"the server refuses schedule {id!r}: {error.message}{way_out}") from None
        raise server_refused(error, f"{what} schedule {id!r}") from None
    except UnicodeEncodeError as error:  # as of a command line in another encoding
        raise InputRejected(f"schedule {id!r}: {shortened(error.object, 200)!r} is no UTF-8 text") from None
