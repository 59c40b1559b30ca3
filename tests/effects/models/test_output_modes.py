"""A typed answer in each way of asking for it, from each of the strict providers, with and without tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pydantic import BaseModel

from refold.core.authoring.cmd import Cmd
from refold.core.chat import Reply, ToolOffer
from refold.core.content import Content, Part
from refold.core.retry_policy import FailureKind
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.client import open_client
from refold.effects.models.chat import converse
from refold.effects.models.conversations import Recalled
from refold.effects.models.resolve import Models
from tests.services.strict import StrictAnthropic, StrictOpenAI
from tests.services.strict_responses import PNG, StrictResponses

OFFER = ToolOffer(name="find", description="Finds.", parameters={"type": "object", "properties": {}})
SERVERS: dict[str, Any] = {
    "openai-chat:gpt-test": StrictOpenAI,
    "anthropic:claude-sonnet-5-5": StrictAnthropic,
    "openai-responses:gpt-5": StrictResponses,
}


class Line(BaseModel):
    """One line of an order."""

    article: str


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, Any]]:
    """The providers, by a model of each."""
    with ExitStack() as stack:
        yield {model: stack.enter_context(server()) for model, server in SERVERS.items()}


async def answered(server: Any, model: str, mode: str, tools: list[ToolOffer], asked: str | Content = "x") -> Reply:
    """The reply to a question for a line of an order."""
    chat = Cmd.chat("a", asked, expect=Line, tools=tools, settings={"output_mode": mode})
    assert chat.frame is not None
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        async with open_client() as http:
            models = Models(model, http)
            reply = await converse(Recalled(prior=(), say=chat.say, frame=chat.frame, since=0), models, {}, key="k")
            await models.close()
    return reply


@pytest.mark.parametrize("tools", [[], [OFFER]], ids=["alone", "with tools"])
@pytest.mark.parametrize("mode", ["auto", "tool", "native", "prompted"])
@pytest.mark.parametrize("model", SERVERS)
async def test_a_typed_answer(servers: dict[str, Any], model: str, mode: str, tools: list[ToolOffer]) -> None:
    """
    The same value in each way, in one request that is accepted.
    """
    server = servers[model]
    before = len(server.requests)
    by_call = mode == "tool" and not isinstance(server, StrictOpenAI)  # that one makes the call of its JSON
    server.say('final_result(article="tea")' if by_call else '{"article": "tea"}')

    reply = await answered(server, model, mode, tools)

    assert (reply.value, reply.stop, reply.tool_calls) == ({"article": "tea"}, "end", ())
    assert len(server.requests) == before + 1
    assert server.refused == []


@pytest.mark.parametrize("asked", ["x", Content(parts=(Part(raw=PNG, filename="a.png"),))], ids=["text", "file"])
async def test_a_way_that_the_model_does_not_have(servers: dict[str, Any], asked: str | Content) -> None:
    """
    Is refused before anything is sent, with the model's name and the way out; a file beside it is not to blame.
    """
    server = servers["anthropic:claude-sonnet-5-5"]
    before = len(server.requests)
    with pytest.raises(Verdict) as caught:
        await answered(server, "anthropic:claude-2", "native", [], asked)
    failure = caught.value.failure

    assert (failure.kind, failure.type, len(server.requests)) == (FailureKind.PERMANENT, "configuration", before)
    assert failure.message == (
        "Native structured output is not supported by model 'anthropic:claude-2'; leave the setting output_mode out, "
        "or take `tool`"
    )
