"""What a step can await: one command, several at once, or a race; and how a result becomes a value."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Generator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, cast

from pydantic import JsonValue, ValidationError

from refold.core.codec import codec, copied
from refold.core.commands import AskApproval, AskUser, CallLlm, Command, Sleep
from refold.core.errors import AWAIT, CommandError, DecodeError, SkillError, brief
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import problems

T = TypeVar("T")

PARKED = object()
"""What a coroutine gets in place of a failure that recovery skips: others go on as they did, as if it had come. The
call's own coroutine gets its outcome once the recovered task has sent it again."""


class NotAwaited:
    """What a step awaits. Used as its result instead, it says that the `await` is missing."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker finds by itself what there is not

        def __repr__(self) -> str:
            return f"<{self.named}, not awaited>"

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("__"):  # Python's own: it asks an object that is being copied, too
                raise AttributeError(name)
            raise AttributeError(f"{self.named} has no {name!r} until it is awaited; {AWAIT}", name=name, obj=self)

        def __getitem__(self, key: object) -> NoReturn:  # asked by a loop and by `one, two = ...`, too
            raise SkillError(f"{self.named} has no items until it is awaited; {AWAIT}")


class Call(NotAwaited, Generic[T]):
    """A command that a step awaits: `draft = await ctx.llm("draft", "Write.", topic)`.

    Each await sends it. A call that has its result, and is awaited again, is a new command of the same name.
    """

    __slots__ = (
        "_again_of", "awaited", "command", "in_flight", "kind", "left", "outcome", "parked", "raced", "received",
        "shared", "waiting", "withdrawn",
    )  # fmt: skip

    def __init__(self, command: Command, kind: Any, again_of: Call[Any] | None = None) -> None:
        self.command: Command = command
        self.kind = kind
        self.awaited = False
        self.raced = False
        self.in_flight = False
        self.withdrawn = False  # it lost its race to another call, or an error closed its coroutine
        self._again_of = again_of
        self.parked = False  # it failed in a task that another one recovers, and is sent again there
        self.left = False  # an error closed its coroutine, and the effect stays in flight
        self.shared = False  # several branches of `Parallel` may await it
        self.waiting = 0  # how many coroutines await it now
        self.outcome: tuple[Any, ...] = ()  # of a shared call that has completed: its value or failure
        self.received = False  # of a shared call: a coroutine has its outcome

    @property
    def made(self) -> Call[Any]:
        """The call that the step made: this one, or the effect that this one is to send again."""
        return self if self._again_of is None else self._again_of

    @property
    def named(self) -> str:
        """The call, as errors name it."""
        return f"the call {self.command.id!r}"

    def close(self) -> None:
        """Do nothing; `Parallel.close` has coroutines to close."""

    def __await__(self) -> Generator[Asked, Any, T]:
        self.awaited = True
        if self.outcome:  # the call has completed with this event; the coroutines that await it are resumed later
            (value,) = self.outcome
            if isinstance(value, CommandError):
                raise value
            return cast("T", value)
        self.waiting += 1
        try:
            results: tuple[T] = yield anew((self,))
        finally:
            self.waiting -= 1
        return results[0]


def name_apart(calls: Sequence[Call[Any]], taken: Collection[str] = ()) -> None:
    """Number the calls whose id another call has before them, or one that is `taken`: `search`, `search.2`.

    Raises:
        SkillError: One call is there twice; it can have one id only.
    """
    if (twice := _twice(calls)) is not None:
        raise awaited_twice(twice)
    taken, last = set(taken), dict[str, int]()
    for call in calls:
        id = given = call.command.id
        while id in taken:
            last[given] = last.get(given, 1) + 1
            id = f"{given}.{last[given]}"
        if id != given:
            call.command = call.command.model_copy(update={"id": id})
        taken.add(id)


def awaited_twice(call: Call[Any]) -> SkillError:
    """The error for one call that is awaited in two places, or again after an error has ended who awaited it."""
    if call.left and call.in_flight:
        return SkillError(
            f"{call.named} is still in flight, and its outcome is ignored, because an error ended the coroutine that "
            "awaited it; catch the error in the coroutine that raises it, and `ctx.parallel` lets the others go on"
        )
    return SkillError(f"{call.named} is awaited twice at once; make a call for each, with `ctx` again")


def _twice(calls: Sequence[Call[Any]]) -> Call[Any] | None:
    seen = set[int]()
    for call in calls:
        if id(call) in seen:
            return call
        seen.add(id(call))
    return None


class Gather(NotAwaited, Generic[T]):
    """Several calls at once; see `Ctx.gather`."""

    __slots__ = ("calls",)

    named = "a `ctx.gather(...)`"

    def __init__(self, calls: tuple[Call[Any], ...]) -> None:
        self.calls = calls

    def __await__(self) -> Generator[Asked, Any, T]:
        for call in self.calls:
            call.awaited = True
        return cast("T", (yield anew(self.calls)) if self.calls else ())


class FirstOf:
    """Send these calls, then resume when any outstanding call (new or earlier) completes. Awaited by `Parallel`.

    The coroutine is resumed with a list of pairs: a call, and its value or the `CommandError` it failed with. Among
    them may be calls of a `Parallel` that an error has ended, whose outcomes nobody awaits.

    Attributes:
        failed: Ids of commands whose failures branches have received: to be raised in a branch, or when all have ended.
    """

    __slots__ = ("calls", "failed")

    def __init__(self, calls: tuple[Call[Any], ...], failed: tuple[str, ...] = ()) -> None:
        self.calls, self.failed = calls, failed
        for call in calls:
            call.awaited = True


class First(NotAwaited, Generic[T]):
    """The first of several calls; see `Ctx.first`."""

    __slots__ = ("calls",)

    named = "a `ctx.first(...)`"

    def __init__(self, calls: tuple[Call[Any], ...]) -> None:
        self.calls = calls

    def __await__(self) -> Generator[FirstOf, Any, T]:
        self.calls = calls = anew(self.calls)
        for call in calls:
            call.raced = True
            if isinstance(call.command, AskUser | AskApproval):
                call.command = call.command.model_copy(update={"raced": True})
        index, results, unsent = None, dict[int, Any](), calls
        while index is None:
            completed: list[tuple[Call[Any], Any]] = yield FirstOf(unsent)
            results, unsent = {id(call): result for call, result in completed if result is not PARKED}, ()
            index = next((number for number, call in enumerate(calls) if id(call) in results), None)
        for number, call in enumerate(calls):
            call.withdrawn = number != index
        result = results[id(calls[index])]
        if isinstance(result, CommandError):
            raise result
        return cast("T", (index, result))  # a pair, as `Ctx.first` says


RACEABLE = (Sleep, AskUser, AskApproval, CallLlm)
"""Commands that can be canceled without leaving it unknown whether an effect took place."""

Asked = tuple[Call[Any], ...]


def anew(calls: Asked) -> Asked:
    """The calls to send: a call that was withdrawn, or left in flight, stays so and is sent again as a new one."""
    return tuple(_anew(call) if call.withdrawn or call.left else call for call in calls)


def _anew(call: Call[Any]) -> Call[Any]:
    # Two coroutines may each send one timer, question or model call again, but not an effect.
    return Call(call.command, call.kind, None if isinstance(call.command, RACEABLE) else call.made)


def close(run: Any) -> None:
    """Close a coroutine, also one that awaits more calls as it is closed (`finally: await ...`). Nothing is sent."""
    for _ in range(10 if inspect.iscoroutine(run) else 0):
        with suppress(Exception):
            run.close()
            break


def no_call(who: str, awaited: object, *, of_asyncio: bool = False) -> SkillError:
    """The error for a coroutine that awaited something other than calls of its context."""
    of_asyncio = of_asyncio or hasattr(awaited, "_asyncio_future_blocking")
    what = "something of asyncio" if of_asyncio else brief(awaited, 100)
    return SkillError(f"{who} awaited {what}; await calls of ctx only, such as `ctx.gather(...)` and `ctx.sleep(...)`")


def decode_as(kind: Any, value: JsonValue, id: str, invocation_id: str) -> Any:
    """`value` decoded as the type `kind`; with `Any`, a copy.

    Raises:
        DecodeError: The value does not fit; the message says where.
    """
    if kind is Any or type(value) is kind is str:
        return copied(value)
    try:
        return codec(kind).fresh(value, outside=True)
    except ValidationError as error:
        name = getattr(kind, "__name__", str(kind))
        message = f"the value does not fit {name}: {problems(error)}"
        failure = Failure(kind=FailureKind.PERMANENT, type="decode", message=message)
        raise DecodeError(id, invocation_id, failure) from None
