"""Middleware that limits what an agent uses: calls a second, and tokens, money and calls in total."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from refold.agent.errors import BudgetExceeded, NoPrice
from refold.agent.middleware import Proceed, Scope, Simple
from refold.agent.steps import ModelTurn, ToolTurn
from refold.core.gates import GateKind, GatePolicy


class _Pace:
    """When the next step may begin, in one process."""

    def __init__(self) -> None:
        self._due = 0.0

    def wait_s(self, now: float, gap_s: float) -> float:
        at = max(now, self._due)
        self._due = at + gap_s
        return at - now


@dataclass(frozen=True)
class RateLimit(Simple):
    """At most so many steps a second, evenly spaced; a step that is too early waits.

    In workflow scope it limits each task by itself, by a durable timer. In activity scope it limits all tasks of a
    worker's process together. To limit all workers, give the tool a task queue of its own and limit that queue.

    Attributes:
        max_per_second: More than 0.
        steps: The kinds of step that are counted, all kinds together.
        scope: Where.
    """

    streams = True  # what the model answers stays as it is
    max_per_second: float
    steps: Collection[str] = ("model",)
    scope: Scope = "workflow"
    _shared: _Pace = field(default_factory=_Pace, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_per_second <= 0:
            raise ValueError(f"max_per_second={self.max_per_second!r} lets nothing go on; give a positive number")

    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        gap_s = 1 / self.max_per_second
        if self.scope == "activity":
            await asyncio.sleep(self._shared.wait_s(time.monotonic(), gap_s))
            return await proceed(turn)
        name = f"rate_limit {'+'.join(self.steps)}"
        now = turn.ctx.now.timestamp()
        due = turn.state.kept.get(name)
        at = max(now, due) if isinstance(due, float) else now
        turn.state.kept[name] = at + gap_s
        if at > now:
            await turn.ctx.sleep(at - now, id="rate limit")
        return await proceed(turn)


@dataclass(frozen=True)
class Budget(Simple):
    """A budget of a task, checked before each step: the step that exceeds it is the last.

    It never admits more tool calls than are left, even if the model requests several at once.

    Attributes:
        tokens: Input and output together, as the providers count them.
        usd: In US dollars; a model whose price is not known fails the task after its first call. The scripted model is
            free.
        model_calls: Model steps.
        tool_calls: Tool calls.
        when_spent: `"fail"`: the task fails, and may be recovered with another budget. `"ask"`: a person is asked
            whether to grant the same amount again.
        policy: Who is asked.
    """

    streams = True  # what the model answers stays as it is
    tokens: int | None = None
    usd: float | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    when_spent: Literal["fail", "ask"] = "fail"
    policy: GatePolicy = field(default_factory=lambda: GatePolicy(kind=GateKind.BUDGET))
    steps: Collection[str] = ("model", "tool")

    def __post_init__(self) -> None:
        limits = (self.tokens, self.usd, self.model_calls, self.tool_calls)
        if all(limit is None for limit in limits):
            raise ValueError("a budget of nothing bounds nothing; say tokens=, usd=, model_calls= or tool_calls=")
        if any(limit is not None and limit <= 0 for limit in limits):
            raise ValueError(f"{self!r} lets nothing go on; give positive numbers")
        if self.when_spent not in ("fail", "ask"):
            raise ValueError(f'when_spent={self.when_spent!r} is unknown: "fail" or "ask"')

    async def around(self, turn: ModelTurn | ToolTurn, proceed: Proceed) -> Any:
        """See `Simple.around`.

        Raises:
            BudgetExceeded: Nothing is left.
            NoPrice: The budget is in US dollars, and the price of the model is not known.
        """
        while (over := self._over(turn)) is not None:
            what, limit, spent = over
            allowed = limit * (1 + _grants(turn).get(_name(what, limit), 0))
            if self.when_spent == "fail":
                raise BudgetExceeded(what, allowed, spent)
            await turn.ctx.approve(
                "budget",
                f"The budget of {allowed:g} {what} is used up. May the task have as much again?",
                show={"budget": what, "limit": allowed, "spent": spent},
                policy=self.policy.model_copy(update={"on_denied": "fail"}),
            )
            grants = _grants(turn)
            turn.state.kept[_GRANTS] = {**grants, _name(what, limit): grants.get(_name(what, limit), 0) + 1}
        if isinstance(turn, ModelTurn):
            reply = await proceed(turn)
            if (
                self.usd is not None
                and reply.model
                and reply.usage.usd is None
                and not reply.model.startswith("scripted:")
            ):
                raise NoPrice(reply.model)
            return reply
        turn.state.let_in(turn.call.id)
        try:
            return await proceed(turn)
        finally:
            turn.state.let_out(turn.call.id)

    def _over(self, turn: ModelTurn | ToolTurn) -> tuple[str, float, float] | None:
        """The limit that is used up, its value, and how much was used."""
        spent = turn.state.spent
        limits: dict[str, tuple[float | None, float]] = {
            "tokens": (self.tokens, spent.tokens),
            "usd": (self.usd, spent.usd),
        }
        if isinstance(turn, ModelTurn):
            limits["model_calls"] = (self.model_calls, spent.model_calls)
        else:
            under_way = sum(id != turn.call.id for id in turn.state.under_way)
            limits["tool_calls"] = (self.tool_calls, spent.tool_calls + under_way)
        grants = _grants(turn)
        for what, (limit, used) in limits.items():
            if limit is not None and used >= limit * (1 + grants.get(_name(what, limit), 0)):
                return what, limit, used
        return None


_GRANTS = "budgets granted"


def _grants(turn: ModelTurn | ToolTurn) -> dict[str, int]:
    """How often people have granted the amount again, by limit: a grant applies to one limit only."""
    granted = turn.state.kept.get(_GRANTS)
    return cast("dict[str, int]", granted) if isinstance(granted, dict) else {}


def _name(what: str, limit: float) -> str:
    return f"{what} {limit:g}"
