"""What an agent's own parts return is checked where they return it; the error names the part, in one line."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from refold import DefinitionError, Status
from refold.agent import (
    BeforeModelCall,
    Budget,
    Cache,
    Concurrent,
    LoopTurn,
    Middleware,
    Orchestrator,
    RateLimit,
    Repeat,
    Think,
    Together,
    Window,
    around,
    skill_tool,
)
from refold.core.chat import Reply, ToolCall, ToolReturn, Usage
from refold.testing import calls, permanent, play, reply
from tests.agent.shop import TOOLS, price, results, shop
from tests.core.byhand import ByHand

WISH = [calls("price", item="a"), calls("price", item="bb")]


def orchestrator(answer: Callable[[list[ToolReturn]], Any]) -> Orchestrator:
    """One that calls every tool, and returns something else."""

    class Odd(Orchestrator):
        async def run(self, turn: Any, tool: Any, emit: Any) -> Any:
            return answer([await tool.stream(turn.of(call), emit) for call in turn.calls])

    return Odd()


def returning(kind: str, value: Any) -> Middleware:
    """Middleware that returns something else than the step."""

    @around(kind)
    async def odd(turn: Any, proceed: Callable[[Any], Any]) -> Any:
        result = await proceed(turn)
        return value(result) if callable(value) else value

    return odd


def reason(**options: Any) -> str:
    """Why a task of a shop fails that calls two tools."""
    story = play(shop(**options), "go", answers={"model": lambda _: WISH}, tools=TOOLS)
    assert (story.status, "\n" in story.reason) == (Status.FAILED, False)
    return story.reason


class Client:
    """A client that returns whatever it is told."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def ask(self, ctx: Any, question: Any) -> Any:
        """See `ModelClient`."""
        return self.answer

    async def call(self, ctx: Any, tool: Any, args: Any, retry: Any) -> Any:
        """See `ToolClient`."""
        return self.answer


async def look(turn: LoopTurn) -> None:
    """A step."""


def other(result: ToolReturn) -> ToolReturn:
    return result.model_copy(update={"id": "other"})


@pytest.mark.parametrize("given", ["3", 0, -1, True, math.nan, [3]], ids=repr)
@pytest.mark.parametrize(
    ("part", "setting"),
    [
        pytest.param(lambda given: shop(max_cycles=given), "max_cycles", id="agent's cycles"),
        pytest.param(lambda given: shop(turns=given), "turns", id="agent's turns"),
        pytest.param(Concurrent, "limit", id="Concurrent"),
        pytest.param(lambda given: shop(loop=[Together(look, limit=given), Think()]), "limit", id="Together"),
        pytest.param(lambda given: shop(loop=[Repeat(look, max_cycles=given), Think()]), "max_cycles", id="Repeat"),
        pytest.param(lambda given: Cache(models=True, size=given), "size", id="Cache"),
        pytest.param(Window, "turns", id="Window"),
        pytest.param(RateLimit, "max_per_second", id="RateLimit"),
        pytest.param(lambda given: skill_tool(shop(), timeout_s=given), "timeout_s", id="skill_tool"),
        pytest.param(lambda given: Budget(model_calls=given), "model_calls", id="Budget's calls"),
        pytest.param(lambda given: Budget(usd=given), "usd", id="Budget's money"),
    ],
)
def test_a_number_that_is_none_is_refused_where_it_is_given(
    part: Callable[[Any], Any], setting: str, given: object
) -> None:
    """
    The error names the setting, what came, and what may come: no error of Python's, and none of a task later on.
    """
    with pytest.raises((ValueError, DefinitionError), match=rf"{setting}={re.escape(repr(given))}.*give a .*number"):
        part(given)


@pytest.mark.parametrize("setting", [Concurrent, Window, lambda given: Cache(models=True, size=given)])
def test_half_a_call_is_no_number_of_calls(setting: Callable[[Any], Any]) -> None:
    """
    Where whole numbers count.
    """
    with pytest.raises(ValueError, match=r"=2\.5.*give a whole number, 1 or more"):
        setting(2.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"middleware": [returning("model", None)]},
            "middleware odd returned None for a model step; it returns a Reply",
        ),
        ({"middleware": [returning("model", "Hi.")]}, "middleware odd returned 'Hi.' for a model step"),
        ({"middleware": [returning("tool", 3)]}, "middleware odd returned 3 for a tool step; it returns a ToolReturn"),
        (
            {"middleware": [returning("tool", other)]},
            "middleware odd returned a result for call 'other', and was given",
        ),
        ({"middleware": [returning("tools", None)]}, "middleware odd returned None; it returns a tuple of ToolReturn"),
        ({"orchestrator": orchestrator(lambda came: None)}, "orchestrator Odd returned None; it returns a tuple"),
        ({"orchestrator": orchestrator(lambda came: [None])}, "orchestrator Odd returned None among its results"),
        ({"orchestrator": orchestrator(lambda came: [*came, came[0]])}, "orchestrator Odd returned a result of tool"),
        ({"orchestrator": orchestrator(lambda came: [*came, other(came[0])])}, "for call 'other', which is not"),
        ({"model_client": Client("Hi.")}, "model client Client returned 'Hi.'; it returns a Reply"),
        (
            {"model_client": Client(Reply(text="Hi.", usage=Usage(output_tokens=-5)))},
            "model client Client returned a usage with output_tokens=-5; give a finite number, 0 or more",
        ),
        (
            {"model_client": Client(Reply(text="Hi.", usage=Usage(usd=math.inf)))},
            "model client Client returned a usage with usd=inf; give a",
        ),
        (
            {"model_client": Client(Reply(text="Hi.", usage=Usage(usd=math.nan)))},
            "Client returned a usage with usd=nan",
        ),
    ],
)
def test_a_wrong_type_is_an_error_that_names_who_returned_it(options: dict[str, Any], said: str) -> None:
    """
    In one line, with what came and what is expected.
    """
    assert said in reason(**options)


def test_a_cost_that_no_call_can_have_was_counted_before() -> None:
    """
    A task of an earlier release goes on as it was recorded.
    """
    client = Client(Reply(text="Hi.", usage=Usage(output_tokens=-5)))
    task = ByHand(shop(model_client=client), patched=lambda _: False)
    task.say("go")

    assert task.status is Status.COMPLETED


class Unfit(Client):
    """A client that writes what does not fit."""

    async def ask(self, ctx: Any, question: Any) -> Any:
        """See `ModelClient`."""
        return Reply(text=self.answer)

    async def call(self, ctx: Any, tool: Any, args: Any, retry: Any) -> Any:
        """See `ToolClient`."""
        return ToolReturn(id="1", name=self.answer, value=3)


async def marks(turn: LoopTurn) -> None:
    """A step of the user's own that writes what does not fit."""
    turn.state.model = 3  # type: ignore[assignment]  # the mistake that is told of


@around("model", "tool")
async def honest(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Middleware that changes nothing."""
    return await proceed(turn)


@around("tool")
async def renames(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Middleware that gives the step another call."""
    return await proceed(replace(turn, call=turn.call.model_copy(update={"name": 3})))


UNFIT = pytest.mark.parametrize(
    ("options", "whose", "before"),
    [
        ({"model_client": Unfit(3), "middleware": [honest]}, "model client Unfit", "middleware Retryable"),
        ({"tool_client": Unfit(3), "middleware": [honest]}, "tool client Unfit", "middleware Retryable"),
        ({"loop": [marks, Think(), Concurrent()]}, "step 'marks'", "middleware Traced"),
        ({"middleware": [honest, renames, honest]}, "middleware renames", "middleware Retryable"),
    ],
)


@UNFIT
def test_a_value_that_does_not_fit_names_the_part_that_wrote_it(
    options: dict[str, Any], whose: str, before: str
) -> None:
    """
    And not what stands around it, such as built-in middleware.
    """
    assert reason(**options).startswith(f"{whose} wrote a value that does not fit ")


@UNFIT
def test_a_task_that_was_recorded_with_another_name_keeps_it(options: dict[str, Any], whose: str, before: str) -> None:
    """
    What was recorded is what a replay says.
    """
    task = ByHand(shop(**options), patched=lambda _: False)
    task.say()
    if task.out:
        task.give("model", Reply(tool_calls=(ToolCall(id="1", name="price", args={"item": "a"}),), stop="tools"))

    assert task.reason.startswith(f"{before} wrote a value that does not fit ")
    assert task.folded() == task.task


def test_a_tool_client_that_returns_no_json() -> None:
    """
    Names the client and the tool.
    """
    story = play(shop(tool_client=Client(object)), "go", reply("model", WISH))

    assert story.reason == "tool client Client returned <class 'object'> of price; it returns JSON"


def test_a_hook_that_writes_a_wrong_type() -> None:
    """
    Into the event or into the state: one line.
    """

    def cancels(event: BeforeModelCall) -> None:
        event.cancel = 3  # type: ignore[assignment]

    def narrows(event: BeforeModelCall) -> None:
        event.state.tools = "price"  # type: ignore[assignment]

    assert "a hook wrote BeforeModelCall.cancel = 3; it is bool or str" in reason(plugins=[cancels])
    assert "tools" in reason(plugins=[narrows])


@pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])
def test_results_are_put_in_the_order_of_the_calls(cut: bool) -> None:
    """
    One that an orchestrator leaves out is a refusal that the model can read.
    """
    backwards, fewer = orchestrator(lambda came: came[::-1]), orchestrator(lambda came: came[1:])
    stories = [
        play(shop(orchestrator=one), "go", answers={"model": [WISH, "ok"]}, tools=TOOLS, cut=cut)
        for one in (backwards, fewer)
    ]

    assert results(stories[0]) == [("price", 100, False), ("price", 200, False)]
    assert results(stories[1]) == [
        ("price", "this call has no result: it was not made", True),
        ("price", 200, False),
    ]


def test_two_calls_with_one_id_have_a_result_each() -> None:
    """
    Whoever made the reply: each call is made, and told.
    """
    wish = Reply(tool_calls=tuple(ToolCall(id="1", name="price", args={"item": item}) for item in ("a", "bb")))
    story = play(shop(orchestrator=Concurrent()), "go", answers={"model": [wish, "ok"]}, tools=[price])

    assert [value for _, value, _ in results(story)] == [100, 200]


def test_a_cut_answer_fails_the_task() -> None:
    """
    The worker says so; nothing of the answer is taken for one.
    """
    story = play(shop(), "go", reply("model", permanent("its answer is cut off", type="length")))

    assert (story.status, story.reason) == (Status.FAILED, "model: its answer is cut off")
