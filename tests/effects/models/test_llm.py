"""Model calls, against the scripted model and over HTTP against an OpenAI-compatible server."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.exceptions import ApplicationError

from refold.conversation import LlmOutcome
from refold.core.authoring.cmd import Cmd
from refold.core.chat import Usage
from refold.core.content import Content, Part
from refold.core.retry_policy import FailureKind
from refold.effects.activities import Effects
from refold.effects.failures.verdicts import OTHERS_S
from refold.effects.http.keys import key_at, wire_key
from refold.effects.models.tail import TokenTail
from tests.effects.conftest import INVOCATION, Bench, failure_in
from tests.services.openai_server import OpenAIServer, Trouble
from workflows.research import CRITIQUE, RESEARCH, Critique

MODEL = "openai:gpt-test"
KEY = key_at(wire_key(namespace="ns", tool="refold.llm", key=INVOCATION), MODEL)

PNG = b"\x89PNG\r\n\x1a\n"


class Line(BaseModel):
    """One line of an order."""

    article: str
    count: int = 1


async def test_the_scripted_model_needs_no_network(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without any setting the scripted model answers, and says what it cost.
    """
    monkeypatch.delenv("REFOLD_MODEL", raising=False)
    outcome = await bench.llm(Cmd.llm("greeting", "Greet this person in one sentence.", "Ada"))

    assert outcome == LlmOutcome(
        value="Hello, Ada!", model="scripted:demo", usage=Usage(input_tokens=51, output_tokens=2)
    )


@pytest.mark.parametrize("delay", ["abc", "-1", "nan", "inf"])
async def test_a_delay_that_is_no_number_fails_the_call(
    bench: Bench, delay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The failure names the setting, and says what came and what is expected.
    """
    monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", delay)

    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "Greet.", "Ada", model="scripted:demo"))

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "configuration")
    assert f"REFOLD_SCRIPTED_DELAY='{delay}' is no number of seconds from 0 to 3000" in failure.message


async def test_the_worker_chooses_the_model(openai: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    REFOLD_MODEL is the model of commands that name none; an argument goes before it, and the command before both.
    """
    monkeypatch.setenv("REFOLD_MODEL", MODEL)
    async with Effects() as effects:
        by_setting = await Bench(effects).llm(Cmd.llm("a", "Translate.", "x"))
        by_command = await Bench(effects).llm(Cmd.llm("a", "Translate.", "x", model="scripted:demo"))
    async with Effects(model="scripted:demo") as effects:
        by_argument = await Bench(effects).llm(Cmd.llm("a", "Translate.", "x"))

    assert [by_setting.model, by_command.model, by_argument.model] == [MODEL, "scripted:demo", "scripted:demo"]


async def test_what_is_sent(bench: Bench, openai: OpenAIServer) -> None:
    """
    Chat completions, the prompt as system message, the input as the user's, the settings, and the key as a header.
    """
    outcome = await bench.llm(Cmd.llm("a", "Translate.", "Moin", model=MODEL, settings={"temperature": 0}))

    (asked,) = openai.requests
    assert outcome.value == "You said: Moin"
    assert asked.path == "/v1/chat/completions"
    assert asked.headers["idempotency-key"] == KEY
    assert asked.headers["authorization"] == "Bearer sk-test-0123456789"
    assert asked.body["messages"] == [
        {"role": "system", "content": "Translate."},
        {"role": "user", "content": "Moin"},
    ]
    assert (asked.body["model"], asked.body["temperature"]) == ("gpt-test", 0)
    assert outcome.usage is not None
    assert outcome.usage.output_tokens == 3


async def test_a_prompt_alone_is_what_the_user_says(bench: Bench, openai: OpenAIServer) -> None:
    """
    A model answers a user: without input the prompt is the message.
    """
    await bench.llm(Cmd.llm("a", "Say hello.", model=MODEL))

    assert openai.requests[0].body["messages"] == [{"role": "user", "content": "Say hello."}]


@pytest.mark.parametrize(
    "said", [("Sum up.", " "), ("Sum up.", Content(parts=(Part(text=""), Part(text="\n")))), (" ",)]
)
async def test_a_blank_message_is_sent_as_a_note(bench: Bench, openai: OpenAIServer, said: Any) -> None:
    """
    Providers refuse a text without a word.
    """
    await bench.llm(Cmd.llm("a", *said, model=MODEL))

    assert openai.requests[0].body["messages"][-1] == {"role": "user", "content": "(an empty message)"}


async def test_content_of_several_kinds(bench: Bench, openai: OpenAIServer) -> None:
    """
    Data goes as JSON text, an image by its address or its bytes.
    """
    parts = (
        Part(text="What is this?"),
        Part(data={"order": "A1"}),
        Part(url="https://example.org/a.png", media_type="image/png"),
        Part(raw=PNG, media_type="image/png"),
    )
    await bench.llm(Cmd.llm("a", "Look.", Content(parts=parts), model=MODEL))

    pieces = openai.requests[0].body["messages"][1]["content"]
    assert [piece["type"] for piece in pieces] == ["text", "text", "image_url", "image_url"]
    assert pieces[1]["text"] == '{"order": "A1"}'
    assert pieces[2]["image_url"]["url"] == "https://example.org/a.png"
    assert pieces[3]["image_url"]["url"].endswith(base64.b64encode(PNG).decode())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["scripted:demo", MODEL])
async def test_a_type_is_expected(bench: Bench, openai: OpenAIServer, model: str, stream: bool) -> None:
    """
    The answer is a value of the type, streamed or whole.
    """
    outcome = await bench.llm(Cmd.llm("critique", CRITIQUE, "Draft 2: x", expect=Critique, model=model), stream)

    assert outcome.value["decision"] == "NeedsHumanInput"


@pytest.mark.parametrize(
    ("expect", "said", "value"),
    [
        (list[int], '{"response": [1, 2]}', [1, 2]),
        (list[Line], '{"response": [{"article": "tea"}]}', [{"article": "tea"}]),
        (Line, '{"article": "tea"}', {"article": "tea"}),
        (Line, '```json\n{"article": "tea", "count": 2}\n```', {"article": "tea", "count": 2}),
        (dict[str, int], '{"response": {"tea": 1}}', {"tea": 1}),
        (int, "7", 7),
    ],
)
async def test_any_type_that_pydantic_knows(
    bench: Bench, openai: OpenAIServer, expect: Any, said: str, value: Any
) -> None:
    """
    What is no object is wrapped on the way out and unwrapped on the way back; an answer as text counts too.
    """
    openai.say(said)

    assert (await bench.llm(Cmd.llm("a", "Answer.", "x", expect=expect, model=MODEL))).value == value
    assert openai.requests[0].body["tools"][0]["function"]["parameters"]["type"] == "object"


async def test_another_model_is_asked_under_a_key_of_its_own(bench: Bench, openai: OpenAIServer) -> None:
    """
    A call that is retried with its next model sends another request: a provider that has the first one's key refuses
    it, or repeats what the first model answered.
    """
    for model in (MODEL, "openai:gpt-other", MODEL):
        await bench.llm(Cmd.llm("a", "Translate.", "Moin", model=model))

    first, other, again = (asked.headers["idempotency-key"] for asked in openai.requests)
    assert first == again != other


async def test_a_misfit_is_asked_for_once_more(bench: Bench, openai: OpenAIServer) -> None:
    """
    The model is told what was wrong, under a key of its own; both requests are paid for.
    """
    openai.say('{"article": "tea", "count": "many"}', '{"article": "tea", "count": 2}')

    outcome = await bench.llm(Cmd.llm("a", "Order.", "x", expect=Line, model=MODEL))

    first, second = openai.requests
    assert outcome.value == {"article": "tea", "count": 2}
    assert outcome.usage.requests == 2
    assert "count: Input should be a valid integer" in str(second.body["messages"])
    assert [asked.headers["idempotency-key"] for asked in (first, second)] == [KEY, f"{KEY}.2"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ('{"decision": "Perhaps"}', "does not fit Critique: decision: Input should be 'Approved'"),
        ("I would rather not.", "the answer is not JSON"),
        ("", "the answer is not JSON"),
        pytest.param("```json" + " \n" * 100_000, "the answer is not JSON", id="blanks until it is cut off"),
        pytest.param("[" * 100_000, "the answer is not JSON", id="brackets without end"),
    ],
)
async def test_a_second_misfit_is_final(bench: Bench, openai: OpenAIServer, said: str, found: str) -> None:
    """
    The failure names the fields that do not fit, and not what the model wrote.
    """
    openai.say(said, said)

    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", CRITIQUE, "x", expect=Critique, model=MODEL))

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "decode")
    assert found in failure.message
    assert "Perhaps" not in failure.message


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("trouble", "kind", "type", "wait"),
    [
        (Trouble.status(429, retry_after="7"), FailureKind.TRANSIENT, "http_429", 7),
        (Trouble.status(429, error="insufficient_quota"), FailureKind.PERMANENT, "quota_exceeded", None),
        (Trouble.status(503), FailureKind.TRANSIENT, "http_503", None),
        (Trouble.status(500), FailureKind.TRANSIENT, "http_500", None),
        (Trouble.status(401), FailureKind.PERMANENT, "http_401", None),
        (Trouble.status(404, error="model_not_found"), FailureKind.PERMANENT, "http_404", None),
        (Trouble.status(422), FailureKind.PERMANENT, "http_422", None),
    ],
)
async def test_trouble_is_classified_and_asked_once(
    bench: Bench, openai: OpenAIServer, trouble: Trouble, kind: FailureKind, type: str, wait: float | None, stream: bool
) -> None:
    """
    The provider's client does not retry; the message holds nothing of the body.
    """
    openai.say(trouble)

    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL), stream)

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type, failure.retry_after) == (kind, type, wait)
    assert "secret" not in failure.model_dump_json()
    assert len(openai.requests) == 1


async def test_an_unreadable_answer_is_final(bench: Bench, openai: OpenAIServer) -> None:
    """
    What is no JSON at all counts as corrupt data.
    """
    openai.say(Trouble(text="<html>nonsense"))

    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL))

    assert failure_in(caught.value).type == "corrupt_data"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_server_that_is_down(bench: Bench, monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    """
    No connection is a reason to try later.
    """
    with OpenAIServer() as gone:
        monkeypatch.setenv("OPENAI_BASE_URL", gone.base_url)

    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=MODEL), stream)

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type) == (FailureKind.TRANSIENT, "connection")
    assert failure.message == "the connection failed or broke off (model 'gpt-test', 127.0.0.1)"


async def test_text_is_streamed_through_heartbeats(bench: Bench, openai: OpenAIServer) -> None:
    """
    The first piece goes out at once, marked with the attempt; nothing where nobody asked for it.
    """
    command = Cmd.llm("research", RESEARCH, "Tides", model=MODEL)
    streamed = await bench.llm(command, True)
    ((first, *_), *_) = bench.heartbeats

    assert first == TokenTail(attempt=1, offset=0, text="Draft 1:")
    assert openai.requests[0].body["stream"] is True
    assert streamed.usage == (await bench.llm(command)).usage

    bench.heartbeats.clear()
    await bench.llm(command)
    assert bench.heartbeats == []


async def test_a_cut_stream_is_tried_again_as_a_whole(bench: Bench, openai: OpenAIServer) -> None:
    """
    Half an answer is no answer: the failure is transient, and what was shown is only a heartbeat.
    """
    openai.say(Trouble(cut_after=3))

    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", RESEARCH, "Tides", model=MODEL), True)

    assert (failure_in(caught.value).kind, failure_in(caught.value).type) == (FailureKind.TRANSIENT, "connection")
    assert bench.heartbeats


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("gpt-5", "named provider:model"),
        ("nobody:x", "no provider 'nobody'"),
        ("scripted:x", "there are scripted:demo, scripted:slow"),
        ("google-gla:x", "no provider 'google-gla'; google-gla: is now google:; write provider:model"),
        ("openai:x", "Set the `OPENAI_API_KEY` environment variable to use the OpenAI provider (set by"),
        ("mistral:x", "a package is missing: pip install 'pydantic-ai-slim[mistral]' (set by"),
    ],
)
async def test_a_model_that_cannot_be_used(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, model: str, said: str
) -> None:
    """
    The message says what is missing and where the name comes from.
    """
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(ApplicationError) as caught:
        await bench.llm(Cmd.llm("a", "x", "y", model=model))

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "configuration")
    assert said in failure.message
    assert repr(model) in failure.message


async def test_a_type_whose_module_is_not_loaded(bench: Bench) -> None:
    """
    The worker says which type it does not know, and the call is left to workers of another release.
    """
    with pytest.raises(ApplicationError, match="nowhere:Order") as caught:
        await bench.llm(Cmd.llm("a", "x", "y", expect="nowhere:Order"))
    assert failure_in(caught.value).again_s == OTHERS_S


async def test_a_server_without_a_key(bench: Bench, openai: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A server of one's own often needs no key.
    """
    monkeypatch.delenv("OPENAI_API_KEY")

    assert (await bench.llm(Cmd.llm("a", "Translate.", "x", model=MODEL))).value == "You said: x"


@pytest.mark.parametrize("place", ["", "http://169.254.169.254/latest/meta-data", "http://[::ffff:10.0.0.1]/file"])
async def test_files_are_not_fetched_from_inside(place: str, bench: Bench, openai: OpenAIServer) -> None:
    """
    A file that a caller names by its address is fetched from public addresses only: pydantic-ai screens them.
    """
    file = Part(url=place or f"{openai.address}/file.txt", media_type="text/plain")
    with pytest.raises(ApplicationError) as raised:
        await bench.llm(Cmd.llm("a", "Read.", Content(parts=(file,)), model=MODEL))

    assert failure_in(raised.value).kind is FailureKind.PERMANENT
    assert openai.requests == []
