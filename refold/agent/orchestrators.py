"""Orchestrators decide which tool calls of one reply run concurrently. The steps do not know.

An orchestrator makes one step of other steps, so orchestrators nest, and middleware wraps them like any step. Each
returns one result for each call, in the order of the calls: exchanging one orchestrator for another changes nothing
else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from refold.agent.state import AgentState
from refold.agent.steps import Emit, Results, Step, ToolTurn, in_order
from refold.core.authoring.context import Ctx
from refold.core.chat import ToolCall, ToolReturn
from refold.core.values import is_count

ToolStepLike = Step[ToolTurn, ToolReturn]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsTurn:
    """The input of an orchestrator.

    Attributes:
        ctx: The task's context.
        state: The run's state.
        calls: The requested calls, in the model's order.
    """

    ctx: Ctx
    state: AgentState
    calls: tuple[ToolCall, ...]

    def of(self, call: ToolCall) -> ToolTurn:
        """The turn of one call."""
        return ToolTurn(ctx=self.ctx, state=self.state, call=call)


ToolsStep = Step[ToolsTurn, Results]
Wrap = Callable[[ToolsStep], ToolsStep]


def _bare(step: ToolsStep) -> ToolsStep:
    return step


class Orchestrator(ABC):
    """A way to run the tool calls of one reply."""

    @abstractmethod
    async def run(self, turn: ToolsTurn, tool: ToolStepLike, emit: Emit) -> Results:
        """One result for each call, in any order. A call without one gets a refusal; another result is an error.

        Args:
            turn: The calls.
            tool: The step that makes one call.
            emit: Receives each event as it happens.
        """

    def over(self, tool: ToolStepLike, wrap: Wrap = _bare) -> ToolsStep:
        """The step that runs `tool` for each call of a turn.

        Args:
            tool: The step that makes one call.
            wrap: Puts middleware around the step, and around nested orchestrators.
        """
        return wrap(_ToolsStep(self, tool))


class _ToolsStep(Step[ToolsTurn, Results]):
    kind: ClassVar[str] = "tools"

    def __init__(self, orchestrator: Orchestrator, tool: ToolStepLike) -> None:
        self._orchestrator, self._tool = orchestrator, tool

    async def stream(self, turn: ToolsTurn, emit: Emit) -> Results:
        came: Any = await self._orchestrator.run(turn, self._tool, emit)
        return in_order(turn.calls, came, f"orchestrator {type(self._orchestrator).__name__}")


@dataclass(frozen=True)
class Sequential(Orchestrator):
    """One after the other, in the model's order."""

    async def run(self, turn: ToolsTurn, tool: ToolStepLike, emit: Emit) -> Results:
        """See `Orchestrator.run`."""
        return tuple([await tool.stream(turn.of(call), emit) for call in turn.calls])


@dataclass(frozen=True)
class Concurrent(Orchestrator):
    """Concurrent calls: one that fails or is retried does not affect the others.

    Gates are opened together, once no call can proceed without a decision.

    Attributes:
        limit: How many calls may be open at once, 1 or more; None is no limit.
    """

    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not is_count(self.limit):
            raise ValueError(f"limit={self.limit!r} is no number of calls; give a whole number, 1 or more, or None")

    async def run(self, turn: ToolsTurn, tool: ToolStepLike, emit: Emit) -> Results:
        """See `Orchestrator.run`."""
        runs = [tool.stream(turn.of(call), emit) for call in turn.calls]
        return await turn.ctx.parallel(*runs, limit=self.limit)


@dataclass(frozen=True)
class ByTool(Orchestrator):
    """Each tool by an orchestrator of its own: `ByTool({"search": Concurrent(5)}, rest=Sequential())`.

    Attributes:
        groups: The orchestrators, by tool. Tools that share one form one group.
        rest: For all others.
        together: The groups run concurrently; else one after the other, in the order of their first calls.
    """

    groups: Mapping[str, Orchestrator]
    rest: Orchestrator = field(default_factory=Sequential)
    together: bool = True

    async def run(self, turn: ToolsTurn, tool: ToolStepLike, emit: Emit) -> Results:
        """See `Orchestrator.run`."""
        return await self.over(tool).stream(turn, emit)

    def over(self, tool: ToolStepLike, wrap: Wrap = _bare) -> ToolsStep:
        """See `Orchestrator.over`."""
        made = {id(one): one.over(tool, wrap) for one in (*self.groups.values(), self.rest)}
        steps = {name: made[id(one)] for name, one in self.groups.items()}
        return wrap(_Grouped(steps, made[id(self.rest)], together=self.together))


class _Grouped(Step[ToolsTurn, Results]):
    kind: ClassVar[str] = "tools"

    def __init__(self, steps: Mapping[str, ToolsStep], rest: ToolsStep, *, together: bool) -> None:
        self._steps, self._rest, self._together = steps, rest, together

    async def stream(self, turn: ToolsTurn, emit: Emit) -> Results:
        groups: dict[int, tuple[ToolsStep, list[int]]] = {}
        for position, call in enumerate(turn.calls):
            step = self._steps.get(call.name, self._rest)
            groups.setdefault(id(step), (step, []))[1].append(position)
        parts = [
            (step, replace(turn, calls=tuple(turn.calls[position] for position in positions)))
            for step, positions in groups.values()
        ]
        came: Sequence[Results]
        if self._together:
            came = await turn.ctx.parallel(*(step.stream(part, emit) for step, part in parts))
        else:
            came = [await step.stream(part, emit) for step, part in parts]
        found: dict[int, ToolReturn] = {}
        for (_, positions), results in zip(groups.values(), came, strict=True):
            part = [turn.calls[position] for position in positions]
            found.update(zip(positions, in_order(part, results, "an orchestrator in ByTool"), strict=True))
        return tuple(found[position] for position in range(len(turn.calls)))
