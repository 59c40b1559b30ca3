"""A part's budget: kept by the part's own rule, beside its own budget, and no more than its task has left."""

from __future__ import annotations

from typing import Any

import pytest

from refold import Content, Ctx, Status, Transition, flow_skill, step
from refold.agent import Agent, Budget, skill_tool
from refold.core.chat import Reply, ToolCall, ToolReturn, Usage
from refold.core.commands import CallSkill, PartBudget
from refold.core.fold.snapshot import Snapshot
from refold.cost import parts_of
from refold.testing import FakeEngine, calls, play
from tests.agent.shop import TOOLS, shop

GIVEN = {"model_calls": 1}
SPENT = "the budget of 1 model_calls, with which the task was called, is used up: 1 spent; give it more where"


def wish() -> Reply:
    """A reply that wants a tool, for 0.4 cents and 110 tokens."""
    usage = Usage(input_tokens=100, output_tokens=10, usd=0.004)
    return Reply(tool_calls=(ToolCall(id="1", name="price", args={"item": "a"}),), usage=usage, model="openai:gpt-5")


def boss(part: Any, budget: Any = GIVEN, **options: Any) -> Agent:
    """An agent whose tool is another agent with a budget."""
    return Agent("boss", tools=[skill_tool(part, effect="read_only", budget=budget)], **options)


async def run(whole: Any, part: Any, replies: list[Any]) -> tuple[FakeEngine, Snapshot, Snapshot]:
    """Both tasks after the whole has called its part; the models reply in this order."""
    engine = FakeEngine([whole, part], answers={"model": replies}, tools=TOOLS)
    task_id = (await engine.start(whole.options.card.id, Content.from_text("go"))).task_id
    (part_id,) = parts_of([entry async for entry in engine.journal(task_id)])
    return (
        engine,
        await engine.at(task_id, (await engine.look(task_id)).seq),
        await engine.at(part_id, (await engine.look(part_id)).seq),
    )


async def test_a_part_without_a_budget_of_its_own_fails() -> None:
    """
    The model of its task reads why, and goes on.
    """
    part = shop()
    _, whole, ended = await run(boss(part), part, [calls("shop", message="a?"), wish(), "No price."])
    (told,) = [one for one in whole.threads["main"].said if isinstance(one, ToolReturn)]

    assert ended.reason.startswith(SPENT)
    assert (told.value, told.failed) == (ended.reason, True)
    assert whole.messages[-1].text == "No price."


async def test_a_part_answers_with_what_it_has() -> None:
    """
    If that is the rule of the part's own budget, which is larger.
    """
    part = shop(middleware=[Budget(model_calls=9, when_spent="answer", tell=True)])
    replies = [calls("shop", message="a?"), wish(), "About 100.", "It is 100."]
    _, whole, ended = await run(boss(part), part, replies)
    told = str(ended.threads["main"].said)

    assert [one.messages[-1].text for one in (ended, whole)] == ["About 100.", "It is 100."]
    assert "Budget left: 1 of 1 model_calls." in told
    assert "The budget of 1 model_calls is used up. Answer now" in told


async def test_a_part_asks_a_person() -> None:
    """
    A grant is for as much again as the part was given, and not for the part's own budget of the same amount.
    """
    part = shop(middleware=[Budget(model_calls=5, when_spent="ask")])
    replies = [calls("shop", message="a?"), wish(), "It is 100.", "Done."]
    engine, whole, _ = await run(boss(part), part, replies)
    (asked,) = whole.open_waits
    assert getattr(asked.ask, "show", None) == {"budget": "model_calls", "limit": 1, "spent": 1}

    await engine.decide(whole.task_id, approved=True, approver="Ann")
    assert (await engine.look(whole.task_id)).messages[-1].text == "Done."


async def test_its_own_smaller_budget_still_bounds_a_part() -> None:
    """
    Whichever is used up first.
    """
    part = shop(middleware=[Budget(tokens=100)])
    _, _, ended = await run(boss(part, {"usd": 1}), part, [calls("shop", message="a?"), wish(), "No."])

    assert ended.reason.startswith("the budget of 100 tokens is used up: 110 spent; raise it")


async def test_a_budget_in_dollars_needs_a_price() -> None:
    """
    Else it would bound nothing.
    """
    part = shop()
    unpriced = wish().model_copy(update={"usage": Usage(input_tokens=1, output_tokens=1)})
    _, _, ended = await run(boss(part, {"usd": 1}), part, [calls("shop", message="a?"), unpriced, "No."])

    assert ended.reason.startswith("the budget in usd cannot be kept: no price is known for model 'openai:gpt-5'")


def test_a_part_gets_no_more_than_its_task_has_left() -> None:
    """
    Of the limits that the part's budget has; the command has the smaller amount.
    """
    first = Reply(tool_calls=wish().tool_calls, usage=wish().usage, model="openai:gpt-5")
    whole = Agent(
        "boss",
        tools=[*TOOLS, skill_tool(shop(), effect="read_only", budget={"usd": 0.5, "tool_calls": 3})],
        middleware=[Budget(usd=0.01, tokens=1_000)],
        gates="none",
    )
    replies = [first, calls("shop", message="a?"), "Done."]
    story = play(whole, "go", answers={"model": replies, "shop": "100"}, tools=TOOLS)
    (asked,) = [one for one in story.asked if isinstance(one, CallSkill)]

    assert asked.budget is not None
    assert asked.budget.model_dump(exclude_none=True) == {"usd": pytest.approx(0.006), "tool_calls": 3}


@flow_skill(id="caller")
class Caller:
    """Calls another skill with a budget."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete((await ctx.skill("part", content.text, "a?", budget={"model_calls": 1})).text)


@flow_skill(id="plain")
class Plain:
    """Counts nothing of what it spends."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("done")


async def test_a_skill_gives_a_budget() -> None:
    """
    As `ctx.skill(…, budget=)`; a skill that is no agent refuses to start with it.
    """
    engine = FakeEngine([Caller, Plain, shop()], answers={"model": [wish()]}, tools=TOOLS)
    bounded = await engine.start("caller", Content.from_text("shop"))
    refused = await engine.start("caller", Content.from_text("plain"))

    assert SPENT in (await engine.look(bounded.task_id)).reason
    view = await engine.look(refused.task_id)
    assert (view.status, "skill 'plain' takes no budget: only agents count" in view.reason) == (Status.FAILED, True)


@pytest.mark.parametrize(
    ("budget", "problem"),
    [
        pytest.param({}, "a budget of nothing bounds nothing", id="nothing"),
        pytest.param({"usd": 0}, "usd: Input should be greater than 0", id="zero"),
        pytest.param({"usd": float("nan")}, "usd: Input should be a finite number", id="nan"),
        pytest.param({"tokens": 1.5}, "tokens: Input should be a valid integer", id="half a token"),
        pytest.param({"model_calls": True}, "model_calls: Input should be a valid integer", id="true"),
        pytest.param({"dollars": 1}, "dollars: Extra inputs are not permitted", id="misspelt"),
        pytest.param(Budget(usd=1), "write for example {'usd': 0.5}", id="middleware"),
    ],
)
def test_a_budget_that_bounds_nothing_is_refused(budget: Any, problem: str) -> None:
    """
    Where it is written.
    """
    with pytest.raises(ValueError, match=problem):
        skill_tool(shop(), budget=budget)


def test_a_tool_that_is_no_agent_takes_no_budget() -> None:
    """
    It would not be kept.
    """
    with pytest.raises(ValueError, match="skill 'plain' takes no budget"):
        skill_tool(Plain, budget={"usd": 1})


def test_nobody_who_gives_no_budget_records_one() -> None:
    """
    Commands and tasks without a budget are written as before.
    """
    command = CallSkill(id="a", skill="b", input=Content.from_text("c"))

    assert "budget" not in command.model_dump_json()
    assert PartBudget(usd=1).model_dump_json() == '{"usd":1.0}'
