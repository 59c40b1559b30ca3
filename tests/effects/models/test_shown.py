"""What a reply says, and what is shown of it while it streams, is the same."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from refold.core.authoring.cmd import Cmd
from refold.core.chat import Reply, Said
from refold.effects.http.client import open_client
from refold.effects.models.chat import converse
from refold.effects.models.conversations import Recalled
from refold.effects.models.llm import ask
from refold.effects.models.resolve import Models
from tests.services.openai_server import OpenAIServer
from tests.services.strict import ASIDE, PAUSED, StrictAnthropic
from tests.sweeps import examples


class Seen:
    """Keeps what it is shown."""

    def __init__(self) -> None:
        self.said = ""
        self.calls: list[str] = []

    def text(self, piece: str) -> None:
        """See `Show`."""
        self.said += piece

    def call(self, number: int, tool: str, piece: str) -> None:
        """See `Show`."""
        if number == len(self.calls):
            self.calls.append("")
        self.calls[number] += piece


@pytest.fixture
async def models() -> AsyncIterator[Models]:
    """A worker's models."""
    async with open_client() as http:
        models = Models("anthropic:claude-test", http)
        yield models
        await models.close()


@pytest.fixture
def anthropic(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictAnthropic]:
    """A server that `anthropic:` models reach by the environment."""
    with StrictAnthropic() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


async def replied(models: Models, *said: str | Said, seen: Seen | None = None) -> Reply:
    """The reply to a conversation; streamed if it is seen."""
    asked = Cmd.chat("a", list(said), settings={"provider_tools": ["web_search"]})
    assert asked.frame is not None
    recalled = Recalled(prior=(), say=asked.say, frame=asked.frame, since=0)
    return await converse(recalled, models, {}, key="k", show=seen)


@pytest.mark.parametrize("stream", [False, True])
async def test_texts_with_something_between_them_are_paragraphs(
    models: Models, anthropic: StrictAnthropic, stream: bool
) -> None:
    """
    In the reply as in the answer of `ctx.llm`; the provider gets its texts back as they were.
    """
    said = f"Let me search.{ASIDE}Tea costs 3."
    anthropic.say(said, "Yes.", said)
    reply = await replied(models, "x", seen=Seen() if stream else None)
    await replied(models, "x", reply, "y")
    outcome = await ask(Cmd.llm("a", "x"), models, key="k", show=Seen() if stream else None)
    back = [part["text"] for part in anthropic.requests[1].body["messages"][1]["content"] if "text" in part]

    assert reply.text == outcome.value == "Let me search.\n\nTea costs 3."
    assert back == ["Let me search.", "Tea costs 3."]


TEXTS = st.text("ab. \n", min_size=1, max_size=5)
ANSWERS = st.one_of(TEXTS, st.just(PAUSED), st.builds(lambda one, two: one + ASIDE + two, TEXTS, TEXTS))


@settings(max_examples=examples(40), suppress_health_check=list(HealthCheck), deadline=None)
@given(answers=st.lists(st.just(PAUSED), max_size=2), last=ANSWERS.filter(lambda one: one != PAUSED))
async def test_what_is_shown_is_what_is_answered(
    models: Models, anthropic: StrictAnthropic, answers: list[str], last: str
) -> None:
    """
    With what a provider's own tools do between its texts, and with its pauses.
    """
    anthropic.say(*answers, last)
    seen = Seen()
    reply = await replied(models, "x", seen=seen)

    assert seen.said == reply.text
    assert seen.calls == []


class Line(BaseModel):
    """One line of an order."""

    article: str


@pytest.mark.parametrize("mode", ["tool", "native"])
async def test_an_answer_after_a_rejected_one_is_not_shown(models: Models, openai: OpenAIServer, mode: str) -> None:
    """
    It would continue the rejected one, which was shown and cannot be taken back; the reply replaces what was shown.
    """
    openai.say('{"article": 1}', '{"article": "tea"}')
    asked = Cmd.llm("a", "x", model="openai:gpt-test", expect=Line, settings={"output_mode": mode})
    seen = Seen()
    outcome = await ask(asked, models, key="k", show=seen)

    assert outcome.value == {"article": "tea"}
    assert seen.said == '{"article": 1}'
    assert [one.body["stream"] for one in openai.requests] == [True, True]
