"""Budgets: of a task and of an owner's day; what happens when nothing is left, and what the model is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from refold import DefinitionError
from refold.agent import Budget, ByTool, Concurrent, LoopTurn, StepStatus, Together
from refold.agent.ready.budget import ONE_GATE
from refold.core.chat import Reply, ToolCall, ToolReturn, Usage, UserSaid
from refold.core.commands import AskApproval, CallChat, CallTool
from refold.core.retry_policy import Failure
from refold.cost import OWNER_DAY, OWNER_DAY_SPENT, RATE
from refold.testing import Played, approve, calls, deny, permanent, play
from tests.agent.shop import TOOLS, results, shop
from tests.core.byhand import ByHand

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
        pytest.param({"owner_dy": {"usd": 5}}, "there is no 'owner_dy'; write 'owner_day'", id="a misspelt limit"),
        pytest.param({"usd_per_million_token": None}, "write 'usd_per_million_tokens'", id="a misspelt price"),
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


# --- one gate for calls that run at once


def kept(story: Played) -> Any:
    """What middleware has kept, before the task ended."""
    state: Any = story.snapshots[-2].state
    return state["args"]["state"]["kept"]


def wants(*items: str) -> Reply:
    """A reply that asks for several prices."""
    wanted = (ToolCall(id=item, name="price", args={"item": item}) for item in items)
    return Reply(tool_calls=tuple(wanted), stop="tools")


GROUPS = ByTool({"price": Concurrent(), "stock": Concurrent()})
CUT = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


@CUT
@pytest.mark.parametrize("orchestrator", [Concurrent(), GROUPS], ids=["together", "in groups"])
def test_calls_that_run_at_once_open_one_gate(cut: bool, orchestrator: Any) -> None:
    """
    Five are over the budget of four: one grant lets four of them in, and the gate opens again for the last one.
    """
    items = "abcdefghi"
    wish = [calls("price" if item < "f" else "stock", item=item) for item in items]
    agent = shop(middleware=[Budget(tool_calls=4, when_spent="ask")], orchestrator=orchestrator)
    story = play(
        agent, "go", approve("budget"), approve("budget"), answers={"model": [wish, "ok"]}, tools=TOOLS, cut=cut
    )
    gates = [one for one in story.asked if isinstance(one, AskApproval)]

    assert [one.show for one in gates] == [
        {"budget": "tool_calls", "limit": 4, "spent": 4},
        {"budget": "tool_calls", "limit": 8, "spent": 8},
    ]
    assert [failed for _, _, failed in results(story)] == [False] * 9
    assert kept(story)["budgets granted"] == {"tool_calls 4": 2}


@CUT
def test_each_limit_has_a_gate_of_its_own(cut: bool) -> None:
    """
    Two budgets ask for their own amounts, though the calls of both wait at once.
    """
    both = [Budget(tool_calls=1, when_spent="ask"), Budget(tool_calls=2, when_spent="ask")]
    agent = shop(middleware=both, orchestrator=Concurrent())
    answers = {"model": [wants("a", "b", "c"), "ok"]}
    script = [approve("budget")] * 3
    story = play(agent, "go", *script, answers=answers, tools=TOOLS, cut=cut)

    assert story.said[-1] == "ok"
    assert kept(story)["budgets granted"] == {"tool_calls 1": 2, "tool_calls 2": 1}


@CUT
def test_models_that_run_at_once_open_one_gate(cut: bool) -> None:
    """
    In a loop of the user's own, where several steps ask the model together.
    """

    async def one(turn: LoopTurn) -> None:
        await turn.ask("One?")

    async def two(turn: LoopTurn) -> None:
        await turn.ask("Two?")

    async def plan(turn: LoopTurn) -> None:
        await turn.ask("Plan.")
        await turn.ask("Go on.")

    async def three(turn: LoopTurn) -> StepStatus:
        return turn.answer("Three.")

    budget = Budget(model_calls=2, when_spent="ask")
    task = ByHand(shop(tools=[], middleware=[budget], loop=[plan, Together(one, two), three]), cut=cut)
    task.say()
    task.give("model", "Begun.")
    task.give("model", "Gone on.")
    assert task.waiting == ["budget"]

    task.decide("budget")
    assert task.out == ["model", "model.2"]
    task.give("model.2", "2")
    task.give("model", "1")
    assert task.said[-1] == "Three."
    assert task.folded() == task.task


@CUT
def test_a_gate_that_nobody_decides_at_fails_the_task_once(cut: bool) -> None:
    """
    With a denial too: all calls that wait for it get the same.
    """
    agent = shop(middleware=[Budget(tool_calls=1, when_spent="ask")], orchestrator=Concurrent())
    answers = {"model": [wants("a", "b", "c")]}
    denied = play(agent, "go", deny("budget"), answers=answers, tools=TOOLS, cut=cut)

    assert denied.status == "failed"
    assert sum(isinstance(one, AskApproval) for one in denied.asked) == 1


@CUT
def test_a_task_that_was_recorded_with_a_gate_for_each_call_keeps_them(cut: bool) -> None:
    """
    It grants as often as it was recorded.
    """
    agent = shop(middleware=[Budget(tool_calls=1, when_spent="ask")], orchestrator=Concurrent())
    task = ByHand(agent, cut=cut, patched=lambda _: False)
    task.say()
    task.give("model", wants("a", "b", "c"))
    task.give("price", 1)
    assert task.waiting == ["budget", "budget.2"]

    task.decide("budget")
    task.decide("budget.2")
    for one in [one for one in task.out if one.startswith("price")]:
        task.give(one, 2)
    task.give("model", "ok")
    assert task.said[-1] == "ok"
    assert task.folded() == task.task


def test_calls_one_after_the_other_ask_for_no_patch() -> None:
    """
    Their history is as before.
    """
    task = ByHand(shop(middleware=[Budget(tool_calls=1, when_spent="ask")]), patched=lambda _: True)
    task.say()
    task.give("model", wants("a", "b"))
    task.give("price", 1)
    task.decide("budget")

    assert task.out == ["price"]
    assert ONE_GATE not in task.task.patches
