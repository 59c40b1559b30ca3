"""Errors by which an agent fails its task. Each is a `SkillError`: its message is the task's reason."""

from __future__ import annotations

from refold.core.errors import SkillError


class GuardrailError(SkillError):
    """A guardrail blocked a text.

    Attributes:
        guardrail: Its name.
        reason: Why.
    """

    def __init__(self, guardrail: str, reason: str) -> None:
        self.guardrail, self.reason = guardrail, reason
        super().__init__(f"guardrail {guardrail!r} blocked: {reason}")


class BudgetExceeded(SkillError):
    """A budget is used up.

    Attributes:
        what: The limit: `tokens`, `usd`, `model_calls` or `tool_calls`.
        limit: Its value.
        spent: How much was used.
        day: The day in UTC, `2026-03-01`, if it is the budget of an owner's day; empty for a task's.
        given: The task that called this one has given the budget.
    """

    def __init__(self, what: str, limit: float, spent: float, day: str = "", *, given: bool = False) -> None:
        self.what, self.limit, self.spent, self.day, self.given = what, limit, spent, day, given
        if given:
            said = f"the budget of {limit:g} {what}, with which the task was called, is used up: {spent:g} spent"
            super().__init__(f"{said}; give it more where it is called")
            return
        whose = f"the owner's budget of {limit:g} {what} for {day} (UTC)" if day else f"the budget of {limit:g} {what}"
        later = ", or wait for the next day," if day else ","
        super().__init__(f"{whose} is used up: {spent:g} spent; raise it{later} and recover the task")


class NoPrice(SkillError):
    """The price of a model is not known, so that a budget in US dollars would bound nothing.

    Attributes:
        model: `provider:model`, as the provider names it.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"the budget in usd cannot be kept: no price is known for model {model!r}; give the budget in tokens, or "
            "name a model with a price, and recover the task"
        )


class NoUsage(SkillError):
    """A model's provider gives no count of tokens, so that a budget in tokens or US dollars would bound nothing.

    Attributes:
        model: `provider:model`, as the provider names it.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"the budget cannot be kept: the provider of model {model!r} gave no count of tokens; give the budget "
            "in model_calls and recover the task, or have the server send `usage` for later tasks"
        )


class NoAnswer(SkillError):
    """The model requested tools in its last call, in which it had to answer.

    Attributes:
        cycles: How many model calls were made.
    """

    def __init__(self, cycles: int) -> None:
        self.cycles = cycles
        super().__init__(f"the model gave no answer in {cycles} cycles; raise max_cycles, or tell it when to stop")
