"""Parallel branches of a step (`ctx.parallel`): each coroutine is resumed as soon as its own calls complete.

There is no event loop. The branches' calls are the step's calls, and outcomes resume branches in the journal's order,
so a step that is driven again resumes its branches in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from inspect import CORO_CREATED, CORO_SUSPENDED, getcoroutinestate
from typing import Any, Generic, TypeVar

from refold.core.commands import AskApproval, AskUser, Sleep
from refold.core.errors import CommandError, SkillError, first_of
from refold.core.steps.calls import (
    PARKED,
    RACEABLE,
    Asked,
    Call,
    FirstOf,
    NotAwaited,
    awaited_twice,
    close,
    name_apart,
    no_call,
)

T = TypeVar("T")
Completed = list[tuple[Call[Any], Any]]
"""Completed calls, each with its value or its failure."""

CLOSED = "refold.step.parallel_closes"
"""The patch with which calls of a coroutine that an error closed are withdrawn, except effects in flight."""

ONCE = "refold.step.awaited_once"
"""The patch with which a call or coroutine that two branches await is an error; one of them was lost before."""

EXCUSED = "refold.step.closed_call_excused"
"""The patch with which a call is no mistake that a coroutine had made, and not awaited yet, when an error closed it."""

EXITS = "refold.step.exit_closes"
"""The patch with which errors that are no `Exception`, such as `SystemExit`, withdraw calls as other errors do."""

Made = list["Call[Any] | Parallel[Any]"]
"""Calls that coroutines made, to be awaited or not."""


class Parallel(NotAwaited, Generic[T]):
    """See `Ctx.parallel`. `made` has all calls that the step has made so far."""

    named = "a `ctx.parallel(...)`"

    def __init__(
        self, runs: Sequence[Coroutine[Any, Any, T]], limit: int | None, patched: Callable[[str], bool], made: Made
    ) -> None:
        self._patched = patched
        self._branches = [_Branch(place, run, made) for place, run in enumerate(runs)]
        self._limit = limit
        self.awaited = False
        self._open: dict[int, tuple[Call[Any], _Branch]] = {}
        self._unsent: list[tuple[Call[Any], _Branch]] = []
        self._joined: dict[int, list[_Branch]] = {}  # by the call: branches that await one that another branch sends
        self._unraised: dict[int, tuple[str, ...]] = {}  # by the branch's place: who asks each branch does so per event

    def close(self) -> None:
        """Close the coroutines, so that Python does not warn of coroutines that were never awaited."""
        self._patched = _unpatched  # it refers to the context, and the context to this object
        for branch in self._branches:
            close(branch.run)
            branch.made = []  # it may have this object

    def __await__(self) -> Generator[FirstOf, Any, tuple[T, ...]]:
        self.awaited = True
        try:
            for branch in self._branches:
                if branch.begun and self._patched(ONCE):
                    raise SkillError(
                        f"parallel got the coroutine {branch.name!r}, which has begun already, and a coroutine "
                        "runs once; call its function for each: `ctx.parallel(f(ctx), f(ctx))`"
                    )
                self._went_on(branch, branch.resume(None))
            while (calls := self._next()) is not None:
                completed: Completed = yield FirstOf(
                    calls, tuple(id for _, ids in sorted(self._unraised.items()) for id in ids)
                )
                for branch, results in self._by_branch(completed):
                    self._went_on(branch, branch.receive(results, self._patched))
        except BaseException as error:
            if not isinstance(error, Exception) and not (self._exits(error) and self._patched(EXITS)):
                raise
            shared = self._withdraw()
            self._excuse()
            self.close()
            for call in shared:
                call.withdrawn = not call.waiting
            raise
        finally:
            self.close()
        if (failed := first_of(branch.failed for branch in self._branches)) is not None:
            raise failed
        return tuple(branch.value for branch in self._branches)

    def _exits(self, error: BaseException) -> bool:
        """Whether this error, which is no `Exception`, is the step's own, and leaves calls behind."""
        left = self._open or any(call.shared for call, _ in self._unsent) or self._unawaited()
        return bool(left) and _is_of_step(error)

    def _unawaited(self) -> list[Call[Any] | Parallel[Any]]:
        return [one for branch in self._branches if branch.suspended for one in branch.own if not one.awaited]

    def _withdraw(self) -> list[Call[Any]]:
        """Withdraw the calls that nobody awaits after an error, as those of a race that lost.

        Not sent yet are the calls that an outer `Parallel` has kept back. A question that stayed open would keep the
        task paused. Returns the shared calls, which coroutines outside may await.
        """
        calls = [call for call, _ in self._open.values()]
        shared = [call for call, _ in (*self._open.values(), *self._unsent) if call.shared]
        if not (calls or shared) or not self._patched(CLOSED):
            return []
        for call in calls:
            call.left = call.in_flight and not isinstance(call.command, RACEABLE)
            call.withdrawn = not call.left and not call.shared
        return shared

    def _excuse(self) -> None:
        """Let the step end without the calls that the coroutines which are closed now have made and not awaited."""
        unawaited = self._unawaited()
        if unawaited and self._patched(EXCUSED):
            for one in unawaited:
                one.awaited = True
                one.close()

    def _went_on(self, branch: _Branch, calls: Sequence[Call[Any]]) -> None:
        for call in calls:
            if call.shared and any(call is one for one, _ in (*self._open.values(), *self._unsent)):
                self._joined.setdefault(id(call), []).append(branch)
            else:
                self._unsent.append((call, branch))
        self._unraised.pop(branch.place, None)
        if unraised := branch.unraised:
            self._unraised[branch.place] = unraised

    def _next(self) -> tuple[Call[Any], ...] | None:
        """The calls to send now; None if no call is outstanding then.

        Questions and gates pause the task, so they are sent when nothing but the timers of races is outstanding. A
        timer that races with one starts along with it, or it could win against a question that nobody has seen.
        """
        self._open = {key: one for key, one in self._open.items() if not one[0].withdrawn}
        self._unsent = [one for one in self._unsent if not one[0].withdrawn]
        self._check_once()
        asking = {branch.place for call, branch in self._unsent if isinstance(call.command, AskUser | AskApproval)}
        now = []
        limit, busy = self._limit, 0
        if limit is not None:
            busy = sum(not isinstance(call.command, Sleep) for call, _ in self._open.values() if not call.parked)
        for call, branch in self._unsent:
            if call.shared and call.in_flight:  # a branch outside has sent it: its outcome may come with any event
                now.append((call, branch))
                continue
            timer = isinstance(call.command, Sleep)
            if isinstance(call.command, AskUser | AskApproval) or (timer and call.raced and branch.place in asking):
                continue
            if timer or limit is None or busy < limit:
                now.append((call, branch))
                busy += not timer
        under_way = [call for call, _ in (*self._open.values(), *now) if not call.parked]
        if all(call.raced and isinstance(call.command, Sleep) for call in under_way):
            now = sorted(self._unsent, key=lambda one: not isinstance(one[0].command, Sleep))
        if now:
            # A shared call may be under way already, outside, and keeps its name.
            new = [call for call, _ in now if not (call.shared and call.in_flight)]
            name_apart(new, {one.command.id for one, _ in self._open.values() if not one.parked})
            self._open |= {id(call): (call, branch) for call, branch in now}
            self._unsent = [one for one in self._unsent if id(one[0]) not in self._open]
        return tuple(call for call, _ in now) if self._open else None

    def _check_once(self) -> None:
        """Raise an error if two branches await one call, also if they came to it at different times."""
        seen = {id(call.made): call for call, _ in self._open.values()}
        for call, _ in self._unsent:
            if id(call.made) in seen and self._patched(ONCE):
                raise awaited_twice(seen[id(call.made)])
            seen[id(call.made)] = call

    def _by_branch(self, completed: Completed) -> list[tuple[_Branch, Completed]]:
        """Completed calls, grouped by the branch that awaits them, in the order of the branches; others are ignored."""
        grouped: dict[int, Completed] = {}
        for one in completed:
            if one[1] is PARKED:
                for parked in filter(None, [self._open.get(id(one[0]))]):
                    grouped.setdefault(parked[1].place, []).append(one)
            elif (mine := self._open.pop(id(one[0]), None)) is not None:
                for branch in (mine[1], *self._joined.pop(id(one[0]), ())):
                    grouped.setdefault(branch.place, []).append(one)
        return [(self._branches[place], results) for place, results in sorted(grouped.items())]


def _is_of_step(error: BaseException) -> bool:
    """Whether this error, which is no `Exception`, is the step's own: not one with which refold closes a coroutine."""
    return isinstance(error, SystemExit | BaseExceptionGroup) or type(error).__name__ == "CancelledError"


def _unpatched(_: str) -> bool:
    return False


class _Branch:
    """One coroutine.

    Attributes:
        place: Which one of the branches it is, from 0.
        value: The value that the coroutine returned.
        failed: The command's failure that the coroutine did not catch.
        made: All calls that the step has made so far.
        own: The calls among them that the coroutine has made.
    """

    def __init__(self, place: int, run: Coroutine[Any, Any, Any], made: Made) -> None:
        self.place = place
        self.run = run
        self.made = made
        self.own: Made = []
        self.value: Any = None
        self.failed: CommandError | None = None
        self._awaited: Asked | FirstOf = ()
        self._results: dict[int, Any] = {}

    @property
    def name(self) -> str:
        """The name of the coroutine's function."""
        return str(getattr(self.run, "__name__", self.run))

    @property
    def begun(self) -> bool:
        """Whether the coroutine has run before, or was closed."""
        return getcoroutinestate(self.run) != CORO_CREATED

    @property
    def suspended(self) -> bool:
        """Whether the coroutine awaits something."""
        return getcoroutinestate(self.run) == CORO_SUSPENDED

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
        made_before = len(self.made)
        try:
            awaited = self.run.throw(results) if isinstance(results, CommandError) else self.run.send(results)
        except StopIteration as stop:
            self.value = stop.value
            return ()
        except CommandError as error:
            self.failed = error
            return ()
        self.own += self.made[made_before:]
        self._awaited = awaited
        if isinstance(awaited, FirstOf):
            return awaited.calls
        if not isinstance(awaited, tuple) or not all(isinstance(call, Call) for call in awaited):
            raise no_call("a coroutine in ctx.parallel", awaited)
        return awaited

    def receive(self, completed: Completed, patched: Callable[[str], bool]) -> Sequence[Call[Any]]:
        """Resume the coroutine if it has enough results now. Returns the calls that it awaits next."""
        if not self._awaited:
            return ()  # it has ended, and left a call outstanding: one of a `Parallel` that an error ended
        if isinstance(self._awaited, FirstOf):
            return self.resume(completed)
        completed = [one for one in completed if one[1] is not PARKED]
        mine = {id(call) for call in self._awaited}
        ignored = [result for call, result in completed if id(call) not in mine]
        if any(isinstance(result, CommandError) for result in ignored) and patched(CLOSED):
            # Else recovery would take a failure that is never raised for one that is to come, and send the call again.
            completed = [one for one in completed if id(one[0]) in mine]
        self._results |= {id(call): result for call, result in completed}
        if any(id(call) not in self._results for call in self._awaited):
            return ()
        results = tuple(self._results[id(call)] for call in self._awaited)
        return self.resume(first_of(results) or results)
