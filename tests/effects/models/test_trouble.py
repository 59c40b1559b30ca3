"""What a failed or odd answer of a model means: each failure is what it was, and an outage is waited out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue
from pydantic_ai.messages import ToolCallPart
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from temporalio.exceptions import ApplicationError

from refold import tool
from refold.conversation import request_of
from refold.core.authoring.cmd import Cmd
from refold.core.chat import EMPTY as NOTHING_SAID
from refold.core.chat import Prior, ToolOffer, UserSaid
from refold.core.content import Content, Part
from refold.core.retry_policy import FailureKind
from refold.effects import current
from refold.effects.activities import Effects
from refold.effects.models.request import _name_once
from tests.effects.conftest import Bench, failure_in
from tests.services.openai_server import OpenAIServer, Trouble
from tests.services.serving import Serving
from tests.services.strict import CUT, NEWER, StrictAnthropic

MODEL = "openai:gpt-test"


class Line(BaseModel):
    """One line of an order."""

    article: str


def refusing(status: int, **error: Any) -> Trouble:
    """A status with an error object."""
    return Trouble(code=status, text=json.dumps({"error": error}))


LLAMA_CPP = {
    "code": 400,
    "message": "the request exceeds the available context size, try increasing it",
    "type": "exceed_context_size_error",
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("trouble", "kind", "type", "said"),
    [
        pytest.param(
            refusing(400, message="Unknown parameter: 'seeds'.", param="seeds", code="unknown_parameter"),
            FailureKind.PERMANENT,
            "http_400",
            "HTTP 400 Bad Request: Unknown parameter: 'seeds'.",
            id="a reason",
        ),
        pytest.param(
            refusing(400, **LLAMA_CPP),
            FailureKind.PERMANENT,
            "context_window",
            "available context size",
            id="llama.cpp",
        ),
        pytest.param(
            refusing(400, message="The prompt was filtered.", code="content_filter", param="prompt"),
            FailureKind.PERMANENT,
            "content_filter",
            "The prompt was filtered.",
            id="azure",
        ),
        pytest.param(refusing(409, message="Conflict."), FailureKind.TRANSIENT, "http_409", "Conflict.", id="conflict"),
        pytest.param(
            refusing(400, message="x" * 900 + "\nmore"), FailureKind.PERMANENT, "http_400", "xxx…", id="a long reason"
        ),
    ],
)
async def test_the_providers_reason_is_kept(
    bench: Bench, openai: OpenAIServer, trouble: Trouble, kind: FailureKind, type: str, said: str, stream: bool
) -> None:
    """
    In one line of at most 300 characters; its code and parameter are the failure's details.
    """
    openai.say(trouble)
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL), stream)
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (kind, type)
    assert said in failure.message
    assert len(failure.message) < 400
    if "seeds" in said:
        assert failure.details == {"status": 400, "code": "unknown_parameter", "param": "seeds"}


PICTURE = Part(raw=b"\x89PNG\r\n\x1a\n", media_type="image/png")
EMPTY: dict[str, Any] = {"id": "1", "object": "chat.completion", "created": 1, "model": "m", "choices": []}


@pytest.mark.parametrize(
    ("body", "kind", "type"),
    [
        ({"error": {"code": 429, "message": "Slow down."}}, FailureKind.TRANSIENT, "http_429"),
        ({"error": {"code": 502, "message": "Upstream."}}, FailureKind.TRANSIENT, "http_502"),
        ({"error": {"code": 400, "message": "No."}}, FailureKind.PERMANENT, "http_400"),
        ({"error": {"code": "rate_limit_exceeded", "message": "Slow down."}}, FailureKind.TRANSIENT, "http_429"),
        ({"error": {"code": "insufficient_quota", "message": "Pay."}}, FailureKind.PERMANENT, "quota_exceeded"),
        ({"error": {"code": None, "type": "overloaded_error", "message": "Later."}}, FailureKind.TRANSIENT, "http_503"),
        ({"error": {"code": "server_error", "message": "Sorry."}}, FailureKind.TRANSIENT, "http_500"),
        ({"error": {"code": "invalid_prompt", "message": "Not this."}}, FailureKind.PERMANENT, "http_400"),
        ({"error": "The model is overloaded."}, FailureKind.TRANSIENT, "http_503"),
        ({"error": "There is no such model."}, FailureKind.PERMANENT, "http_400"),
        (EMPTY, FailureKind.TRANSIENT, "empty_answer"),
    ],
)
async def test_an_error_with_status_200(
    bench: Bench, openai: OpenAIServer, body: dict[str, Any], kind: str, type: str
) -> None:
    """
    Is what its code or its words say, and has its reason; an answer without any choice is tried again.
    """
    openai.say(Trouble(text=json.dumps(body)))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL))
    failure, error = failure_in(caught.value), body.get("error", "")

    assert (failure.kind, failure.type) == (kind, type)
    assert failure.message.endswith(error if isinstance(error, str) else error["message"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "body", "kind", "type"),
    [
        ("anthropic:m", {"type": "error", "error": {"type": "overloaded_error"}}, FailureKind.TRANSIENT, "http_503"),
        ("anthropic:m", {"type": "error", "error": {"type": "api_error"}}, FailureKind.TRANSIENT, "http_500"),
        ("anthropic:m", {"error": {"code": 429}}, FailureKind.TRANSIENT, "http_429"),
        ("anthropic:m", {"error": {"type": "invalid_request_error"}}, FailureKind.PERMANENT, "http_400"),
        ("openai-responses:m", {"error": {"code": 429}}, FailureKind.TRANSIENT, "http_429"),
        ("openai-responses:m", {"error": "The model is overloaded."}, FailureKind.TRANSIENT, "http_503"),
    ],
)
async def test_an_error_with_status_200_in_place_of_another_apis_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, model: str, body: JsonValue, kind: str, type: str, stream: bool
) -> None:
    """
    Is what its code or its words say, as with chat completions.
    """

    async def answer(request: Request) -> Response:
        return JSONResponse(body)

    with Serving(Starlette(routes=[Route("/v1/{path}", answer, methods=["POST"])])) as gateway:
        for name, url in (("ANTHROPIC", gateway.address), ("OPENAI", f"{gateway.address}/v1")):
            monkeypatch.setenv(f"{name}_BASE_URL", url)
            monkeypatch.setenv(f"{name}_API_KEY", "sk-test")
        with pytest.raises(ApplicationError) as caught:
            await bench.llm(Cmd.llm("a", "x", "y", model=model), stream)

    assert (failure_in(caught.value).kind, failure_in(caught.value).type) == (kind, type)


async def test_what_a_tool_is_answered_stays_as_it_came(openai: OpenAIServer) -> None:
    """
    A tool that asks a model by itself reads the status that it was answered with, whether this worker has made model
    calls before or not.
    """
    body = {"error": {"code": 429, "message": "Slow down."}}
    openai.say(Trouble(text=json.dumps(body)), "Yes.", Trouble(text=json.dumps(body)))

    @tool(effect="read_only")
    async def asks() -> list[JsonValue]:
        answer = await current().http.post(f"{openai.base_url}/chat/completions", json={})
        return [answer.status_code, answer.json()]

    async with Effects([asks]) as effects:
        bench = Bench(effects)
        before = await bench.tool(Cmd.tool("t", asks))
        assert (await bench.llm(Cmd.llm("a", "x", "y", model=MODEL))).value == "Yes."
        after = await bench.tool(Cmd.tool("t", asks))

    assert before == after == [200, body]


@pytest.mark.parametrize("shown", [pytest.param((), id="text"), pytest.param((PICTURE,), id="a picture")])
async def test_a_stream_without_content_is_tried_again(bench: Bench, openai: OpenAIServer, shown: tuple[Part]) -> None:
    """
    Also where a file was sent: it is no reason.
    """
    openai.say(Trouble(text=json.dumps(EMPTY)))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", Content(parts=(Part(text="y"), *shown)), model=MODEL), True)

    assert (failure_in(caught.value).kind, failure_in(caught.value).type) == (FailureKind.TRANSIENT, "empty_answer")


NAMELESS = {"index": 0, "id": "c", "type": "function", "function": {"name": None, "arguments": "{}"}}


@pytest.mark.parametrize(
    ("stream", "call"), [pytest.param(True, [NAMELESS], id="streamed"), pytest.param(False, [], id="whole")]
)
async def test_an_answer_that_lacks_its_call_is_tried_again(
    bench: Bench, openai: OpenAIServer, stream: bool, call: list[Any]
) -> None:
    """
    It would be an empty final answer.
    """
    said = {"role": "assistant", "content": None, "tool_calls": call}
    choice = {"index": 0, "delta" if stream else "message": said, "finish_reason": "tool_calls"}
    kind = "chat.completion.chunk" if stream else "chat.completion"
    answer = json.dumps({"id": "1", "object": kind, "created": 1, "model": "gpt-test", "choices": [choice]})
    openai.say(Trouble(text=f"data: {answer}\n\ndata: [DONE]\n\n" if stream else answer))
    asked = request_of(Cmd.chat("a", "x", model=MODEL, tools=[PAY]), Prior(thread=NOTHING_SAID, framed=False))
    with pytest.raises(ApplicationError, match="has no call that can be read") as caught:
        await bench.run("refold.chat", asked, stream)

    assert (failure_in(caught.value).kind, failure_in(caught.value).type) == (FailureKind.TRANSIENT, "empty_answer")


CUT_OFF = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "gpt-test",
    "choices": [{"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": '{"article": "t'}}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14},
}


@pytest.mark.parametrize("expect", [None, Line])
async def test_a_cut_answer_is_no_success(bench: Bench, openai: OpenAIServer, expect: Any) -> None:
    """
    It fails with a kind of its own, is not asked for again, and is paid for.
    """
    openai.say(Trouble(text=json.dumps(CUT_OFF)))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL, expect=expect))
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "length")
    assert "after 9 tokens, so its answer is cut off; raise the limit" in failure.message
    assert isinstance(failure.details, dict)
    assert failure.details["usage"] == {"input_tokens": 5, "output_tokens": 9}
    assert failure.details["model"] == MODEL
    assert len(openai.requests) == 1


PAY = ToolOffer(
    name="pay", description="Pays.", parameters={"type": "object", "properties": {"cents": {"type": "string"}}}
)


@pytest.mark.parametrize("tools", [pytest.param((), id="text"), pytest.param((PAY,), id="a call")])
async def test_a_stream_that_ends_in_the_middle_is_no_answer(
    bench: Bench, openai: OpenAIServer, tools: tuple[ToolOffer, ...]
) -> None:
    """
    Half of an amount is another amount: the call is tried again.
    """
    openai.say(Trouble(says='pay(cents="100000")', ends_after=1), "Paid.")
    asked = request_of(Cmd.chat("a", "x", model=MODEL, tools=tools), Prior(thread=NOTHING_SAID, framed=False))
    with pytest.raises(ApplicationError) as caught:
        await bench.run("refold.chat", asked, True)
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.TRANSIENT, "stream_broken")
    assert (await bench.run("refold.chat", asked, True)).text == "Paid."


async def test_a_stream_of_anthropic_that_ends_in_the_middle(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Is no answer either, and its tokens are counted.
    """
    with StrictAnthropic() as anthropic:
        for name, value in anthropic.environment.items():
            monkeypatch.setenv(name, value)
        anthropic.say(CUT)
        with pytest.raises(ApplicationError) as caught:
            await bench.llm(Cmd.llm("a", "x", "y", model="anthropic:claude-test"), True)
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.TRANSIENT, "stream_broken")
    assert isinstance(failure.details, dict)
    assert failure.details["usage"] == {"input_tokens": 7, "output_tokens": 3}


@pytest.mark.parametrize("stream", [False, True])
async def test_a_block_that_the_client_does_not_know(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """
    Is left out of the answer, streamed or not.
    """
    with StrictAnthropic() as anthropic:
        for name, value in anthropic.environment.items():
            monkeypatch.setenv(name, value)
        anthropic.say(f"{NEWER} answer")
        answered = await bench.llm(Cmd.llm("a", "x", "y", model="anthropic:claude-test"), stream)

    assert answered.value == f"{NEWER} answer"


@pytest.mark.parametrize(
    ("stop", "kind", "type", "said"),
    [
        ("end_turn", FailureKind.TRANSIENT, "empty_answer", "kind of block that .* does not know; update pydantic-ai"),
        ("refusal", FailureKind.PERMANENT, "content_filter", "refused, or its filter stopped the answer"),
        ("max_tokens", FailureKind.PERMANENT, "length", "reached its limit of output tokens"),
    ],
)
async def test_an_answer_that_the_client_does_not_know(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, stop: str, kind: FailureKind, type: str, said: str
) -> None:
    """
    The failure says what came and what to do, and counts the tokens; it is not asked for again where the provider says
    why the answer ended.
    """
    with StrictAnthropic() as anthropic:
        for name, value in anthropic.environment.items():
            monkeypatch.setenv(name, value)
        anthropic.stop = stop
        anthropic.say(NEWER)
        with pytest.raises(ApplicationError, match=said) as caught:
            await bench.llm(Cmd.llm("a", "x", "y", model="anthropic:claude-test"))
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (kind, type)
    assert isinstance(failure.details, dict)
    assert failure.details["usage"] == {"input_tokens": 7, "output_tokens": 3}


@pytest.mark.parametrize(
    ("trouble", "waited_out"),
    [(503, True), (429, True), (502, True), (522, True), (529, True), (530, True), (500, False), (400, False)],
)
async def test_an_outage_is_waited_out(bench: Bench, openai: OpenAIServer, trouble: int, waited_out: bool) -> None:
    """
    A failure that a restart or overload explains says so; one that another request may cause does not.
    """
    openai.say(Trouble.status(trouble))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL))

    assert (failure_in(caught.value).again_s > 0) is waited_out


async def test_a_header_that_cannot_be_sent_is_no_outage(bench: Bench, openai: OpenAIServer) -> None:
    """
    The failure says which settings to look at, and shows no value.
    """
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL, settings={"extra_headers": {"x-team": "Zq81hunter2\n"}}))
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "configuration")
    assert "look for a line break in the provider's key and the setting extra_headers" in failure.message
    assert "Zq81hunter2" not in failure.model_dump_json()


async def test_half_a_surrogate_pair(bench: Bench, openai: OpenAIServer) -> None:
    """
    What a model writes that no text can hold is replaced; the answer that was paid for is kept.
    """
    message = {"role": "assistant", "content": "a\ud800b"}
    openai.say(
        Trouble(text=json.dumps({**CUT_OFF, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}))
    )

    assert (await bench.llm(Cmd.llm("a", "x", "y", model=MODEL))).value == "a\ufffdb"


@pytest.mark.parametrize(
    ("said", "article"),
    [
        ('Here you are:\n```json\n{"article": "tea"}\n```\nGood luck.', "tea"),
        ('```\n{"article": "tea"}```', "tea"),
        ('Here you are:\n```json\n{"article": "```sh\\nboil\\n```"}\n```\nGood luck.', "```sh\nboil\n```"),
    ],
)
async def test_json_between_fences_in_prose(bench: Bench, openai: OpenAIServer, said: str, article: str) -> None:
    """
    Is the answer, whatever else the model says around it, and whatever its texts hold.
    """
    openai.say(said)

    assert (await bench.llm(Cmd.llm("a", "x", "y", model=MODEL, expect=Line))).value == {"article": article}


@pytest.mark.parametrize(("mode", "sent"), [("native", "response_format"), ("tool", "tools"), ("prompted", "messages")])
async def test_how_a_type_is_asked_for(bench: Bench, openai: OpenAIServer, mode: str, sent: str) -> None:
    """
    By a setting of the call: as a tool, as the provider's own structured output, or in the prompt.
    """
    openai.say('{"article": "tea"}')
    asked = Cmd.llm("a", "Order.", "x", model=MODEL, expect=Line, settings={"output_mode": mode})

    assert (await bench.llm(asked)).value == {"article": "tea"}
    assert "article" in str(openai.requests[0].body[sent])
    assert ("tools" in openai.requests[0].body) is (mode == "tool")


async def test_a_mode_that_is_unknown(bench: Bench, openai: OpenAIServer) -> None:
    """
    Is refused before anything is sent.
    """
    with pytest.raises(ApplicationError, match="output_mode='text' is unknown; there are: auto, tool, native"):
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL, expect=Line, settings={"output_mode": "text"}))

    assert openai.requests == []


@pytest.mark.parametrize(
    ("file", "said"),
    [
        (Part(raw=b"ogg", media_type="audio/ogg"), "audio/ogg"),
        (Part(raw=b"mp4", media_type="video/mp4"), "video/mp4"),
        (Part(url="https://example.org/a.mp4"), "video/mp4"),
    ],
)
async def test_a_file_that_cannot_be_sent(bench: Bench, openai: OpenAIServer, file: Part, said: str) -> None:
    """
    The failure names the model and the type of the file.
    """
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "Look.", Content(parts=(file,)), model=MODEL))
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "attachment")
    assert f"model 'openai:gpt-test' cannot be sent this file ({said})" in failure.message


async def test_an_address_that_is_none(bench: Bench, openai: OpenAIServer) -> None:
    """
    Anybody can send one: the failure shows it, and nothing is sent.
    """
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "Look.", Content(parts=(Part(url="http://[a.png"),)), model=MODEL))
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "attachment")
    assert failure.message == "a file's address is 'http://[a.png': Invalid IPv6 URL; send a URL"
    assert openai.requests == []


IMAGE = Content(parts=(Part(raw=b"\x89PNG\r\n\x1a\n", filename="a.png"),))


@pytest.mark.parametrize(
    "trouble",
    [
        refusing(500, message="image input is not supported - hint: you may need to provide the mmproj", code=500),
        refusing(400, message="At most 0 image(s) may be provided in one request.", code=400),
        refusing(400, message="this model does not support images"),
        refusing(400, message="Invalid content type. image_url is only supported by certain models."),
        refusing(404, message="No endpoints found that support image input", code=404),
    ],
)
async def test_a_model_without_eyes(bench: Bench, openai: OpenAIServer, trouble: Trouble) -> None:
    """
    One clear line, and no retry, whatever status the provider answers with.
    """
    openai.say(trouble)
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "Look.", IMAGE, model=MODEL))
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "attachment")
    assert failure.message.startswith(
        "model 'openai:gpt-test' does not take this file (image/png); send another type, or name a model that takes "
        "it. The provider says: "
    )


@pytest.mark.parametrize(
    ("trouble", "input", "type"),
    [
        pytest.param(refusing(500, message="The server is busy."), IMAGE, "http_500", id="another error"),
        pytest.param(refusing(503, message="Images are not supported now."), IMAGE, "http_503", id="an outage"),
        pytest.param(refusing(400, message="Images are not supported."), "no file", "http_400", id="no file"),
    ],
)
async def test_not_each_error_beside_a_file_is_about_it(
    bench: Bench, openai: OpenAIServer, trouble: Trouble, input: Any, type: str
) -> None:
    """
    Others stay what they are.
    """
    openai.say(trouble)
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "Look.", input, model=MODEL))

    assert failure_in(caught.value).type == type


async def test_a_files_type_is_guessed_from_its_name(bench: Bench, openai: OpenAIServer) -> None:
    """
    An image by its address is sent as an address, and not fetched by the worker.
    """
    parts = (Part(url="https://example.invalid/a.png?x=1"), Part(raw=b"\x89PNG\r\n\x1a\n", filename="b.png"))
    await bench.llm(Cmd.llm("a", "Look.", Content(parts=parts), model=MODEL))

    assert [piece["type"] for piece in openai.requests[0].body["messages"][1]["content"]] == ["image_url"] * 2


async def test_a_file_whose_host_is_unknown(bench: Bench, openai: OpenAIServer) -> None:
    """
    Is a failure of the network, which may be better later.
    """
    file = Part(url="https://example.invalid/a.pdf", media_type="application/pdf")
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "Look.", Content(parts=(file,)), model=MODEL))

    assert (failure_in(caught.value).kind, failure_in(caught.value).type) == (FailureKind.TRANSIENT, "dns")


@pytest.mark.slow
async def test_a_limit_to_the_first_token(bench: Bench, openai: OpenAIServer) -> None:
    """
    A model that is silent is asked later; one that has begun may take its time.
    """
    limited = Cmd.llm("a", "Say.", "x", model=MODEL, settings={"first_token_s": 1.0})
    slow = "Slow, but here." * 6
    openai.say(Trouble(delay_s=600), Trouble(says=slow, pace_s=0.1))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(limited)
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.TRANSIENT, "timeout")
    assert failure.message == "model 'openai:gpt-test' sent nothing for 1 s (settings: first_token_s)"
    assert (await bench.llm(limited)).value == slow
    assert "first_token_s" not in openai.requests[0].body


@pytest.mark.parametrize("name", ["first_token_s", "timeout"])
@pytest.mark.parametrize("limit", [0, -1, "1", True, float("nan")])
async def test_a_limit_that_is_none(bench: Bench, openai: OpenAIServer, limit: Any, name: str) -> None:
    """
    Is refused before anything is sent.
    """
    with pytest.raises(ApplicationError, match="is no number of seconds above 0"):
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL, settings={name: limit}))
    assert openai.requests == []


async def test_a_limit_to_the_whole_call(bench: Bench, openai: OpenAIServer) -> None:
    """
    The setting `timeout`, in seconds.
    """
    openai.say(Trouble(delay_s=1.0))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL, settings={"timeout": 0.3}))

    assert (failure_in(caught.value).kind, failure_in(caught.value).type) == (FailureKind.TRANSIENT, "timeout")


async def test_the_limit_is_to_the_whole_call_not_to_each_piece(bench: Bench, openai: OpenAIServer) -> None:
    """
    A server that sends a little now and then does not extend it.
    """
    openai.say(Trouble(says="A little more. " * 40, pace_s=0.1))
    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL, settings={"timeout": 0.6}), True)

    assert (failure_in(caught.value).kind, failure_in(caught.value).type) == (FailureKind.TRANSIENT, "timeout")
    assert "request_timeout" not in openai.requests[0].body


async def test_usage_that_a_stream_repeats_is_counted_once(bench: Bench, openai: OpenAIServer) -> None:
    """
    Some servers send the tokens so far with every piece.
    """
    openai.say(Trouble(says="A few words in several pieces.", repeats_usage=True))
    outcome = await bench.llm(Cmd.llm("a", "x", "y", model=MODEL), True)

    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (8, 6)


async def test_no_more_tokens_are_cached_than_there_are(bench: Bench, openai: OpenAIServer) -> None:
    """
    Such a count would leave the call without a price.
    """
    message = {"role": "assistant", "content": "Tea."}
    usage = {"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": {"cached_tokens": 7}}
    whole = {**CUT_OFF, "model": "gpt-4o", "usage": {**usage, "total_tokens": 14}}
    openai.say(
        Trouble(text=json.dumps({**whole, "choices": [{"index": 0, "finish_reason": "stop", "message": message}]}))
    )
    used = (await bench.llm(Cmd.llm("a", "x", "y", model="openai:gpt-4o"))).usage

    assert (used.input_tokens, used.cached_tokens) == (5, 5)
    assert used.usd > 0


@pytest.mark.parametrize("offered", [("ha", "haha"), ("haha", "ha")])
def test_of_two_names_the_longer_one_was_repeated(offered: tuple[str, str]) -> None:
    """
    Whatever order a set of names has in this process.
    """
    call = ToolCallPart("hahahaha")
    _name_once([call], offered)

    assert call.tool_name == "haha"


@pytest.mark.parametrize(
    ("says", "expect", "called"),
    [
        pytest.param('find(words="tea and biscuits")', None, [("find", {"words": "tea and biscuits"})], id="a tool"),
        pytest.param('{"article": "tea and biscuits"}', Line, [], id="the answer"),
    ],
)
async def test_a_name_that_a_stream_repeats_is_read_once(
    bench: Bench, openai: OpenAIServer, says: str, expect: Any, called: list[Any]
) -> None:
    """
    Some servers send a tool's name with every piece of its arguments.
    """
    offer = ToolOffer(name="find", description="Finds.", parameters={"type": "object", "properties": {}})
    openai.say(Trouble(says=says, repeats_names=True))
    chat = Cmd.chat("a", [UserSaid(content=Content.from_text("x"))], model=MODEL, tools=[offer], expect=expect)
    reply = await bench.run("refold.chat", request_of(chat, Prior(thread=NOTHING_SAID, framed=False)), True)

    assert [(call.name, call.args) for call in reply.tool_calls] == called
    assert reply.value == (None if expect is None else {"article": "tea and biscuits"})
