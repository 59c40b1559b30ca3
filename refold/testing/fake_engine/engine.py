"""`FakeEngine`: the methods of `refold.engine.Engine`, over tasks in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from datetime import timedelta
from itertools import count

from pydantic import JsonValue

from refold.conversation import check_previous, previous_of
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.events import CANCELED, CancelRequested, DependencyResolved, Early, Event
from refold.core.fold.journal import Entry, no_entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import Status, TaskState
from refold.core.values import REFUSAL_CHARS, shortened
from refold.engine import (
    Build,
    Decision,
    EngineError,
    Listed,
    News,
    NoWorker,
    OffspringView,
    Place,
    TaskExists,
    TaskFilter,
    TaskView,
    UnknownSkill,
)
from refold.engine.arguments import Count, methods_take
from refold.engine.decisions import DecidesOne, decision_of, gate_of, holder_of
from refold.engine.refusals import (
    HAS_BEGUN,
    START_REFUSED,
    Named,
    check_delivery_id,
    check_later,
    check_skill_id,
    check_task_id,
    checked,
    message_of,
    no_journal,
    not_failed,
    not_over,
    nothing_to_cancel,
    part_not_over,
    recovered_before,
)
from refold.engine.view import late_gate, not_begun, with_first
from refold.lineage.fork import fork, unforkable
from refold.lineage.recover import recover
from refold.record import Explanation, TaskRecord, explain, record_of
from refold.testing.fake_engine.controls import Controls
from refold.testing.fake_engine.listing import fits, listed, order
from refold.testing.fake_engine.parts import above, below, going_on, over
from refold.testing.fake_engine.running import NO_WORKER
from refold.testing.fake_engine.task import Task
from refold.testing.play import START


@methods_take()
class FakeEngine(Controls, DecidesOne):
    """Runs tasks in memory; implements `refold.engine.Engine`.

    A child task (`Cmd.skill`) runs as a task of its own, with the command's invocation id as its task id, unless
    `answers` has an answer for the command. Its questions can be answered through its parent.

    Args:
        skills: The skills that it serves: skill classes, tables, compiled skills.
        answers: Stand-ins for models, tools and so on, as for `play`. Functions may be async.
        tools: Functions called with a tool command's arguments, by their name.
        now: The first time of the clock; aware.
        auto: Do what can be done at once, in each call; False leaves it to `settle`.
        limit: How many events of a task may happen while the clock stands still, and how many timers of it may ring
            while it is advanced to no time in particular; more counts as a loop.

    Attributes:
        clock: The time that tasks see.
        worker: Whether a worker is running. Without one, new tasks stay `submitted`, nothing checks what they start
            with, an open task's view has little more than its status and a `note`, and what would ask the task or send
            something to it raises `NoWorker`; a request to cancel is kept until a worker is there. After setting it,
            call `settle`.
        fault: An error that every call raises, for example `NotConnected("...")`; None for none.
    """

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
        """See `Engine.start`. Generated ids are `{skill}-1`, `{skill}-2`, … Here no task waits for another one."""
        self._reach()
        check_skill_id(skill)
        check_later(hold, start_delay)
        message = message_of(content, message_id=message_id, delivery_id=delivery_id)
        starters = () if started_by is None else (started_by,)
        checked(Named, owner=owner, started_by=starters, context=context)
        before = None if previous is None else self._asked(previous).now
        if before is not None:
            check_previous(before, owner)
        if task_id is None:
            task_id = next(id for n in self._numbers if (id := f"{skill}-{n}") not in self._tasks)
        else:
            check_task_id(task_id)
        self._need_free(task_id)
        if skill not in self.skills:
            raise UnknownSkill(skill, list(self.skills))
        task = self._planned(
            self.skills[skill],
            task_id,
            message,
            stream=stream,
            owner=owner,
            context=context,
            previous=None if before is None else previous_of(before),
            started_by=starters,
            unseen=start_delay is not None or not self.worker,
        )
        task.held = hold
        task.begins_at = None if start_delay is None else self.clock.now + start_delay
        if task.later:
            task.listed = (TaskState.PLANNED, Status.SUBMITTED)
        self._tasks[task_id] = task
        await self._do()
        return self._view(task)

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
        task = self._task(task_id)
        delivery = None if said.called_back else delivery_id
        if delivery is None or delivery not in task.delivered:
            self._need(task, "message")
            if delivery is None or delivery not in task.now.seen:
                self._take(task, said)
            if delivery is not None:
                task.delivered.add(delivery)
            await self._do()
        return self._view(task)

    async def release(self, task_id: str, *, by: str | None = None) -> TaskView:
        """See `Engine.release`."""
        task = self._task(task_id)
        self._need(task, "release")
        self._wake(task)
        if not task.later:
            raise InputRejected(f"task {task_id!r}: {HAS_BEGUN}")
        task.held, task.begins_at = False, None
        await self._do()
        return self._view(task)

    async def cancel(self, task_id: str, *, reason: str = "", by: str | None = None) -> TaskView:
        """See `Engine.cancel`."""
        task = self._task(task_id)
        if task.now.ended:
            raise nothing_to_cancel(task_id, task.now.status)
        asked = CancelRequested(reason=shortened(reason or CANCELED, REFUSAL_CHARS), by=by)
        if not self.worker:
            task.canceling = task.canceling or asked
            raise NoWorker(f"task {task_id!r} is not canceled yet, but will be once a worker is there: {NO_WORKER}")
        self._wake(task)
        if task.refused:
            raise nothing_to_cancel(task_id, task.now.status)
        self._take(task, asked)
        await self._do()
        return self._view(task)

    async def decide_together(
        self, task_id: str, decisions: Sequence[Decision], *, approver: str, vouched_by: str | None = None
    ) -> TaskView:
        """See `Engine.decide_together`. Decisions with `vouched_by` count as signed."""
        task = self._asked(task_id, "for its gates")
        view = self._view(task)
        met = [gate_of(view, one, late_gate(task.now)) for one in decisions]
        asked_by = {wait.gate: wait.asked_by or task_id for wait in view.waiting_for}
        holder = holder_of(task_id, [one.gate for one in met], asked_by)
        made = [
            decision_of(one, gate, approver=approver, vouched_by=vouched_by, said_at=self.clock.now)
            for one, gate in zip(decisions, met, strict=True)
        ]
        self._take(self._tasks.get(holder, task), *made)
        await self._do()
        return self._view(task)

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
        said = checked(
            DependencyResolved, invocation_id=invocation_id, retry=retry, outcome=outcome, by=by, comment=comment
        )
        task = self._task(task_id)
        self._need(task, "resolution")
        self._take(task, said)
        await self._do()
        return self._view(task)

    async def recover(self, task_id: str, *, by: str | None = None, task_queue: str | None = None) -> TaskView:
        """See `Engine.recover`. There are no task queues here."""
        failed = self._task(task_id)
        if failed.now.lifecycle is not TaskState.FAILED:
            raise not_failed(task_id, failed.now.status)
        if not over(self._tasks, failed):
            raise not_over(task_id)
        if failed.refused:
            raise EngineError(no_journal(task_id, failed.refused))
        new_id = next(id for n in count(1) if (id := f"{task_id}.r{n}") not in self._tasks)
        parts = list(below(self._tasks, failed))
        for id in (*above(self._tasks, failed), task_id, *parts):
            if id in parts and not over(self._tasks, self._tasks[id]):
                raise part_not_over(id)
            if (other := going_on(self._tasks, id)) is not None:
                raise recovered_before(id, other.task_id, other.status)
        snapshot, first = recover(failed.skill, failed.snapshots[0], failed.entries, new_id, self.clock.now, by=by)
        task = self._tasks[new_id] = Task(skill=failed.skill, snapshots=[snapshot], first=first)
        await self._do()
        return self._view(task)

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
        """See `Engine.fork`. Generated ids are `{task_id}.f1`, `{task_id}.f2`, …; there are no task queues here."""
        if new_id is not None:
            check_task_id(new_id)
        task = self._asked(task_id)
        if why := unforkable(task_id, task.snapshots[0].seq + 1, task.entries, at):
            raise InputRejected(why)
        if new_id is None:
            new_id = next(id for n in count(1) if (id := f"{task_id}.f{n}") not in self._tasks)
        self._need_free(new_id)
        snapshot, first = fork(
            task.skill, task.snapshots[0], task.entries, new_id, self.clock.now, seq=at, live=live, by=by
        )
        branch = self._tasks[new_id] = Task(skill=task.skill, snapshots=[snapshot], first=first)
        await self._do()
        return self._view(branch)

    def _need_free(self, task_id: str) -> None:
        """See that no task has this id; that of a task whose start was refused is free."""
        if task_id in self._tasks:
            if not self._tasks[task_id].refused:
                raise TaskExists(task_id)
            del self._tasks[task_id]

    async def begin(self, snapshot: Snapshot, first: Event) -> TaskView:
        """Start a task from a snapshot and its first event, as `refold.core.lineage` makes both."""
        task = self._tasks[snapshot.task_id] = Task(
            skill=self.skills[snapshot.skill], snapshots=[snapshot], first=first
        )
        await self._do()
        return self._view(task)

    async def offspring(self, task_id: str) -> tuple[OffspringView, ...]:
        """See `Engine.offspring`."""
        self._task(task_id)
        found: list[OffspringView] = []
        for id, task in self._tasks.items():
            base = task.snapshots[0]
            if base.recovered_from == task_id:
                found.append(OffspringView(task_id=id, how="recovered", seq=base.seq))
            elif base.fork is not None and base.fork.task_id == task_id and base.recovered_from is None:
                found.append(OffspringView(task_id=id, how="forked", seq=base.seq))
        return tuple(found)

    async def look(self, task_id: str) -> TaskView:
        """See `Engine.look`."""
        return self._view(self._task(task_id))

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        task = self._task(task_id)
        if self._silent(task) and not task.delayed:
            first = task.entries[0].event if task.entries else task.first
            return record_of(with_first(task.known, first)).changed({"note": NO_WORKER})
        if task.refused:
            record = record_of(with_first(task.now, task.entries[0].event))
            return record.changed({"note": START_REFUSED})
        record = record_of(with_first(task.now, task.first))
        return record.changed({"note": not_begun(task_id, task.begins_at)}) if task.delayed else record

    async def list(
        self,
        *,
        skill: str | None = None,
        lifecycle: TaskState | None = None,
        owner: str | None = None,
        limit: Count = 100,
    ) -> AsyncIterator[TaskView]:
        """See `Engine.list`."""
        self._reach()
        wanted = checked(TaskFilter, skill=skill, lifecycle=lifecycle, owner=owner)
        found = [task for task in reversed(self._tasks.values()) if fits(task, wanted)]
        for task in found[:limit]:
            yield self._view(task)

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: Count = 50) -> Sequence[Listed]:
        """See `Engine.find`."""
        self._reach()
        found = sorted(
            (listed(task, over=over(self._tasks, task)) for task in self._tasks.values() if fits(task, wanted)),
            key=order,
        )
        rest = [one for one in found if after is None or order(one) > (START - after.at, after.task_id)]
        return rest[:limit]

    async def count(self, wanted: TaskFilter) -> int:
        """See `Engine.count`."""
        self._reach()
        return sum(fits(task, wanted) for task in self._tasks.values())

    async def ping(self) -> None:
        """See `Engine.ping`."""
        self._reach()

    async def builds(self, task_id: str) -> Sequence[Build]:
        """See `Engine.builds`. One stretch: nothing is recomputed here."""
        return (Build(seq=self._asked(task_id).now.seq),)

    async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""
        for entry in self._asked(task_id).after(after):
            yield entry

    async def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """See `Engine.past`. A task has one run here."""
        task = self._asked(task_id)
        yield task.snapshots[0]
        for entry in task.after(0):
            yield entry

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        """See `Engine.watch`. `write` makes model text, for those that watch at that moment."""
        task = self._task(task_id)
        if task.first is None:  # one that no worker has taken is awaited
            self._asked(task_id)
        position = len(task.told)
        for entry in task.after(after):
            yield entry
        while True:
            while position < len(task.told):
                news = task.told[position]
                position += 1
                if not isinstance(news, Entry) or news.seq > after:
                    yield news
            held = task.held and task.first is not None
            if task.now.ended or ((task.now.open_waits or task.now.unresolved or held) and not follow):
                return
            await task.more()

    async def explain(self, task_id: str, field: str, *, upto: int | None = None) -> Explanation:
        """See `Engine.explain`."""
        return explain([entry async for entry in self.journal(task_id)], field, upto=upto)

    async def at(self, task_id: str, seq: int) -> Snapshot:
        """See `Engine.at`."""
        task = self._asked(task_id)
        if not self.worker:  # that of an ended task is asked, too
            raise NoWorker(f"task {task_id!r} cannot be asked: {NO_WORKER}")
        base, last = task.snapshots[0].seq, task.snapshots[-1].seq
        if not base <= seq <= last:
            raise InputRejected(no_entry(task_id, seq, base + 1, last))
        return task.snapshots[seq - base]
