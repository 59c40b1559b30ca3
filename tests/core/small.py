"""Small things that claims about steps are made with."""

from typing import Any

import pytest
from pydantic import BaseModel, Field

from refold import (
    Status,
    Step,
    table,
    tool,
)
from tests.core.byhand import ByHand

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


class Order(BaseModel):
    item: str
    amount: int = Field(default=1, ge=1)


class Verdict(BaseModel):
    ok: bool


@tool(effect="read_only")
def price_of(item: str) -> Order:
    return Order(item=item)


@tool(effect="read_only")
async def stock_of(id: str, key: int = 0) -> int:
    return key


def one_step(function: Any, *more: Step, **options: Any) -> Any:
    """A skill that starts with this function."""
    return table("one_step", Step("begin", function).start(), *more, **options)


def reason_of(function: Any, *more: Step, answers: tuple[Any, ...] = ()) -> str:
    """Why a task that starts with this function fails."""
    task = ByHand(one_step(function, *more))
    task.say()
    for answer in answers:
        task.give(next(iter(task.task.pending.values())).command.id, answer)
    assert task.status is Status.FAILED
    return task.reason
