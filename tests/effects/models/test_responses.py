"""Reasoning, provider-side tools, files and their usage, over OpenAI's Responses with a server that checks requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from refold.core.authoring.cmd import Cmd
from refold.core.chat import Reply, Said, ToolCall, ToolOffer, ToolReturn, UserSaid
from refold.core.content import Content, Part
from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.verdicts import Verdict
from refold.effects.http.client import open_client
from refold.effects.models.chat import converse
from refold.effects.models.conversations import Recalled
from refold.effects.models.resolve import Models
from tests.services.strict import NEWER, SEARCH
from tests.services.strict_responses import PICTURE, PNG, THOUGHT, StrictResponses

MODEL = "openai-responses:gpt-5"
OFFER = ToolOffer(name="find", description="Finds.", parameters={"type": "object", "properties": {}})


@pytest.fixture(scope="module")
def server() -> Iterator[StrictResponses]:
    """Reached by the environment."""
    with StrictResponses() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(autouse=True)
def accepted(server: StrictResponses) -> Iterator[None]:
    """It accepts all that is sent to it."""
    server.refused.clear()
    server.requests.clear()
    yield
    assert server.refused == []


@pytest.fixture
async def models() -> AsyncIterator[Models]:
    """A worker's models."""
    async with open_client() as http:
        models = Models(MODEL, http)
        yield models
        await models.close()


async def chat(models: Models, *said: str | Content | Said, **options: Any) -> Reply:
    """The reply to a conversation, as history has it."""
    asked = Cmd.chat("a", list(said), **options)
    assert asked.frame is not None
    recalled = Recalled(prior=(), say=asked.say, frame=asked.frame, since=0)
    reply = await converse(recalled, models, {}, key="k")
    return Reply.model_validate_json(reply.model_dump_json())


async def refused(models: Models, *said: str | Content | Said, **options: Any) -> Failure:
    with pytest.raises(Verdict) as caught:
        await chat(models, *said, **options)
    return caught.value.failure


async def test_reasoning_goes_back_with_the_results_of_tools(models: Models, server: StrictResponses) -> None:
    """
    As its provider signed it, before the call that it led to; the reply's text does not have it.
    """
    server.say("find()")
    first = await chat(models, "x", tools=[OFFER])
    found = ToolReturn(id=first.tool_calls[0].id, name="find", value="y")
    await chat(models, "x", first, found, tools=[OFFER])
    items = server.requests[1].body["input"]

    assert [one.get("type", one.get("role")) for one in items] == [
        "user",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert (items[1]["id"], items[1]["encrypted_content"]) == ("rs_1", "e1")
    assert THOUGHT not in first.model_copy(update={"aside": ()}).model_dump_json()


async def test_cached_and_reasoning_tokens_are_counted(models: Models) -> None:
    """
    They are among the tokens of input and output.
    """
    usage = (await chat(models, "x")).usage

    assert (usage.input_tokens, usage.cached_tokens) == (90, 40)
    assert (usage.output_tokens, usage.reasoning_tokens) == (9, 5)


async def test_reasoning_tokens_that_are_null_are_none(
    models: Models, server: StrictResponses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The answer that was paid for is kept.
    """
    monkeypatch.setattr(server, "reasoning", None)
    usage = (await chat(models, "x")).usage

    assert (usage.output_tokens, usage.reasoning_tokens) == (9, 0)


async def test_an_item_that_the_client_does_not_know_is_named(models: Models, server: StrictResponses) -> None:
    """
    As an answer that cannot be read, with the way out; it was paid for, and is not asked for again.
    """
    server.say(NEWER)
    failure = await refused(models, "x")

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "corrupt_data")
    assert failure.message == (
        f"model {MODEL!r} sent an answer that the installed client of its provider cannot read (TypeError: 'NoneType' "
        "object is not iterable); update pydantic-ai and that client, or leave out what asks for it"
    )


async def test_what_the_provider_searches_is_in_the_reply(models: Models, server: StrictResponses) -> None:
    """
    The provider's own calls are told by name and arguments, and go back as they came.
    """
    server.say(SEARCH)
    settings = {"provider_tools": ["web_search"]}
    first = await chat(models, "x", settings=settings)
    await chat(models, "x", first, "And more?", settings=settings)
    again = server.requests[1].body["input"]

    assert server.requests[0].body["tools"][0]["type"].startswith("web_search")
    assert [(call.name, call.args["query"]) for call in first.provider_calls] == [("web_search", "tea")]
    assert first.tool_calls == ()
    assert "web_search_call" in [one.get("type") for one in again]


async def test_an_optional_tool_that_the_provider_does_not_have_is_left_out(
    models: Models, server: StrictResponses
) -> None:
    """
    The model answers without it.
    """
    settings = {"provider_tools": [{"kind": "memory", "optional": True}]}

    assert (await chat(models, "x", settings=settings)).text == "Yes."
    assert "tools" not in server.requests[0].body


async def test_an_image_goes_in_and_comes_out(models: Models, server: StrictResponses) -> None:
    """
    Three megabytes by value; the image that the model made goes back to it with the next message.
    """
    server.say(PICTURE)
    photo = Part(raw=PNG, filename="photo.png")
    settings = {"provider_tools": [{"kind": "image_generation", "quality": "low"}]}
    reply = await chat(models, Content(parts=(Part(text="In blue."), photo)), settings=settings)
    await chat(models, "x", reply, "In red.", settings=settings)
    sent = server.requests[0].body["input"][0]["content"]

    assert [one["type"] for one in sent] == ["input_text", "input_image"]
    assert len(sent[1]["image_url"]) > len(PNG)
    assert [(one.raw, one.media_type, one.filename) for one in reply.files] == [(PNG, "image/png", "file-1.png")]
    assert "image_generation_call" in [one.get("type") for one in server.requests[1].body["input"]]


async def test_a_reply_whose_image_was_removed_goes_back_without_it(models: Models, server: StrictResponses) -> None:
    """
    As by middleware; the rest of the reply is what it was.
    """
    server.say(PICTURE)
    settings = {"provider_tools": [{"kind": "image_generation", "quality": "low"}]}
    reply = await chat(models, "In blue.", settings=settings)
    await chat(models, "x", reply.model_copy(update={"files": ()}), "In red.", settings=settings)

    assert "image/png" not in str(server.requests[1].body["input"])
    assert "Here: picture." in str(server.requests[1].body["input"])


async def test_another_provider_is_not_sent_what_this_one_made_for_itself(models: Models) -> None:
    """
    Neither its searches nor its images, which it would not accept.
    """
    calls = (ToolCall(id="1", name="web_search"),)
    made = {"part_kind": "builtin-tool-call", "tool_name": "web_search", "provider_name": "anthropic"}
    reply = Reply(text="Tea.", provider_calls=calls, aside=({"provider": made}, {"text": 4}))

    assert (await chat(models, "x", reply, "y")).text == "Yes."


async def test_an_answer_that_is_made_in_the_background_is_none(models: Models, server: StrictResponses) -> None:
    """
    The call fails and says which setting to leave out; the job is canceled.
    """
    failure = await refused(models, "x", settings={"openai_background": True})

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "configuration")
    assert "makes its answer in the background" in failure.message
    assert "leave out the setting openai_background" in failure.message
    assert server.canceled == ["resp_1"]


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        pytest.param("web_search", "'web_search' is no list of tools", id="a text"),
        pytest.param(["web_serch"], "'web_serch' is no tool of a provider; there are: ", id="misspelt"),
        pytest.param([{"kind": "web_search", "uses": 3}], "web_search has no option uses; it has: ", id="option"),
        pytest.param([7], "7 is no tool of a provider", id="a number"),
        pytest.param(["memory"], "model 'openai-responses:gpt-5' does not have memory; it has: ", id="not this model"),
    ],
)
async def test_a_tool_that_the_provider_does_not_have_is_an_error(models: Models, tools: Any, said: str) -> None:
    """
    Before anything is sent, with what there is.
    """
    failure = await refused(models, "x", settings={"provider_tools": tools})

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "configuration")
    assert said in failure.message


@pytest.mark.parametrize(
    ("part", "said"),
    [
        pytest.param(Part(raw=b"", filename="a.png"), "file 'a.png' is empty", id="empty"),
        pytest.param(
            Part(raw=b"hello", filename="a.png"), "sent as image/png, and its bytes are something else", id="text"
        ),
        pytest.param(
            Part(raw=b"RIFF\n\0\0\0WAVEfmt ", media_type="image/webp"), "and its bytes are something else", id="sound"
        ),
        pytest.param(
            Part(raw=PNG, media_type="image/jpeg"), "sent as image/jpeg, and its bytes are image/png", id="png"
        ),
    ],
)
async def test_a_file_of_the_wrong_type_is_not_sent(
    models: Models, server: StrictResponses, part: Part, said: str
) -> None:
    """
    The failure names the file, its type, and what its bytes are.
    """
    failure = await refused(models, UserSaid(content=Content(parts=(part,))))

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "attachment")
    assert said in failure.message
    assert server.requests == []
