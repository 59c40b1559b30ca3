"""Whatever agents, people, budgets, cancels and recoveries make of a conversation, the providers accept it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold import GatePolicy, InputRejected
from refold.agent import AfterModelCall, Agent, BeforeToolCall, Budget, Concurrent, Orchestrator, Plugin, Window
from refold.core.chat import Reply, ToolCall, ToolReturn
from refold.core.commands import CallChat
from refold.core.fold.wanted import Alarm, Perform, wanted
from refold.effects.http.client import open_client
from refold.effects.models.chat import converse
from refold.effects.models.conversations import Recalled
from refold.effects.models.resolve import Models
from refold.effects.tools import tools_of
from tests.agent.shop import TOOLS, shop
from tests.core.byhand import START, ByHand, busy, refused
from tests.services.strict import StrictAnthropic, StrictOpenAI
from tests.services.strict_responses import StrictResponses
from tests.sweeps import examples

PROVIDERS = ("openai-chat:gpt-test", "anthropic:claude-test", "openai-responses:gpt-5")
ENDLESS = 40


class Forgetful(Orchestrator):
    """Makes the first call of a reply alone, and returns its result alone."""

    async def run(self, turn: Any, tool: Any, emit: Any) -> tuple[ToolReturn, ...]:
        """See `Orchestrator`."""
        return (await tool.stream(turn.of(turn.calls[0]), emit),)


class Fickle(Plugin):
    """Discards a reply that says nothing, and forbids to buy coffee."""

    def after_model_call(self, event: AfterModelCall) -> None:
        """Ask again."""
        event.retry = event.reply is not None and event.reply.text == " " and event.attempt_count < 2

    def before_tool_call(self, event: BeforeToolCall) -> None:
        """Forbid it."""
        if event.tool_use.args.get("item") == "coffee":
            event.cancel = "No coffee."


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Any]]:
    """The providers."""
    with ExitStack() as stack:
        yield [stack.enter_context(kind()) for kind in (StrictOpenAI, StrictAnthropic, StrictResponses)]


AGENTS = st.fixed_dictionaries(
    {
        "orchestrator": st.sampled_from([None, Concurrent(2), Forgetful()]),
        "middleware": st.lists(
            st.sampled_from(
                [Window(2), Budget(tool_calls=2, when_spent="answer"), Budget(model_calls=4, when_spent="ask")]
            ),
            unique_by=type,
            max_size=2,
        ),
        "plugins": st.sampled_from([[], [Fickle()]]),
        "gates": st.sampled_from(["none", {"buy": GatePolicy(allow_unsigned=True)}]),
        "max_cycles": st.integers(1, 4),
        "turns": st.integers(1, 2),
    }
)
CALLS = st.lists(
    st.builds(
        ToolCall,
        id=st.sampled_from(["1", "2", "3", "functions.x:0", "c" * 70]),
        name=st.sampled_from(["price", "buy", "sell", "functions.buy"]),
        args=st.sampled_from([{"item": "tea"}, {"item": "coffee"}, {}, {"itme": 1}]),
    ),
    max_size=3,
    unique_by=lambda call: call.id,
)
CHANGES: list[dict[str, Any]] = [
    {},
    {"arguments": {"item": "milk"}},
    {"arguments": {}},
    {"result": "by hand"},
    {"result": {"by": ["hand"]}},
    {"result": None},
]
"""What an approver makes of a call: other arguments, or a result of their own."""

REPLIES = st.builds(
    lambda text, calls: Reply(text=text, tool_calls=tuple(calls), stop="tools" if calls else "end"),
    st.sampled_from(["", " ", "Let me see."]),
    CALLS,
)


class Life:
    """A task of an agent, lived by drawn events, with the conversations that were sent to its model."""

    def __init__(self, agent: Agent, data: st.DataObject) -> None:
        self.data, self.sent, self.steered = data, dict[str, Recalled](), 0
        self.task = ByHand(agent, cut=data.draw(st.booleans()))
        self.task.say("Tea?")
        for _ in range(ENDLESS):
            self._note()
            if not self._lives_on():
                break

    def _note(self) -> None:
        for key, want in wanted(self.task.task).items():
            if isinstance(want, Perform) and isinstance(want.command, CallChat):
                assert want.prior is not None
                assert want.command.frame is not None
                self.sent[f"{self.task.task.task_id} {key}"] = Recalled(
                    prior=want.prior.thread.said,
                    say=want.command.say,
                    frame=want.command.frame,
                    since=want.command.since,
                )

    def _lives_on(self) -> bool:
        task, draw = self.task, self.data.draw
        if task.task.ended:
            return task.task.ending != "completed" and draw(st.booleans()) and self._recovers()
        if draw(st.integers(0, 15)) == 0:
            task.cancel()
            return True
        if self.steered < 3 and draw(st.integers(0, 5)) == 0:
            self.steered += 1
            task.say("And milk?", early="interrupt")
            return True
        if task.task.waits:
            self._answered(task.task.waits[0].slot)
            return True
        wants = list(wanted(task.task).values())
        if not wants:
            return False
        want = draw(st.sampled_from(wants))
        if isinstance(want, Alarm):
            task.feed(want.event, second=(want.due_at - START).total_seconds())
        elif isinstance(want, Perform):
            self._performed(want)
        return True

    def _performed(self, want: Perform) -> None:
        id, draw = want.command.id, self.data.draw
        if draw(st.integers(0, 6)) == 0:
            self.task.fail(id, draw(st.sampled_from([busy(), refused()])))
        elif isinstance(want.command, CallChat):
            self.task.give(id, draw(REPLIES))
        else:
            self.task.give(id, draw(st.sampled_from(["found", None, "", {"a": 1}])))

    def _answered(self, slot: str) -> None:
        if slot == "next":
            self.task.say(self.data.draw(st.sampled_from(["More?", " "])))
        else:
            approved = self.data.draw(st.booleans())
            changes = self.data.draw(st.sampled_from(CHANGES)) if approved else {}
            self.task.decide(slot, approved, vouched=None, changes=changes)

    def _recovers(self) -> bool:
        try:
            self.task = self.task.recovered(f"{self.task.task.task_id}+")
        except InputRejected:
            return False
        return True


async def accepted(servers: Sequence[Any], sent: Sequence[Recalled]) -> list[str]:
    """What the providers refuse of these conversations."""
    async with open_client() as http:
        for server, name in zip(servers, PROVIDERS, strict=True):
            with pytest.MonkeyPatch.context() as patch:
                for key, value in server.environment.items():
                    patch.setenv(key, value)
                models = Models(name, http)
                for one in sent:
                    await converse(one, models, tools_of(TOOLS), key="k")
                await models.close()
    return [one for server in servers for one in server.refused]


@settings(max_examples=examples(15), suppress_health_check=list(HealthCheck))
@given(options=AGENTS, data=st.data())
def test_every_conversation_of_an_agent_is_accepted(servers: list[Any], options: Any, data: st.DataObject) -> None:
    """
    With messages in the middle; with calls that are edited or answered by a person, denied, forbidden, failed, lost,
    cut off by a budget or a cancel, and taken up by a recovery.
    """
    life = Life(shop(**options), data)

    assert life.sent
    assert asyncio.run(accepted(servers, list(life.sent.values()))) == []
