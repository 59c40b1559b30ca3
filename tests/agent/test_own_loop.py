"""Loops of the user's own: their steps, their statuses, what comes next, and what is refused."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from refold import Content, DefinitionError, Status
from refold.agent import (
    AfterModelCall,
    Agent,
    BeforeToolCall,
    Budget,
    Checkpoint,
    Concurrent,
    LoopTurn,
    Orchestrator,
    Repeat,
    Sequential,
    Step,
    StepStatus,
    Think,
    Together,
    around,
    checkpoint_of,
)
from refold.agent.looping.slots import RESERVED
from refold.agent.middleware import Held
from refold.agent.steps import Emit
from refold.core.chat import Reply, ToolCall, UserSaid
from refold.core.commands import CallChat
from refold.testing import FakeEngine, Played, calls, check_laws, play, reply
from tests.agent.shop import TOOLS, price, results, shop
from tests.core.byhand import ByHand
from workflows.careful_desk import CarefulDesk

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


async def plan(turn: LoopTurn) -> None:
    """The first step: the model makes a plan."""
    await turn.ask("Make a plan.")


async def check(turn: LoopTurn) -> StepStatus:
    """The last step: another conversation judges the draft."""
    verdict = await turn.ask(f"Is this right? {turn.reply}", thread="check")
    return turn.answer() if verdict.text == "yes" else turn.again(f"Not yet: {verdict.text}")


async def cheap(turn: LoopTurn) -> None:
    await turn.ask("What is cheap?")


async def good(turn: LoopTurn) -> None:
    await turn.ask("What is good?")


async def weigh(turn: LoopTurn) -> None:
    turn.tell(json.dumps(dict(turn.replies), sort_keys=True))


def planner(**options: Any) -> Agent:
    """Plans, weighs two views at once, acts, and checks."""
    views = Together(cheap, good, name="views")
    return shop(loop=[plan, views, weigh, Repeat(Think(), Concurrent(2), name="act"), check], **options)


ANSWERS = {
    "model": [
        *("A plan.", "Bags.", [calls("price", item="tea")], "300.", "no unit"),
        *("B plan.", "Bags.", "300 cents.", "yes"),
    ],
    "model.2": ["Leaves.", "Leaves."],
}


@BOTH
def test_plan_act_and_check(cut: bool) -> None:
    """
    Steps come in turn; an inner loop ends with its own answer; a check begins another pass, and ends the loop.
    """
    story = play(planner(), "tea?", answers=ANSWERS, tools=TOOLS, cut=cut)
    threads = {one.thread for one in story.asked if isinstance(one, CallChat)}

    assert (story.status, story.said) == (Status.COMPLETED, ("300 cents.",))
    assert results(story) == [("price", 300, False)]
    assert threads == {"main", "aside.views.cheap", "aside.views.good", "aside.check"}


def test_each_step_has_a_status() -> None:
    """
    The journal's progress lines tell which steps are done, and what the others are doing.
    """
    story = play(planner(), "tea?", answers=ANSWERS, tools=TOOLS)
    told = [entry.progress for entry in story.entries if entry.progress]

    assert told[0] == "plan running"
    assert told[1] == "plan done, views running, views.cheap running, views.good running"
    assert any(line.endswith("weigh done, model done, tools running (calling price)") for line in told)
    assert told[-1].startswith("cycle 2: plan done, views done")
    assert told[-1].endswith("model answered, check running")


def test_the_laws_hold() -> None:
    """
    Cut anywhere, or given events in any order, a loop of the user's own is a skill like any other.
    """
    check_laws(planner(), tools=TOOLS, max_examples=8)


def test_every_slot_is_a_checkpoint() -> None:
    """
    A task right after a slot is a checkpoint that names it.
    """
    agent = planner()
    story = play(agent, "tea?", answers=ANSWERS, tools=TOOLS)
    found = [checkpoint_of(agent, snapshot) for snapshot in story.snapshots]

    assert [one.position for one in found if isinstance(one, Checkpoint)][:3] == [
        "after_plan",
        "after_weigh",
        "after_model",
    ]


async def say_so(turn: LoopTurn) -> StepStatus:
    return turn.answer("It is.")


async def answered(text: str, turn: LoopTurn) -> StepStatus:
    return turn.answer(text)


def later(turn: LoopTurn) -> None:
    """No step: it is no coroutine function."""


class Pondering(Step[LoopTurn, StepStatus | None]):
    """A step as a class."""

    kind = "ponder"

    def __init__(self, name: str = "ponder", *, streams: bool = False) -> None:
        self.name, self.streams = name, streams

    async def stream(self, turn: LoopTurn, emit: Emit) -> StepStatus | None:
        """Think aloud."""
        return turn.again("Again.") if turn.reply == "Hm." else None


class Modelling(Pondering):
    """A step that says that it is the model's."""

    kind = "model"


def written(name: str) -> Any:
    """A step that is a function of this name."""

    async def function(turn: LoopTurn) -> StepStatus:
        return turn.answer("It is.")

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        pytest.param([], "loop is empty; give it one step at least, for example Think()", id="empty"),
        pytest.param(
            "think", "loop='think': it is a list of steps, for example loop=[Think(), Concurrent(3)]", id="text"
        ),
        pytest.param(
            [Think(), Think()], "two steps are named 'model'; give one another name: Think(..., name=", id="two"
        ),
        pytest.param([Think], "is no step; it is a class: write Think(...)", id="class"),
        pytest.param(
            [Think(), later], "is no step; a step is an `async def` function with one parameter, its turn", id="def"
        ),
        pytest.param([Think(), price], "is no step; a step is an `async def` function", id="tool"),
        pytest.param(
            [Think(), partial(answered, "It is.")], "is no step; a step is an `async def` function", id="partial"
        ),
        pytest.param([Think(), "tools"], "loop: 'tools' is no step; give Think(), an orchestrator,", id="name"),
        pytest.param([Sequential()], "no step of it can answer; add Think(), or a step of yours", id="no-answer"),
        pytest.param([Think()], "no step makes its calls; add an orchestrator, such as Sequential(),", id="no-calls"),
        pytest.param([Think(), Together(Sequential())], "nothing stands before it; write Repeat(", id="no-model"),
        pytest.param([Repeat(max_cycles=0), say_so], "loop: Repeat 'repeat' is empty", id="empty-inside"),
        pytest.param([Repeat(say_so, max_cycles=0)], "'repeat' has max_cycles=0; give a whole number", id="none"),
        pytest.param([Think(name="a step")], "begins with a letter, at most 40: 'a step'", id="odd-name"),
        pytest.param([Think(name="heard")], "the name 'heard' is taken; give the step another one", id="taken"),
        pytest.param([Think(name="steered")], "the name 'steered' is taken; give the step another one", id="taken-too"),
        pytest.param([Pondering(), Pondering()], "another name: an attribute `name` of its class", id="two-classes"),
        pytest.param([Modelling()], "is of kind 'model', which is the agent's own; give it another one", id="kind"),
        *(
            pytest.param([written(kind)], f"of kind '{kind}', which is the agent's own; rename the function", id=kind)
            for kind in RESERVED
        ),
    ],
)
def test_a_loop_that_is_written_wrongly(loop: Any, said: str) -> None:
    """
    It is refused when the agent is made, in words that say what to write.
    """
    with pytest.raises(DefinitionError) as refused:
        shop(loop=loop)

    assert said in str(refused.value)


def test_two_ways_to_say_who_makes_the_calls() -> None:
    """
    One of them would have no effect.
    """
    with pytest.raises(DefinitionError, match="orchestrator= has no effect beside loop="):
        shop(loop=[Think(), Sequential()], orchestrator=Concurrent())


async def wrong(turn: LoopTurn) -> Any:
    return "done"


async def early(turn: LoopTurn) -> StepStatus:
    return turn.answer()


async def bare(turn: LoopTurn) -> StepStatus:
    return StepStatus.ANSWERED


async def between(turn: LoopTurn) -> None:
    await turn.ask("Sure?")


async def mute(turn: LoopTurn) -> None:
    await turn.ask(thread="mute")


async def anew(turn: LoopTurn) -> StepStatus:
    return turn.again()


class Silent(Orchestrator):
    """Returns nothing."""

    async def run(self, turn: Any, tool: Any, emit: Emit) -> Any:
        """See `Orchestrator.run`."""


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        pytest.param(
            [wrong], "step 'wrong' returned 'done'; it returns None, turn.again(...) or turn.answer(...)", id="type"
        ),
        pytest.param(
            [early], "step 'early' answers with the newest reply, and there is none: give a text", id="no-reply"
        ),
        pytest.param(
            [bare], "step 'bare' returned StepStatus.ANSWERED without a reply; return turn.answer(text)", id="bare"
        ),
        pytest.param(
            [Think(), between, Sequential()], "asks the model while its calls of price have no results", id="owed"
        ),
        pytest.param([mute, Think(tools=False)], "asks in thread 'mute' without a text", id="nothing-to-say"),
        pytest.param(
            [Together(anew), say_so], "returned turn.again() within Together, which makes one pass", id="again"
        ),
        pytest.param(
            [Think(), Silent()], "orchestrator Silent returned None; it returns a tuple of ToolReturn", id="none"
        ),
        pytest.param([anew], "the model gave no answer in 20 cycles; raise max_cycles", id="for-ever"),
    ],
)
def test_a_step_that_does_the_wrong_thing(loop: Any, said: str) -> None:
    """
    The task fails with one line that names the step and the way out.
    """
    first = [reply("model", calls("price", item="tea"))] if isinstance(loop[0], Think) else []
    story = play(shop(loop=loop), "tea?", *first, tools=TOOLS)

    assert story.status is Status.FAILED
    assert said in story.reason
    assert "\n" not in story.reason


def _chats(story: Played) -> list[CallChat]:
    return [one for one in story.asked if isinstance(one, CallChat)]


def test_calls_that_no_step_makes_are_refused() -> None:
    """
    The model's next call has a result for each of them: a provider takes no other conversation.
    """
    loop = [Think(name="first"), Repeat(Think(), Sequential())]
    answers = {"model": [calls("price", item="tea"), "No price.", "None."]}
    story = play(shop(loop=loop, max_cycles=2), "tea?", answers=answers, tools=TOOLS)

    assert results(story) == [("price", "this call has no result: it was not made", True)]


def test_the_last_pass_must_answer() -> None:
    """
    In it the model is offered no tools; an answer in time is the agent's.
    """
    answers = {"model": [calls("price", item="tea"), "300."]}
    story = play(shop(loop=[Think(), Sequential()], max_cycles=2), "tea?", answers=answers, tools=TOOLS)
    frames = [one.frame for one in _chats(story)]

    assert story.said == ("300.",)
    assert frames[-1] is not None
    assert frames[-1].settings == {"tool_choice": "none"}


@pytest.mark.parametrize("answers", [True, False])
def test_calls_in_the_last_pass_are_refused(answers: bool) -> None:
    """
    The text beside them is the reply; without a text there is none, and the task fails.
    """
    agent = shop(loop=[Think(answers=answers), Sequential(), say_so], max_cycles=1)
    call = ToolCall(id="1", name="price", args={"item": "tea"})
    story = play(agent, "tea?", answers={"model": Reply(text="300.", tool_calls=(call,))}, tools=TOOLS)
    mute = play(agent, "tea?", answers={"model": Reply(tool_calls=(call,))}, tools=TOOLS)

    assert story.said == ("300." if answers else "It is.",)
    assert mute.reason.startswith("the model gave no answer in 1 cycles")
    assert "price" not in [one.id for one in (*story.asked, *mute.asked)]


@BOTH
def test_a_loop_beside_another_step(cut: bool) -> None:
    """
    Within `Together` it has a conversation of its own, and ends with its own answer.
    """
    act = Repeat(Think(), Sequential(), name="act", max_cycles=2)
    agent = shop(loop=[Together(act, cheap), Think(name="sum_up", tools=False)])
    answers = {"model": [calls("price", item="tea"), "300.", "All."], "model.2": ["Leaves."]}
    story = play(agent, "tea?", answers=answers, tools=TOOLS, cut=cut)
    beside = story.snapshot.threads["aside.together.act"].said

    assert story.said == ("All.",)
    assert [type(one).__name__ for one in beside] == ["UserSaid", "Reply", "ToolReturn", "Reply"]
    assert story.snapshot.threads["main"].said[0] == UserSaid(content=Content.from_text("tea?"))


async def test_steps_side_by_side_get_each_message() -> None:
    """
    The next message of the same task, too, and that of a task which continues the conversation.
    """
    agent = shop(tools=[], loop=[Together(Think(name="left")), Think(name="sum_up")], turns=2)
    engine = FakeEngine([agent], answers={"model": ["Left.", "All."] * 3})
    first = (await engine.start("shop", Content.from_text("tea?"))).task_id
    await engine.send(first, Content.from_text("milk?"))
    next_id = (await engine.start("shop", Content.from_text("cups?"), previous=first)).task_id
    task = await engine.at(next_id, (await engine.look(next_id)).seq)

    for name in ("main", "aside.together.left"):
        said = [one.content.text for one in task.threads[name].said if isinstance(one, UserSaid)]
        assert said == ["tea?", "milk?", "cups?"], name


def test_steps_side_by_side_are_bounded_together() -> None:
    """
    They share the budget and the trace of the task, and no more calls are open than `limit` says.
    """
    sides = [Repeat(Think(name=f"think_{side}"), Sequential(), name=side) for side in ("left", "right")]
    loop = [Together(*sides), Think(name="sum_up", tools=False)]
    agent = shop(loop=loop, middleware=[Budget(tool_calls=1, when_spent="answer")])
    task = ByHand(agent)
    task.say("tea?")
    for id in ("model", "model.2"):
        task.give(id, Reply(tool_calls=(ToolCall(id=id, name="price", args={"item": "tea"}),), stop="tools"))
    assert task.out == ["price", "model"]  # the other side's call is refused, and its model told so
    task.give("model", Reply(text="Right."))
    task.give("price", 300)
    task.give("model", Reply(text="Left."))
    state: Any = task.task.state
    spans = [span["step"] for span in state["args"]["state"]["trace"]]
    assert sorted(spans) == [*4 * ["model"], "tool price"]

    single = ByHand(shop(tools=[], loop=[Together(cheap, good, limit=1), say_so]))
    single.say("tea?")
    assert single.out == ["model"]


def test_calls_that_nobody_makes_beside_the_main_conversation() -> None:
    """
    They are refused there, too, before the next pass continues that conversation.
    """
    loop = [Together(Think(name="left", answers=False)), Repeat(Think(), Sequential()), check]
    answers = {"model": [calls("price", item="tea"), "300.", "no", "Left.", "300 cents.", "yes"]}
    story = play(shop(loop=loop), "tea?", answers=answers, tools=TOOLS)

    assert story.said == ("300 cents.",)
    assert results(story, "aside.together.left") == [("price", "this call has no result: it was not made", True)]


def test_a_model_call_has_a_model_and_instructions_of_its_own() -> None:
    """
    Without tools it is offered none; in the main conversation they stay, and none may be called.
    """
    about: Any = {"model": "openai:small", "instructions": "Draft.", "tools": False, "answers": False}
    loop = [Together(Think(name="beside", **about)), Think(name="draft", **about), Think(), Sequential()]
    story = play(shop(loop=loop, model="openai:large"), "tea?", answers={"model": ["One.", "Two.", "Three."]})
    beside, draft, last = [one.frame for one in _chats(story) if one.frame is not None]

    assert [(one.model, one.instructions) for one in (beside, draft, last)] == [
        ("openai:small", "Draft."),
        ("openai:small", "Draft."),
        ("openai:large", "Sell tea."),
    ]
    assert [(len(one.tools), one.settings.get("tool_choice")) for one in (beside, draft, last)] == [
        (0, None),
        (3, "none"),
        (3, None),
    ]


def test_each_pass_begins_the_inner_loop_anew() -> None:
    """
    With as many passes of its own as before; in the last of them the model must answer.
    """
    loop = [Repeat(Think(), Sequential(), name="act", max_cycles=2), check]
    one = (calls("price", item="tea"), "300.")
    answers = {"model": [*one, "no", *one, "yes"]}
    story = play(shop(loop=loop), "tea?", answers=answers, tools=TOOLS)
    frames = [one.frame for one in _chats(story) if one.thread == "main"]

    assert story.said == ("300.",)
    assert [one and one.settings.get("tool_choice") for one in frames] == [None, "none", None, "none"]


def test_an_answer_that_is_the_newest_reply_stands_once() -> None:
    """
    The model reads its own reply again, and no second one beside it.
    """

    async def echo(turn: LoopTurn) -> StepStatus:
        return turn.answer(turn.reply)

    agent = shop(loop=[Think(tools=False, answers=False), echo], turns=2)
    story = play(agent, "tea?", "and coffee?", answers={"model": ["300.", "400."]})

    assert [type(one).__name__ for one in story.snapshot.threads["main"].said] == ["UserSaid", "Reply"] * 2


def test_a_class_is_a_step_with_a_kind_of_its_own() -> None:
    """
    Middleware wraps it by that kind, as it wraps the model's and the tools'.
    """
    seen: list[str] = []

    @around("ponder")
    async def watched(turn: LoopTurn, proceed: Callable[[Any], Any]) -> Any:
        seen.append(turn.reply)
        return await proceed(turn)

    loop = [Think(answers=False, tools=False), Pondering(), Pondering("twice"), say_so]
    story = play(shop(loop=loop, middleware=[watched]), "tea?", answers={"model": ["Hm.", "Yes."]})

    assert story.said == ("It is.",)
    assert set(seen) == {"Hm.", "Yes."}


def test_middleware_of_an_unknown_kind() -> None:
    """
    The kinds that there are include those of the loop.
    """

    @around("pondre")
    async def watched(turn: LoopTurn, proceed: Callable[[Any], Any]) -> Any:
        return await proceed(turn)

    with pytest.raises(DefinitionError, match="wraps pondre; there are model, tool, tools, ponder"):
        shop(loop=[Think(tools=False), Pondering()], middleware=[watched])


def test_a_budget_counts_every_conversation() -> None:
    """
    What steps ask beside the main conversation is paid for too.
    """
    agent = shop(loop=[plan, check], middleware=[Budget(model_calls=1)])
    story = play(agent, "tea?", reply("model", "A plan."))

    assert story.status is Status.FAILED
    assert "1 model_calls" in story.reason


@pytest.mark.parametrize(
    ("loop", "held"),
    [
        pytest.param(None, False, id="none"),
        pytest.param([Think(), Concurrent(2)], False, id="the-same"),
        pytest.param([Think(), Concurrent(2), check], True, id="a-check"),
        pytest.param([Think(), Concurrent(2), Pondering()], True, id="a-class"),
        pytest.param([Think(), Concurrent(2), Pondering(streams=True)], False, id="a-class-that-streams"),
        pytest.param([Repeat(Think(), Concurrent(2)), say_so], True, id="a-draft"),
    ],
)
def test_what_a_step_may_still_refuse_is_not_shown(loop: Any, held: bool) -> None:
    """
    A model's answer is shown while it is written only if no step of the loop can still discard it.
    """
    assert any(isinstance(one, Held) for one in shop(loop=loop).options.middleware) is held


def test_hooks_and_middleware_added_later() -> None:
    """
    The agent with more of them is another value with the same id; the one before stays as it is.
    """

    def no_tea(event: BeforeToolCall) -> None:
        event.cancel = "Not tea."

    agent = shop(loop=[Think(), Sequential()])
    story = play(
        agent.adding(plugins=[no_tea]), "tea?", reply("model", calls("price", item="tea")), reply("model", "No.")
    )

    assert results(story) == [("price", "Not tea.", True)]
    assert agent.adding().options.card == agent.options.card
    assert agent.adding().__module__ == __name__  # where its workflow is looked for
    with pytest.raises(DefinitionError, match="two are named 'price'"):
        agent.adding(tools=[price])


def test_several_messages() -> None:
    """
    Each begins the loop anew; conversations beside the main one go on.
    """
    agent = shop(loop=[Think(tools=False, answers=False), check], turns=2)
    answers = {"model": ["300.", "yes", "400.", "yes"]}
    story = play(agent, "tea?", "and coffee?", answers=answers)

    assert story.said == ("300.", "400.")
    assert len(story.snapshot.threads["aside.check"].said) == 4


def test_hooks_see_every_call() -> None:
    """
    Also those of the user's own steps.
    """

    def no_maybe(event: AfterModelCall) -> None:
        event.retry = event.reply is not None and event.reply.text == "maybe"

    agent = shop(loop=[Think(tools=False, answers=False), check], plugins=[no_maybe])
    story = play(agent, "tea?", answers={"model": ["maybe", "300.", "maybe", "yes"]})

    assert story.said == ("300.",)


def test_the_example_of_the_application() -> None:
    """
    `workflows/careful_desk.py`: a draft that is refused is written anew; the customer reads the second one only.
    """
    answers = {
        "model": ["Look.", "Fair.", "Which order?", "no", "Look.", "Fair.", "Kindly tell me which order.", "Yes."],
        "model.2": ["Little.", "Little."],
    }
    story = play(CarefulDesk, "Money back!", answers=answers)

    assert story.said == ("Kindly tell me which order.",)
