"""What the tasks of the engine in memory do: take events, have commands answered, start and stop their parts."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from itertools import count
from typing import Any

from refold.core.authoring.define import listed, skill_of
from refold.core.authoring.skill import Skill, skill_id
from refold.core.chat import Previous
from refold.core.commands import CallSkill, Notify, PartBudget
from refold.core.errors import InputRejected
from refold.core.events import CancelRequested, ChildAsked, Event, SkillOutcome, Unreadable, UserMessage
from refold.core.fold.apply import advance, planned
from refold.core.fold.journal import Entry
from refold.core.fold.questions import refused_answers
from refold.core.fold.refusal import refusal
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, finished, wanted
from refold.core.lifecycle import Ending, TaskState
from refold.core.retry_policy import Failure
from refold.engine import EngineError, NoWorker, TaskNotFound, TaskView, UnknownSkill
from refold.engine.arguments import Count, takes
from refold.engine.refusals import is_over, not_needed, start_refused
from refold.engine.together import refused, too_many
from refold.engine.view import not_begun, view_of
from refold.lineage.recover import recover
from refold.testing.answers import Answers, ScriptError, outcome, permanent
from refold.testing.bugs import tell
from refold.testing.callbacks import is_callback, made
from refold.testing.fake_engine.clock import Clock
from refold.testing.fake_engine.parts import earlier_part, failure_of, outcome_of, over
from refold.testing.fake_engine.task import Task
from refold.testing.play import EVENT_LIMIT, START

NO_WORKER = "no worker answers; start one with `refold worker`"


class Running:
    """The tasks and the stand-ins of an engine; its arguments and attributes as those of `FakeEngine`."""

    @takes(ScriptError)
    def __init__(
        self,
        skills: Iterable[Any] = (),
        *,
        answers: Mapping[str, Any] | None = None,
        tools: Iterable[Callable[..., Any]] = (),
        now: datetime = START,
        auto: bool = True,
        limit: Count = EVENT_LIMIT,
    ) -> None:
        compiled = [skill_of(skill) for skill in listed(skills)]
        self.skills: dict[str, Skill] = {skill_id(skill): skill for skill in compiled}
        self.answers = Answers(answers, tools)
        self.clock = Clock(now)
        self.auto = auto
        self.limit = limit
        self.worker = True
        self.fault: EngineError | None = None
        self._tasks: dict[str, Task] = {}
        self._numbers = count(1)

    def _reach(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _silent(self, task: Task) -> bool:
        """Whether nobody answers for a task: it is open, and there is no worker."""
        return not self.worker and not over(self._tasks, task)

    def _need(self, task: Task, what: str) -> None:
        """See that a task can take what is sent to it: it is open, and there is a worker."""
        now = task.now
        if over(self._tasks, task):
            raise is_over(now.task_id, now.status, now.lifecycle)
        if not self.worker:
            raise NoWorker(f"task {now.task_id!r} cannot take the {what}: {NO_WORKER}")

    def _task(self, task_id: str) -> Task:
        self._reach()
        if task_id not in self._tasks:
            raise TaskNotFound(task_id)
        return self._tasks[task_id]

    def _asked(self, task_id: str, what: str = "") -> Task:
        """A task whose worker answers: Temporal gives a delayed task to none before it begins or is sent something."""
        task = self._task(task_id)
        if task.delayed or self._silent(task):
            why = not_begun(task_id, task.begins_at) if task.delayed else NO_WORKER
            asked = f"asked {what}".rstrip()
            raise NoWorker(f"task {task_id!r} cannot be {asked}: {why}")
        return task

    def _view(self, task: Task) -> TaskView:
        if self._silent(task) and not task.delayed:
            return view_of(task.known, note=NO_WORKER)
        return view_of(task.shown, note=not_begun(task.now.task_id, task.begins_at) if task.later else task.refused)

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
        unseen: bool = False,
    ) -> Task:
        """A task with its first message; InputRejected if that does not fit, unless no worker sees it yet."""
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
        if not unseen and (reason := refusal(skill, snapshot, message, self.clock.now)):
            raise InputRejected(reason)
        return Task(skill=skill, snapshots=[snapshot], first=message, asked_by=asked_by)

    def _take(self, task: Task, *events: Event) -> None:
        """Apply events as an update does: all or none, and refused ones leave no trace."""
        if over(self._tasks, task):
            raise is_over(task.now.task_id, task.now.status, task.now.lifecycle)
        self._wake(task)
        if task.later and not isinstance(events[0], CancelRequested):
            raise InputRejected(f"task {task.now.task_id!r}: {not_begun(task.now.task_id, task.begins_at)}")
        if (found := too_many(events) or refused(task.skill, task.snapshots[-1], events, self.clock.now)) is not None:
            raise InputRejected(found.why)
        if task.refused:
            raise is_over(task.now.task_id, task.now.status, task.now.lifecycle)
        self._feed(task, *events)

    def _wake(self, task: Task) -> None:
        """Show a task to a worker, as whatever is sent to it does: a delayed start that does not fit is refused."""
        task.woken = True
        if task.begins_at is not None and self._misfits(task):
            self._begin(task)

    def _misfits(self, task: Task) -> bool:
        return task.first is not None and bool(refusal(task.skill, task.now, task.first, self.clock.now))

    def _begin(self, task: Task) -> None:
        first, task.first, task.begins_at = task.first, None, None
        assert first is not None
        entry = self._feed(task, first)
        if entry.refused and task.now.lifecycle is TaskState.PLANNED:
            task.refused = start_refused(entry.refused)
            task.moves(entry.at)

    async def _one(self) -> Task | None:
        """Do the first thing that can be done now, and say for which task; None if there is nothing."""
        if not self.worker:
            return None
        for task in list(self._tasks.values()):
            later = task.held or (task.begins_at is not None and task.begins_at > self.clock.now)
            if task.first is not None and (not later or (task.held and self._misfits(task))):
                self._begin(task)
                return task
            asked, task.canceling = task.canceling, None
            if asked is not None and not task.now.ended:
                self._feed(task, asked)
                return task
            if task.first is not None or task.refused:
                continue
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

    async def _performed(self, task: Task, key: str, want: Perform) -> bool:
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

    def _come_to(self, task: Task, want: Perform, answer: Any) -> None:
        """Feed what a command came to, and forget the command: where it is wanted again, it is performed again."""
        for key in [key for key, one in wanted(task.now).items() if one == want]:
            task.going.pop(key, None)
        self._feed(task, outcome(want.command, want.invocation_id, answer))

    def _go_on_with(self, part: Task, new_id: str, asked_by: str) -> SkillOutcome | Failure | None:
        """Start the task that recovers a child of a recovered task; or deliver that child's result."""
        if part.now.ending is Ending.COMPLETED:
            return outcome_of(part.now)
        try:
            snapshot, first = recover(part.skill, part.snapshots[0], part.entries, new_id, self.clock.now)
        except InputRejected as error:
            return permanent(error.reason, type="InputRejected")
        snapshot = snapshot.changed({"parent": asked_by})
        self._tasks[new_id] = Task(skill=part.skill, snapshots=[snapshot], first=first, asked_by=asked_by)
        return None

    def _call_skill(self, task: Task, command: CallSkill, invocation_id: str) -> SkillOutcome | Failure | None:
        """Start a child task; or deliver its result, if it cannot be started or has ended before."""
        skill = self.skills.get(command.skill)
        if skill is None:
            return permanent(str(UnknownSkill(command.skill, list(self.skills))), type="UnknownSkill")
        message = UserMessage(content=command.input)
        earlier = earlier_part(self._tasks, task, invocation_id)
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

    def _feed(self, task: Task, *events: Event) -> Entry:
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
            if (snapshot.lifecycle, snapshot.status) != task.listed or finished(snapshot):
                task.moves(entry.at)
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

    def _stop_children(self, task: Task) -> None:
        for id, child in list(self._tasks.items()):
            if child.asked_by == task.now.task_id and not child.now.ended and id not in task.now.pending:
                self._feed(child, CancelRequested(reason=not_needed(task.now.task_id)))

    def _report(self, part: Task) -> None:
        """Deliver the result of a part to its parent, once its own parts have ended."""
        if part.asked_by is None or not over(self._tasks, part):
            return
        parent, now = self._tasks[part.asked_by], part.now
        out = (one for one in wanted(parent.now).values() if isinstance(one, Perform))
        want = next((one for one in out if one.invocation_id == now.task_id), None)
        if want is None:
            if over(self._tasks, parent):  # it has ended before, and waited for this part
                parent.moves(self.clock.now)
            self._report(parent)
        else:
            self._come_to(parent, want, outcome_of(now) if now.ending is Ending.COMPLETED else failure_of(now))
