"""Parallel branches of a step (`ctx.parallel`): each coroutine is resumed as soon as its own calls complete.

There is no event loop. The branches' calls are the step's calls, and outcomes resume branches in the journal's order,
so a step that is driven again resumes its branches in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

from refold.core.commands import AskApproval, AskUser, Sleep
from refold.core.errors import CommandError, SkillError, brief, first_of
from refold.core.steps.calls import Asked, Call, FirstOf

T = TypeVar("T")


class Parallel(Generic[T]):
    """See `Ctx.parallel`."""

    def __init__(self, runs: Sequence[Coroutine[Any, Any, T]], limit: int | None) -> None:
        self._jobs = [_Job(run) for run in runs]
        self._limit = limit
        self.awaited = False
        self._open: dict[int, tuple[Call[Any], _Job]] = {}
        self._waiting: deque[tuple[Call[Any], _Job]] = deque()
        self._questions: list[tuple[Call[Any], _Job]] = []

    @property
    def named(self) -> str:
        """The call, as errors name it."""
        return "a `ctx.parallel(...)`"

    def close(self) -> None:
        """Close the coroutines, so that Python does not warn of coroutines that were never awaited."""
        for job in self._jobs:
            job.run.close()

    def __await__(self) -> Generator[FirstOf, Any, tuple[T, ...]]:
        self.awaited = True
        try:
            for job in self._jobs:
                self._take(job, job.go_on(None))
            while (calls := self._next()) is not None:
                came: list[tuple[Call[Any], Any]] = yield FirstOf(calls, self._failed())
                for job, results in self._sorted(came):
                    self._take(job, job.arrived(results))
        finally:
            self.close()
        if failed := [job.failed for job in self._jobs if job.failed is not None]:
            raise first_of(failed)
        return tuple(job.value for job in self._jobs)

    def _failed(self) -> tuple[str, ...]:
        return tuple(id for job in self._jobs if job.failed is not None for id in job.failed.failed_ids)

    def _take(self, job: _Job, calls: Sequence[Call[Any]]) -> None:
        for call in calls:
            question = isinstance(call.command, AskUser | AskApproval)
            (self._questions if question else self._waiting).append((call, job))

    def _next(self) -> tuple[Call[Any], ...] | None:
        """The calls to send now; None when all branches have ended.

        Questions pause the task, and a paused task sends no commands. So all questions are asked together, when no
        call is outstanding but timers that race with questions.
        """
        self._open = {key: one for key, one in self._open.items() if not one[0].withdrawn}
        self._waiting = deque(one for one in self._waiting if not one[0].withdrawn)
        self._questions = [one for one in self._questions if not one[0].withdrawn]
        asked = []
        busy = sum(not isinstance(call.command, Sleep) for call, _ in self._open.values())
        for call, job in list(self._waiting):
            free = self._limit is None or busy < self._limit or isinstance(call.command, Sleep)
            if free:
                self._waiting.remove((call, job))
                asked.append((call, job))
                busy += not isinstance(call.command, Sleep)
        if not asked and all(call.raced and isinstance(call.command, Sleep) for call, _ in self._open.values()):
            asked, self._questions = self._questions, []
        for call, job in asked:
            self._name_apart(call)
            self._open[id(call)] = call, job
        return tuple(call for call, _ in asked) if self._open else None

    def _name_apart(self, call: Call[Any]) -> None:
        """Give a call an id that no outstanding call has."""
        taken = {one.command.id for one, _ in self._open.values()}
        given, number = call.command.id, 2
        while call.command.id in taken:
            call.command = call.command.model_copy(update={"id": f"{given}.{number}"})
            number += 1

    def _sorted(self, came: list[tuple[Call[Any], Any]]) -> list[tuple[_Job, list[tuple[Call[Any], Any]]]]:
        """Completed calls with their results, grouped by the branch that awaits them, in the order of the branches."""
        by_job: dict[int, list[tuple[Call[Any], Any]]] = {}
        for call, result in came:
            _, job = self._open.pop(id(call))
            by_job.setdefault(id(job), []).append((call, result))
        return [(job, by_job[id(job)]) for job in self._jobs if id(job) in by_job]


class _Job:
    """One branch.

    Attributes:
        value: The value that the coroutine returned.
        failed: The command's failure that the coroutine did not catch.
    """

    def __init__(self, run: Coroutine[Any, Any, Any]) -> None:
        self.run = run
        self.value: Any = None
        self.failed: CommandError | None = None
        self._first = False
        self._asked: Asked = ()
        self._came: dict[int, Any] = {}

    def go_on(self, results: Any) -> Sequence[Call[Any]]:
        """Resume the coroutine with results, or by raising a failure in it. Returns the calls that it awaits next."""
        self._came = {}
        try:
            asked = self.run.throw(results) if isinstance(results, CommandError) else self.run.send(results)
        except StopIteration as stop:
            self.value = stop.value
            return ()
        except CommandError as error:
            self.failed = error
            return ()
        if isinstance(asked, FirstOf):
            self._first = True
            return asked.calls
        if not isinstance(asked, tuple) or not all(isinstance(call, Call) for call in asked):
            raise SkillError(f"a coroutine in ctx.parallel awaited {brief(asked, 100)}; it awaits calls of ctx only")
        self._first, self._asked = False, asked
        return asked

    def arrived(self, came: list[tuple[Call[Any], Any]]) -> Sequence[Call[Any]]:
        """Note completed calls; resume the coroutine if these were enough. Returns the calls that it awaits next."""
        if self._first:
            return self.go_on(came)
        self._came |= {id(call): result for call, result in came}
        if any(id(call) not in self._came for call in self._asked):
            return ()
        results = tuple(self._came[id(call)] for call in self._asked)
        return self.go_on(next((one for one in results if isinstance(one, CommandError)), results))
