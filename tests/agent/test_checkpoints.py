"""Checkpoints: an agent's task, one step at a time, each in another process if need be."""

from typing import Any

import pytest

from refold import Content, InputRejected, TaskState, UserMessage
from refold.agent import Checkpoint, checkpoint_of, next_checkpoint, resumed
from refold.core.chat import Reply, ToolCall
from refold.core.commands import CallChat, CallTool
from refold.core.events import ActivityResult, ChatResult, CommandFailed, Event, ToolResult
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Perform
from refold.core.retry_policy import Failure, FailureKind
from refold.testing import calls, play
from tests.agent.shop import TOOLS, shop


class World:
    """Performs commands, and notes what was called.

    Attributes:
        called: The commands' ids, in order.
    """

    def __init__(self, *replies: Reply) -> None:
        self.called: list[str] = []
        self._replies = list(replies)

    async def perform(self, asked: Perform) -> Event:
        """The result of one command."""
        command, ids = asked.command, {"id": asked.command.id, "invocation_id": asked.invocation_id}
        self.called.append(command.id)
        if isinstance(command, CallChat):
            return ChatResult(**ids, reply=self._replies.pop(0))
        assert isinstance(command, CallTool)
        return ToolResult(**ids, value=7)


def wish(*names: str) -> Reply:
    return Reply(
        tool_calls=tuple(ToolCall(id=f"c-{name}", name=name, args={"item": "tea"}) for name in names), stop="tools"
    )


async def test_step_by_step_through_json() -> None:
    """
    After the model, after the tools, and so on to the end; each step begins from what the one before left as JSON, and
    nothing that had come back is performed again.
    """
    agent, world = shop(), World(wish("price", "stock"), Reply(text="7 and 7"))
    seen = []
    at: Any = "How much?"
    while True:
        at = await next_checkpoint(agent, at, world.perform)
        if isinstance(at, Snapshot):
            break
        seen.append((at.type, at.position, at.cycle_index))
        at = Checkpoint.model_validate_json(at.model_dump_json())

    assert seen == [("checkpoint", "after_model", 1), ("checkpoint", "after_tools", 1)]
    assert world.called == ["model", "price", "stock", "model"]
    assert at.messages[-1].text == "7 and 7"


async def test_a_question_comes_before_a_checkpoint() -> None:
    """
    Where a person must decide, the task stands at the gate.
    """
    agent, world = shop(gates=["buy"]), World(wish("buy"))
    at = await next_checkpoint(agent, "Buy!", world.perform)

    assert isinstance(at, Snapshot)
    assert [wait.slot for wait in at.waits] == ["buy"]
    assert checkpoint_of(agent, at) is None


async def test_a_task_that_waits_for_an_operator_is_no_checkpoint() -> None:
    """
    Nobody knows whether it was bought: the task is returned as it is, also if it is to continue all the same.
    """

    class Doubtful(World):
        async def perform(self, asked: Perform) -> Event:
            if asked.command.id != "buy":
                return await super().perform(asked)
            failure = Failure(kind=FailureKind.UNKNOWN, type="outcome_unknown", message="It is not known.")
            return CommandFailed(id="buy", invocation_id=asked.invocation_id, failure=failure)

    agent, world = shop(), Doubtful(wish("buy"))
    at = await next_checkpoint(agent, "Buy!", world.perform)
    for _ in range(2):
        at = await next_checkpoint(agent, at, world.perform)
        assert isinstance(at, Snapshot)
        assert at.lifecycle is TaskState.BLOCKED


async def test_what_does_not_fit_is_refused() -> None:
    """
    Another schema, agent or version: nothing is guessed.
    """
    at = await next_checkpoint(shop(), "How much?", World(wish("price")).perform)
    assert isinstance(at, Checkpoint)

    with pytest.raises(InputRejected, match="has schema version 2, and this code reads 1"):
        resumed(shop(), at.model_copy(update={"schema_version": 2}))
    with pytest.raises(InputRejected, match="is of agent 'other', not of 'shop'"):
        resumed(shop(), at.model_copy(update={"agent": "other"}))
    with pytest.raises(InputRejected, match="made by version 1 of agent 'shop'; this is version 2"):
        resumed(shop(version=2, upgrade=lambda _, state: state), at)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (ToolResult(id="buy", invocation_id="other/2.1"), "no command other/2.1 waits for an outcome"),
        (ToolResult(id="by", invocation_id="task/2.1"), "command task/2.1 is 'buy', not 'by'"),
        (ActivityResult(id="buy", invocation_id="task/2.1"), "a tool, which activity_result does not answer"),
        (UserMessage(content=Content.from_text("bought")), "perform returned .* for 'buy'; it returns the command's"),
        ("bought", r"perform returned 'bought' \(str\) for 'buy'; it returns the command's outcome as an event"),
        (None, r"perform returned None \(NoneType\) for 'buy'"),
    ],
    ids=["other task", "other id", "other kind", "no outcome", "no event", "nothing"],
)
async def test_a_wrong_outcome_is_refused_and_the_effect_not_performed_again(outcome: Any, said: str) -> None:
    """
    The program that performs effects is told: the task would wait for the outcome, and ask for the effect without end.
    """

    class Mistaken(World):
        async def perform(self, asked: Perform) -> Event:
            if asked.command.id != "buy":
                return await super().perform(asked)
            self.called.append("buy")
            assert self.called.count("buy") == 1
            return outcome  # type: ignore[no-any-return]  # the mistake

    agent, world = shop(), Mistaken(wish("buy"))
    at = await next_checkpoint(agent, "Buy!", world.perform)
    with pytest.raises(InputRejected, match=said):
        await next_checkpoint(agent, at, world.perform)


def test_without_them_it_runs_as_ever() -> None:
    """
    They are looked at from outside: the same task, played through, stands at the same places.
    """
    story = play(shop(), "How much?", answers={"model": [calls("price", item="tea"), "7"]}, tools=TOOLS)
    found = [checkpoint_of(shop(), snapshot) for snapshot in story.snapshots]

    assert [one.position if one else None for one in found] == [None, None, "after_model", "after_tools", None]
