"""The engine over a Temporal client: `refold.engine.Engine`, each verb a call into the module that carries it out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from pydantic import JsonValue
from pydantic_core import to_json
from temporalio.client import Client

from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.events import DependencyResolved, Early
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import TaskState
from refold.engine import (
    Build,
    Decision,
    EngineError,
    Listed,
    News,
    NotConnected,
    OffspringView,
    Place,
    TaskExists,
    TaskFilter,
    TaskView,
)
from refold.engine.arguments import Count, defining, methods_take, takes
from refold.engine.decisions import DecidesOne
from refold.engine.refusals import check_delivery_id, check_later, check_skill_id, check_task_id, checked, message_of
from refold.record import Explanation, TaskRecord, explain
from refold.temporal.client import lineage, starting, updates, views
from refold.temporal.client.connection import PATIENCE, Connection, connected, queue_of
from refold.temporal.client.index import listing
from refold.temporal.client.journal import JournalReader
from refold.temporal.client.record import read_record
from refold.temporal.client.record_cache import RecordCache
from refold.temporal.client.watch.tail import Tails
from refold.temporal.data.storage import ValueDriver
from refold.temporal.data.wire import TaskStart
from refold.temporal.keeping.purge import Purge, ReceiptsOfTask
from refold.temporal.keeping.runs import histories
from refold.temporal.schedules.schedules import Schedules
from refold.temporal.traced import going_on_from

TOLD_S = 5.0
"""For so many seconds a decision at a part waits until the task that was named knows of it."""


@takes(NotConnected)
async def connect(
    *,
    address: str | None = None,
    namespace: str | None = None,
    profile: str | None = None,
    task_queue: str | None = None,
) -> TemporalEngine:
    """The engine of a Temporal server; arguments and errors as `connected`.

    Args:
        task_queue: The workers that serve new tasks; None takes `REFOLD_TASK_QUEUE`, else `refold`.
    """
    return TemporalEngine(await connected(address=address, namespace=namespace, profile=profile), task_queue)


@methods_take()
class TemporalEngine(DecidesOne):
    """See `refold.engine.Engine`. Keeps nothing of a task but its tail while somebody watches, and the records of tasks
    that stand still.

    Any number of engines serve the same tasks.
    """

    @takes(defining("TemporalEngine", "engine"))
    def __init__(
        self,
        client: Client,
        task_queue: str | None = None,
        *,
        events_per_run: Count | None = None,
        patience: timedelta = PATIENCE,
    ) -> None:
        """An engine over a connected client.

        Args:
            client: With refold's data converter or plugin.
            task_queue: The workers that serve new tasks; None takes `REFOLD_TASK_QUEUE`, else `refold`.
            events_per_run: New tasks go on in a new run from this many history events on; None leaves it to the
                server, which suggests it at some thousands.
            patience: How long a worker may take to answer a query before it counts as not there.
        """
        self.client = client
        self.task_queue = queue_of(task_queue)
        self.connection = Connection(client, self.task_queue, patience)
        self.events_per_run = events_per_run
        self.tails = Tails(self.connection)
        self.still = RecordCache()

    # --- start

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
        hold: bool = False,
        start_delay: timedelta | None = None,
        batch: bool = False,
    ) -> TaskView:
        """See `Engine.start`."""
        check_skill_id(skill)
        check_later(hold, start_delay)
        argument = checked(
            TaskStart,
            hold=hold,
            start_delay_s=None if start_delay is None else start_delay.total_seconds(),
            message=message_of(content, message_id=message_id, delivery_id=delivery_id),
            stream=stream,
            owner=owner,
            context=context,
            previous=None if previous is None else await starting.previous(self.connection, previous, owner),
            started_by=() if started_by is None else (started_by,),
            events_per_run=self.events_per_run,
        )
        new_id = f"{skill}-{uuid4().hex[:8]}" if task_id is None else check_task_id(task_id)
        summary = " ".join(content.text.split()) or to_json(content.data).decode()
        return await starting.start(self.connection, skill, argument, new_id, summary, batch=batch)

    async def recover(self, task_id: str, *, by: str | None = None, task_queue: str | None = None) -> TaskView:
        """See `Engine.recover`."""
        argument, origin, new_id = await lineage.recovery(self.connection, task_id, by=by)
        async with going_on_from(self.client, task_id):
            return await self._start_from(origin, argument, new_id, task_queue)

    async def fork(
        self,
        task_id: str,
        *,
        at: int,
        live: bool = False,
        new_id: str | None = None,
        by: str | None = None,
        task_queue: str | None = None,
    ) -> TaskView:
        """See `Engine.fork`."""
        if new_id is not None:
            check_task_id(new_id)
        argument, origin = await lineage.branch(self.connection, task_id, at, live=live, by=by)
        if new_id is not None:
            return await self._start_from(origin, argument, new_id, task_queue)
        number = 0
        while True:
            number = await starting.free_number(self.connection, f"{task_id}.f", after=number)
            with suppress(TaskExists):  # another fork has just taken this number
                return await self._start_from(origin, argument, f"{task_id}.f{number}", task_queue)

    async def _start_from(
        self, origin: lineage.Origin, argument: TaskStart, new_id: str, task_queue: str | None
    ) -> TaskView:
        connection = replace(self.connection, task_queue=task_queue or origin.task_queue)
        argument = argument.model_copy(update={"events_per_run": self.events_per_run})
        return await starting.start(connection, origin.skill, argument, new_id, origin.task_id, origin=origin)

    async def offspring(self, task_id: str) -> tuple[OffspringView, ...]:
        """See `Engine.offspring`."""
        return await lineage.offspring(self.connection, task_id, await self.connection.describe(task_id))

    # --- answer, decide, cancel

    async def send(
        self,
        task_id: str,
        content: Content,
        *,
        slot: str | None = None,
        delivery_id: str | None = None,
        message_id: str | None = None,
        sender: str | None = None,
        early: Early = False,
    ) -> TaskView:
        """See `Engine.send`."""
        check_delivery_id(delivery_id)
        said = message_of(
            content,
            slot=slot,
            delivery_id=delivery_id,
            message_id=message_id,
            sender=sender,
            early=early,
        )
        wire = said.model_dump(mode="json", exclude={"kind"})
        update_id = None if said.called_back else delivery_id  # the second of two calls is told that it came second
        await updates.update(self.connection, task_id, "message", wire, update_id=update_id)
        return await updates.look_after(self.connection, task_id, "message")

    async def decide_together(
        self, task_id: str, decisions: Sequence[Decision], *, approver: str, vouched_by: str | None = None
    ) -> TaskView:
        """See `Engine.decide_together`."""
        holder = await updates.decide(self.connection, task_id, decisions, approver=approver, vouched_by=vouched_by)
        view = await updates.look_after(self.connection, task_id, "decide")
        return view if holder == task_id else await self._told(view, holder)

    async def _told(self, view: TaskView, part: str) -> TaskView:
        """A task once it knows how the gates of its part stand, which tells it moments after it took a decision.

        Until then the task stands at a gate that is decided, and whoever waits for it would wait for nothing.
        """
        with suppress(EngineError, TimeoutError, StopAsyncIteration):  # the decision was taken, whatever comes now
            async with asyncio.timeout(TOLD_S), aclosing(self.watch(view.task_id, after=view.seq, follow=True)) as news:
                while _gates_of(view, part) != _gates_of(await self.look(part), None):
                    await anext(news)
                    view = await self.look(view.task_id)
        return view

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
        resolved = checked(
            DependencyResolved, invocation_id=invocation_id, retry=retry, outcome=outcome, by=by, comment=comment
        )
        await updates.update(self.connection, task_id, "resolve", resolved)
        return await updates.look_after(self.connection, task_id, "resolve")

    async def release(self, task_id: str, *, by: str | None = None) -> TaskView:
        """See `Engine.release`."""
        await updates.update(self.connection, task_id, "release", {} if by is None else {"by": by})
        return await updates.look_after(self.connection, task_id, "release")

    async def cancel(self, task_id: str, *, reason: str = "", by: str | None = None) -> TaskView:
        """See `Engine.cancel`."""
        return await updates.cancel(self.connection, task_id, reason=reason, by=by)

    # --- by the clock

    @property
    def schedules(self) -> Schedules:
        """The schedules of this server, whose tasks go to this engine's task queue."""
        return Schedules(self.connection, self.events_per_run)

    # --- look

    async def look(self, task_id: str) -> TaskView:
        """See `Engine.look`."""
        return await views.look(self.connection, task_id)

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        return await read_record(self.connection, self.still, task_id)

    async def list(
        self,
        *,
        skill: str | None = None,
        lifecycle: TaskState | None = None,
        owner: str | None = None,
        limit: Count = 100,
    ) -> AsyncIterator[TaskView]:
        """See `Engine.list`."""
        wanted = checked(TaskFilter, skill=skill, lifecycle=lifecycle, owner=owner)
        async for view in listing.list_views(self.connection, wanted, limit):
            yield view

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: Count = 50) -> Sequence[Listed]:
        """See `Engine.find`."""
        return await listing.find(self.connection, wanted, after=after, limit=limit)

    async def count(self, wanted: TaskFilter) -> int:
        """See `Engine.count`."""
        return await listing.count(self.connection, wanted)

    async def ping(self) -> None:
        """See `Engine.ping`. Asks for the namespace, which must be there, too."""
        await self.connection.ping()
        external = self.client.data_converter.external_storage
        for driver in () if external is None else external.drivers:
            if isinstance(driver, ValueDriver):
                await driver.storage.check()

    # --- the journal, and what is added to it

    async def builds(self, task_id: str) -> Sequence[Build]:
        """See `Engine.builds`."""
        return await JournalReader(self.connection, task_id).builds()

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""
        return JournalReader(self.connection, task_id).entries(after)

    def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """See `Engine.past`."""
        return JournalReader(self.connection, task_id).past()

    def histories(self, task_id: str) -> AsyncIterator[dict[str, Any]]:
        """Temporal's history of each run of a task; see `refold.temporal.keeping.runs`."""
        return histories(self.connection, task_id)

    def purge(self, receipts: ReceiptsOfTask | None = None) -> Purge:
        """What deletes ended tasks; see `refold.temporal.keeping.purge`."""
        return Purge(self.connection, receipts)

    def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        """See `Engine.watch`."""
        return self.tails.watch(task_id, after, over_pauses=follow)

    async def explain(self, task_id: str, field: str, *, upto: int | None = None) -> Explanation:
        """See `Engine.explain`.

        Raises:
            InputRejected: As there; or the task's code differs, and history does not hold what its steps wrote.
        """
        if differs := (await self.look(task_id)).differs:
            raise InputRejected(f"only the code that recorded task {task_id!r} can say: {differs}")
        return explain([entry async for entry in self.journal(task_id)], field, upto=upto)

    async def at(self, task_id: str, seq: int) -> Snapshot:
        """See `Engine.at`. Asks the run that holds the entry, so a worker with the skill must be there."""
        return await JournalReader(self.connection, task_id).at(seq)


def _gates_of(view: TaskView, asked_by: str | None) -> set[tuple[str, str | None, tuple[str, ...]]]:
    return {(wait.gate, wait.digest, wait.granted_by) for wait in view.waiting_for if wait.asked_by == asked_by}
