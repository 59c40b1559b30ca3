"""What a run's history holds of its journal, read for whoever rebuilds the task from that history.

Temporal gives a workflow its events and never its recorded commands. So a worker that rebuilds a task reads the history
once more from the server; a replay has the history at hand. The words are read only where a digest differs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar

from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import RefoldError
from refold.digests import BeyondHistory
from refold.divergence import Difference, Input
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count
from refold.temporal.data.marks import Mark, marks_of
from refold.temporal.data.payloads import AWAY
from refold.temporal.data.wire import CHAT_ACTIVITY, LLM_ACTIVITY, NOTIFY_ACTIVITY, TOOL_ACTIVITIES
from refold.temporal.data.workflow_tasks import WorkflowTasks, workflow_tasks_of

T = TypeVar("T")

log = logger(__name__)

AGAIN_S = 0.2
"""The pause, in seconds, before a history is asked for again that the server did not give; doubled up to ten times."""

NEWEST = 10
"""How many batches of events are asked for at once, the newest first, to find one that has just been written."""

SOON = timedelta(seconds=1)
"""How long the server may take for that. Whoever asks waits less."""

KEPT = 100
"""How many histories a worker keeps ready for the next attempt of a workflow task, since one took too long to read."""

_WHOLE = {LLM_ACTIVITY: "llm", CHAT_ACTIVITY: "chat", NOTIFY_ACTIVITY: "notify"}

Sent = tuple[str, str, str]
"""A command as Temporal compares it: its kind, its id and its type; empty where it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a task.

    Attributes:
        workflow_id: The task's id.
        run_id: Temporal's id of the run.
    """

    workflow_id: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """What was recorded in one run, in words.

    Attributes:
        since: The first entry whose words a mark covers; earlier ones were recorded by a release without marks.
        upto: The last one.
        said: What entries said, by their numbers.
        inputs: Of effects, by invocation id.
        sent: The commands that each workflow task sent, by the number of its completion's event.
    """

    since: int
    upto: int
    said: Mapping[int, BeyondHistory]
    inputs: Mapping[str, Input]
    sent: Mapping[int, Sequence[Sent]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What the history of one run says without words.

    Attributes:
        marks: Its marks; None where they cannot be read, so that the task goes on unverified.
        workflow_tasks: Its workflow tasks.
    """

    marks: Sequence[Mark] | None
    workflow_tasks: WorkflowTasks


class Reader(Protocol):
    """Reads what was recorded. Of a history that can never be read it returns None, and the task continues unverified.

    While the codec or the storage is away it raises their error, and the workflow task is attempted again.

    Attributes:
        strict: A task that differs fails at once, since nobody asks it anything.
    """

    strict: bool

    def attach(self) -> None:
        """Read in the running event loop from now on."""

    def past(self, run: Run) -> Future[Past | None]:
        """A run's marks and workflow tasks."""

    def words(self, run: Run) -> Future[Words | None]:
        """The words of a run."""

    def completed(self, run: Run, started: int) -> Future[bool]:
        """Whether this worker has completed the workflow task that event `started` began, as far as history shows.

        True, too, if history has no such event: the server drops a workflow task that brought only refused updates.
        """

    def done(self, run: Run, difference: Difference | None) -> None:
        """Called with the result once a run was compared, so that its history can be dropped."""


async def words_of(events: Sequence[HistoryEvent], converter: DataConverter) -> Words:
    """The words in a run's history.

    Raises:
        StorageError: What an entry said is in a storage that cannot be read.
        CodecError: The codec cannot read it.
    """
    marks = await marks_of(events, converter)
    sent: dict[int, list[Sent]] = {}
    inputs: dict[str, Input] = {}
    completed, unmarked = 0, False
    for event in events:
        if event.HasField("workflow_task_completed_event_attributes"):
            completed = event.event_id
        kind, id, name, payloads = _command(event)
        if kind:
            unmarked = unmarked or not marks or event.event_id < marks[0].event_id
            sent.setdefault(completed, []).append((kind, id, name))
        if payloads and id not in inputs:
            inputs[id] = _input(kind, name, await converter.decode(payloads))
    first = 1 if not marks or not unmarked else marks[0].seq
    upto = marks[-1].seq if marks else 0
    said = {one.seq: one for mark in marks for one in mark.said}
    return Words(since=min([first, *said]), upto=upto, said=said, inputs=inputs, sent=sent)


def _command(event: HistoryEvent) -> tuple[str, str, str, Sequence[Payload]]:
    """The kind of an event's command, its id, its type and its input; a kind that is empty is that of no command."""
    if event.HasField("activity_task_scheduled_event_attributes"):
        activity = event.activity_task_scheduled_event_attributes
        return "activity", activity.activity_id, activity.activity_type.name, activity.input.payloads
    if event.HasField("start_child_workflow_execution_initiated_event_attributes"):
        child = event.start_child_workflow_execution_initiated_event_attributes
        return "child", child.workflow_id, child.workflow_type.name, child.input.payloads
    if event.HasField("timer_started_event_attributes"):
        return "timer", "", "", ()
    return _OTHERS.get(event.WhichOneof("attributes") or "", ""), "", "", ()


_OTHERS = {
    "upsert_workflow_search_attributes_event_attributes": "upsert",
    "workflow_execution_completed_event_attributes": "complete",
    "workflow_execution_failed_event_attributes": "fail",
    "workflow_execution_canceled_event_attributes": "cancel",
    "workflow_execution_continued_as_new_event_attributes": "continue",
}


def _input(kind: str, name: str, args: Sequence[Any]) -> Input:
    """The fields of a command that its input holds."""
    first = args[0] if args and isinstance(args[0], dict) else {}
    if kind == "child":
        if not first.get("refold"):
            return {"kind": "workflow", "name": name, "args": [*args]}
        message = first.get("message")  # a part that is recovered has none
        said = {} if message is None else {"input": message["content"]}
        return {"kind": "skill", "skill": name, "budget": first.get("budget"), **said}
    whole = _WHOLE.get(name) or ("tool" if name.startswith(TOOL_ACTIVITIES) else "")
    return {**first, "kind": whole} if whole else {"kind": "activity", "name": name, "args": [*args]}


Read = Callable[[Sequence[HistoryEvent]], Awaitable[Any]]


_FOR_GOOD = {
    RPCStatusCode.PERMISSION_DENIED,
    RPCStatusCode.NOT_FOUND,
    RPCStatusCode.UNIMPLEMENTED,
    RPCStatusCode.INVALID_ARGUMENT,
}
"""Refusals of a history that the server would only repeat."""


class FromServer:
    """Reads histories from the server, in the worker's event loop, and keeps what was read for the next attempt.

    Args:
        client: The worker's. Where it may not read histories, tasks go on unverified, which one log line says.
        identity: The worker's, as history names it.
    """

    strict = False

    def __init__(self, client: Client, identity: str) -> None:
        self._client = client
        self._identity = identity
        self._read: OrderedDict[tuple[Run, bool], Future[Any]] = OrderedDict()
        self._warned = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def attach(self) -> None:
        """Read in the running event loop from now on. Called in it."""
        self._loop = asyncio.get_running_loop()

    def past(self, run: Run) -> Future[Past | None]:
        """See `Reader`."""
        return self._started((run, False), lambda events: self._past(run, events))

    def words(self, run: Run) -> Future[Words | None]:
        """See `Reader`."""
        return self._started((run, True), lambda events: words_of(events, self._client.data_converter))

    def completed(self, run: Run, started: int) -> Future[bool]:
        """See `Reader`."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(self._completed(run, started), self._loop)

    async def _completed(self, run: Run, started: int) -> bool:
        request = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=run.workflow_id, run_id=run.run_id),
            maximum_page_size=NEWEST,
        )
        while True:
            try:
                answer = await self._client.workflow_service.get_workflow_execution_history_reverse(
                    request, retry=True, timeout=SOON
                )
            except RPCError:
                return False
            for event in answer.history.events:
                if event.event_id <= started + 1:
                    completed = event.workflow_task_completed_event_attributes
                    dropped = event.event_id < started
                    return dropped or (event.event_id == started + 1 and completed.identity == self._identity)
            if not answer.next_page_token:
                return False
            request.next_page_token = answer.next_page_token

    def done(self, run: Run, difference: Difference | None) -> None:
        """See `Reader`. What was read is read anew the next time."""
        for key in ((run, False), (run, True)):
            self._read.pop(key, None)
        if difference is not None:
            told = {"seq": difference.seq, "field": difference.field, "recorded_by": difference.build_id}
            why = {"why": difference.why} if difference.why else {}
            log.error("code_differs", task_id=run.workflow_id, **told, **why)
            count(metrics.CODE_DIFFERS)

    def _started(self, key: tuple[Run, bool], read: Read) -> Future[Any]:
        assert self._loop is not None
        known = self._read.get(key)
        if known is None or (known.done() and (known.cancelled() or known.exception() is not None)):
            self._read[key] = asyncio.run_coroutine_threadsafe(self._reading(key[0], read), self._loop)
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
        return self._read[key]

    async def _reading(self, run: Run, read: Read) -> Any:
        handle = self._client.get_workflow_handle(run.workflow_id, run_id=run.run_id)
        pause = AGAIN_S
        while True:
            try:
                return await read([event async for event in handle.fetch_history_events()])
            except RPCError as error:
                if error.status in _FOR_GOOD:
                    self._note(run, error)
                    return None
            except AWAY:  # the next attempt of the workflow task reads the history again
                raise
            except RefoldError as error:  # a key or a stored value that is missing
                self._note(run, error)
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, AGAIN_S * 10)

    async def _past(self, run: Run, events: Sequence[HistoryEvent]) -> Past:
        marks = None
        try:
            marks = await marks_of(events, self._client.data_converter, words=False)
        except AWAY:
            raise
        except RefoldError as error:  # a key is missing
            self._note(run, error)
        return Past(marks=marks, workflow_tasks=workflow_tasks_of(events))

    def _note(self, run: Run, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            log.warning("tasks_unverified", task_id=run.workflow_id, reason=str(error))


class FromReplay:
    """Gives what the history holds that is being replayed, one at a time.

    Attributes:
        difference: What was found in it.
    """

    strict = True

    def __init__(self) -> None:
        self.difference: Difference | None = None
        self._past: Past | None = None
        self._words: Words | None = None

    async def give(self, events: Sequence[HistoryEvent], converter: DataConverter) -> None:
        """Prepare the run that is replayed next.

        Raises:
            CodecError: The codec cannot read the marks.
        """
        self.difference = None
        marks = await marks_of(events, converter, words=False)
        self._past, self._words = Past(marks=marks, workflow_tasks=workflow_tasks_of(events)), None
        if marks:
            # Read beforehand: a replay has no second attempt, and the SDK gives an activation two seconds.
            with suppress(RefoldError):  # without them, the entry that differs is named, and no field
                self._words = await words_of(events, converter)

    def attach(self) -> None:
        """Nothing is read in the background."""

    def past(self, run: Run) -> Future[Past | None]:
        """See `Reader`."""
        return _known(self._past)

    def words(self, run: Run) -> Future[Words | None]:
        """See `Reader`."""
        return _known(self._words)

    def completed(self, run: Run, started: int) -> Future[bool]:
        """Nobody asks a replay."""
        return _known(False)

    def done(self, run: Run, difference: Difference | None) -> None:
        """See `Reader`."""
        self.difference = self.difference or difference


def _known(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
