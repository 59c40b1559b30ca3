"""A long task: what one more event costs does not depend on how many came before."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from refold import Cmd, Content, Ctx, Event, ToolResult, Transition, UserMessage, flow_skill, skill_of, step, tool
from refold.core.authoring.skill import Live
from refold.core.fold.apply import advance, planned
from refold.core.fold.wanted import wanted

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLY, LATE = 100, 2_000


@tool(effect="idempotent")
async def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@flow_skill(id="long_steps")
class LongSteps:
    @step(start=True)
    async def begin(self, ctx: Ctx) -> Transition:
        total = 0
        while True:
            total = await ctx.tool(add, a=total, b=1)


class Counted(BaseModel):
    number: int = 0


@flow_skill(id="long_reducer")
class LongReducer:
    @staticmethod
    def initial() -> Counted:
        return Counted()

    def on_event(self, state: Counted, event: Event, ctx: Ctx) -> Transition:
        return Transition.to(Counted(number=state.number + 1)).cmd(
            Cmd.tool(f"add{state.number}", add, {"a": 1, "b": 1})
        )


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """How many functions, in Python and C, the block calls: a cost that no busy machine changes."""
    calls = [0]

    def count(frame: Any, what: str, argument: Any) -> None:
        calls[0] += what in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


@pytest.mark.parametrize("author", [LongSteps, LongReducer])
def test_an_event_costs_as_much_late_as_early(author: Any) -> None:
    """
    After two thousand results one more is as many calls as after a hundred, where the step's coroutine is at hand.
    """
    skill, live, costs = skill_of(author), Live(), dict[int, int]()
    task = planned(skill, "long-1", NOON)
    event: Event = UserMessage(content=Content.from_text("go"))
    for seq in range(1, LATE + 1):
        with counted_calls() if seq in (EARLY, LATE) else nullcontext([0]) as calls:
            task, entry = advance(skill, task, event, NOON, live=live)
            wanted(task)
        costs[seq] = calls[0]
        (issued,) = entry.commands
        event = ToolResult(id=issued.command.id, invocation_id=issued.invocation_id, value=1)

    assert 0 < costs[EARLY] <= costs[LATE] < 1.1 * costs[EARLY], costs[EARLY]
