"""An `Engine` in memory, for tests of programs that use one: no server, and a clock that the test advances.

Rule 1: nothing happens in the background. `start`, `send`, `decide`, `resolve`, `recover`, `cancel` and `advance` do
  all that can be done now, and then return: commands are answered oldest first, task by task, until only timers,
  people, and commands without an answer are left. With `auto=False` this happens in `settle` alone.
Rule 2: time stands still until `advance` moves the clock; each timer fires at its own time.
Rule 3: a command without an answer stays open until the test calls `reply` or `fail`.
Rule 4: refusals are decided by the core's rules, as in any engine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from typing import Any

from pydantic import JsonValue

from refold.conversation import check_previous, previous_of
from refold.core.authoring.define import listed, skill_of
from refold.core.authoring.skill import Live, Skill, skill_id
from refold.core.chat import Previous
from refold.core.commands import CallSkill, CallTool, Notify, PartBudget
from refold.core.content import Content
from refold.core.errors import InputRejected
from refold.core.events import (
    CANCELED,
    CancelRequested,
    ChildAsked,
    DependencyResolved,
    Early,
    Event,
    SkillOutcome,
    Unreadable,
    UserMessage,
)
from refold.core.fold.apply import advance, planned
from refold.core.fold.journal import Entry, no_entry
from refold.core.fold.questions import refused_answers
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, finished, wanted
from refold.core.lifecycle import Ending, TaskState
from refold.core.lineage.ids import own_id
from refold.core.retry_policy import Failure
from refold.core.values import REFUSAL_CHARS, shortened
from refold.core.waits import Unresolved, Wait
from refold.engine import (
    Build,
    Decision,
    EngineError,
    Listed,
    News,
    NoWorker,
    OffspringView,
    Place,
    Progress,
    TaskExists,
    TaskFilter,
    TaskNotFound,
    TaskView,
    Tokens,
    UnknownSkill,
)
from refold.engine.decisions import decision_of, gate_of, holder_of
from refold.engine.refusals import (
    HAS_BEGUN,
    check_later,
    check_task_id,
    checked,
    is_over,
    message_of,
    not_failed,
    not_needed,
    not_over,
    nothing_to_cancel,
    part_not_over,
    recovered_before,
)
from refold.engine.together import refused
from refold.engine.view import not_begun, view_of, with_first
from refold.lineage.fork import fork, unforkable
from refold.lineage.recover import recover, sent_again
from refold.record import Explanation, TaskRecord, explain, record_of
from refold.testing.answers import Answers, ScriptError, as_failure, outcome, permanent
from refold.testing.bugs import tell
from refold.testing.callbacks import is_callback, made
from refold.testing.play import EVENT_LIMIT, START

NO_WORKER = "no worker answers; start one with `refold worker`"

_MORE = "; if it is no loop, give FakeEngine(limit=) a larger number"


class Clock:
    """A clock that stands still until it is advanced.

    Attributes:
        now: The time it shows, aware.
    """

    def __init__(self, now: datetime = START) -> None:
        self.now = now

    def advance(self, seconds: float) -> None:
        """Advance it. Timers that are due by then fire when the engine settles next.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock is turned forward, not by {seconds:g} seconds")
        self.now += timedelta(seconds=seconds)


@dataclass(slots=True, kw_only=True)
class _Task:
    skill: Skill
    snapshots: list[Snapshot]
    entries: list[Entry] = field(default_factory=list)
    told: list[News] = field(default_factory=list)
    live: Live = field(default_factory=Live)
    going: dict[str, object] = field(default_factory=dict)
    first: Event | None = None
    held: bool = False
    begins_at: datetime | None = None
    asked_by: str | None = None
    reported: tuple[tuple[Wait, ...], tuple[Unresolved, ...]] = ((), ())
    watchers: list[asyncio.Future[None]] = field(default_factory=list)

    @property
    def now(self) -> Snapshot:
        return self.snapshots[-1]

    def after(self, seq: int) -> list[Entry]:
        """The entries after number `seq`; those of a recovered or forked task begin at a later number than 1."""
        return self.entries[max(0, seq - self.snapshots[0].seq) :]

    @property
    def later(self) -> bool:
        """Whether it was started with a hold or a delay, and has not begun."""
        return self.first is not None and (self.held or self.begins_at is not None)

    def tell(self, news: News) -> None:
        self.told.append(news)
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def more(self) -> None:
        watcher = asyncio.get_running_loop().create_future()
        self.watchers.append(watcher)
        await watcher


class FakeEngine:
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
        worker: Whether a worker is running. Without one, tasks stay `submitted`, views say so in their `note`, and
            `send` and `cancel` raise `NoWorker`. After setting it, call `settle`.
        fault: An error that every call raises, for example `NotConnected("...")`; None for none.
    """

    def __init__(
        self,
        skills: Iterable[Any] = (),
        *,
        answers: Mapping[str, Any] | None = None,
        tools: Iterable[Callable[..., Any]] = (),
        now: datetime = START,
        auto: bool = True,
        limit: int = EVENT_LIMIT,
    ) -> None:
        compiled = [skill_of(skill) for skill in listed(skills)]
        self.skills: dict[str, Skill] = {skill_id(skill): skill for skill in compiled}
        self.answers = Answers(answers, tools)
        self.clock = Clock(now)
        self.auto = auto
        self.limit = limit
        self.worker = True
        self.fault: EngineError | None = None
        self._tasks: dict[str, _Task] = {}
        self._numbers = count(1)

    # --- the engine

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
        check_later(hold, start_delay)
        message = message_of(content, message_id=message_id, delivery_id=delivery_id)
        before = None if previous is None else self._task(previous).now
        if before is not None:
            check_previous(before, owner)
        if task_id is None:
            task_id = next(id for n in self._numbers if (id := f"{skill}-{n}") not in self._tasks)
        else:
            check_task_id(task_id)
        if task_id in self._tasks:
            raise TaskExists(task_id)
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
            started_by=() if started_by is None else (started_by,),
        )
        task.held = hold
        task.begins_at = None if start_delay is None else self.clock.now + start_delay
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
        said = message_of(
            content,
            slot=slot,
            delivery_id=delivery_id,
            message_id=message_id,
            sender=sender,
            early=early,
        )
        task = self._task(task_id)
        self._need_worker()
        if said.called_back or delivery_id is None or delivery_id not in task.now.seen:
            self._take(task, said)
            await self._do()
        return self._view(task)

    async def release(self, task_id: str, *, by: str | None = None) -> TaskView:
        """See `Engine.release`."""
        task = self._task(task_id)
        self._need_worker()
        if self._over(task):
            raise is_over(task_id, task.now.status, task.now.lifecycle)
        if not task.later:
            raise InputRejected(f"task {task_id!r}: {HAS_BEGUN}")
        task.held, task.begins_at = False, None
        await self._do()
        return self._view(task)

    async def cancel(self, task_id: str, *, reason: str = "") -> TaskView:
        """See `Engine.cancel`."""
        task = self._task(task_id)
        self._need_worker()
        if task.now.ended:
            raise nothing_to_cancel(task_id, task.now.status)
        self._take(task, CancelRequested(reason=shortened(reason or CANCELED, REFUSAL_CHARS)))
        await self._do()
        return self._view(task)

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
        """See `Engine.decide`. A decision with `vouched_by` counts as signed."""
        said = {"gate": gate, "approved": approved, "digest": digest, "comment": comment, "changes": changes or {}}
        return await self.decide_together(
            task_id, [checked(Decision, **said)], approver=approver, vouched_by=vouched_by
        )

    async def decide_together(
        self, task_id: str, decisions: Sequence[Decision], *, approver: str, vouched_by: str | None = None
    ) -> TaskView:
        """See `Engine.decide_together`. Decisions with `vouched_by` count as signed."""
        task = self._task(task_id)
        self._need_worker()
        view = self._view(task)
        met = [gate_of(view, one, task.now.grace) for one in decisions]
        asked_by = {wait.gate: wait.asked_by or task_id for wait in view.waiting_for}
        holder = holder_of(task_id, [gate for gate, _ in met], asked_by)
        made = [
            decision_of(one, gate, shown, approver=approver, vouched_by=vouched_by)
            for one, (gate, shown) in zip(decisions, met, strict=True)
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
        self._need_worker()
        self._take(task, said)
        await self._do()
        return self._view(task)

    async def recover(self, task_id: str, *, by: str | None = None, task_queue: str | None = None) -> TaskView:
        """See `Engine.recover`. There are no task queues here."""
        failed = self._task(task_id)
        if failed.now.lifecycle is not TaskState.FAILED:
            raise not_failed(task_id, failed.now.status)
        if not self._over(failed):
            raise not_over(task_id)
        new_id = next(id for n in count(1) if (id := f"{task_id}.r{n}") not in self._tasks)
        below = list(self._below(task_id))
        for id in (*self._above(failed), task_id, *below):
            if id in below and not self._over(self._tasks[id]):
                raise part_not_over(id)
            if (other := self._going_on(id)) is not None:
                raise recovered_before(id, other.task_id, other.status)
        snapshot, first = recover(failed.skill, failed.snapshots[0], failed.entries, new_id, self.clock.now, by=by)
        task = self._tasks[new_id] = _Task(skill=failed.skill, snapshots=[snapshot], first=first)
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
        task = self._task(task_id)
        if why := unforkable(task_id, task.snapshots[0].seq + 1, task.entries, at):
            raise InputRejected(why)
        if new_id is None:
            new_id = next(id for n in count(1) if (id := f"{task_id}.f{n}") not in self._tasks)
        if new_id in self._tasks:
            raise TaskExists(new_id)
        snapshot, first = fork(
            task.skill, task.snapshots[0], task.entries, new_id, self.clock.now, seq=at, live=live, by=by
        )
        branch = self._tasks[new_id] = _Task(skill=task.skill, snapshots=[snapshot], first=first)
        await self._do()
        return self._view(branch)

    async def begin(self, snapshot: Snapshot, first: Event) -> TaskView:
        """Start a task from a snapshot and its first event, as `refold.core.lineage` makes both."""
        task = self._tasks[snapshot.task_id] = _Task(
            skill=self.skills[snapshot.skill], snapshots=[snapshot], first=first
        )
        await self._do()
        return self._view(task)

    def _over(self, task: _Task) -> bool:
        """Whether a task and its parts have ended, and nothing more is wanted for any of them."""
        return finished(task.now) and all(
            self._over(one) for one in self._tasks.values() if one.asked_by == task.now.task_id
        )

    def _above(self, task: _Task) -> Iterator[str]:
        """The tasks that this one is a part of."""
        while task.asked_by is not None:
            yield task.asked_by
            task = self._tasks[task.asked_by]

    def _counted_as(self, task: _Task) -> str:
        """The task under which this one's events are counted, to find loops: itself, or the part that it is below.

        So a task may have many parts, and parts that call parts without end are found.
        """
        return [task.now.task_id, *self._above(task)][-2:][0]

    def _below(self, task_id: str) -> Iterator[str]:
        """The parts of a failed task that did not complete and that recovery may send again, and theirs."""
        failed = self._task(task_id)
        end = next((place for place, entry in enumerate(failed.entries) if entry.ends), None)
        again = set[str]()
        if end is not None:
            again = sent_again(failed.snapshots[end], failed.snapshots[end + 1], failed.entries[end])
        for id, task in self._tasks.items():
            if task.asked_by == task_id and task.now.ending is not Ending.COMPLETED and id in again:
                yield id
                yield from self._below(id)

    def _going_on(self, task_id: str) -> Snapshot | None:
        """The task that recovers this one: directly, or through recovered tasks that failed."""
        for id, task in self._tasks.items():
            if task.snapshots[0].recovered_from == task_id and task.asked_by is None:
                going_on = self._going_on(id) if task.now.lifecycle is TaskState.FAILED else task.now
                if going_on is not None:
                    return going_on
        return None

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
        return record_of(with_first(task.now, task.first))

    async def list(
        self,
        *,
        skill: str | None = None,
        lifecycle: TaskState | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> AsyncIterator[TaskView]:
        """See `Engine.list`."""
        self._reach()
        wanted = TaskFilter(skill=skill, lifecycle=lifecycle, owner=owner)
        found = [task for task in reversed(self._tasks.values()) if _is(task.now, wanted)]
        for task in found[:limit]:
            yield self._view(task)

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """See `Engine.find`."""
        self._reach()
        found = sorted(
            (_listed(task.now, over=self._over(task)) for task in self._tasks.values() if _is(task.now, wanted)),
            key=_order,
        )
        rest = [one for one in found if after is None or _order(one) > (START - after.at, after.task_id)]
        return rest[:limit]

    async def count(self, wanted: TaskFilter) -> int:
        """See `Engine.count`."""
        self._reach()
        return sum(_is(task.now, wanted) for task in self._tasks.values())

    async def ping(self) -> None:
        """See `Engine.ping`."""
        self._reach()

    async def builds(self, task_id: str) -> Sequence[Build]:
        """See `Engine.builds`. One stretch: nothing is recomputed here."""
        return (Build(seq=self._task(task_id).now.seq),)

    async def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """See `Engine.journal`."""
        for entry in self._task(task_id).after(after):
            yield entry

    async def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """See `Engine.past`. A task has one run here."""
        task = self._task(task_id)
        yield task.snapshots[0]
        for entry in task.after(0):
            yield entry

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        """See `Engine.watch`. `write` makes model text, for those that watch at that moment."""
        task = self._task(task_id)
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
        task = self._task(task_id)
        base, last = task.snapshots[0].seq, task.now.seq
        if not base <= seq <= last:
            raise InputRejected(no_entry(task_id, seq, base + 1, last))
        return task.snapshots[seq - base]

    # --- for tests

    async def settle(self) -> None:
        """Do all that can be done now.

        Raises:
            ScriptError: It does not end; the skill loops.
        """
        done = Counter[str]()
        while (task := await self._one()) is not None:
            line = self._counted_as(task)
            done[line] += 1
            if done[line] > self.limit:
                raise ScriptError(f"{self.limit} events of task {line!r} without the clock moving, and no end{_MORE}")

    async def advance(self, seconds: float | None = None) -> None:
        """Advance the clock, stopping at each timer that comes due on the way. Without a worker no timer rings.

        Args:
            seconds: How far; None advances until no timer is left.

        Raises:
            ScriptError: There is always another timer, without `seconds`; or the skill loops.
        """
        until = None if seconds is None else self.clock.now + timedelta(seconds=seconds)
        rung = Counter[str]()
        await self.settle()
        while self.worker:
            timers = ((at, self._counted_as(task)) for task in self._tasks.values() for at in _due(task))
            due, line = min(timers, default=(None, ""))
            if due is None or (until is not None and due > until):
                break
            rung[line] += 1
            if rung[line] > self.limit and until is None:
                raise ScriptError(f"{self.limit} timers of task {line!r} rang, and there is no end of them{_MORE}")
            self.clock.now = max(self.clock.now, due)
            await self.settle()
        if until is not None:
            self.clock.now = max(self.clock.now, until)

    async def reply(self, task_id: str, id: str, value: Any = None) -> TaskView:
        """Deliver a result to the open command with this id.

        Raises:
            ScriptError: No such command is open.
        """
        return await self._come_back(task_id, id, value)

    async def fail(self, task_id: str, id: str, failure: str | Failure | Exception = "it failed") -> TaskView:
        """Fail the open command with this id: finally, or with `transient(...)`.

        Raises:
            ScriptError: No such command is open.
        """
        return await self._come_back(task_id, id, as_failure(failure))

    async def signal(self, task_id: str, event: Event) -> Entry:
        """Deliver any event to a task, as a raw signal does: a refusal is journaled, and raises nothing."""
        task = self._task(task_id)
        entry = self._feed(task, event)
        await self._do()
        return entry

    def write(self, task_id: str, id: str, text: str, *, call: int | None = None, tool: str = "") -> None:
        """Send model text to watchers while the model is writing.

        Args:
            task_id: A task that was started with `stream=True`; others show nothing.
            id: The open model command.
            text: The new text.
            call: The index of the tool call that it is a part of, from 0; None for text to the user.
            tool: That call's tool.
        """
        task = self._task(task_id)
        out = self._out(task, id)
        before = [one for one in task.told if isinstance(one, Tokens)]
        place = (out.invocation_id, out.attempt, call)
        offset = sum(len(one.text) for one in before if (one.invocation_id, one.attempt, one.call) == place)
        if task.now.stream:
            told = Tokens(
                invocation_id=out.invocation_id, attempt=out.attempt, offset=offset, text=text, call=call, tool=tool
            )
            task.tell(told)

    def report(self, task_id: str, id: str, said: JsonValue) -> None:
        """Send what a tool reports of its progress to watchers.

        Args:
            task_id: The task.
            id: The open tool command.
            said: What it reports.
        """
        task = self._task(task_id)
        out = self._out(task, id)
        place = (out.invocation_id, out.attempt)
        number = sum(isinstance(one, Progress) and (one.invocation_id, one.attempt) == place for one in task.told) + 1
        command = out.command
        tool = command.name if isinstance(command, CallTool) else ""
        task.tell(Progress(invocation_id=out.invocation_id, attempt=out.attempt, number=number, tool=tool, said=said))

    # --- implementation

    def _reach(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _need_worker(self) -> None:
        if not self.worker:
            raise NoWorker(NO_WORKER)

    def _task(self, task_id: str) -> _Task:
        self._reach()
        if task_id not in self._tasks:
            raise TaskNotFound(task_id)
        return self._tasks[task_id]

    def _view(self, task: _Task) -> TaskView:
        note = not_begun(task.now.task_id, task.begins_at) if task.later else ""
        return view_of(with_first(task.now, task.first), note=note if self.worker else NO_WORKER)

    def _planned(
        self,
        skill: Skill,
        task_id: str,
        message: UserMessage,
        *,
        stream: bool = False,
        asked_by: str | None = None,
        budget: PartBudget | None = None,
        owner: str | None = None,
        context: str | None = None,
        previous: Previous | None = None,
        started_by: tuple[str, ...] = (),
    ) -> _Task:
        """A task with its first message, or InputRejected."""
        snapshot = planned(
            skill,
            task_id,
            self.clock.now,
            stream=stream,
            parent=asked_by,
            budget=budget,
            owner=owner,
            context=context,
            previous=previous,
            started_by=started_by,
        )
        if reason := refusal(skill, snapshot, message, self.clock.now):
            raise InputRejected(reason)
        return _Task(skill=skill, snapshots=[snapshot], first=message, asked_by=asked_by)

    def _take(self, task: _Task, *events: Event) -> None:
        """Apply events as an update does: all or none, and refused ones leave no trace."""
        if self._over(task):
            raise is_over(task.now.task_id, task.now.status, task.now.lifecycle)
        if task.later and not isinstance(events[0], CancelRequested):
            raise InputRejected(f"task {task.now.task_id!r}: {not_begun(task.now.task_id, task.begins_at)}")
        if (found := refused(task.skill, task.now, events, self.clock.now)) is not None:
            raise InputRejected(found.why)
        self._feed(task, *events)

    async def _do(self) -> None:
        if self.auto:
            await self.settle()

    async def _one(self) -> _Task | None:
        """Do the first thing that can be done now, and say for which task; None if there is nothing."""
        if not self.worker:
            return None
        for task in list(self._tasks.values()):
            if task.first is not None:
                if task.held or (task.begins_at is not None and task.begins_at > self.clock.now):
                    continue
                first, task.first, task.begins_at = task.first, None, None
                self._feed(task, first)
                return task
            for key, want in wanted(task.now).items():
                if isinstance(want, Alarm):
                    if want.due_at <= self.clock.now:
                        self._feed(task, want.event)
                        return task
                elif key in task.going:
                    continue
                elif isinstance(want, SendAnswer):
                    task.going[key] = object()  # an answer is passed on once, for as long as it is wanted
                    self._feed(self._tasks[want.task_id], want.message)
                    return task
                elif await self._performed(task, key, want):
                    return task
        return None

    async def _performed(self, task: _Task, key: str, want: Perform) -> bool:
        going = task.going[key] = object()
        answer: Any
        if want.given is not None:
            answer = want.given.outcome
        elif self.answers.know(want.command):
            answer = self.answers.give(want.command)
            if inspect.iscoroutine(answer):
                try:
                    answer = await answer
                except asyncio.CancelledError:  # whoever called the engine is gone: the next call performs it again
                    if task.going.get(key) is going:
                        del task.going[key]
                    raise
        elif isinstance(want.command, Notify):
            answer = None
        elif is_callback(want.command):
            answer = made(want.command, task.now.task_id, want.invocation_id, self.clock.now)
        elif isinstance(want.command, CallSkill):
            answer = self._call_skill(task, want.command, want.invocation_id)
            if answer is None:
                return True
        else:
            del task.going[key]
            return False
        # The task may have dropped the command while the stand-in ran.
        if task.going.get(key) is going:
            self._come_to(task, want, answer)
        return True

    def _come_to(self, task: _Task, want: Perform, answer: Any) -> None:
        """Feed what a command came to, and forget the command: where it is wanted again, it is performed again."""
        for key in [key for key, one in wanted(task.now).items() if one == want]:
            task.going.pop(key, None)
        self._feed(task, outcome(want.command, want.invocation_id, answer))

    def _earlier_part(self, task: _Task, id: str) -> _Task | None:
        """The child that a child of a recovered task continues: of the task that failed, or of one recovered before."""
        failed = task.now.recovered_from
        while failed is not None and own_id(failed, id) not in self._tasks:
            earlier = self._tasks.get(failed)  # `begin` takes a task that goes on for one of another engine
            failed = None if earlier is None else earlier.now.recovered_from
        return None if failed is None else self._tasks[own_id(failed, id)]

    def _go_on_with(self, part: _Task, new_id: str, asked_by: str) -> SkillOutcome | Failure | None:
        """Start the task that recovers a child of a recovered task; or deliver that child's result."""
        if part.now.ending is Ending.COMPLETED:
            return _outcome_of(part.now)
        try:
            snapshot, first = recover(part.skill, part.snapshots[0], part.entries, new_id, self.clock.now)
        except InputRejected as error:
            return permanent(error.reason, type="InputRejected")
        snapshot = snapshot.changed({"parent": asked_by})
        self._tasks[new_id] = _Task(skill=part.skill, snapshots=[snapshot], first=first, asked_by=asked_by)
        return None

    def _call_skill(self, task: _Task, command: CallSkill, invocation_id: str) -> SkillOutcome | Failure | None:
        """Start a child task; or deliver its result, if it cannot be started or has ended before."""
        skill = self.skills.get(command.skill)
        if skill is None:
            return permanent(str(UnknownSkill(command.skill, list(self.skills))), type="UnknownSkill")
        message = UserMessage(content=command.input)
        earlier = self._earlier_part(task, invocation_id)
        if earlier is not None:
            return self._go_on_with(earlier, invocation_id, task.now.task_id)
        try:
            now = task.now
            child = self._planned(
                skill,
                invocation_id,
                message,
                stream=now.stream,
                asked_by=now.task_id,
                budget=command.budget,
                owner=now.owner,
                context=now.context,
                started_by=now.started_by,
            )
        except InputRejected as error:
            return permanent(error.reason, type="InputRejected")
        self._tasks[invocation_id] = child
        return None

    def _feed(self, task: _Task, *events: Event) -> Entry:
        if isinstance(events[0], CancelRequested):
            task.first = None
        elif task.later:
            events = (Unreadable(sent_as=events[0].kind, why=not_begun(task.now.task_id, task.begins_at)),)
        again: dict[str, str] = {}
        for event in events:
            snapshot, entry = advance(task.skill, task.now, event, self.clock.now, live=task.live)
            tell(task.live, snapshot)
            task.snapshots.append(snapshot)
            task.entries.append(entry)
            task.tell(entry)
            again |= refused_answers(entry, snapshot)
        snapshot = task.now
        want = wanted(snapshot)
        task.going = {key: one for key, one in task.going.items() if key in want}
        self._stop_children(task)
        if finished(snapshot):
            self._report(task)
        elif task.asked_by is not None and (again or (snapshot.open_waits, snapshot.unresolved) != task.reported):
            waits, unresolved = task.reported = snapshot.open_waits, snapshot.unresolved
            asked = ChildAsked(invocation_id=snapshot.task_id, waits=waits, unresolved=unresolved, refused=again)
            self._feed(self._tasks[task.asked_by], asked)
        return task.entries[-1]

    def _stop_children(self, task: _Task) -> None:
        for id, child in list(self._tasks.items()):
            if child.asked_by == task.now.task_id and not child.now.ended and id not in task.now.pending:
                self._feed(child, CancelRequested(reason=not_needed(task.now.task_id)))

    def _report(self, part: _Task) -> None:
        """Deliver the result of a part to its parent, once its own parts have ended."""
        if part.asked_by is None or not self._over(part):
            return
        parent, now = self._tasks[part.asked_by], part.now
        out = (one for one in wanted(parent.now).values() if isinstance(one, Perform))
        want = next((one for one in out if one.invocation_id == now.task_id), None)
        if want is None:
            self._report(parent)  # it has ended before, and waited for this part
        else:
            self._come_to(parent, want, _outcome_of(now) if now.ending is Ending.COMPLETED else _failure_of(now))

    def _out(self, task: _Task, id: str) -> Perform:
        out = [one for one in wanted(task.now).values() if isinstance(one, Perform)]
        found = next((one for one in out if one.command.id == id), None)
        if found is None:
            listed = ", ".join(repr(one.command.id) for one in out) or "nothing"
            raise ScriptError(f"no command {id!r} is out in task {task.now.task_id!r}; out: {listed}")
        return found

    async def _come_back(self, task_id: str, id: str, answer: Any) -> TaskView:
        task = self._task(task_id)
        self._come_to(task, self._out(task, id), answer)
        await self._do()
        return self._view(task)


def _outcome_of(task: Snapshot) -> SkillOutcome:
    said = [message.text for message in task.messages if message.role == "agent"]
    return SkillOutcome(task_id=task.task_id, text=said[-1] if said else "", artifacts=task.artifacts)


def _failure_of(task: Snapshot) -> Failure:
    """How a task that did not complete fails the command that it is a part for, as on Temporal."""
    if task.ending is Ending.CANCELED:
        return permanent("it was canceled from outside", type="canceled")
    return permanent(task.reason, type="TaskRejected" if task.ending is Ending.REJECTED else "TaskFailed")


def _is(task: Snapshot, wanted: TaskFilter) -> bool:
    """Whether a task fits the filter."""
    return (
        wanted.skill in (None, task.skill)
        and wanted.lifecycle in (None, task.lifecycle)
        and wanted.status in (None, task.status)
        and (wanted.owner is None or (task.parent is None and wanted.owner == (task.owner or "")))
        and (wanted.context is None or (task.parent is None and wanted.context == (task.context or task.task_id)))
        and (wanted.begins is None or task.task_id.startswith(wanted.begins))
        and (not wanted.waits or bool(task.open_waits) or task.lifecycle is TaskState.BLOCKED)
        and (wanted.since is None or wanted.since <= (task.status_at or task.at))
        and (wanted.moved_since is None or wanted.moved_since <= _moved_at(task))
    )


def _listed(task: Snapshot, *, over: bool) -> Listed:
    return Listed(
        task_id=task.task_id,
        skill=task.skill,
        status=task.status,
        lifecycle=task.lifecycle,
        status_at=task.status_at or task.at,
        moved_at=_moved_at(task),
        over=over,
    )


def _moved_at(task: Snapshot) -> datetime:
    return task.at + timedelta(microseconds=task.seq)  # the clock may stand still from one entry to the next


def _order(listed: Listed) -> tuple[timedelta, str]:
    return START - listed.status_at, listed.task_id


def _due(task: _Task) -> Iterator[datetime]:
    """When a task's timers, and its delayed start, come due."""
    if task.first is not None and task.begins_at is not None:
        yield task.begins_at
    yield from (want.due_at for want in wanted(task.now).values() if isinstance(want, Alarm))
