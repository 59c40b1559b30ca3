"""Messages to an agent at work: it hears them after the current call, and nothing is lost or done twice."""

from typing import Any

import pytest

from refold import Content, Part, Status
from refold.agent import AfterInvocation, BeforeInvocation, LoopTurn, Plugin, Think, around
from refold.core.chat import Reply, ToolCall, ToolReturn, UserSaid
from tests.agent.shop import shop
from tests.core.byhand import ByHand

BOTH = pytest.mark.parametrize("cut", [False, True], ids=["alive", "driven-again"])


def asks(*ids: str) -> Reply:
    return Reply(tool_calls=tuple(ToolCall(id=id, name="price", args={"item": id}) for id in ids), stop="tools")


def turns(task: ByHand) -> list[str]:
    """The conversation so far, in short."""
    said = task.task.threads["main"].said
    return [_short(one) for one in said]


def _short(one: Any) -> str:
    match one:
        case UserSaid(content=content):
            return f"user: {content.text}"
        case ToolReturn(id=id):
            return f"result {id}"
        case _:
            return f"model: {one.text or ', '.join(call.id for call in one.tool_calls)}"


@BOTH
def test_a_message_while_the_model_is_asked(cut: bool) -> None:
    """
    The call is not taken back, the calls that it asks for have their results, and then the model hears the message.
    """
    task = ByHand(shop(gates="none"), cut=cut)
    task.say("tea?")

    task.say("and milk?", early="interrupt")
    assert task.out == ["model"]
    task.give("model", asks("tea"))
    task.give("price", 3)
    task.give("model", Reply(text="Both 3."))

    assert turns(task) == ["user: tea?", "model: tea", "result tea", "user: and milk?", "model: Both 3."]
    assert (task.status, task.said) == (Status.COMPLETED, ["Both 3."])
    assert task.folded() == task.task


@BOTH
def test_a_message_while_tools_are_called(cut: bool) -> None:
    """
    All calls of the reply are made once, then the model hears their results and the message.
    """
    task = ByHand(shop(gates="none"), cut=cut)
    task.say("tea?")
    task.give("model", asks("tea", "cake"))

    task.say("and milk?", early="interrupt")
    task.give("price", 3)
    task.give("price", 4)
    task.give("model", Reply(text="3 and 4."))

    heard = ["user: tea?", "model: tea, cake", "result tea", "result cake", "user: and milk?", "model: 3 and 4."]
    assert turns(task) == heard
    assert task.status is Status.COMPLETED


@BOTH
def test_a_message_as_the_model_answers(cut: bool) -> None:
    """
    The user reads the answer, and the task goes on with the message instead of ending.
    """
    task = ByHand(shop(), cut=cut)
    task.say("tea?")
    task.say("and milk?", early="interrupt")

    task.give("model", Reply(text="Tea is 3."))
    assert (task.said, task.out) == (["Tea is 3."], ["model"])
    task.give("model", Reply(text="Milk is 1."))

    assert turns(task) == ["user: tea?", "model: Tea is 3.", "user: and milk?", "model: Milk is 1."]
    assert (task.status, task.said) == (Status.COMPLETED, ["Tea is 3.", "Milk is 1."])


def test_a_wait_around_a_call_is_not_cut_short() -> None:
    """
    Middleware that sleeps before the model is asked goes on to the call.
    """

    @around("model", streams=True)
    async def slowly(turn: Any, call: Any) -> Any:
        await turn.ctx.sleep(60, id="rest")
        return await call(turn)

    task = ByHand(shop(middleware=[slowly]))
    task.say("tea?")
    task.say("and milk?", early="interrupt")
    assert (len(task.alarms), len(task.task.early)) == (1, 1)

    task.ring("rest")
    task.give("model", Reply(text="Tea is 3."))
    assert (task.said, task.task.early) == (["Tea is 3."], ())


def test_a_loop_of_ones_own_hears_it_once_it_has_answered() -> None:
    """
    Its steps may owe results of calls; so it goes on after its answer.
    """
    task = ByHand(shop(tools=[], gates="none", loop=[Think()]))
    task.say("tea?")
    task.say("and milk?", early="interrupt")

    task.give("model", Reply(text="Tea is 3."))
    task.give("model", Reply(text="Milk is 1."))

    assert (task.status, task.said) == (Status.COMPLETED, ["Tea is 3.", "Milk is 1."])


@BOTH
def test_an_interrupted_answer_is_whole(cut: bool) -> None:
    """
    The user receives its value and its files, as of any other answer.
    """
    chart = Part(raw=b"chart", filename="chart.png", media_type="image/png")
    task = ByHand(shop(output=int), cut=cut)
    task.say("tea?")
    task.say("and milk?", early="interrupt")

    task.give("model", Reply(value=3, files=(chart,)))
    assert {one.name: one.parts for one in task.task.artifacts} == {
        "answer": Content.from_data(3).parts,
        "chart.png": (chart,),
    }
    task.give("model", Reply(value=1))
    assert task.status is Status.COMPLETED


def polite(event: AfterInvocation) -> None:
    """Have an answer without a please written again."""
    event.resume = None if "please" in event.reply.text else "Say please."


@BOTH
@pytest.mark.parametrize("forbids", [False, True])
def test_a_hook_may_still_refuse_the_answer(forbids: bool, cut: bool) -> None:
    """
    A message carries no answer past the hooks: what they refuse is written again, with the message or without it.
    """
    task = ByHand(shop(plugins=[polite, *([Strict()] if forbids else [])]), cut=cut)
    task.say("tea?")
    task.say("and milk?", early="interrupt")

    task.give("model", Reply(text="3."))
    assert (task.said, task.out) == (["No milk."] if forbids else [], ["model"])
    task.give("model", Reply(text="3, please."))

    milk = [] if forbids else ["user: and milk?"]
    assert turns(task) == ["user: tea?", "model: 3.", "user: Say please.", *milk, "model: 3, please."]
    assert (task.status, task.said[-1]) == (Status.COMPLETED, "3, please.")
    assert task.folded() == task.task


def test_the_question_is_the_message_although_a_hook_goes_on_too() -> None:
    """
    A step of the user's own reads the user's newest message.
    """
    seen: list[str] = []

    async def read(turn: LoopTurn) -> None:
        seen.append(turn.question)

    task = ByHand(shop(tools=[], gates="none", loop=[read, Think()], plugins=[polite]))
    task.say("tea?")
    task.say("and milk?", early="interrupt")

    task.give("model", Reply(text="3."))

    assert seen == ["tea?", "and milk?"]


class Strict(Plugin):
    """Takes no message about milk."""

    def before_invocation(self, event: BeforeInvocation) -> None:
        """Forbid it."""
        if "milk" in str(event.say):
            event.cancel = "No milk."


def test_a_hook_meets_the_message_too() -> None:
    """
    A message that a hook forbids never reaches the model, and is answered so.
    """
    task = ByHand(shop(plugins=[Strict()]))
    task.say("tea?")
    task.say("and milk?", early="interrupt")

    task.give("model", Reply(text="Tea is 3."))

    assert (task.status, task.said, task.out) == (Status.COMPLETED, ["Tea is 3.", "No milk."], [])


def test_a_forbidden_message_does_not_stop_the_work() -> None:
    """
    The user reads why; the model goes on with the results that it asked for.
    """
    task = ByHand(shop(plugins=[Strict()], gates="none"))
    task.say("tea?")
    task.give("model", asks("tea"))
    task.say("and milk?", early="interrupt")

    task.give("price", 3)
    assert (task.said, task.out) == (["No milk."], ["model"])
    task.give("model", Reply(text="Tea is 3."))

    assert turns(task) == ["user: tea?", "model: tea", "result tea", "model: Tea is 3."]
    assert (task.status, task.said[-1]) == (Status.COMPLETED, "Tea is 3.")


def test_results_are_checked_although_a_message_came() -> None:
    """
    A guardrail reads what tools returned before the model does, as always.
    """
    seen: list[str] = []

    @around("model", streams=True)
    async def watch(turn: Any, call: Any) -> Any:
        seen.extend(_short(one) for one in turn.say)
        return await call(turn)

    task = ByHand(shop(middleware=[watch], gates="none"))
    task.say("tea?")
    task.give("model", asks("tea"))
    task.say("and milk?", early="interrupt")
    task.give("price", 3)

    assert seen == ["user: tea?", "result tea", "user: and milk?"]
