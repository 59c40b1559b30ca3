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
    """

    def __init__(self, what: str, limit: float, spent: float) -> None:
        self.what, self.limit, self.spent = what, limit, spent
        super().__init__(f"the budget of {limit:g} {what} is used up: {spent:g} spent; raise it, and recover the task")


class NoPrice(SkillError):
    """A budget in US dollars meets a model whose price is not known, and so would bound nothing.

    Attributes:
        model: `provider:model`, as the provider names it.
    """

    def __init__(self, model: str) -> None:
        self.model = model
        super().__init__(
            f"the budget in usd cannot be kept: no price is known for model {model!r}; give the budget in tokens, or "
            "name a model with a price, and recover the task"
        )


class NoAnswer(SkillError):
    """The model requested tools in its last call, in which it had to answer.

    Attributes:
        cycles: How many model calls were made.
    """

    def __init__(self, cycles: int) -> None:
        self.cycles = cycles
        super().__init__(f"the model gave no answer in {cycles} cycles; raise max_cycles, or tell it when to stop")
