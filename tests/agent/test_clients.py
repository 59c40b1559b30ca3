"""Clients of the user's own call the model and the tools in another way than by commands of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from refold.agent import AfterModelCall, around
from refold.agent.clients import Chat, Question
from refold.agent.steps import ANSWERS_KEPT
from refold.core.chat import Reply, ToolReturn
from refold.testing import calls, permanent, play
from tests.agent.shop import TOOLS, shop
from tests.core.byhand import ByHand

CUT = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


class Canned(Chat):
    """Answers what it knows without the model."""

    def __init__(self, answers: Mapping[Any, Reply]) -> None:
        self.answers = answers

    async def ask(self, ctx: Any, question: Question) -> Reply:
        """See `ModelClient`."""
        return self.answers.get(said(question.say)[-1]) or await super().ask(ctx, question)


def said(turns: Any) -> list[Any]:
    """What a conversation says."""
    return [
        one.value if isinstance(one, ToolReturn) else one.text if isinstance(one, Reply) else one.content.text
        for one in turns
    ]


@CUT
def test_the_model_reads_what_a_client_answered_without_it(cut: bool) -> None:
    """
    With the next message, as if it had answered itself; with what was said to the client, tools' results too.
    """
    wish = Reply(tool_calls=(calls("price", item="a"),), stop="tools")
    client = Canned({"Hi": Reply(text="Hello."), "Price of a?": wish, 100: Reply(text="100.")})
    agent = shop(model_client=client, turns=4)
    answers = {"model": ["Yes.", "Bye."]}
    story = play(agent, "Hi", "Price of a?", "Really?", "Bye", answers=answers, tools=TOOLS, cut=cut)

    assert story.said == ("Hello.", "100.", "Yes.", "Bye.")
    assert said(story.snapshot.threads["main"].said) == [
        *("Hi", "Hello.", "Price of a?", "", 100, "100.", "Really?", "Yes.", "Bye", "Bye."),
    ]


@CUT
def test_an_answer_of_a_client_that_is_discarded_is_forgotten(cut: bool) -> None:
    """
    By a hook or by middleware: what was said before stays.
    """

    def again(event: AfterModelCall) -> None:
        event.retry = event.reply is not None and event.reply.text == "bad"

    @around("model")
    async def twice(turn: Any, proceed: Callable[[Any], Any]) -> Any:
        found = await proceed(turn)
        return found if found.text != "odd" else await proceed(turn)

    class Fickle(Chat):
        """Answers the second message badly, then oddly, then lets the model answer."""

        async def ask(self, ctx: Any, question: Question) -> Reply:
            """See `ModelClient`."""
            text = said(question.say)[-1]
            if text == "one":
                return Reply(text="fine")
            tries = await ctx.tool("tries")
            return Reply(text=tries) if tries else await super().ask(ctx, question)

    agent = shop(model_client=Fickle(), plugins=[again], middleware=[twice], turns=2)
    answers = {"model": ["good"], "tries": ["bad", "odd", ""]}
    story = play(agent, "one", "two", answers=answers, cut=cut)

    assert story.said == ("fine", "good")
    assert said(story.snapshot.threads["main"].said) == ["one", "fine", "two", "good"]


@CUT
def test_a_task_that_was_recorded_without_a_clients_answers_goes_on_without(cut: bool) -> None:
    """
    Its calls are those that were recorded.
    """
    task = ByHand(shop(model_client=Canned({"Hi": Reply(text="Hello.")}), turns=2), cut=cut, patched=lambda _: False)
    task.say("Hi")
    task.say("Really?")
    chat: Any = task.pending("model").command

    assert said(chat.say) == ["Really?"]
    assert task.task.patches[ANSWERS_KEPT] is False


def test_a_client_that_calls_the_model_asks_for_no_patch() -> None:
    """
    Its history is as before.
    """
    task = ByHand(shop(model_client=Canned({}), turns=2), patched=lambda _: True)
    task.say("Hi")
    task.give("model", "Hello.")
    task.say("Really?")

    assert ANSWERS_KEPT not in task.task.patches


@pytest.mark.parametrize("details", [{"usage": "much"}, {"usage": None}, {"usage": {"input_tokens": 1.5}}, ["usage"]])
def test_what_a_client_says_of_a_failure_may_be_anything(details: Any) -> None:
    """
    Only what a worker writes of an answer of no use is counted.
    """

    class ByTool(Chat):
        """Asks a tool of its own."""

        async def ask(self, ctx: Any, question: Question) -> Reply:
            """See `ModelClient`."""
            return Reply(text=await ctx.tool("ask_elsewhere"))

    failure = permanent("no such model").model_copy(update={"details": details})
    story = play(shop(model_client=ByTool()), "Hi", answers={"ask_elsewhere": [failure]})

    assert "no such model" in story.reason
