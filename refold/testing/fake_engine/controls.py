"""What a test does beside the engine's own methods: settle, advance the clock, answer commands, send news."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

from pydantic import JsonValue

from refold.core.commands import CallTool
from refold.core.events import Event
from refold.core.fold.journal import Entry
from refold.core.fold.wanted import Perform, wanted
from refold.core.retry_policy import Failure
from refold.engine import Progress, TaskView, Tokens
from refold.engine.arguments import methods_take
from refold.testing.answers import ScriptError, as_failure
from refold.testing.fake_engine.parts import counted_as
from refold.testing.fake_engine.running import Running
from refold.testing.fake_engine.task import Task

_MORE = "; if it is no loop, give FakeEngine(limit=) a larger number"


@methods_take(ScriptError)
class Controls(Running):
    """The methods that `FakeEngine` has for tests."""

    async def settle(self) -> None:
        """Do all that can be done now.

        Raises:
            ScriptError: It does not end; the skill loops.
        """
        done = Counter[str]()
        while (task := await self._one()) is not None:
            line = counted_as(self._tasks, task)
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
            timers = ((at, counted_as(self._tasks, task)) for task in self._tasks.values() for at in task.due())
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

    async def _do(self) -> None:
        if self.auto:
            await self.settle()

    def _out(self, task: Task, id: str) -> Perform:
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
