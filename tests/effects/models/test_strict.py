"""Whatever was said, what is sent is a conversation that the big providers accept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic_ai.profiles.openai import OpenAIJsonSchemaTransformer
from temporalio.exceptions import ApplicationError

from refold.conversation import request_of
from refold.core.authoring.cmd import Cmd
from refold.core.chat import EMPTY, Prior, Reply, Said, ToolCall, ToolOffer, ToolReturn, Usage, UserSaid
from refold.core.content import Content
from refold.core.retry_policy import FailureKind
from refold.effects.activities import Effects
from refold.effects.failures.verdicts import Verdict
from refold.effects.models.content.fitting import CUT_OFF, fit_name, fit_schema, fitted
from tests.effects.conftest import Bench, failure_in
from tests.services.strict import PAUSED, SEARCH, StrictAnthropic, StrictOpenAI
from tests.sweeps import examples

MODELS = pytest.mark.parametrize("model", ["openai:gpt-test", "anthropic:claude-test"])
OFFER = ToolOffer(name="find", description="Finds.", parameters={"type": "object", "properties": {}})


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[StrictOpenAI, StrictAnthropic]]:
    """Both, reached by the environment."""
    with StrictOpenAI() as openai, StrictAnthropic() as anthropic, pytest.MonkeyPatch.context() as patch:
        for name, value in {**openai.environment, **anthropic.environment}.items():
            patch.setenv(name, value)
        yield openai, anthropic


@pytest.fixture(autouse=True)
def accepted(servers: tuple[StrictOpenAI, StrictAnthropic], model: str) -> Iterator[StrictOpenAI | StrictAnthropic]:
    """The server of the model, which accepts all that is sent to it."""
    server = servers[model.startswith("anthropic")]
    server.refused.clear()
    server.requests.clear()
    yield server
    assert server.refused == []


@pytest.fixture
def model() -> str:
    """Where a test is about neither."""
    return "openai:gpt-test"


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """Effects without tools, open."""
    async with Effects() as effects:
        yield Bench(effects)


async def sent(bench: Bench, model: str, *said: Said, stream: bool = False, **options: Any) -> Reply:
    """The reply to a conversation."""
    chat = Cmd.chat("a", list(said), model=model, **{"tools": [OFFER], **options})
    reply = await bench.run("refold.chat", request_of(chat, Prior(thread=EMPTY, framed=False)), stream)
    assert isinstance(reply, Reply)
    return reply


def user(text: str) -> UserSaid:
    return UserSaid(content=Content.from_text(text))


def wish(*ids: str, name: str = "find", text: str = "") -> Reply:
    return Reply(text=text, tool_calls=tuple(ToolCall(id=id, name=name) for id in ids), stop="tools")


def came(id: str, value: Any = "found") -> ToolReturn:
    return ToolReturn(id=id, name="find", value=value)


LONG = "call_" + "x" * 60
THOUGHT: dict[str, Any] = {"thinking": {"content": "Hm.", "signature": "s1", "provider_name": "anthropic"}}


def made(*calls: str, text: str = "", **now: Any) -> Reply:
    """A reply with reasoning and these calls, as middleware has left it."""
    aside = (THOUGHT, {"text": len(text)}, *({"call": id} for id in calls))
    return wish(*calls, text=text).model_copy(update={"aside": aside, **now})


CONVERSATIONS: dict[str, list[Said]] = {
    "in another order": [user("x"), wish("1", "2"), came("2"), came("1")],
    "without a result": [user("x"), wish("1", "2"), came("2")],
    "without any result": [user("x"), wish("1"), user("y")],
    "a result after the next message": [user("x"), wish("1"), user("y"), came("1")],
    "two calls with one id": [user("x"), wish("1", "1"), came("1"), came("1", "again")],
    "an id again later": [user("x"), wish("1"), came("1"), wish("1"), came("1")],
    "a long id": [user("x"), wish(LONG), came(LONG)],
    "an odd id": [user("x"), wish("functions.find:0"), came("functions.find:0")],
    "no id": [user("x"), wish(""), came("")],
    "a made-up name": [user("x"), wish("1", name="functions.find"), came("1")],
    "a long name": [user("x"), wish("1", name="f" * 99), came("1")],
    "an empty reply": [user("x"), Reply(), user("y")],
    "a blank reply": [user("x"), Reply(text=" \n"), user("y")],
    "blank text before a call": [user("x"), wish("1", text="\n\n"), came("1")],
    "blank text between reasoning and a call": [user("x"), made("1", text="\n\n"), came("1")],
    "blank text beside reasoning": [user("x"), made(text="\n\n"), user("y")],
    "a call that was dropped": [user("x"), made("1", "2", tool_calls=wish("2").tool_calls), came("2")],
    "a call that was added": [user("x"), made("1", tool_calls=wish("1", "2").tool_calls), came("1"), came("2")],
    "all calls were dropped": [user("x"), made("1", text="x", tool_calls=()), user("y")],
    "an empty message": [user("")],
    "a reply first": [Reply(text="Hello."), user("x")],
    "a reply last": [user("x"), Reply(text="Hello.")],
    "only a reply": [Reply(text="Hello.")],
    "an empty result": [user("x"), wish("1"), came("1", "")],
    "nothing came": [user("x"), wish("1"), came("1", None)],
}


@MODELS
@pytest.mark.parametrize("said", CONVERSATIONS.values(), ids=CONVERSATIONS)
async def test_a_conversation_is_accepted(bench: Bench, model: str, said: list[Said]) -> None:
    """
    Results of all calls and in their order, names and ids that fit, and no empty text.
    """
    assert (await sent(bench, model, *said)).text


@pytest.mark.parametrize("model", ["anthropic:claude-test"])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_providers_own_tool_is_called(bench: Bench, model: str, accepted: Any, stream: bool) -> None:
    """
    The provider calls it by itself, with arguments that it streams like those of any other call.
    """
    accepted.say(SEARCH)
    reply = await sent(bench, model, user("x"), stream=stream, settings={"provider_tools": ["web_search"]})

    assert (reply.text, reply.tool_calls) == (SEARCH, ())
    assert [(call.name, call.args) for call in reply.provider_calls] == [("web_search", {"query": "tea"})]


@pytest.mark.parametrize("model", ["anthropic:claude-test"])
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_pauses_is_gone_on_with(bench: Bench, model: str, accepted: Any, stream: bool) -> None:
    """
    A provider whose own tools take long pauses; it is sent its answer so far, and goes on. All of it is paid for.
    """
    accepted.say(PAUSED, PAUSED, "Green tea.")
    reply = await sent(bench, model, user("x"), stream=stream, settings={"provider_tools": ["web_search"]})

    assert reply.text == f"{PAUSED}\n\n{PAUSED}Green tea."
    assert [call.name for call in reply.provider_calls] == ["web_search", "web_search"]
    assert reply.usage == Usage(input_tokens=21, output_tokens=9, requests=3)
    assert len({asked.headers["idempotency-key"] for asked in accepted.requests}) == 3


async def test_an_answer_that_never_ends_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    What it cost is counted.
    """
    with StrictAnthropic() as anthropic:
        for name, value in anthropic.environment.items():
            monkeypatch.setenv(name, value)
        anthropic.say(*[PAUSED] * 20)
        with pytest.raises(ApplicationError, match="paused its answer 11 times, and has not ended it") as caught:
            await bench.llm(Cmd.llm("a", "x", "y", model="anthropic:claude-test"))

    details = failure_in(caught.value).details
    assert isinstance(details, dict)
    assert details["usage"] == {"input_tokens": 77, "output_tokens": 33, "requests": 11}


@MODELS
async def test_tools_of_earlier_calls_are_defined(bench: Bench, model: str, accepted: Any) -> None:
    """
    A conversation with calls that is continued without tools: the model is told of them, and cannot call them.
    """
    await sent(bench, model, user("x"), wish("1"), came("1"), tools=[])

    assert len(accepted.requests[0].body["tools"]) == 1
    assert accepted.requests[0].body["tool_choice"] in ("none", {"type": "none"})


@MODELS
async def test_a_tool_is_called_by_its_own_name(bench: Bench, model: str, accepted: Any) -> None:
    """
    What the provider cannot take as a name is changed on the way out, and changed back in the reply.
    """
    name = "files__dir.search_v2"
    offers = [OFFER, ToolOffer(name=name, description="", parameters={"type": "object"})]
    accepted.say(f"{fit_name(name)}(words='x')")
    reply = await sent(bench, model, user("x"), tools=offers)
    fit = [tool.get("name") or tool["function"]["name"] for tool in accepted.requests[0].body["tools"]]

    assert fit == ["find", fit_name(name)]
    assert "." not in fit[1]
    assert [call.name for call in reply.tool_calls] == [name]


SCHEMAS: dict[str, dict[str, Any]] = {
    "a tuple": {"type": "object", "properties": {"at": {"type": "array", "prefixItems": [{"type": "integer"}] * 2}}},
    "an older tuple": {"type": "object", "properties": {"at": {"type": "array", "items": [{"type": "integer"}]}}},
    "a list of anything": {"type": "object", "properties": {"at": {"type": "array"}}},
    "anything": {"type": "object", "properties": {"at": {}}, "required": ["at"], "additionalProperties": False},
    "alternatives": {"anyOf": [{"type": "object", "properties": {}}, {"type": "object", "properties": {"a": {}}}]},
    "no properties": {"type": "object"},
    "null": {"type": "object", "properties": None, "required": None, "additionalProperties": None},
    "null below": {"type": "object", "properties": {"at": {"type": "object", "properties": None, "required": None}}},
    "a list of properties": {"type": "object", "properties": {"at": {"type": "object", "properties": ["x"]}}},
    "no schemas": {"type": "object", "properties": {"at": None, "to": "string"}, "required": ["at", None]},
    "nothing": {},
}


@MODELS
@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=SCHEMAS)
async def test_a_schema_is_accepted(bench: Bench, model: str, schema: dict[str, Any]) -> None:
    """
    Tuples, lists of anything, anything at all and alternatives at the top are sent in a form that is accepted.
    """
    await sent(bench, model, user("x"), tools=[ToolOffer(name="find", description="", parameters=schema or {"x": 1})])


@MODELS
@pytest.mark.parametrize("expect", [tuple[int, str], list[Any], dict[str, Any], int | str, tuple[int, ...]], ids=str)
async def test_an_expected_type_is_accepted(bench: Bench, model: str, expect: Any, accepted: Any) -> None:
    """
    Also types that providers refuse as they are; what is sent is a schema of an object.
    """
    with suppress(ApplicationError):  # one of the servers answers with text
        await sent(bench, model, user("x"), expect=expect)

    assert accepted.requests


def test_a_tuple_is_a_list_of_its_types() -> None:
    """
    Each once; and strict mode is left out where a part has no type.
    """
    schema = {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}, {"type": "integer"}]}
    made, strict = fit_schema({"type": "object", "properties": {"at": schema}})

    assert made["properties"]["at"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert strict
    assert fit_schema({"type": "object", "properties": {"at": {}}})[1] is False


WORDS = (
    "type", "properties", "required", "items", "prefixItems", "anyOf", "oneOf", "allOf", "enum", "$defs", "definitions",
    "patternProperties", "additionalProperties", "propertyNames", "contains", "minItems", "title", "default",
)  # fmt: skip
ANYTHING = st.recursive(
    st.sampled_from([None, True, 1, 2.5, "object", "array", "x"]),
    lambda part: st.lists(part, max_size=2) | st.dictionaries(st.sampled_from(WORDS), part, max_size=4),
    max_leaves=20,
)


@settings(max_examples=examples(300))
@given(schema=st.dictionaries(st.sampled_from(WORDS), ANYTHING, max_size=5))
def test_whatever_a_server_calls_a_schema_can_be_sent(schema: dict[str, Any]) -> None:
    """
    Some servers write null for what is not there, or another thing than what belongs there: no keyword of what is sent
    has a value of the wrong kind, at any level. A schema that is well is unchanged by a second fitting.
    """
    made, strict = fit_schema(schema)
    OpenAIJsonSchemaTransformer(made, strict=None if strict else False).walk()

    assert fit_schema(made) == (made, strict)


def test_null_is_left_where_it_is_a_value() -> None:
    """
    As a default or a constant.
    """
    part = {"anyOf": [{"type": "string"}, {"const": None}], "default": None}
    made, _ = fit_schema({"type": "object", "properties": {"at": {**part, "title": None}}})

    assert made["properties"] == {"at": part}


def test_names_that_differ_stay_different() -> None:
    """
    A name that fits is unchanged; others keep their beginning and get a hash.
    """
    assert fit_name("find-it_2") == "find-it_2"
    assert fit_name("a.b") != fit_name("a/b")
    assert len({fit_name("x" * 70 + end) for end in "abc"}) == 3
    assert all(len(fit_name(name)) <= 64 for name in ("x" * 65, "", "ü" * 64))


def test_a_missing_result_is_unknown() -> None:
    """
    The model does not read that the call was not made: the task may have lost its result.
    """
    sent = fitted([user("x"), wish("1", "2"), came("2")])

    assert [(one.id, one.value, one.failed) for one in sent if isinstance(one, ToolReturn)] == [
        ("1", "this call has no result; it may have been made", True),
        ("2", "found", False),
    ]


@pytest.mark.parametrize(
    "said",
    [[user("x"), wish("1"), came("1"), came("2")], [user("x"), wish("1"), came("1"), came("1")], [came("1")]],
    ids=["surplus", "doubled", "without a reply"],
)
async def test_a_result_too_many_is_an_error(bench: Bench, said: list[Said], model: str) -> None:
    """
    It names the tool and the call; nothing is sent.
    """
    with pytest.raises(ApplicationError) as caught:
        await sent(bench, model, *said)
    failure = failure_in(caught.value)

    assert (failure.kind, failure.type) == (FailureKind.PERMANENT, "conversation")
    assert "has a result of tool 'find' for call" in failure.message


def test_results_of_calls_that_are_left_out_are_left_out() -> None:
    """
    A window may begin between a call and its result.
    """
    said: list[Said] = [user("x"), wish("1"), came("1"), Reply(text="Found.")]

    assert [getattr(one, "text", None) or one.content.text for one in fitted(said, since=2)][:2] == [CUT_OFF, "Found."]  # type: ignore[union-attr]


IDS = st.sampled_from(["1", "2", "", "functions.find:0", LONG])
TURNS = st.lists(
    st.one_of(
        st.builds(user, st.sampled_from(["x", "", " "])),
        st.builds(lambda ids, text: wish(*ids, text=text), st.lists(IDS, max_size=3), st.sampled_from(["", " ", "x"])),
        st.builds(came, IDS, st.sampled_from(["found", "", None, {"a": 1}])),
    ),
    max_size=8,
)


@MODELS
@settings(max_examples=examples(60), suppress_health_check=list(HealthCheck))
@given(said=TURNS, since=st.integers(0, 8), offered=st.booleans())
async def test_every_conversation_is_accepted(
    bench: Bench, model: str, accepted: Any, said: list[Said], since: int, offered: bool
) -> None:
    """
    Or refused here, because it has a result too many.
    """
    try:
        fitted(said, since=since)
    except Verdict:
        return
    await sent(bench, model, *said, since=since, tools=[OFFER] if offered else [])
    assert accepted.refused == []
