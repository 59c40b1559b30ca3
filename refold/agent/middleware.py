"""Middleware wraps steps: it may change their input and output, skip a step, or repeat it.

The order is fixed: the agent's own middleware, the first one outermost; then the built-in `Traced` and `Retryable`;
then the "before" hooks; then the client; then the "after" hooks.

Each middleware has a scope. *Workflow* scope is the task itself: the middleware must be pure, runs again on replay,
stores data in the task's state (`turn.state.kept`), and takes the time from `turn.ctx`. *Activity* scope is the worker
that performs the call: the middleware may use clocks, locks and memory shared by all tasks, and sees the text as it
streams; it runs once for each attempt, and its result is recorded.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from refold.agent.state import Span
from refold.agent.steps import Emit, ModelTurn, Step, ToolTurn
from refold.core.errors import RefoldError
from refold.core.retry_policy import RetryPolicy

Scope = Literal["workflow", "activity"]
KINDS = ("model", "tool", "tools")
"""The kinds of step: model calls, tool calls, and batches of tool calls (`tools`, not in activity scope)."""


class Middleware(ABC):
    """Wraps steps.

    Attributes:
        steps: The kinds of step it wraps.
        scope: Where it runs.
    """

    steps: Collection[str] = ("model", "tool")
    scope: Scope = "workflow"

    @abstractmethod
    def wrap(self, step: Step[Any, Any]) -> Step[Any, Any]:
        """Wrap a step. Called once for each kind, when the agent is made."""


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

    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        return await self.function(turn, proceed)


def around(*steps: str, scope: Scope = "workflow") -> Callable[[Around], Middleware]:
    """Make a coroutine function middleware, for steps of these kinds.

    @around("model")
    async def in_capitals(turn, proceed):
        reply = await proceed(turn)
        return reply.model_copy(update={"text": reply.text.upper()})
    """

    def made(function: Around) -> Middleware:
        if not inspect.iscoroutinefunction(function):
            raise ValueError(f"{function!r} is no coroutine function; write `async def`, and `await proceed(turn)`")
        return _Function(function, steps or ("model", "tool"), scope)

    return made


def wrapped(step: Step[Any, Any], middleware: Sequence[Middleware]) -> Step[Any, Any]:
    """The step wrapped by all middleware of its kind, the first one outermost."""
    for one in reversed(middleware):
        if step.kind in one.steps:
            step = one.wrap(step)
    return step


@dataclass(frozen=True)
class Traced(Simple):
    """Built in: records a span of each step in the task's state, with its time and its error."""

    steps: ClassVar[Collection[str]] = ("model", "tool")  # type: ignore[misc]  # always these

    async def around(self, turn: ModelTurn | ToolTurn, proceed: Proceed) -> Any:
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
            name = f"tool {turn.call.name}" if isinstance(turn, ToolTurn) else "model"
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

    async def around(self, turn: ModelTurn | ToolTurn, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        return await proceed(turn if turn.retry is not None else replace(turn, retry=self.policy))
