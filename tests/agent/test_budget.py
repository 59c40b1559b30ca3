"""Budgets: of a task and of an owner's day; what happens when nothing is left, and what the model is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold import DefinitionError
from refold.agent import Budget, Concurrent
from refold.core.chat import Reply, ToolCall, ToolReturn, Usage, UserSaid
from refold.core.commands import AskApproval, CallChat, CallTool
from refold.core.retry_policy import Failure
from refold.cost import OWNER_DAY, OWNER_DAY_SPENT, RATE
from refold.testing import Played, approve, calls, permanent, play
from tests.agent.shop import TOOLS, results, shop

DAY = "2026-01-01"


def wish(usd: float = 0.004, *, id: str = "1") -> Reply:
    """A reply that wants a tool, and what it cost."""
    usage = Usage(input_tokens=100, output_tokens=10, usd=usd)
    return Reply(tool_calls=(ToolCall(id=id, name="price", args={"item": "a"}),), usage=usage, model="openai:gpt-5")


def told(story: Played) -> list[str]:
    """What the user's side of the conversation says."""
    return [one.content.text for one in story.snapshot.threads["main"].said if isinstance(one, UserSaid)]


def asked(story: Played) -> list[CallChat]:
    """The model calls."""
    return [one for one in story.asked if isinstance(one, CallChat)]


def test_a_budget_of_one_cent_stops_at_the_right_call() -> None:
    """
    At 0.4 cents a call the third call crosses one cent, and is the last.
    """
    story = play(shop(middleware=[Budget(usd=0.01)]), "go", answers={"model": wish()}, tools=TOOLS)

    assert len(asked(story)) == 3
    assert story.reason.startswith("the budget of 0.01 usd is used up: 0.012 spent")


def test_a_last_answer() -> None:
    """
    The model is told that nothing is left, and answers without tools; it is asked for no second last answer.
    """
    agent = shop(middleware=[Budget(usd=0.01, when_spent="answer")], turns=2)
    replies: list[Any] = [wish(), wish(), wish(), Reply(text="About a dollar.", model="openai:gpt-5")]
    story = play(agent, "go", "more?", answers={"model": replies}, tools=TOOLS)
    last = asked(story)[-1]

    assert story.said[0] == "About a dollar."
    assert last.frame is not None
    assert last.frame.settings["tool_choice"] == "none"
    assert told(story)[1] == (
        "The budget of 0.01 usd is used up. Answer now with what you have; no tool can be called any more."
    )
    assert [failed for _, _, failed in results(story)] == [False, False, True]
    assert story.reason.startswith("the budget of 0.01 usd is used up")


def test_a_model_that_does_not_answer_fails_the_task() -> None:
    """
    What it wants in place of a last answer is not done.
    """
    agent = shop(middleware=[Budget(model_calls=1, when_spent="answer")])
    story = play(agent, "go", answers={"model": [wish(), wish(id="2")]}, tools=TOOLS)

    assert story.reason.startswith("the budget of 1 model_calls is used up")
    assert sum(isinstance(one, CallTool) for one in story.asked) == 1


def test_calls_beyond_a_budget_are_refused_and_answered() -> None:
    """
    Of three calls wanted at once one is made; the model reads why the others are not, and answers.
    """
    agent = shop(middleware=[Budget(tool_calls=1, when_spent="answer")], orchestrator=Concurrent())
    replies: list[Any] = [[calls("price", item=item) for item in "abc"], "One is 100."]
    story = play(agent, "go", answers={"model": replies}, tools=TOOLS)

    assert story.said == ("One is 100.",)
    assert [failed for _, _, failed in results(story)] == [False, True, True]
    assert "answer with what you have" in str(results(story)[2][1])


def test_calls_with_one_id_are_two_calls_to_a_budget() -> None:
    """
    Some models give the calls of a reply the same id; the second is over the budget all the same.
    """
    agent = shop(middleware=[Budget(tool_calls=1, when_spent="answer")], orchestrator=Concurrent())
    twins = [ToolCall(id="1", name="price", args={"item": item}) for item in ("tea", "coffee")]
    story = play(agent, "go", answers={"model": [twins, "One is 300."]}, tools=TOOLS)

    assert [failed for _, _, failed in results(story)] == [False, True]
    assert {one.id for one in story.snapshot.threads["main"].said if isinstance(one, ToolReturn)} == {"1"}


def test_two_budgets_ask_for_one_last_answer() -> None:
    """
    Whichever ends first, and if both do.
    """
    both = [Budget(model_calls=1, when_spent="answer"), Budget(tokens=50, when_spent="answer")]
    story = play(shop(middleware=both), "go", answers={"model": [wish(), "Done."]}, tools=TOOLS)

    assert story.said == ("Done.",)
    assert len([one for one in told(story) if "is used up" in one]) == 1


def test_the_model_is_told_what_is_left() -> None:
    """
    Before each call, behind what is new.
    """
    agent = shop(middleware=[Budget(usd=0.01, model_calls=3, tell=True)])
    story = play(agent, "go", answers={"model": [wish(), "Done."]}, tools=TOOLS)

    assert told(story) == [
        "go",
        "Budget left: 0.01 of 0.01 usd, 3 of 3 model_calls.",
        "Budget left: 0.006 of 0.01 usd, 2 of 3 model_calls.",
    ]


@pytest.mark.parametrize(
    ("budget", "fails"),
    [
        pytest.param(Budget(usd=1), True, id="dollars"),
        pytest.param(Budget(tokens=100), True, id="tokens"),
        pytest.param(Budget(model_calls=3), False, id="calls"),
    ],
)
def test_a_budget_needs_a_count_of_tokens(budget: Budget, fails: bool) -> None:
    """
    If the model's provider gives none, the task fails after its first call: the budget would never be used up.
    """
    uncounted = Reply(text="Hello.", usage=Usage(unmeasured=1), model="openai:own")
    story = play(shop(middleware=[budget]), "go", answers={"model": uncounted}, tools=TOOLS)

    assert ("the provider of model 'openai:own' gave no count of tokens" in story.reason) is fails


def spent(limit: float, used: float, what: str = "usd") -> Failure:
    """What a worker answers where an owner's day has nothing left."""
    details = {"what": what, "limit": limit, "spent": used, "day": DAY}
    return permanent("used up", type=OWNER_DAY_SPENT).model_copy(update={"details": details})


def day_limits(story: Played) -> list[Any]:
    """The limits that each model call names."""
    frames = [one.frame for one in asked(story)]
    return [None if frame is None else frame.settings.get(OWNER_DAY) for frame in frames]


def test_an_owners_day_fails_the_task() -> None:
    """
    Each call names the limit; the worker's answer is recorded, and says whose budget ended, and when.
    """
    agent = shop(middleware=[Budget(usd=5, per="owner_day")])
    story = play(agent, "go", answers={"model": [wish(), spent(5, 5.2)]}, tools=TOOLS)

    assert day_limits(story)[0] == {"usd": 5}
    assert story.reason.startswith(
        f"the owner's budget of 5 usd for {DAY} (UTC) is used up: 5.2 spent; raise it, or wait"
    )


def test_a_person_grants_as_much_again() -> None:
    """
    The next call names twice the limit.
    """
    agent = shop(middleware=[Budget(usd=5, per="owner_day", when_spent="ask")])
    answers: dict[str, Any] = {"model": [spent(5, 5.2), "Done."]}
    story = play(agent, "go", approve("budget"), answers=answers, tools=TOOLS)
    gate = next(one for one in story.asked if isinstance(one, AskApproval))

    assert story.said[-1] == "Done."
    assert gate.show == {"budget": "usd", "limit": 5, "spent": 5.2, "day": DAY}
    assert day_limits(story) == [{"usd": 5}, {"usd": 10}]


def test_a_last_answer_beyond_the_day() -> None:
    """
    It is counted, and not limited.
    """
    agent = shop(middleware=[Budget(tokens=100, per="owner_day", when_spent="answer")])
    story = play(agent, "go", answers={"model": [spent(100, 130, "tokens"), "Sorry."]}, tools=TOOLS)

    assert story.said == ("Sorry.",)
    assert day_limits(story) == [{"tokens": 100}, {}]


def test_a_call_that_was_not_made_is_no_call() -> None:
    """
    It does not count towards the calls of the task.
    """
    both = [Budget(model_calls=1), Budget(usd=5, per="owner_day", when_spent="ask")]
    answers: dict[str, Any] = {"model": [spent(5, 5.2), "Done."]}

    assert play(shop(middleware=both), "go", approve("budget"), answers=answers, tools=TOOLS).said[-1] == "Done."


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        pytest.param(lambda: Budget(usd=1, per="owner_day", model_calls=3), "bounded per task", id="calls of a day"),
        pytest.param(lambda: Budget(usd=1, per="owner_day", tell=True), "counted by the workers", id="told of a day"),
        pytest.param(lambda: Budget(usd=1, per="month"), "per='month' is unknown", id="a month"),  # type: ignore[arg-type]
        pytest.param(lambda: Budget(usd=1, when_spent="stop"), "is unknown", id="stop"),  # type: ignore[arg-type]
    ],
)
def test_a_budget_that_means_nothing_is_refused(make: Callable[[], Budget], problem: str) -> None:
    """
    When it is written, in words.
    """
    with pytest.raises(ValueError, match=problem):
        make()


def test_another_budgets_end_is_not_taken_for_ones_own() -> None:
    """
    Two budgets of one day: the one whose limit the worker names decides.
    """
    both = [
        Budget(usd=5, per="owner_day"),
        Budget(tokens=100, per="owner_day", when_spent="answer"),
    ]
    story = play(shop(middleware=both), "go", answers={"model": [spent(100, 130, "tokens"), "Sorry."]}, tools=TOOLS)

    assert day_limits(story)[0] == {"usd": 5, "tokens": 100}
    assert story.said == ("Sorry.",)


@pytest.mark.parametrize(
    ("outer", "inner", "sent"),
    [(1, 5, {"usd": 1}), (5, 1, {"usd": 1}), (5, 5, {"usd": 5})],
)
def test_of_two_limits_of_one_day_the_smaller_one_holds(outer: float, inner: float, sent: dict[str, float]) -> None:
    """
    Whichever of them is the outer one, and whether a budget or the agent's settings name it.
    """
    budget = Budget(usd=inner, per="owner_day")
    agents = [
        shop(middleware=[Budget(usd=outer, per="owner_day"), budget]),
        shop(middleware=[budget], settings={OWNER_DAY: {"usd": outer}}),
    ]
    for agent in agents:
        assert day_limits(play(agent, "go", answers={"model": ["Done."]}, tools=TOOLS)) == [sent]


def test_a_last_answer_is_within_another_budget() -> None:
    """
    It goes beyond the limit of its own budget only.
    """
    both = [Budget(usd=5, per="owner_day"), Budget(usd=1, tokens=100, per="owner_day", when_spent="answer")]
    story = play(shop(middleware=both), "go", answers={"model": [spent(1, 2), "Sorry."]}, tools=TOOLS)

    assert story.said == ("Sorry.",)
    assert day_limits(story) == [{"usd": 1, "tokens": 100}, {"usd": 5}]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        pytest.param({RATE: 0.2}, "usd_per_million_tokens=0.2 is no price", id="a number"),
        pytest.param({RATE: {"input": 0.2}}, "is no price; give US dollars for each", id="no output"),
        pytest.param({RATE: {"input": "0.2", "output": 1}}, "is no price", id="a text"),
        pytest.param({RATE: {"input": -1, "output": 1}}, "is no price", id="less than nothing"),
        pytest.param({RATE: {"input": 10**400, "output": 1}}, "is no price", id="more than a float"),
        pytest.param({RATE: {"openai:a": {"input": 1, "output": 1}, "openai:b": 3}}, "is no price", id="by model"),
        pytest.param({OWNER_DAY: 5}, "owner_day=5 is no limit", id="no limit"),
        pytest.param({OWNER_DAY: {"usd": 0}}, "is no limit", id="nothing"),
        pytest.param({OWNER_DAY: {"dollars": 5}}, "is no limit", id="misspelt"),
        pytest.param({OWNER_DAY: {"usd": float("nan")}}, "is no limit", id="nan"),
        pytest.param({"timeout": "60"}, "timeout='60' is no number of seconds above 0", id="a time in a text"),
        pytest.param({"first_token_s": float("nan")}, "first_token_s=nan is no number of seconds", id="a time of nan"),
        pytest.param("cold", "settings='cold': they are a dict", id="no settings"),
    ],
)
def test_wrong_prices_and_limits_are_refused_when_an_agent_is_defined(settings: Any, problem: str) -> None:
    """
    Not when the first call is made.
    """
    with pytest.raises(DefinitionError, match=problem):
        shop(settings=settings)


@pytest.mark.parametrize(
    "settings",
    [
        {RATE: {"input": 0, "output": 0.6}},
        {RATE: {"openai:gpt-5": {"input": 0.2, "output": 0.6}, "openai:o3": None}},
        {RATE: None, OWNER_DAY: {}},
        {OWNER_DAY: {"usd": 5, "tokens": 100_000}},
    ],
)
def test_right_prices_and_limits_are_taken(settings: Any) -> None:
    """
    Of one model or of several; of nothing, which counts only.
    """
    assert shop(settings=settings).parts.settings == settings
