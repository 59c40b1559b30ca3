"""A call in a conversation, over real HTTP: what the model is told, and what its answer becomes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai.messages import ModelResponse, ModelResponsePart, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.models.openrouter import OpenRouterModel
from temporalio.exceptions import ApplicationError

from refold.agent import Agent
from refold.conversation import ChatRequest, request_of
from refold.core.authoring.cmd import Cmd
from refold.core.authoring.tool import tool
from refold.core.chat import EMPTY, Prior, Reply, Thread, ToolCall, ToolOffer, ToolReturn, as_said
from refold.core.commands import CallChat
from refold.core.retry_policy import FailureKind
from refold.effects.activities import Effects
from refold.effects.failures.verdicts import OTHERS_S
from refold.effects.models.content.messages import messages_of, reply_parts
from refold.effects.models.tail import CallTail, TokenTail
from refold.testing import play
from tests.effects.conftest import Bench, failure_in
from tests.services.openai_server import OpenAIServer, Trouble

MODEL = "openai:gpt-test"
WISH = ToolCall(id="call-1.1", name="weather", args={"city": "Oslo"})
STREAM = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


class Forecast(BaseModel):
    rain: bool


@tool(effect="read_only")
async def weather(city: str) -> str:
    """The weather in a city."""
    return f"Rain in {city}."


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Effects with a tool, open."""
    async with Effects([weather]) as effects:
        yield Bench(effects)


def asks(*say: Any, thread: Thread = EMPTY, **options: Any) -> tuple[ChatRequest, Thread]:
    """A call and its thread, as of now."""
    chat: CallChat = Cmd.chat("a", say, model=MODEL, **options)
    return request_of(chat, Prior(thread=thread, framed=False)), thread


async def chat(bench: Bench, *say: Any, stream: bool = False, **options: Any) -> Reply:
    """What the model replies to the first words of a conversation."""
    reply = await bench.run("refold.chat", asks(*say, **options)[0], stream)
    assert isinstance(reply, Reply)
    return reply


@STREAM
async def test_a_model_calls_a_tool_and_answers(bench: Bench, openai: OpenAIServer, stream: bool) -> None:
    """
    It is told the tool as its signature says it, and later what came of the call, under the call's id.
    """
    openai.say('weather(city="Oslo")', "Wet.")
    first = await chat(bench, "Oslo?", tools=[weather], instructions="Help.", stream=stream)
    assert first.tool_calls == (ToolCall(id="call-2-1", name="weather", args={"city": "Oslo"}),)
    assert (first.stop, first.text, first.model) == ("tools", "", MODEL)
    assert first.usage.output_tokens > 0

    thread = EMPTY.after([*as_said("Oslo?"), first])
    returned = ToolReturn(id=first.tool_calls[0].id, name="weather", value="Rain.")
    second = await chat(bench, returned, tools=[weather], instructions="Help.", thread=thread, stream=stream)
    assert (second.text, second.stop) == ("Wet.", "end")

    function = openai.requests[0].body["tools"][0]["function"]
    assert (function["name"], function["description"]) == ("weather", "The weather in a city.")
    assert function["parameters"]["properties"] == {"city": {"type": "string"}}
    roles = [message["role"] for message in openai.requests[1].body["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    assert openai.requests[1].body["messages"][3]["tool_call_id"] == "call-2-1"


@STREAM
async def test_several_calls_at_once(bench: Bench, openai: OpenAIServer, stream: bool) -> None:
    """
    Each has its own id and arguments, in the order in which the model gave them.
    """
    openai.say('weather(city="Oslo"), weather(city="Rome")')
    reply = await chat(bench, "Both?", tools=["weather"], stream=stream)

    assert [call.args["city"] for call in reply.tool_calls] == ["Oslo", "Rome"]
    assert len({call.id for call in reply.tool_calls}) == 2


@STREAM
async def test_a_value_is_expected_together_with_tools(bench: Bench, openai: OpenAIServer, stream: bool) -> None:
    """
    A tool first, then the final answer in its form; a misfit is asked for once more.
    """
    openai.say('weather(city="Oslo")', '{"rain": "perhaps"}', '{"rain": true}')
    first = await chat(bench, "Oslo?", tools=[weather], expect=Forecast, stream=stream)
    assert first.tool_calls[0].name == "weather"
    assert first.value is None

    final = await chat(bench, "And now?", tools=[weather], expect=Forecast, stream=stream)
    assert (final.value, final.text, final.tool_calls, final.stop) == ({"rain": True}, "", (), "end")
    assert final.usage.requests == 2
    assert "rain: Input should be a valid boolean" in str(openai.requests[2].body["messages"])


async def test_a_second_misfit_is_final(bench: Bench, openai: OpenAIServer) -> None:
    """
    As in a call without a past.
    """
    openai.say("I would rather not.", "No.")
    with pytest.raises(ApplicationError) as caught:
        await chat(bench, "Oslo?", expect=Forecast)
    assert failure_in(caught.value).type == "decode"


async def test_a_tool_that_nobody_registered(bench: Bench, openai: OpenAIServer) -> None:
    """
    By name alone it cannot be offered, and the call is left to workers of another release; in full it can, wherever it
    is called.
    """
    with pytest.raises(ApplicationError, match="this worker has none of that name; it has: weather") as caught:
        await chat(bench, "x", tools=["fly"])
    failure = failure_in(caught.value)
    assert (failure.kind, failure.again_s) == (FailureKind.PERMANENT, OTHERS_S)

    offer = ToolOffer(name="fly", description="Fly.", parameters={"type": "object", "properties": {}})
    openai.say("fly()")
    assert (await chat(bench, "x", tools=[offer])).tool_calls[0].name == "fly"
    assert openai.requests[0].body["tools"][0]["function"]["description"] == "Fly."


@STREAM
async def test_a_tool_that_was_not_offered_cannot_be_called(
    bench: Bench, openai: OpenAIServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """
    Whatever a model names, and whoever told it to: the call comes without arguments, and says why.
    """
    function = {"name": "charge_card", "arguments": '{"cents": 1}'}
    call = {"id": "call-1", "type": "function", "function": function}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    monkeypatch.setattr(openai, "reply_to", lambda body: message)
    reply = await chat(bench, "x", tools=[weather], stream=stream)

    problem = "no tool 'charge_card' is offered; there are: weather"
    assert reply.tool_calls == (ToolCall(id="call-1", name="charge_card", problem=problem),)


async def test_arguments_that_are_no_json(bench: Bench) -> None:
    """
    The call is there, without arguments and with the reason, so that the model can be told.
    """
    parts = [ToolCallPart("a", "{", tool_call_id="c1"), ToolCallPart("b", "[1]", tool_call_id="c2"), ToolCallPart("c")]
    _, calls, _ = reply_parts(ModelResponse(parts=parts))

    assert calls[0].problem.startswith("the arguments are not JSON")
    assert calls[1].problem == "the arguments are no JSON object"
    assert (calls[2].args, calls[2].problem) == ({}, "")


@pytest.mark.parametrize(("levels", "read"), [(96, True), (97, False), (300, False), (100_000, False)])
def test_arguments_that_are_nested_too_deep(levels: int, read: bool) -> None:
    """
    The same, whether a task could not keep them or nobody can read them: the task goes on.
    """
    deep = ToolCallPart("weather", f'{{"city": {"[" * levels}{"]" * levels}}}', tool_call_id="c1")
    _, calls, _ = reply_parts(ModelResponse(parts=[deep]))
    answers = {"model": [Reply(tool_calls=calls, stop="tools"), "Sorry."], "weather": "Rain."}
    story = play(Agent("shop", tools=[weather]), "go", answers=answers, cut=True)

    assert (calls[0].problem == "") is read
    assert story.said == ("Sorry.",)


def test_what_a_provider_signed_goes_back_as_it_came() -> None:
    """
    Reasoning with its signature, ids and details, in their order.
    """
    parts: list[ModelResponsePart] = [
        ThinkingPart("Hm.", signature="s1", provider_name="p"),
        TextPart("Let me see.", id="t1", provider_name="p"),
        ThinkingPart("Aha.", signature="s2", provider_name="p"),
        ToolCallPart("a", {"x": 1}, tool_call_id="c1", provider_name="p", provider_details={"sign": "s3"}),
    ]
    text, calls, aside = reply_parts(ModelResponse(parts=parts))
    reply = Reply.model_validate_json(Reply(text=text, tool_calls=calls, aside=aside).model_dump_json())

    assert text == "Let me see."
    _, again, _ = messages_of([reply], "")
    assert again.parts == parts


def test_unsigned_reasoning_goes_back_with_the_results_of_tools() -> None:
    """
    As some providers require; beside a final answer it is left out.
    """
    thinking = ThinkingPart("Hm.", id="reasoning_content", provider_name="deepseek")
    parts: list[ModelResponsePart] = [thinking, ToolCallPart("a", {"x": 1}, tool_call_id="c1")]
    text, calls, aside = reply_parts(ModelResponse(parts=parts))
    _, again, _ = messages_of([Reply(text=text, tool_calls=calls, aside=aside)], "")

    assert again.parts == parts
    assert reply_parts(ModelResponse(parts=[thinking, TextPart("Yes.")])) == ("Yes.", (), ())


def test_what_another_provider_made_for_itself_is_left_out() -> None:
    """
    Its reasoning would go to the next model as text; its text and its tool calls stay, without its ids.
    """
    parts: list[ModelResponsePart] = [
        ThinkingPart("Hm.", signature="s1", provider_name="openai"),
        TextPart("Let me see.", id="t1", provider_name="openai"),
        ToolCallPart("a", {"x": 1}, tool_call_id="c1", id="f1", provider_name="openai"),
    ]
    text, calls, aside = reply_parts(ModelResponse(parts=parts))
    reply = Reply(text=text, tool_calls=calls, aside=aside)
    _, again, _ = messages_of([reply], "", system="anthropic")
    only_reasoning = reply.model_copy(update={"text": "", "tool_calls": (), "aside": aside[:1]})

    assert again.parts == [TextPart("Let me see."), ToolCallPart("a", {"x": 1}, tool_call_id="c1")]
    assert [one.kind for one in messages_of([*as_said("Hi."), only_reasoning], "", system="anthropic")] == ["request"]


@pytest.mark.parametrize(
    ("id", "client", "sent"),
    [
        ("rs_1", OpenAIResponsesModel, True),
        ("rs_1", OpenAIChatModel, False),
        ("reasoning_content", OpenAIResponsesModel, False),
        ("reasoning_content", OpenAIChatModel, True),
        (None, OpenAIChatModel, True),
        ("rs_1", OpenRouterModel, True),
    ],
)
def test_reasoning_goes_back_to_the_api_that_it_is_from(id: str | None, client: type[Model], sent: bool) -> None:
    """
    OpenAI's other one would get it as an unknown field, or as a text of the model's.
    """
    thinking = ThinkingPart("Hm.", id=id, signature="s1", provider_name="openai")
    text, calls, aside = reply_parts(ModelResponse(parts=[thinking, TextPart("Tea.")]))
    reply = Reply(text=text, tool_calls=calls, aside=aside)
    _, again, _ = messages_of([reply], "", system="openai", client=client.__name__)

    assert again.parts == [*([thinking] if sent else []), TextPart("Tea.")]


THOUGHT = ThinkingPart("Hm.", signature="s1", provider_name="p")
CALLS = [ToolCallPart(name, {}, tool_call_id=f"c{name}", id=f"f{name}", provider_name="p") for name in "ab"]
MINE = ToolCall(id="mine", name="mine")
LONGER = "Call (a number that is withheld), please."


@pytest.mark.parametrize(
    ("kept", "added", "text", "sent"),
    [
        pytest.param([], [], LONGER, [TextPart(LONGER)], id="a text"),
        pytest.param([0, 1], [], LONGER, [THOUGHT, TextPart(LONGER), *CALLS], id="a text before calls"),
        pytest.param([1], [], "Call 555.", [THOUGHT, TextPart("Call 555."), CALLS[1]], id="a call less"),
        pytest.param([0, 1], [], "", [THOUGHT, *CALLS], id="no text"),
        pytest.param(
            [0], [MINE], "", [THOUGHT, CALLS[0], ToolCallPart("mine", {}, tool_call_id="mine")], id="a call more"
        ),
    ],
)
def test_a_reply_that_was_changed_goes_back_as_it_is_now(
    kept: list[int], added: list[ToolCall], text: str, sent: list[ModelResponsePart]
) -> None:
    """
    Its whole text and its calls, each once; reasoning goes back only with the results of tools.
    """
    parts: list[ModelResponsePart] = [THOUGHT, TextPart("Call 555.", id="t1", provider_name="p"), *CALLS]
    _, calls, aside = reply_parts(ModelResponse(parts=parts))
    reply = Reply(text=text, tool_calls=(*(calls[at] for at in kept), *added), aside=aside)

    assert messages_of([reply], "")[1].parts == sent


async def test_tool_calls_are_streamed(bench: Bench, openai: OpenAIServer) -> None:
    """
    The tool's name and its arguments as they come, beside the text.
    """
    openai.say('weather(city="Oslo, where it rains all the time")')
    await chat(bench, "Oslo?", tools=[weather], stream=True)
    ((first, *_), *_) = bench.heartbeats

    assert first == TokenTail(
        attempt=1, offset=0, text="", calls=(CallTail(number=0, tool="weather", args='{"city":'),)
    )


@pytest.mark.parametrize("cut_after", [1, 3])
async def test_a_cut_stream_is_tried_again_as_a_whole(bench: Bench, openai: OpenAIServer, cut_after: int) -> None:
    """
    Half a conversation is none: the failure is transient, and the next try is sent the same.
    """
    openai.say(Trouble(cut_after=cut_after), "Again.")
    said = 'weather "Oslo, where it rains all the time"'
    with pytest.raises(ApplicationError) as caught:
        await chat(bench, said, tools=[weather], stream=True)
    assert failure_in(caught.value).kind is FailureKind.TRANSIENT

    assert (await chat(bench, said, tools=[weather], stream=True)).text == "Again."
    first, second = openai.requests
    assert first.body == second.body
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]


async def test_a_busy_provider_is_tried_later(bench: Bench, openai: OpenAIServer) -> None:
    """
    With the wait that it asks for.
    """
    openai.say(Trouble.status(429, retry_after="7"))
    with pytest.raises(ApplicationError) as caught:
        await chat(bench, "x")
    assert failure_in(caught.value).retry_after == 7


@STREAM
async def test_the_scripted_model_calls_tools(bench: Bench, stream: bool) -> None:
    """
    By a script in what it is told.
    """
    said = 'How is it?\n-> weather(city="Oslo")\n-> It is {weather}'
    request = request_of(Cmd.chat("a", said, tools=[weather]), Prior(thread=EMPTY, framed=False))
    first = await bench.run("refold.chat", request, stream)
    assert first.tool_calls == (WISH,)

    thread = EMPTY.after([*as_said(said), first])
    returned = Cmd.chat("a", ToolReturn(id=WISH.id, name="weather", value="wet."), tools=[weather])
    second = await bench.run("refold.chat", request_of(returned, Prior(thread=thread, framed=False)), stream)
    assert second.text == "It is wet."
