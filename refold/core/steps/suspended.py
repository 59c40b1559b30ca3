"""A suspended step: its coroutine, and the calls that it awaits."""

from __future__ import annotations

from typing import Any, NamedTuple

from refold.core.authoring.context import Ctx
from refold.core.errors import CommandError
from refold.core.steps.calls import Asked, Call, FirstOf, close, no_call
from refold.core.steps.spec import StepSpec

_SAID_BY_ASYNCIO = (
    "no running event loop",
    "no current event loop",
    "should be used inside a task",
    "cannot determine the parent task",
)
"""How asyncio refuses a step: without a loop, and on a worker, whose loop runs no step as a task."""


class Going:
    """A suspended step: its coroutine and context, and its outstanding calls by invocation id.

    Attributes:
        stored: The value that the hooks store with the coroutine.
    """

    __slots__ = ("ctx", "open", "run", "stored")

    def __init__(self, ctx: Ctx, run: Any = None, stored: Any = None) -> None:
        self.ctx, self.run, self.stored = ctx, run, stored
        self.open: dict[str, Call[Any]] = {}

    def __del__(self) -> None:
        close(self.run)

    def asks(self, calls: Asked, ids: list[str], *, first: bool) -> None:
        """Note the calls of an await; with `first`, earlier outstanding calls stay."""
        self.drop_withdrawn()
        asked = dict(zip(ids, calls, strict=True))
        for call in calls:
            call.in_flight = True
        self.open = {**self.open, **asked} if first else asked

    def drop_withdrawn(self) -> list[str]:
        """Remove the calls that lost a race. Returns their ids."""
        lost = [id for id, call in self.open.items() if call.withdrawn]
        for id in lost:
            del self.open[id]
        return lost


class Asks(NamedTuple):
    """What a coroutine awaits: with `first`, one of the calls is enough."""

    calls: Asked
    first: bool = False
    failed: tuple[str, ...] = ()


class Returned(NamedTuple):
    """What a coroutine ended with."""

    value: Any


def next_ask(step: StepSpec, run: Any, results: Any) -> Asks | Returned:
    """Resume a coroutine. Returns the calls that it awaits next, or the value that it returned."""
    try:
        asked = run.throw(results) if isinstance(results, CommandError) else run.send(results)
    except StopIteration as stop:
        return Returned(stop.value)
    except RuntimeError as error:
        if not any(said in str(error) for said in _SAID_BY_ASYNCIO):
            raise
        raise no_call(f"step {step.name!r}", error, of_asyncio=True) from error
    if isinstance(asked, FirstOf):
        return Asks(asked.calls, True, asked.failed)
    if isinstance(asked, tuple) and asked and all(isinstance(one, Call) for one in asked):
        return Asks(asked)
    close(run)
    raise no_call(f"step {step.name!r}", asked)
