"""The engine over a Temporal client: how tasks are started, answered, looked at and watched."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, NoReturn
from uuid import uuid4

from pydantic import JsonValue
from pydantic_core import to_json
from temporalio.api.common.v1 import WorkflowExecution as WorkflowExecutionProto
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, DescribeNamespaceRequest
from temporalio.client import (
    Client,
    Plugin,
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from refold.core.content import Content
from refold.core.contracts.audit import Explanation, explain
from refold.core.errors import InputRejected, NotConnected, NoWorker, TaskExists, TaskNotFound, UnknownSkill
from refold.core.events import DependencyResolved, UserMessage
from refold.core.fold.journal import Entry
from refold.core.fold.record import TaskRecord
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Ending, Status, TaskState, derive_status
from refold.core.lineage.previous import Previous, check_previous, previous_of
from refold.engine import Listed, OffspringView, Place, TaskFilter, TaskView, Tokens, WaitView
from refold.temporal.client import lineage, search
from refold.temporal.client.asking import asked
from refold.temporal.client.ended import EndedTasks
from refold.temporal.client.history import History
from refold.temporal.client.pages import EPOCH, Pages
from refold.temporal.client.records import Records
from refold.temporal.client.stuck import why_stuck
from refold.temporal.client.tail import Tails
from refold.temporal.data import show, signing
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.wire import TaskResult, TaskStart, Verdict
from refold.temporal.worker.workflow import RESULT_MEMO

PATIENCE = timedelta(seconds=3)
"""How long a worker may take to answer a question before it counts as not there."""

UPDATE_PATIENCE = timedelta(seconds=10)
"""How long a worker may take to take an answer."""

PING_PATIENCE = timedelta(seconds=2)
"""How long the server may take to say that it is there."""

SUMMARY_CHARS = 160


EXIT_PAUSE_S = 0.05
"""How long a process that has talked to a server waits before it ends."""


@cache
def _end_in_peace() -> None:
    """Let the SDK's threads come to rest before Python ends, once for the process.

    One may still be handing over the last answer; Python then aborts the process, with exit code 134.
    """
    atexit.register(time.sleep, EXIT_PAUSE_S)


async def connected(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    plugins: Sequence[Plugin] = (),
) -> Client:
    """A Temporal client that writes values as refold does.

    Args:
        address: `host:port`; None takes Temporal's own settings, else localhost:7233.
        namespace: None takes Temporal's own settings, else `default`.
        profile: A profile of Temporal's configuration file.
        plugins: More plugins of the SDK.

    Raises:
        NotConnected: No server answers, or the settings are wrong.
    """
    _end_in_peace()
    try:
        settings = ClientConfig.load_client_connect_config(profile=profile)
    except Exception as error:
        raise NotConnected(f"Temporal's settings cannot be read: {error}") from error
    target = address or settings.get("target_host") or "localhost:7233"
    given: dict[str, Any] = {**settings, "target_host": target, "plugins": list(plugins)}
    if namespace is not None:
        given["namespace"] = namespace
    if not plugins:
        given["data_converter"] = data_converter()
    try:
        return await Client.connect(**given)
    except (RuntimeError, RPCError) as error:
        raise NotConnected(
            f"no Temporal server answers at {target}: {_cause(error)}. Start one with `refold dev`, or name another "
            "with --address or TEMPORAL_ADDRESS"
        ) from None


async def connect(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    task_queue: str = "refold",
) -> TemporalEngine:
    """The engine of a Temporal server; arguments and errors as `connected`.

    Args:
        task_queue: The workers that serve new tasks.
    """
    return TemporalEngine(await connected(address=address, namespace=namespace, profile=profile), task_queue)


class TemporalEngine:
    """See `refold.engine.Engine`. Keeps nothing of a task but its tail while somebody watches.

    Any number of engines serve the same tasks.
    """

    def __init__(
        self,
        client: Client,
        task_queue: str = "refold",
        *,
        events_per_run: int | None = None,
        patience: timedelta = PATIENCE,
    ) -> None:
        """An engine over a connected client.

        Args:
            client: With refold's data converter or plugin.
            task_queue: The workers that serve new tasks.
            events_per_run: New tasks go on in a new run from this many history events on; None leaves it to the
                server, which suggests it at some thousands.
            patience: How long a worker may take to answer a question before it counts as not there.
        """
        self.client = client
        self.task_queue = task_queue
        self.events_per_run = events_per_run
        self.patience = patience
        self.tails = Tails(self)
        self.ended = EndedTasks()

    # --- start, answer, cancel

    async def start(
        self,
        skill: str,
        content: Content,
        *,
        task_id: str | None = None,
        stream: bool = False,
        owner: str | None = None,
        context: str | None = None,
        message_id: str | None = None,
        delivery_id: str | None = None,
        previous: str | None = None,
        started_by: str | None = None,
    ) -> TaskView:
        """See `Engine.start`."""
        task_id = task_id or f"{skill}-{uuid4().hex[:8]}"
        message = UserMessage(content=content, message_id=message_id, delivery_id=delivery_id)
        before = None if previous is None else await self._before(previous, owner)
        starters = () if started_by is None else (started_by,)
        start = TaskStart(
            message=message, stream=stream, owner=owner, context=context, previous=before, started_by=starters
        )
        summary = " ".join(content.text.split()) or to_json(content.data).decode()
        return await self._started(skill, start, task_id, summary)

    async def _before(self, task_id: str, owner: str | None) -> Previous:
        snapshot = await self.at(task_id, (await self.look(task_id)).seq)
        check_previous(snapshot, owner)
        return previous_of(snapshot)

    async def _started(
        self, skill: str, start: TaskStart, task_id: str, summary: str, origin: lineage.Origin | None = None
    ) -> TaskView:
        start = start.model_copy(update={"events_per_run": self.events_per_run})
        from_task = None if origin is None else origin.task_id
        try:
            handle = await self.client.start_workflow(
                skill,
                start,
                id=task_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                search_attributes=search.at_start(
                    skill,
                    datetime.now(UTC),
                    task_id=task_id,
                    owner=start.owner,
                    context=start.context,
                    origin=from_task,
                ),
                memo=None if origin is None else origin.memo,
                static_summary=f"{skill}: {summary[:SUMMARY_CHARS]}",
                result_type=TaskResult,
            )
        except WorkflowAlreadyStartedError:
            raise TaskExists(task_id) from None
        except RPCError as error:
            raise search.server_refused(error, f"start task {task_id!r}") from None
        view = await self._status(handle)
        if isinstance(view, TaskView) and view.lifecycle is not TaskState.PLANNED:
            return view
        description = await self._describe(task_id)
        if description.status is WorkflowExecutionStatus.RUNNING:
            return _unanswered(description, str(view), submitted=True)
        return await self._view_of_closed(description, new=True)

    async def send(
        self,
        task_id: str,
        content: Content,
        *,
        slot: str | None = None,
        delivery_id: str | None = None,
        message_id: str | None = None,
        sender: str | None = None,
        early: bool = False,
    ) -> TaskView:
        """See `Engine.send`."""
        said = UserMessage(
            content=content, slot=slot, delivery_id=delivery_id, message_id=message_id, sender=sender, early=early
        )
        wire = said.model_dump(mode="json", exclude={"kind"})
        await self._update(task_id, "message", wire, update_id=delivery_id)
        return await self.look(task_id)

    async def cancel(self, task_id: str, *, reason: str = "") -> TaskView:
        """See `Engine.cancel`."""
        description = await self._describe(task_id)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            view = await self._view_of_closed(description)
            raise InputRejected(f"task {task_id!r} has ended ({view.status}); there is nothing to cancel")
        handle = self.client.get_workflow_handle(task_id, result_type=TaskResult)
        await handle.cancel(reason=reason or "canceled on request")
        try:
            async with asyncio.timeout(self.patience.total_seconds()):
                await self._closed(handle)
        except TimeoutError:
            return await self.look(task_id)
        return await self.look(task_id)

    async def decide(
        self,
        task_id: str,
        gate: str | None = None,
        *,
        approved: bool,
        approver: str,
        digest: str | None = None,
        comment: str = "",
        vouched_by: str | None = None,
        changes: Mapping[str, JsonValue] | None = None,
    ) -> TaskView:
        """See `Engine.decide`."""
        wait = await self._gate(task_id, gate, digest)
        decision = DecisionMade(
            gate=wait.gate,
            digest=digest or str(wait.digest),
            decision="approved" if approved else "denied",
            approver=approver,
            asserted_by=vouched_by,
            comment=comment,
            changes=dict(changes or {}),
            said_at=datetime.now(UTC),
        )
        holder = wait.asked_by or task_id  # a part's gate is decided at the part
        await self._update(holder, "decide", _signed(holder, decision), update_id=None)
        return await self.look(task_id)

    async def _gate(self, task_id: str, named: str | None, digest: str | None) -> WaitView:
        view = await self.look(task_id)
        gates = [wait for wait in view.waiting_for if wait.gate_kind is not None]
        met = [wait for wait in gates if named in (None, wait.gate, wait.slot)]
        if len(met) == 1:
            return met[0]
        if not gates and view.lifecycle is TaskState.FAILED and (late := await self._timed_out(task_id)) is not None:
            return late
        if not met and named is not None and digest is not None:
            return WaitView(slot=named, message="", gate=named, digest=digest)  # the task knows why not
        listed = ", ".join(f"{wait.slot} ({wait.gate})" for wait in gates) or "none"
        if len(met) > 1:
            raise InputRejected(f"several gates of task {task_id!r} are open; say which one: {listed}")
        which = "no gate" if named is None else f"no gate {named!r}"
        raise InputRejected(f"{which} of task {task_id!r} is open ({view.status}); open: {listed}")

    async def _timed_out(self, task_id: str) -> WaitView | None:
        """The gate whose time ran out, while a late grant is still recorded."""
        try:
            handle = self.client.get_workflow_handle(task_id)
            snapshot = await asked(handle, "snapshot", kind=Snapshot, patience=self.patience)
        except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError):
            return None
        grace = snapshot.grace
        return None if grace is None else WaitView(slot="", message="", gate=grace.gate, digest=grace.digest)

    async def resolve(
        self,
        task_id: str,
        *,
        retry: bool = False,
        outcome: JsonValue = None,
        invocation_id: str | None = None,
        by: str | None = None,
        comment: str = "",
    ) -> TaskView:
        """See `Engine.resolve`."""
        resolved = DependencyResolved(invocation_id=invocation_id, retry=retry, outcome=outcome, by=by, comment=comment)
        await self._update(task_id, "resolve", resolved, update_id=None)
        return await self.look(task_id)

    async def recover(self, task_id: str, *, new_id: str | None = None, by: str | None = None) -> TaskView:
        """See `Engine.recover`."""
        start, origin = await lineage.recovery(self, task_id, by=by)
        return await self._continued(start, origin, new_id, "r")

    async def fork(
        self, task_id: str, *, at: int, live: bool = False, new_id: str | None = None, by: str | None = None
    ) -> TaskView:
        """See `Engine.fork`."""
        start, origin = await lineage.branch(self, task_id, at, live=live, by=by)
        return await self._continued(start, origin, new_id, "f")

    async def offspring(self, task_id: str) -> tuple[OffspringView, ...]:
        """See `Engine.offspring`."""
        await self._describe(task_id)
        return await lineage.offspring(self.client, task_id)

    async def _continued(self, start: TaskStart, origin: lineage.Origin, new_id: str | None, letter: str) -> TaskView:
        """Start a task that goes on from another one."""
        new_id = new_id or await self._free_id(f"{origin.task_id}.{letter}")
        return await self._started(origin.skill, start, new_id, origin.task_id, origin)

    async def _free_id(self, stem: str) -> str:
        number = 1
        while True:
            try:
                await self._describe(f"{stem}{number}")
            except TaskNotFound:
                return f"{stem}{number}"
            number += 1

    async def _closed(self, handle: WorkflowHandle[Any, Any]) -> None:
        with contextlib.suppress(WorkflowFailureError):
            await handle.result()

    async def _update(self, task_id: str, name: str, argument: Any, *, update_id: str | None) -> None:
        handle = self.client.get_workflow_handle(task_id)
        try:
            await handle.execute_update(name, argument, id=update_id, rpc_timeout=UPDATE_PATIENCE)
        except WorkflowUpdateFailedError as error:
            _raise_verdict(error)
        except RPCTimeoutOrCancelledError:
            if (stuck := await why_stuck(self.client, await self._describe(task_id))) is not None:
                raise NoWorker(f"task {task_id!r} cannot take the {name}: {stuck}") from None
            raise NoWorker(
                f"no worker took the {name} for task {task_id!r} within {UPDATE_PATIENCE.seconds} s; start one with "
                f"`refold worker` (task queue {self.task_queue!r}), and look at the task before sending it again: it "
                "may still be taken"
            ) from None
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise search.server_refused(error, f"reach task {task_id!r}") from None
            view = await self.look(task_id)
            way_out = "recover it, or start a new one" if view.lifecycle is TaskState.FAILED else "start a new one"
            raise InputRejected(f"task {task_id!r} has ended ({view.status}); {way_out}") from None

    # --- look

    async def look(self, task_id: str) -> TaskView:
        """See `Engine.look`."""
        # One question for an open task; the server refuses to ask about one that has ended.
        view = await self._status(self.client.get_workflow_handle(task_id), if_open=True)
        if isinstance(view, TaskView):
            return view
        description = await self._describe(task_id)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return await self._view_of_closed(description)
        return _unanswered(description, view)

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        return await Records(self, task_id).read()

    async def _view(self, description: WorkflowExecutionDescription) -> TaskView:
        if description.status is not WorkflowExecutionStatus.RUNNING:
            return await self._view_of_closed(description)
        handle = self.client.get_workflow_handle(description.id, run_id=description.run_id)
        view = await self._status(handle)
        return view if isinstance(view, TaskView) else _unanswered(description, view)

    async def _status(self, handle: WorkflowHandle[Any, Any], *, if_open: bool = False) -> TaskView | str:
        """The task as its worker sees it; or why it cannot be asked, as one sentence."""
        try:
            return await asked(handle, "status", kind=TaskView, patience=self.patience, if_open=if_open)
        except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError) as error:
            return search.why_unanswered(error, self.task_queue)
        except WorkflowQueryRejectedError:
            return "it has ended"

    async def _view_of_closed(self, description: WorkflowExecutionDescription, *, new: bool = False) -> TaskView:
        result = await self.result(description, new=new)
        return result.task if result is not None else _unanswered(description, await self._why_ended(description))

    async def _why_ended(self, description: WorkflowExecutionDescription) -> str:
        """Why a task was ended over its head, in Temporal's words."""
        try:
            await self.client.get_workflow_handle(description.id, run_id=description.run_id).result(follow_runs=False)
        except WorkflowFailureError as error:
            return f"Temporal ended it from outside: {error.cause}"
        return "Temporal ended it from outside"

    async def result(self, description: WorkflowExecutionDescription, *, new: bool = False) -> TaskResult | None:
        """What an ended task left behind; None where it was ended over its head (terminated, timed out).

        Args:
            description: Of the task's last run.
            new: It was started just now: a refusal of its start is raised, and leaves nothing behind.
        """
        handle = self.client.get_workflow_handle(description.id, run_id=description.run_id, result_type=TaskResult)
        try:
            completed: TaskResult = await handle.result(follow_runs=False)
        except WorkflowFailureError as error:
            cause = error.cause
        else:
            return completed
        if isinstance(cause, ApplicationError) and cause.type in ("TaskFailed", "TaskRejected") and cause.details:
            return TaskResult.model_validate_json(to_json(cause.details[0]))
        if isinstance(cause, ApplicationError) and new:
            await self._refused_at_start(description, cause)
        memo = await description.memo_value(RESULT_MEMO, None, type_hint=TaskResult)
        return memo if isinstance(memo, TaskResult) else None

    async def _refused_at_start(self, description: WorkflowExecutionDescription, cause: ApplicationError) -> None:
        if cause.type not in (UnknownSkill.__name__, InputRejected.__name__):
            return
        await self.client.workflow_service.delete_workflow_execution(
            DeleteWorkflowExecutionRequest(
                namespace=self.client.namespace,
                workflow_execution=WorkflowExecutionProto(workflow_id=description.id, run_id=description.run_id),
            )
        )
        if cause.type == UnknownSkill.__name__:
            raise UnknownSkill(description.workflow_type, cause.details[0] if cause.details else ())
        raise InputRejected(cause.message)

    async def _describe(self, task_id: str) -> WorkflowExecutionDescription:
        try:
            description = await self.client.get_workflow_handle(task_id).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise TaskNotFound(task_id) from None
            raise search.server_refused(error, f"describe task {task_id!r}") from None
        if description.typed_search_attributes.get(show.SKILL) is None and description.status in search.CLOSED:
            raise TaskNotFound(task_id)  # a workflow, but none of ours
        return description

    async def list(
        self,
        *,
        skill: str | None = None,
        lifecycle: TaskState | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> AsyncIterator[TaskView]:
        """See `Engine.list`."""
        query = search.tasks(TaskFilter(skill=skill, lifecycle=lifecycle, owner=owner))
        by_start = Pages(self.client, query, partial(search.within, "StartTime"), lambda row: row.start_time)
        with search.refusals("list tasks"):
            newest = await by_start.page(limit)
        handles = [self.client.get_workflow_handle(one.id, run_id=one.run_id) for one in newest]
        for batch in _batches(handles, 10):
            for view in await asyncio.gather(*(self._listed(handle) for handle in batch)):
                if view is not None:
                    yield view

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """See `Engine.find`."""
        by_status = Pages(self.client, search.tasks(wanted), search.status_within, search.status_at)
        with search.refusals("list tasks"):
            found = await by_status.page(
                limit, since=_since(wanted), after=None if after is None else (after.at, after.task_id)
            )
        return [search.as_listed(one) for one in found]

    async def count(self, wanted: TaskFilter) -> int:
        """See `Engine.count`."""
        query = search.tasks(wanted)
        if wanted.since is not None:
            since = _since(wanted)
            # By the millisecond, for that is how some servers compare.
            since = since.replace(microsecond=since.microsecond // 1000 * 1000)
            query += f" AND {search.status_within(since, None)}"
        with search.refusals("count tasks"):
            return (await self.client.count_workflows(query)).count

    async def ping(self) -> None:
        """See `Engine.ping`. Asks for the namespace, which must be there, too."""
        asked = DescribeNamespaceRequest(namespace=self.client.namespace)
        with search.refusals("describe its namespace"):
            await self.client.workflow_service.describe_namespace(asked, timeout=PING_PATIENCE)

    async def _listed(self, handle: WorkflowHandle[Any, Any]) -> TaskView | None:
        try:
            return await self._view(await handle.describe())
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None  # it went between the list and the look
            raise search.server_refused(error, "describe a task") from None

    # --- the past, and what comes

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""
        return History(self, task_id).entries(after)

    def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[Entry | Tokens]:
        """See `Engine.watch`."""
        return self.tails.watch(task_id, after, over_pauses=follow)

    async def explain(self, task_id: str, field: str, *, upto: int | None = None) -> Explanation:
        """See `Engine.explain`."""
        return explain([entry async for entry in self.journal(task_id)], field, upto=upto)

    async def at(self, task_id: str, seq: int) -> Snapshot:
        """See `Engine.at`. Asks the run that holds the entry, so a worker with the skill must be there."""
        return await History(self, task_id).at(seq)


def _unanswered(description: WorkflowExecutionDescription, why: str, *, submitted: bool = False) -> TaskView:
    """A task as the server sees it, where nobody else can be asked."""
    lifecycle, ending = search.as_shown(description)
    return TaskView(
        task_id=description.id,
        skill=description.workflow_type,
        status=Status.SUBMITTED if submitted else derive_status(lifecycle, ending),
        lifecycle=TaskState.PLANNED if submitted else lifecycle,
        reason=why if ending is not None and ending is not Ending.COMPLETED else "",
        updated_at=description.close_time or description.start_time,
        note=why,
    )


def _signed(task_id: str, decision: DecisionMade) -> Verdict:
    if decision.asserted_by is None:
        return Verdict(**dict(decision))
    key = signing.approval_key()
    if key is None:
        raise InputRejected(
            f"{decision.asserted_by} cannot vouch for a decision without the key that it shares with the workers: set "
            f"{signing.ENV}"
        )
    return Verdict(**dict(decision), signature=signing.signature(task_id, decision, key))


def _cause(error: Exception) -> str:
    """The last cause in what the SDK's core says, which names one inside the other."""
    causes = re.findall(r'(?:message|error|details): "((?:[^"\\]|\\.)+)"', str(error))
    return causes[-1] if causes else str(error)


def _raise_verdict(error: WorkflowUpdateFailedError) -> NoReturn:
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == InputRejected.__name__:
        raise InputRejected(cause.message) from None
    raise InputRejected(str(cause)) from None


def _since(wanted: TaskFilter) -> datetime:
    return EPOCH if wanted.since is None else max(wanted.since, EPOCH)


def _batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
