"""Running an agent: said to it through an engine, in one task or in several, side by side."""

import asyncio
from typing import Any

import pytest

from refold import InputRejected, Status
from refold.agent import AfterModelCall, AfterTools, Agent, BeforeInvocation, Budget, LoopTurn, StepStatus
from refold.conversation import UNANSWERED
from refold.core.chat import ToolReturn
from refold.core.events import ChatResult
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.lineage.recover import recover
from refold.testing import FakeEngine, calls, permanent, play
from refold.testing.play import START
from tests.agent.shop import TOOLS, shop


def heard(command: Any) -> str:
    """A model that says how many turns it was told of, and what it heard last."""
    return f"{command.thread}: {command.say[-1].content.text}"


async def test_it_is_invoked() -> None:
    """
    `invoke` says something and waits for the answer; a task that waits takes the next message.
    """
    agent = shop(turns=2)
    engine = FakeEngine([agent], answers={"model": heard})
    first = await agent.invoke(engine, "one")
    second = await agent.invoke(engine, "two", task_id=first.task_id)

    assert (first.text, first.status) == ("main: one", Status.INPUT_REQUIRED)
    assert (second.text, second.status, second.task_id) == ("main: two", Status.COMPLETED, first.task_id)


async def test_an_answer_is_to_the_newest_message() -> None:
    """
    Where a hook answers with a text, the value of the answer before it is not given once more.
    """

    def closed(event: BeforeInvocation) -> None:
        event.cancel = "closed" if event.state.turns == 2 else False

    agent = shop(output=int, turns=3, plugins=[closed])
    engine = FakeEngine([agent], answers={"model": [7]})
    first = await agent.invoke(engine, "one")
    second = await agent.invoke(engine, "two", task_id=first.task_id)

    assert [(one.text, one.value) for one in (first, second)] == [("7", 7), ("closed", None)]


async def test_an_answer_has_no_text_of_the_one_before() -> None:
    """
    Where the agent says nothing to the newest message: its task fails, or waits at a gate, whose question is its text.
    """
    agent = shop(turns=None, gates=["buy"])
    engine = FakeEngine([agent], answers={"model": ["Hello.", calls("buy", item="tea")]}, tools=TOOLS)
    first = await agent.invoke(engine, "one")
    waits = await agent.invoke(engine, "two", task_id=first.task_id)
    broken = FakeEngine([agent], answers={"model": ["Hello.", permanent("down")]})
    second = await agent.invoke(broken, "one")
    failed = await agent.invoke(broken, "two", task_id=second.task_id)

    assert (first.text, second.text) == ("Hello.", "Hello.")
    assert (waits.text, waits.status) == ("May buy be called?", Status.INPUT_REQUIRED)
    assert (failed.text, failed.status, failed.task.reason) == ("", Status.FAILED, "model: down")


async def test_it_is_streamed() -> None:
    """
    `stream` gives the journal as it grows; `invoke` is the same, drained.
    """
    agent = shop()
    answers = {"model": [calls("price", item="tea"), "300."]}
    engine = FakeEngine([agent], answers=answers, tools=TOOLS)
    entries = [one async for one in agent.stream(engine, "tea?") if isinstance(one, Entry)]

    assert [entry.event.kind for entry in entries] == ["user_message", "chat_result", "tool_result", "chat_result"]
    assert isinstance(entries[-1].event, ChatResult)


async def test_two_tasks_of_one_agent_share_nothing() -> None:
    """
    Side by side, each has its own state, conversation and `app`, though the agent and its plugins are the same.
    """

    def count(event: AfterTools) -> None:
        seen = event.state.app.get("seen", [])
        assert isinstance(seen, list)
        event.state.app.set("seen", [*seen, *(one.value for one in event.results)])

    def wish(command: Any) -> Any:
        told = command.say[-1]
        if isinstance(told, ToolReturn):
            return f"done {told.value}"
        return calls("price", item=told.content.text)

    agent = shop(plugins=[count])
    engine = FakeEngine([agent], answers={"model": wish}, tools=TOOLS)
    tea, coffee = await asyncio.gather(agent.invoke(engine, "tea"), agent.invoke(engine, "coffee"))
    states: list[Any] = [(await engine.at(one.task_id, one.task.seq - 1)).state for one in (tea, coffee)]

    assert (tea.text, coffee.text) == ("done 300", "done 600")
    assert [state["args"]["state"]["app"] for state in states] == [{"seen": [300]}, {"seen": [600]}]


async def test_a_task_goes_on_with_the_conversation_of_another() -> None:
    """
    Started with `previous`, it has been told all that was said there; the other one is left alone.
    """
    agent = shop()
    engine = FakeEngine([agent], answers={"model": ["1", "2"]})
    first = await agent.invoke(engine, "one", owner="Ann")
    second = await agent.invoke(engine, "two", owner="Ann", previous=first.task_id)
    with pytest.raises(InputRejected, match="is owned by somebody else"):
        await agent.invoke(engine, "three", owner="Bob", previous=first.task_id)
    snapshot = await engine.at(second.task_id, second.task.seq)
    before = await engine.at(first.task_id, first.task.seq)

    said = [getattr(one, "text", "") or one.content.text for one in snapshot.threads["main"].said]  # type: ignore[union-attr]
    assert (said, snapshot.previous) == (["one", "1", "two", "2"], first.task_id)
    assert len(before.threads["main"].said) == 2


@pytest.mark.parametrize(
    "discarded", [pytest.param("2", id="text"), pytest.param(calls("price", item="tea"), id="a call of a tool")]
)
async def test_a_task_goes_on_with_a_conversation_whose_last_call_failed(discarded: Any) -> None:
    """
    A hook discards a reply, and the call that repeats it fails: the next task has what was said before, without the
    reply or the tools that it called.
    """

    def repeat(event: AfterModelCall) -> None:
        event.retry = event.reply is not None and event.reply.text != "1"

    agent = shop(turns=None, plugins=[repeat])
    engine = FakeEngine([agent], answers={"model": ["1", discarded, permanent("down"), "1"]}, tools=TOOLS)
    first = await agent.invoke(engine, "one")
    failed = await agent.invoke(engine, "two", task_id=first.task_id)
    third = await agent.invoke(engine, "three", previous=first.task_id)
    snapshot = await engine.at(third.task_id, third.task.seq)

    said = [getattr(one, "text", "") or one.content.text for one in snapshot.threads["main"].said]  # type: ignore[union-attr]
    assert (failed.status, said) == (Status.FAILED, ["one", "1", "two", "three", "1"])


async def test_what_was_left_open_is_closed() -> None:
    """
    A task that ended between a wish and its result leaves a conversation that can be gone on with.
    """
    agent = shop(fatal=["price"])

    def fails(_: Any) -> Any:
        raise ValueError("no")

    engine = FakeEngine([agent], answers={"model": [calls("price", item="a"), "2"], "price": fails})
    first = await agent.invoke(engine, "one")
    second = await agent.invoke(engine, "two", previous=first.task_id)
    snapshot = await engine.at(second.task_id, second.task.seq)

    returned = [one for one in snapshot.threads["main"].said if isinstance(one, ToolReturn)]
    assert (first.status, second.text) == (Status.FAILED, "2")
    assert [(one.value, one.failed) for one in returned] == [(UNANSWERED, True)]


async def test_no_task_reads_that_a_call_was_not_made_which_was() -> None:
    """
    The model call that would have told the model of the result failed: the next task reads that it may have been made.
    """
    agent = shop()
    model = [calls("buy", item="tea"), permanent("down"), "Let me look."]
    engine = FakeEngine([agent], answers={"model": model}, tools=TOOLS)
    first = await agent.invoke(engine, "one")
    second = await agent.invoke(engine, "two", previous=first.task_id)
    snapshot = await engine.at(second.task_id, second.task.seq)

    (returned,) = [one for one in snapshot.threads["main"].said if isinstance(one, ToolReturn)]
    assert first.status is Status.FAILED
    assert returned.failed
    assert "may have been made" in str(returned.value)


async def test_an_agent_calls_an_agent() -> None:
    """
    The other one's task is a task of its own, whose answer is the tool's result.
    """
    helper = Agent("helper", instructions="Help.", model="scripted:helper")
    host = Agent("host", instructions="Ask.", tools=[helper], gates="none")

    def model(command: Any) -> Any:
        told = command.say[-1]
        if command.frame is not None and command.frame.instructions == "Help.":
            return f"because {told.content.text}"
        return calls("helper", message="why") if not isinstance(told, ToolReturn) else f"told: {told.value}"

    engine = FakeEngine([helper, host], answers={"model": model})
    answer = await host.invoke(engine, "go")

    assert answer.text == "told: because why"


def test_a_task_that_ran_out_recovers() -> None:
    """
    With another budget it goes on from where it failed; what had come back is not asked again.
    """
    wish = calls("price", item="tea")
    failed = play(shop(middleware=[Budget(model_calls=1)]), "tea?", answers={"model": wish}, tools=TOOLS)
    richer = shop(middleware=[Budget(model_calls=5)])
    base, again = recover(richer, failed.snapshots[0], failed.entries, "T2", START)
    task, entry = advance(richer, base, again, START)

    assert failed.reason.startswith("the budget of 1 model_calls is used up")
    assert [issued.command.id for issued in entry.commands] == ["model"]
    assert [one.kind for one in task.threads["main"].said] == ["user", "reply"]


async def test_a_conversation_of_any_name_goes_on() -> None:
    """
    A name with a tilde is no number of a copy: a discarded reply is asked for again, and the next task goes on there.
    """

    def once_more(event: AfterModelCall) -> None:
        event.retry = event.attempt_count == 1

    async def check(turn: LoopTurn) -> StepStatus:
        await turn.ask("Is it right?", thread="a")
        return turn.answer((await turn.ask("Is it?", thread="a~b")).text)

    agent = shop(loop=[check], plugins=[once_more])
    engine = FakeEngine([agent], answers={"model": ["1", "2", "3", "4", "5", "6", "7", "8"]})
    first = await agent.invoke(engine, "go")
    second = await agent.invoke(engine, "go", previous=first.task_id)
    threads = (await engine.at(second.task_id, second.task.seq)).threads

    assert (first.text, second.text) == ("4", "8")
    assert {name: len(thread.said) for name, thread in threads.items()} == {
        "aside.a": 4,
        "aside.a~2": 4,
        "aside.a~b": 4,
        "aside.a~b~2": 4,
    }
