"""A long task: what one more event costs does not depend on how many came before."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from refold import (
    Cmd,
    CommandFailed,
    Content,
    Ctx,
    Event,
    TaskState,
    ToolResult,
    Transition,
    UserMessage,
    flow_skill,
    skill_of,
    step,
    tool,
)
from refold.core.authoring.skill import Live
from refold.core.fold.apply import advance, planned
from refold.core.fold.delivery import MOST_OPEN
from refold.core.fold.wanted import Known, wanted
from refold.core.retry_policy import Failure, FailureKind

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLY, LATE = 100, 2_000
FEW, MANY = 100, 400


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


@flow_skill(id="wide_steps")
class WideSteps:
    @step(start=True)
    async def begin(self, ctx: Ctx, message: UserMessage) -> Transition:
        async def sum_of(number: int) -> int:
            return await ctx.tool(add, a=number, b=1)

        return ctx.complete(str(sum(await ctx.parallel(*map(sum_of, range(int(message.content.text)))))))


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


def test_an_outcome_of_many_effects_at_once_costs_little_more_than_one_of_few() -> None:
    """
    Of four times as many effects at once, an outcome takes less than two and a half times the calls: each pass over
    them all is a short one. Passes that made every effect anew took a worker past its deadline.
    """
    skill, costs = skill_of(WideSteps), dict[int, float]()
    for width in (FEW, MANY):
        live, known, task = Live(), Known(), planned(skill, f"wide-{width}", NOON)
        go = UserMessage(content=Content.from_text(str(width)))
        task, entry = advance(skill, task, go, NOON, live=live)
        with counted_calls() as calls:
            for one in entry.commands:
                outcome = ToolResult(id=one.command.id, invocation_id=one.invocation_id, value=1)
                task, _ = advance(skill, task, outcome, NOON, live=live)
                wanted(task, known)
        assert task.messages[-1].text == str(width)
        costs[width] = calls[0] / width

    assert 0 < costs[FEW] < costs[MANY] < 2.5 * costs[FEW], costs


def test_a_task_that_asks_for_too_many_commands_at_once_fails_and_says_what_to_do() -> None:
    """
    As many as there may be are taken.
    """
    skill = skill_of(WideSteps)
    most, more = (
        advance(skill, planned(skill, f"wide-{width}", NOON), UserMessage(content=Content.from_text(f"{width}")), NOON)[
            0
        ]
        for width in (MOST_OPEN, MOST_OPEN + 1)
    )

    assert (most.lifecycle, more.lifecycle) == (TaskState.RUNNING, TaskState.FAILED)
    assert "2,001 commands would be open at once, of 2,000 at most; give `ctx.parallel` a `limit=`" in more.reason


def test_what_a_task_wants_is_the_same_with_and_without_an_earlier_look() -> None:
    """
    Also where effects came back, the rest goes on, and a retry waits.
    """
    skill, live, known = skill_of(WideSteps), Live(), Known()
    task = planned(skill, "wide-looked-at", NOON)
    task, entry = advance(skill, task, UserMessage(content=Content.from_text("9")), NOON, live=live)
    for number, one in enumerate(entry.commands):
        assert wanted(task, known) == wanted(task)
        assert list(wanted(task, known)) == list(wanted(task))
        failed = Failure(kind=FailureKind.TRANSIENT, type="busy", message="later")
        names: dict[str, Any] = {"id": one.command.id, "invocation_id": one.invocation_id}
        outcome = CommandFailed(**names, failure=failed) if number % 3 == 0 else ToolResult(**names, value=1)
        task, _ = advance(skill, task, outcome, NOON, live=live)

    assert wanted(task, known) == wanted(task) != {}
    assert known.keys() == task.pending.keys()
