"""Parallel branches of a step (`ctx.parallel`): each coroutine is resumed as soon as its own calls complete.

There is no event loop. The branches' calls are the step's calls, and outcomes resume branches in the journal's order,
so a step that is driven again resumes its branches in the same order.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from typing import Any, Generic, TypeVar

from refold.core.commands import AskApproval, AskUser, Sleep
from refold.core.errors import CommandError, SkillError, brief, first_of
from refold.core.steps.calls import Asked, Call, FirstOf, close

T = TypeVar("T")
Completed = list[tuple[Call[Any], Any]]
"""Completed calls, each with its value or its failure."""


class Parallel(Generic[T]):
    """See `Ctx.parallel`."""

    named = "a `ctx.parallel(...)`"

    def __init__(self, runs: Sequence[Coroutine[Any, Any, T]], limit: int | None) -> None:
        self._branches = [_Branch(run) for run in runs]
        self._limit = limit
        self.awaited = False
        self._open: dict[int, tuple[Call[Any], _Branch]] = {}
        self._unsent: list[tuple[Call[Any], _Branch]] = []

    def close(self) -> None:
        """Close the coroutines, so that Python does not warn of coroutines that were never awaited."""
        for branch in self._branches:
            close(branch.run)

    def __await__(self) -> Generator[FirstOf, Any, tuple[T, ...]]:
        self.awaited = True
        try:
            for branch in self._branches:
                self._unsent += [(call, branch) for call in branch.resume(None)]
            while (calls := self._next()) is not None:
                completed: Completed = yield FirstOf(calls, tuple(id for one in self._branches for id in one.unraised))
                for branch, results in self._by_branch(completed):
                    self._unsent += [(call, branch) for call in branch.receive(results)]
        finally:
            self.close()
        if (failed := first_of(branch.failed for branch in self._branches)) is not None:
            raise failed
        return tuple(branch.value for branch in self._branches)

    def _next(self) -> tuple[Call[Any], ...] | None:
        """The calls to send now; None if no call is outstanding then.

        Questions and gates pause the task, so they are sent when nothing but the timers of races is outstanding.
        """
        self._open = {key: one for key, one in self._open.items() if not one[0].withdrawn}
        self._unsent = [one for one in self._unsent if not one[0].withdrawn]
        now, questions = [], []
        busy = sum(not isinstance(call.command, Sleep) for call, _ in self._open.values())
        for call, branch in self._unsent:
            timer = isinstance(call.command, Sleep)
            if isinstance(call.command, AskUser | AskApproval):
                questions.append((call, branch))
            elif timer or self._limit is None or busy < self._limit:
                now.append((call, branch))
                busy += not timer
        if all(call.raced and isinstance(call.command, Sleep) for call, _ in (*self._open.values(), *now)):
            now += questions
        self._unsent = [one for one in self._unsent if one not in now]
        for call, branch in now:
            self._name_apart(call)
            self._open[id(call)] = call, branch
        return tuple(call for call, _ in now) if self._open else None

    def _name_apart(self, call: Call[Any]) -> None:
        """Give a call an id that no outstanding call has."""
        taken = {one.command.id for one, _ in self._open.values()}
        given, number = call.command.id, 2
        while call.command.id in taken:
            call.command = call.command.model_copy(update={"id": f"{given}.{number}"})
            number += 1

    def _by_branch(self, completed: Completed) -> list[tuple[_Branch, Completed]]:
        """Completed calls, grouped by the branch that awaits them, in the order of the branches."""
        owners = {id(call): self._open.pop(id(call))[1] for call, _ in completed}
        grouped = [(branch, [one for one in completed if owners[id(one[0])] is branch]) for branch in self._branches]
        return [(branch, results) for branch, results in grouped if results]


class _Branch:
    """One coroutine.

    Attributes:
        value: The value that the coroutine returned.
        failed: The command's failure that the coroutine did not catch.
    """

    def __init__(self, run: Coroutine[Any, Any, Any]) -> None:
        self.run = run
        self.value: Any = None
        self.failed: CommandError | None = None
        self._awaited: Asked | FirstOf = ()
        self._results: dict[int, Any] = {}

    @property
    def unraised(self) -> tuple[str, ...]:
        """The ids of commands whose failures the coroutine has received and not raised, or has not caught."""
        if isinstance(self._awaited, FirstOf):
            return self._awaited.failed
        failed = (one for one in (self.failed, *self._results.values()) if isinstance(one, CommandError))
        return tuple(id for one in failed for id in one.failed_ids)

    def resume(self, results: Any) -> Sequence[Call[Any]]:
        """Resume the coroutine with results, or by raising a failure in it. Returns the calls that it awaits next."""
        self._awaited, self._results = (), {}
        try:
            awaited = self.run.throw(results) if isinstance(results, CommandError) else self.run.send(results)
        except StopIteration as stop:
            self.value = stop.value
            return ()
        except CommandError as error:
            self.failed = error
            return ()
        self._awaited = awaited
        if isinstance(awaited, FirstOf):
            return awaited.calls
        if not isinstance(awaited, tuple) or not all(isinstance(call, Call) for call in awaited):
            raise SkillError(f"a coroutine in ctx.parallel awaited {brief(awaited, 100)}; it awaits calls of ctx only")
        return awaited

    def receive(self, completed: Completed) -> Sequence[Call[Any]]:
        """Resume the coroutine if it has enough results now. Returns the calls that it awaits next."""
        if isinstance(self._awaited, FirstOf):
            return self.resume(completed)
        self._results |= {id(call): result for call, result in completed}
        if any(id(call) not in self._results for call in self._awaited):
            return ()
        results = tuple(self._results[id(call)] for call in self._awaited)
        return self.resume(first_of(results) or results)
