"""The scripted models: no network, no key, the same answer to the same question, for demos, tests and first steps.

`scripted:demo` has answers for the skills that come with refold, says yes to a question that asks it to begin with yes
or no, and echoes any other question; `scripted:slow` gives the same answers, each in a few seconds. An answer depends
on the call's input alone, so any worker may take the next call.

A scripted model calls tools by a script (see `script`), or if the user's message names an offered tool:
`weather "Oslo"` calls the tool `weather` with the strings and numbers of the message, in the order of the tool's
parameters; the next reply tells the tool's result.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import JsonValue
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.profiles import ModelProfile
from pydantic_core import to_jsonable_python

from refold.core.chat import Reply, Said, ToolReturn, UserSaid
from refold.core.content import as_content
from refold.core.values import LONGEST_CALL_S
from refold.effects.failures.building import permanent
from refold.effects.failures.verdicts import Verdict
from refold.effects.models.script import Wish, scripted_reply

SCRIPTED = "scripted"
DELAY_SETTING = "REFOLD_SCRIPTED_DELAY"
_DELAYS_S = {"demo": 0.0, "slow": 3.0}

# Structured output goes out as text, which streams and is readable for whoever watches.
_PROFILE = ModelProfile(
    supports_json_schema_output=True, supports_json_object_output=True, default_structured_output_mode="native"
)


def scripted_model(name: str) -> FunctionModel:
    """The scripted model of this name.

    `REFOLD_SCRIPTED_DELAY` makes each call take that many seconds, spread over the pieces of a streamed answer: time
    enough to kill a worker in the middle. A call fails if it is no number of seconds from 0 to `LONGEST_CALL_S`.

    Raises:
        LookupError: There is no such model; the message lists them.
    """
    if name not in _DELAYS_S:
        listed = ", ".join(f"{SCRIPTED}:{known}" for known in _DELAYS_S)
        raise LookupError(f"there is no scripted model {name!r}; there are {listed}")

    async def whole(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        await asyncio.sleep(_delay(name))
        said = _reply(messages, info)
        if isinstance(said, str):
            return ModelResponse(parts=[TextPart(said)])
        return ModelResponse(parts=[ToolCallPart(wish.tool, wish.args, tool_call_id=id) for id, wish in said.items()])

    async def pieces(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
        said = _reply(messages, info)
        every = list(_words(said)) if isinstance(said, str) else list(_deltas(said))
        for piece in every:
            await asyncio.sleep(_delay(name) / len(every))
            yield piece

    return FunctionModel(whole, stream_function=pieces, model_name=name, profile=_PROFILE)


def _delay(name: str) -> float:
    given = os.environ.get(DELAY_SETTING, "").strip()
    if not given:
        return _DELAYS_S[name]
    with suppress(ValueError):
        if 0 <= (seconds := float(given)) <= LONGEST_CALL_S:
            return seconds
    said = f"{DELAY_SETTING}={given!r} is no number of seconds from 0 to {LONGEST_CALL_S:.0f}; correct it, or unset it"
    raise Verdict(permanent("configuration", said))


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*|\s+", text) or [""]


def _deltas(wishes: Mapping[str, Wish]) -> Iterator[DeltaToolCalls]:
    for index, (id, wish) in enumerate(wishes.items()):
        yield {index: DeltaToolCall(wish.tool, "", tool_call_id=id)}
        for piece in _words(json.dumps(wish.args, ensure_ascii=False)):
            yield {index: DeltaToolCall(None, piece)}


def _reply(messages: list[ModelMessage], info: AgentInfo) -> str | dict[str, Wish]:
    """A text, or tool calls by their ids."""
    asked = info.model_request_parameters.output_object
    said = list(_said(messages))
    tools = {tool.name: tool.parameters_json_schema for tool in info.function_tools}
    reply = converse(info.instructions or "", said, tools, None if asked is None else asked.json_schema)
    if isinstance(reply, str):
        return reply
    turn = sum(isinstance(one, Reply) for one in said) + 1
    return {f"call-{turn}.{number}": wish for number, wish in enumerate(reply, 1)}


def _said(messages: list[ModelMessage]) -> Iterator[Said]:
    """The turns that the scripted model reads: texts and tool results."""
    for message in messages:
        if isinstance(message, ModelResponse):
            yield Reply(text=message.text or "")
            continue
        for part in message.parts:
            match part:
                case UserPromptPart(content=content):
                    said = [content] if isinstance(content, str) else content
                    yield UserSaid(content=as_content("\n".join(piece for piece in said if isinstance(piece, str))))
                case ToolReturnPart():
                    value = to_jsonable_python(part.content)
                    yield ToolReturn(id=part.tool_call_id, name=part.tool_name, value=value)
                case _:
                    pass


def converse(
    instructions: str,
    said: Sequence[Said],
    tools: Mapping[str, dict[str, Any]],
    schema: dict[str, Any] | None = None,
) -> str | list[Wish]:
    """The scripted model's reply in a conversation: text, or tool calls.

    Args:
        instructions: The instructions of the call.
        said: The conversation, oldest turn first.
        tools: The offered tools' names, with the JSON schemas of their arguments.
        schema: The JSON schema that a final answer must fit; None for text.
    """
    scripted = scripted_reply(instructions, said)
    if scripted is not None:
        return scripted
    newest = max((number for number, one in enumerate(said) if isinstance(one, UserSaid)), default=0)
    heard = next((one.content.text for one in reversed(said) if isinstance(one, UserSaid)), "")
    returned = [one for one in said[newest:] if isinstance(one, ToolReturn)]
    named = [name for name in tools if re.search(rf"\b{re.escape(name)}\b", heard)]
    if named and not returned:
        return [Wish(name, _arguments(tools[name], heard)) for name in named]
    if returned and schema is None:
        return "; ".join(f"{one.name}: {_as_text(one.value)}" for one in returned)
    return answer(instructions, heard, schema)


def _arguments(schema: dict[str, Any], heard: str) -> dict[str, JsonValue]:
    """Arguments that fit a tool's schema, from the strings and numbers in the user's message, in order."""
    strings = iter(re.findall(r'"([^"]*)"', heard))
    numbers = iter(re.findall(r'(?<![\w."-])-?\d+(?:\.\d+)?(?![\w."])', heard))
    args: dict[str, JsonValue] = smallest(schema) or {}
    for name, kind in schema.get("properties", {}).items():
        match kind.get("type") if isinstance(kind, dict) else None:
            case "string" if (text := next(strings, None)) is not None:
                args[name] = text
            case "integer" | "number" if (number := next(numbers, None)) is not None:
                args[name] = json.loads(number)
            case _:
                pass
    return args


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def answer(prompt: str, said: str, schema: dict[str, Any] | None = None) -> str:
    """The scripted model's answer outside a conversation; JSON if a schema is given.

    Args:
        prompt: The instructions; may be empty.
        said: The user's message.
        schema: The JSON schema that the answer must fit; None for text.
    """
    if schema is not None:
        value = _answered(said, schema)
        return json.dumps(value, ensure_ascii=False)
    if re.search(r"\bresearch|\bdraft", prompt, re.IGNORECASE):
        return _draft(said)
    if re.search(r"\bgreet", prompt, re.IGNORECASE):
        return _greeting(said)
    if re.search(r"\bbegin with yes or no\b", said, re.IGNORECASE):
        return "Yes."
    return f"You said: {said}" if said else "You said nothing."


def _answered(said: str, schema: dict[str, Any]) -> Any:
    if _asks_for_verdict(schema):
        return _verdict(said)
    if _asks_for_thought(schema):
        return _thought(said)
    return _proposal(said, schema) if _asks_for_proposal(schema) else smallest(schema)


# --- the research loop: a draft a round; revise, ask, approve

_ROUND = re.compile(r"^Draft (\d+): .* \| (.*?) \| (.*)$", re.MULTILINE)


def _draft(brief: str) -> str:
    """The next draft as one line, numbered by its round, so that a brief grows by one line a round."""
    rounds = _ROUND.findall(brief)
    topic = " ".join(brief.split("\nDraft ")[0].split()).replace(" | ", ", ") or "nothing in particular"
    notes = [note.strip() for _, _, note in rounds if note.strip()]
    wanted = f" As you asked: {'; '.join(notes)}." if notes else ""
    number = max((int(number) for number, _, _ in rounds), default=0) + 1
    return f"Draft {number}: {topic}. What is known, what is disputed, and what it means in practice.{wanted}"


def _asks_for_verdict(schema: dict[str, Any]) -> bool:
    decision = schema.get("properties", {}).get("decision", {})
    return isinstance(decision, dict) and "NeedsRevision" in decision.get("enum", ())


def _verdict(draft: str) -> dict[str, str]:
    found = re.search(r"Draft (\d+)", draft)
    match int(found.group(1)) if found else 1:
        case 1:
            return {"decision": "NeedsRevision", "text": "Too general: say what is disputed and by whom."}
        case 2:
            return {"decision": "NeedsHumanInput", "text": "Which readers is this for, and what matters most to them?"}
        case _:
            return {"decision": "Approved", "text": "Clear, and fit for its readers."}


# --- the forty steps: a thought and a tool a step, money and mail once each, and an end

_STEP = re.compile(r"^Step (\d+) of (\d+)", re.MULTILINE)
_ONCE = ("charge_card", "send_mail")


def _asks_for_proposal(schema: dict[str, Any]) -> bool:
    return bool({"thought", "tool", "result"} <= schema.get("properties", {}).keys())


def _proposal(said: str, schema: dict[str, Any]) -> dict[str, str | None]:
    found = _STEP.search(said)
    step, last = (int(found.group(1)), int(found.group(2))) if found else (1, 1)
    if step >= last:
        return {"thought": "All is done.", "tool": None, "result": f"Done in {last} steps."}
    choices = next(one["enum"] for one in schema["properties"]["tool"]["anyOf"] if "enum" in one)
    lookups = [tool for tool in choices if tool not in _ONCE]
    tool = {last // 2: "charge_card", last - 1: "send_mail"}.get(step, lookups[step % len(lookups)])
    return {"thought": f"Step {step} needs {tool}.", "tool": tool, "result": None}


# --- the agent that thinks, acts and observes: a word that is to be defined is looked up, once

_DEFINE = re.compile(r"\bdefine (\w+)", re.IGNORECASE)


def _asks_for_thought(schema: dict[str, Any]) -> bool:
    return bool({"intent", "suggested_tools"} <= schema.get("properties", {}).keys())


def _thought(said: str) -> dict[str, Any]:
    question = next((line for line in reversed(said.splitlines()) if line.startswith("Question: ")), said)
    words = [] if "\nFound so far: " in said else _DEFINE.findall(question)
    tools = [{"tool": "define_word", "about": word} for word in words]
    return {"intent": question.removeprefix("Question: "), "suggested_tools": tools, "reasoning": ""}


def _greeting(said: str) -> str:
    name = " ".join(said.split())
    return f"Hello, {name}!" if 0 < len(name) <= 40 and "." not in name else "Hello, and welcome!"


# --- any schema


def smallest(schema: dict[str, Any]) -> Any:
    """A small value that fits a JSON schema: required fields only, and the first choice of several.

    Supports the schemas that pydantic writes; no patterns, and no conditions between fields.
    """
    return _Smallest(schema.get("$defs", {})).of(schema)


class _Smallest:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions

    def of(self, schema: Any, depth: int = 0) -> Any:
        if not isinstance(schema, dict) or depth > 20:
            return None
        for given in ("const", "default"):
            if given in schema:
                return schema[given]
        if schema.get("enum"):
            return schema["enum"][0]
        if "$ref" in schema:
            return self.of(self._definitions.get(str(schema["$ref"]).rpartition("/")[2], {}), depth + 1)
        for choices in ("anyOf", "oneOf"):
            if schema.get(choices):
                return self.of(min(schema[choices], key=self._weight), depth + 1)
        if schema.get("allOf"):
            merged = {key: value for part in schema["allOf"] if isinstance(part, dict) for key, value in part.items()}
            return self.of(merged, depth + 1)
        kind = schema.get("type")
        return self._plain(kind[0] if isinstance(kind, list) and kind else kind, schema, depth)

    def _plain(self, kind: Any, schema: dict[str, Any], depth: int) -> Any:
        match kind:
            case "object":
                properties = schema.get("properties", {})
                return {name: self.of(properties.get(name, {}), depth + 1) for name in schema.get("required", ())}
            case "array":
                shapes = list(schema.get("prefixItems", ()))
                missing = max(0, int(schema.get("minItems", 0)) - len(shapes))
                return [self.of(shape, depth + 1) for shape in (*shapes, *[schema.get("items", {})] * missing)]
            case "string":
                text = _FORMATS.get(str(schema.get("format")), "")
                return text or "x" * int(schema.get("minLength", 0))
            case "integer":
                return _number(schema, 1)
            case "number":
                return _number(schema, 0.5)
            case "boolean":
                return False
            case _:
                return None

    def _weight(self, schema: Any) -> int:
        """The order of choices: null first, then plain types, so that a recursive schema comes to an end."""
        if not isinstance(schema, dict):
            return 3
        return 0 if schema.get("type") == "null" else 2 if "$ref" in schema else 1


def _number(schema: dict[str, Any], step: float) -> Any:
    low = schema.get("minimum", schema.get("exclusiveMinimum", 0) + step if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema.get("exclusiveMaximum", 0) - step if "exclusiveMaximum" in schema else None)
    value = low if low is not None else min(0, high) if high is not None else 0
    multiple = schema.get("multipleOf")
    return -(-value // multiple) * multiple if multiple else value


_FORMATS = {
    "date": "2000-01-01",
    "date-time": "2000-01-01T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "PT0S",
    "email": "a@example.org",
    "uri": "https://example.org/",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
}
