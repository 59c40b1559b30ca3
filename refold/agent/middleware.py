"""Middleware wraps steps: it may change their input and output, skip a step, or repeat it.

The order is fixed: the agent's own middleware, the first one outermost; then the built-in `Traced` and `Retryable`;
then the "before" hooks; then the client; then the "after" hooks.

Each middleware has a scope. *Workflow* scope is the task itself: the middleware must be pure, runs again on replay,
stores data in the task's state (`turn.state.kept`), and takes the time from `turn.ctx`. *Activity* scope is the worker
that performs the call: the middleware may use clocks, locks and memory shared by all tasks, and sees the text as it
streams; it runs once for each attempt, and its result is recorded.

A model's text and the arguments of its calls are shown while they are written only if all middleware of the agent
declares `streams`: other middleware may still change or refuse what would have been shown.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import ValidationError

from refold.agent.state import Span
from refold.agent.steps import NAMES_PARTS, Emit, ModelTurn, Step, ToolTurn, in_order, short, unfit
from refold.core.authoring.context import own_patched
from refold.core.chat import Reply, ToolCall, ToolReturn
from refold.core.errors import RefoldError, SkillError
from refold.core.retry_policy import RetryPolicy

Scope = Literal["workflow", "activity"]
KINDS = ("model", "tool", "tools")
"""The kinds of step: model calls, tool calls, and batches of tool calls (`tools`, not in activity scope). A loop of the
user's own adds the kinds of its steps."""


class Middleware(ABC):
    """Wraps steps.

    Attributes:
        steps: The kinds of step it wraps.
        scope: Where it runs.
        streams: Whether a model's answer may be shown while it is written, and a tool's progress: the middleware
            changes and refuses nothing of it, or takes care of what is shown itself.
        asks_owner: Whether its part in the worker is told the task's owner.
    """

    asks_owner: bool = True
    steps: Collection[str] = ("model", "tool")
    scope: Scope = "workflow"
    streams: bool = False

    @abstractmethod
    def wrap(self, step: Step[Any, Any]) -> Step[Any, Any]:
        """Wrap a step. Called once for each kind, when the agent is made."""

    @property
    def shows_progress(self) -> bool:
        """Whether what a tool reports of its progress may be shown, although its result could still be changed."""
        return self.streams

    @property
    def in_worker(self) -> Middleware | None:
        """Its part in the worker that performs the call; None without one."""
        return self if self.scope == "activity" else None


Proceed = Callable[[Any], Awaitable[Any]]
Around = Callable[[Any, Proceed], Awaitable[Any]]


class Wrapped(Step[Any, Any]):
    """A step wrapped by a function.

    Args:
        inner: The step.
        around: `async def around(turn, proceed)`; `await proceed(turn)` runs the step.
    """

    def __init__(self, inner: Step[Any, Any], around: Around) -> None:
        self.kind = inner.kind  # type: ignore[misc]  # each wraps a step of some kind
        self._inner, self._around = inner, around

    async def stream(self, turn: Any, emit: Emit) -> Any:
        """See `Step.stream`."""

        async def proceed(turn: Any) -> Any:
            return await self._inner.stream(turn, emit)

        return await self._around(turn, proceed)


class Simple(Middleware):
    """Middleware that is one coroutine function."""

    @abstractmethod
    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """Run the step by `await proceed(turn)`, or do not."""

    def wrap(self, step: Step[Any, Any]) -> Step[Any, Any]:
        """See `Middleware.wrap`."""
        return Wrapped(step, self.around)


@dataclass(frozen=True)
class _Function(Simple):
    function: Around
    steps: Collection[str] = ("model", "tool")
    scope: Scope = "workflow"
    streams: bool = False

    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        return await self.function(turn, proceed)


def around(*steps: str, scope: Scope = "workflow", streams: bool = False) -> Callable[[Around], Middleware]:
    """Make a coroutine function middleware, for steps of these kinds; for `scope` and `streams` see `Middleware`.

    @around("model")
    async def in_capitals(turn, proceed):
        reply = await proceed(turn)
        return reply.model_copy(update={"text": reply.text.upper()})
    """

    def made(function: Around) -> Middleware:
        if not inspect.iscoroutinefunction(function):
            raise ValueError(f"{function!r} is no coroutine function; write `async def`, and `await proceed(turn)`")
        return _Function(function, steps or ("model", "tool"), scope, streams)

    return made


def wrapped(step: Step[Any, Any], middleware: Sequence[Middleware]) -> Step[Any, Any]:
    """The step wrapped by all middleware of its kind, the first one outermost; what each returns is checked."""
    for one in reversed(middleware):
        if step.kind in one.steps:
            step = Checked(one.wrap(step), step.kind, f"middleware {named(one)}")
    return step


class Checked(Step[Any, Any]):
    """A step whose result is checked: a result of another type would fail the task far from its cause.

    Args:
        inner: The step.
        kind: Its kind.
        whose: Who made it, for people.
    """

    def __init__(self, inner: Step[Any, Any], kind: str, whose: str) -> None:
        self.kind = kind  # type: ignore[misc]  # each wraps a step of some kind
        self._inner, self._whose = inner, whose

    async def stream(self, turn: Any, emit: Emit) -> Any:
        """See `Step.stream`.

        Raises:
            SkillError: The result has another type, or is another call's; or a value that was written does not fit.
        """
        try:
            result = await self._inner.stream(turn, emit)
        except ValidationError as error:
            if isinstance(turn, ToolTurn) and not _fits(turn.call) and own_patched(turn.ctx, NAMES_PARTS):
                raise  # middleware outside has given this call
            raise unfit(self._whose, error) from error
        if self.kind == "tools":
            return in_order(turn.calls, result, self._whose)
        if self.kind not in KINDS:
            return result  # of a step of the user's own, which its loop checks
        kind = Reply if self.kind == "model" else ToolReturn
        if not isinstance(result, kind):
            raise SkillError(
                f"{self._whose} returned {short(result)} for a {self.kind} step; it returns a {kind.__name__}, such as "
                "what `await proceed(turn)` returns"
            )
        if isinstance(result, ToolReturn) and result.id != turn.call.id:
            raise SkillError(
                f"{self._whose} returned a result for call {result.id!r}, and was given call {turn.call.id!r} of tool "
                f"{turn.call.name!r}; give the result the call's id"
            )
        return result


def _fits(call: ToolCall) -> bool:
    try:
        ToolCall.model_validate(dict(call))
    except ValidationError:
        return False
    return True


def named(one: Any) -> str:
    """A user's part of an agent, by the name of its function or class."""
    function = getattr(one, "function", None)
    return str(getattr(function, "__name__", None) or getattr(one, "__name__", None) or type(one).__name__)


class Held(Middleware):
    """Shows nothing of a call while it runs. Stands outermost, in the worker.

    Args:
        steps: The kinds of call: a model's text while it is written, or a tool's progress.
    """

    scope: Scope = "activity"

    def __init__(self, *steps: str) -> None:
        self.steps = steps
        self.asks_owner = "model" in steps  # recorded histories name the owner there

    def wrap(self, step: Step[Any, Any]) -> Step[Any, Any]:
        """See `Middleware.wrap`."""

        async def unseen(turn: Any, proceed: Proceed) -> Any:
            return await step.stream(turn, _nobody)

        return Wrapped(step, unseen)


def _nobody(_: object) -> None:
    pass


def in_workers(middleware: Sequence[Any], *, streams: bool, reports: bool) -> tuple[Middleware, ...]:
    """The middleware that runs in workers, the first one outermost.

    Args:
        middleware: The agent's.
        streams: Whether all else around a model call lets its answer be shown while it is written.
        reports: Whether all else around a tool call lets its progress be shown.
    """
    known = [one for one in middleware if isinstance(one, Middleware)]
    held = [] if streams and all(one.streams for one in known) else [Held("model")]
    if not (reports and all(one.shows_progress for one in known if {"tool", "tools"} & set(one.steps))):
        held.append(Held("tool"))
    return (*held, *(own for one in known if (own := one.in_worker) is not None))


@dataclass(frozen=True)
class Traced(Simple):
    """Built in: records a span of each step in the task's state, with its time and its error."""

    streams = True
    steps: Collection[str] = ("model", "tool")

    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        began, error = turn.ctx.now, ""
        try:
            result = await proceed(turn)
            if isinstance(turn, ToolTurn) and result.failed:
                error = str(result.value)[:200]
            return result
        except RefoldError as raised:
            error = str(raised)[:200]
            raise
        finally:
            name = f"tool {turn.call.name}" if isinstance(turn, ToolTurn) else getattr(turn, "name", "model")
            took_s = (turn.ctx.now - began).total_seconds()
            turn.state.note(Span(step=name, cycle=turn.state.cycle, took_s=took_s, error=error))


@dataclass(frozen=True)
class Retryable(Simple):
    """Built in: declares a retry policy. It retries nothing itself: the task retries, so that only one layer does.

    Attributes:
        policy: The policy; None takes the agent's `retry`.
    """

    policy: RetryPolicy | None = None
    steps: Collection[str] = ("model", "tool")
    streams = True

    async def around(self, turn: ModelTurn | ToolTurn, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        return await proceed(turn if turn.retry is not None else replace(turn, retry=self.policy))
