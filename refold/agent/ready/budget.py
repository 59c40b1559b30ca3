"""Middleware that bounds what an agent spends, in tokens, US dollars and calls: of a task, or of an owner's day.

A task's budget counts what the task's own calls have returned; not what its parts spend, which may have budgets of
their own: `skill_tool(…, budget=)`, `ctx.skill(…, budget=)`. A part keeps its budget by the rule of its agent's own
`Budget`, or fails when the budget is spent if the agent has none. An owner's day is counted by the workers, in the
ledger's database: a setting of each model call has the limit, and a call that it does not admit fails, which is
recorded. Either way a replay decides as the task did, whatever prices are then.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from refold.agent.errors import BudgetExceeded, NoPrice, NoUsage
from refold.agent.middleware import Proceed, Simple
from refold.agent.steps import ModelTurn, ToolTurn, is_answer, refusal
from refold.core.authoring.context import own_patched, own_shared
from refold.core.chat import Reply, ToolReturn, UserSaid
from refold.core.commands import PartBudget
from refold.core.content import Content
from refold.core.errors import CommandError
from refold.core.gates import DecisionMade, GateKind, GatePolicy
from refold.core.steps.calls import Call
from refold.core.values import is_count, is_number
from refold.cost import OWNER_DAY, OWNER_DAY_SPENT

TELLS_TOOL_CALLS = "refold.step.agent_tells_tool_calls"
"""A patch: in tasks recorded before, `tell` leaves out how many tool calls are left."""

ONE_GATE = "refold.step.agent_one_budget_gate"
"""A patch: in tasks recorded before, each of several concurrent calls opens a gate of its own, and grants as often."""

WHEN_SPENT = ("fail", "ask", "answer")
LIMITS = tuple(PartBudget.model_fields)


def _is_limit(name: str, given: object) -> bool:
    """Whether something can be reached: NaN and infinity never are, so a budget of either would bound nothing."""
    return (is_number if name == "usd" else is_count)(given) and given != math.inf


@dataclass(frozen=True, slots=True)
class _Over:
    """A limit, and how much of it was used; `day` is empty for a task's; `given`: another task has set the limit."""

    what: str
    limit: float
    spent: float
    day: str = ""
    given: bool = False

    @property
    def left(self) -> float:
        return self.limit - self.spent

    @property
    def error(self) -> BudgetExceeded:
        return BudgetExceeded(self.what, self.limit, self.spent, self.day, given=self.given)

    @property
    def said(self) -> str:
        """For people and models."""
        amount = f"{self.limit:g} {self.what}"
        whose = f"The owner's budget of {amount} for {self.day} (UTC)" if self.day else f"The budget of {amount}"
        return f"{whose} is used up."


@dataclass(frozen=True)
class Budget(Simple):
    """A budget, checked before each step: the step that exceeds it is the last.

    It never admits more tool calls than are left, even if the model requests several at once. What a hook repeats
    (`AfterToolCall.retry`, `AfterModelCall.retry`) is part of its step: it counts, but is not checked.

    Attributes:
        tokens: Input and output together, as the providers count them; a model whose provider gives no count fails the
            task after its first call.
        usd: In US dollars; a model whose price is not known fails the task after its first call, unless the setting
            `usd_per_million_tokens` gives one. The scripted model is free.
        model_calls: Model steps; of a task only.
        tool_calls: Tool calls; of a task only.
        when_spent: `"fail"`: the task fails, and may be recovered with another budget. `"ask"`: a person is asked
            whether to grant the same amount again, to this task. `"answer"`: the model is told, and answers once more,
            without tools; what it would need after that fails the task.
        policy: Who is asked.
        per: `"task"`, or `"owner_day"`: what all tasks of the task's owner spend from midnight to midnight UTC, on
            whatever worker, in model calls that have such a budget. Tasks without an owner share one day. Needs the
            ledger (`REFOLD_LEDGER`).
        tell: Before each model call the model reads what is left; of a task only.
    """

    streams = True  # what the model answers stays as it is
    tokens: int | None = None
    usd: float | None = None
    model_calls: int | None = None
    tool_calls: int | None = None
    when_spent: Literal["fail", "ask", "answer"] = "fail"
    policy: GatePolicy = field(default_factory=lambda: GatePolicy(kind=GateKind.BUDGET))
    steps: Collection[str] = ("model", "tool")
    per: Literal["task", "owner_day"] = "task"
    tell: bool = False

    def __post_init__(self) -> None:
        limits = {name: given for name in LIMITS if (given := getattr(self, name)) is not None}
        if not limits:
            raise ValueError("a budget of nothing bounds nothing; say tokens=, usd=, model_calls= or tool_calls=")
        for name, given in limits.items():
            if not _is_limit(name, given):
                kind = "number of US dollars above 0" if name == "usd" else "whole number above 0"
                raise ValueError(f"{name}={given!r} is no budget: give a {kind}")
        if self.when_spent not in WHEN_SPENT:
            raise ValueError(f'when_spent={self.when_spent!r} is unknown: "fail", "ask" or "answer"')
        if self.per not in ("task", "owner_day"):
            raise ValueError(f'per={self.per!r} is unknown: "task" or "owner_day"')
        if self.per == "owner_day" and (self.model_calls is not None or self.tool_calls is not None):
            raise ValueError("a budget of an owner's day is in tokens= or usd=; calls are bounded per task")
        if self.per == "owner_day" and self.tell:
            raise ValueError(
                "tell=True tells what is left of a task's budget; an owner's day is counted by the workers"
            )

    async def around(self, turn: ModelTurn | ToolTurn, proceed: Proceed) -> Any:
        """See `Simple.around`.

        Raises:
            BudgetExceeded: Nothing is left.
            NoPrice: The budget is in US dollars, and the price of the model is not known.
            NoUsage: The budget is in tokens or US dollars, and the model's provider gave no count of tokens.
        """
        if isinstance(turn, ModelTurn):
            if self.per == "owner_day":
                return await self._in_owners_day(turn, proceed)
            return await self._model(turn, proceed)
        return await self._tool(turn, proceed) if self.per == "task" else await proceed(turn)

    async def _model(self, turn: ModelTurn, proceed: Proceed) -> Reply:
        over = _due(turn) if self.when_spent == "answer" else None
        while over is not None or (over := self._over(turn)) is not None:
            if self.when_spent == "answer":
                return await _last_answer(turn, proceed, over)
            await self._granted(turn, over)
            over = None
        if self.tell:
            turn = _telling(turn, f"Budget left: {self._left(turn)}.")
        reply: Reply = await proceed(turn)
        bounded = {one.what for one in self._limits(turn)}
        if reply.usage.unmeasured and bounded & {"tokens", "usd"}:
            raise NoUsage(reply.model)
        priced = reply.usage.usd is not None or not reply.model or reply.model.startswith("scripted:")
        if "usd" in bounded and not priced:
            raise NoPrice(reply.model)
        return reply

    async def _tool(self, turn: ToolTurn, proceed: Proceed) -> ToolReturn:
        while (over := self._over(turn)) is not None:
            if self.when_spent == "answer":
                turn.state.kept[_DUE] = [over.what, over.limit, over.spent, *(["", True] if over.given else ())]
                return refusal(turn.call, f"{over.said} This call was not made; answer with what you have.")
            await self._granted(turn, over)
        turn = self._with_what_is_left(turn)
        turn.state.let_in(turn.call.id)
        try:
            result: ToolReturn = await proceed(turn)
            return result
        finally:
            turn.state.let_out(turn.call.id)

    async def _granted(self, turn: ModelTurn | ToolTurn, over: _Over) -> None:
        """Return once a person has granted the same amount again: once for all calls that wait for it.

        Raises:
            BudgetExceeded: Nobody is asked.
        """
        if self.when_spent == "fail":
            raise over.error
        given = getattr(turn.ctx.budget if over.given else self, over.what)
        name = _name(over.what, given, over.day or (_GIVEN if over.given else ""))
        _, first = await own_shared(turn.ctx, f"budget {name}", lambda: self._gate(turn, over), ONE_GATE)
        if first:
            grants = _grants(turn)
            turn.state.kept[_GRANTS] = {**grants, name: grants.get(name, 0) + 1}

    def _gate(self, turn: ModelTurn | ToolTurn, over: _Over) -> Call[DecisionMade]:
        """The gate at which a person grants the same amount again."""
        return turn.ctx.approve(
            "budget",
            f"{over.said} May the task have as much again?",
            show={
                "budget": over.what,
                "limit": over.limit,
                "spent": over.spent,
                **({"day": over.day} if over.day else {}),
            },
            policy=self.policy.model_copy(update={"on_denied": "fail"}),
        )

    def _over(self, turn: ModelTurn | ToolTurn) -> _Over | None:
        return next((one for one in self._limits(turn) if one.left <= 0), None)

    def _left(self, turn: ModelTurn) -> str:
        """What is left of each limit of the task, of several the least."""
        least: dict[str, _Over] = {}
        for one in self._limits(turn, all_calls=True):
            if one.what != "tool_calls" or own_patched(turn.ctx, TELLS_TOOL_CALLS):
                least[one.what] = min(one, least.get(one.what, one), key=lambda one: one.left)
        return ", ".join(f"{max(one.left, 0):g} of {one.limit:g} {one.what}" for one in least.values())

    def _limits(self, turn: ModelTurn | ToolTurn, *, all_calls: bool = False) -> Iterator[_Over]:
        """The limits of this step, used up or not, raised by what was granted; or of the task, with `all_calls`."""
        spent, own = turn.state.spent, "" if isinstance(turn, ModelTurn) else turn.call.id
        limits: dict[str, float] = {"tokens": spent.tokens, "usd": spent.usd}
        if all_calls or isinstance(turn, ModelTurn):
            limits["model_calls"] = spent.model_calls
        if all_calls or isinstance(turn, ToolTurn):
            limits["tool_calls"] = spent.tool_calls + sum(id != own for id in turn.state.under_way)
        grants = _grants(turn)
        for whose, by in ((self, ""), (turn.ctx.budget, _GIVEN)):
            for what, used in limits.items():
                limit = getattr(whose, what, None)
                if limit is not None:
                    yield _Over(what, limit * (1 + grants.get(_name(what, limit, by), 0)), used, given=bool(by))

    def _with_what_is_left(self, turn: ToolTurn) -> ToolTurn:
        """The call with what is left of the budget, which caps the budget of a part."""
        left = dict(turn.left)
        for one in self._limits(turn):
            if one.what in ("tokens", "usd"):
                left[one.what] = min(one.left, left.get(one.what, one.left))
        return replace(turn, left=left)

    # --- an owner's day

    async def _in_owners_day(self, turn: ModelTurn, proceed: Proceed) -> Reply:
        while True:
            mine = self._today(turn)
            known = cast("dict[str, float]", turn.settings.get(OWNER_DAY) or {})
            both = {**known, **{what: min(limit, known.get(what, limit)) for what, limit in mine.items()}}
            try:
                reply: Reply = await proceed(_limited(turn, both))
            except CommandError as error:
                over = _unadmitted(error, mine)
                if over is None:
                    raise
            else:
                return reply
            if self.when_spent == "answer":
                return await _last_answer(_limited(turn, known), proceed, over)
            await self._granted(turn, over)

    def _today(self, turn: ModelTurn) -> dict[str, float]:
        """The limits of the day, raised by what this task was granted."""
        day, grants = turn.ctx.now.date().isoformat(), _grants(turn)
        given = {"usd": self.usd, "tokens": self.tokens}
        return {
            what: limit * (1 + grants.get(_name(what, limit, day), 0))
            for what, limit in given.items()
            if limit is not None
        }


class _OfPart(Budget):
    """The budget that another task has given, for agents without a budget of a task."""

    def __post_init__(self) -> None:
        pass


def with_given(middleware: Sequence[Any]) -> tuple[Any, ...]:
    """An agent's middleware, with one more that keeps another task's budget unless a `Budget` of its own does."""
    keeps = any(
        isinstance(one, Budget) and one.per == "task" and {"model", "tool"} <= {*one.steps} for one in middleware
    )
    return tuple(middleware) if keeps else (*middleware, _OfPart())


_GIVEN = "given"
_GRANTS = "budgets granted"
_DUE = "budget: a last answer is due"
_ANSWERED = "budget: the last answer was given"


def _grants(turn: ModelTurn | ToolTurn) -> dict[str, int]:
    """How often people have granted the amount again, by limit: a grant applies to one limit only."""
    granted = turn.state.kept.get(_GRANTS)
    return cast("dict[str, int]", granted) if isinstance(granted, dict) else {}


def _name(what: str, limit: float, day: str = "") -> str:
    return f"{what} {limit:g} {day}".rstrip()


def _limited(turn: ModelTurn, limits: Mapping[str, float]) -> ModelTurn:
    return replace(turn, settings={**turn.settings, OWNER_DAY: dict(limits)})


def _unadmitted(error: CommandError, mine: Mapping[str, float]) -> _Over | None:
    """The limit for which a worker did not make the call, if it is this budget's; None if the call failed otherwise."""
    found = error.failure.details
    if error.failure.type != OWNER_DAY_SPENT or not isinstance(found, dict):
        return None
    what, limit, spent, day = (found.get(name) for name in ("what", "limit", "spent", "day"))
    if what not in mine or limit != mine[str(what)]:
        return None
    return _Over(str(what), float(cast("float", limit)), float(cast("float", spent)), str(day))


def _due(turn: ModelTurn) -> _Over | None:
    """The limit for which a tool call was refused, so that only an answer is left."""
    due = turn.state.kept.get(_DUE)
    return _Over(*cast("list[Any]", due)) if isinstance(due, list) else None


def _telling(turn: ModelTurn, text: str) -> ModelTurn:
    return replace(turn, say=(*turn.say, UserSaid(content=Content.from_text(text))))


async def _last_answer(turn: ModelTurn, proceed: Proceed, over: _Over) -> Reply:
    """The model's answer with what it has.

    Raises:
        BudgetExceeded: It has answered so before, or does not.
    """
    kept, calls = turn.state.kept, turn.state.spent.model_calls
    if kept.get(_ANSWERED) == calls:
        return await _answered(turn, proceed, over)  # another budget has told the model in this step
    if _ANSWERED in kept:
        raise over.error
    kept.pop(_DUE, None)
    kept[_ANSWERED] = calls
    turn = _telling(turn, f"{over.said} Answer now with what you have; no tool can be called any more.")
    reply = await _answered(turn, proceed, over)
    if not reply.text and reply.value is None:
        raise over.error
    return reply


async def _answered(turn: ModelTurn, proceed: Proceed, over: _Over) -> Reply:
    reply: Reply = await proceed(replace(turn, final=True))
    if reply.text and not is_answer(turn, reply):
        raise over.error
    return reply.model_copy(update={"tool_calls": (), "stop": "end"}) if reply.tool_calls else reply
