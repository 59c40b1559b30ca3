"""Skills and tasks for the tests of recovery."""

from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from refold import (
    Content,
    Ctx,
    Step,
    Transition,
    table,
    tool,
)
from tests.core.byhand import ByHand

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "cut"])


@tool(effect="idempotent")
def refund(cents: int, result: JsonValue) -> None: ...


@tool(effect="compensate", undo=refund)
def charge(cents: int) -> JsonValue:
    return cents


def skill(function: Any, *more: Step) -> Any:
    return table("pays", Step("begin", function).start(), *more)


async def pays(ctx: Ctx, content: Content) -> Transition:
    paid = await ctx.tool(charge, cents=50, key="order-1")
    mailed = await ctx.tool("mail")
    return ctx.complete(f"{paid} {mailed}")


def started(function: Any, *, cut: bool = False) -> ByHand:
    task = ByHand(skill(function), cut=cut)
    task.say()
    return task


def asked(task: ByHand) -> set[str]:
    return set(task.task.pending)


class Names(BaseModel):
    names: list[str] = []


BROKEN: list[str] = []


def buggy(event: str) -> None:
    if BROKEN:
        raise KeyError(event)


def fixed(task: ByHand) -> ByHand:
    """The task recovered with the bug out of the code."""
    assert task.reason.startswith("bug: KeyError"), task.reason
    BROKEN.clear()
    return task.recovered()
