"""Converts a conversation to pydantic-ai's messages, and a model's response to a `Reply`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never, cast

from pydantic import JsonValue, TypeAdapter
from pydantic_ai.messages import (
    FilePart,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    NativeToolCallPart,
    NativeToolReturnPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from refold.core.chat import Reply, Said, ToolCall, ToolReturn, UserSaid
from refold.core.content import Content, Part
from refold.core.values import encodable, unreadable
from refold.effects.models.content.files import file_for_model, file_part
from refold.effects.models.content.fitting import EMPTY, fitted, unrepeated
from refold.effects.models.provider_tools import dumped, loaded


def messages_of(
    said: Sequence[Said], instructions: str, *, since: int = 0, system: str | None = None, client: str = ""
) -> list[ModelMessage]:
    """A conversation as messages that providers accept; all turns between two replies become one request.

    Args:
        said: All turns, oldest first.
        instructions: The system prompt.
        since: How many of the oldest turns are left out.
        system: The provider, by pydantic-ai's name of it: what another one made for itself alone is left out.
        client: The class of pydantic-ai's model: what another API of the provider made for itself is left out, too.

    Raises:
        Verdict: The conversation has a result without a call, or a file that cannot be sent.
    """
    messages: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    for one in fitted(said, since=since):
        if not isinstance(one, Reply):
            parts.append(_request_part(one))
            continue
        replied = list(_response_parts(one, system, client))
        if not replied:
            continue
        if parts:
            messages.append(ModelRequest(parts=parts))
        messages.append(ModelResponse(parts=replied))
        parts = []
    return [*messages, ModelRequest(parts=parts, instructions=instructions or None)]


def complaint_of(misfit: Exception) -> UserPromptPart:
    """The message that tells a model why its answer was not accepted."""
    return UserPromptPart(f"An earlier answer was rejected: {misfit}. Answer again, in the form asked for.")


def _request_part(one: UserSaid | ToolReturn) -> ModelRequestPart:
    match one:
        case UserSaid(content=content):
            return UserPromptPart(user_content(content))
        case ToolReturn(id=id, name=name, value=value, failed=failed):
            outcome: Any = "failed" if failed else "success"
            return ToolReturnPart(tool_name=name, content=value, tool_call_id=id, outcome=outcome)
        case _:
            assert_never(one)


# --- replies

PARAGRAPH = "\n\n"
"""What parts two texts of a reply that have anything between them."""

_THINKING: TypeAdapter[ThinkingPart] = TypeAdapter(ThinkingPart)
_EXTRAS = ("id", "provider_name", "provider_details")


def reply_parts(response: ModelResponse) -> tuple[str, tuple[ToolCall, ...], tuple[dict[str, JsonValue], ...]]:
    """A response's text, its tool calls, and the parts that the provider requires back in the next request.

    Texts with anything between them are paragraphs, as in `ModelResponse.text`; what parts them is `gap` in the part.
    Reasoning is kept if it is signed, or if tools are called: some providers require it back with the tools' results.
    """
    calls = unrepeated([_call(part) for part in response.parts if isinstance(part, ToolCallPart)])
    texts: list[str] = []
    aside: list[dict[str, Any]] = []
    special, left = False, iter(calls)
    before: ModelResponsePart | None = None
    for part in response.parts:
        extras: dict[str, Any] = {name: value for name in _EXTRAS if (value := getattr(part, name, None)) is not None}
        match part:
            case TextPart(content=text):
                gap = PARAGRAPH if texts and not isinstance(before, TextPart) else ""
                texts += [gap, encodable(text)]
                aside.append({"text": len(texts[-1]), **({"gap": len(gap)} if gap else {}), **extras})
            case ToolCallPart():
                aside.append({"call": next(left).id, **extras})
            case ThinkingPart() if part.signature is not None or (calls and part.content):
                aside.append({"thinking": _THINKING.dump_python(part, mode="json", exclude_defaults=True)})
                special = True
            case NativeToolCallPart() | NativeToolReturnPart():
                aside.append({"provider": dumped(part)})
                special = True
            case FilePart() if part.has_content():
                aside.append({"file": sum("file" in one for one in aside), **extras})
                special = True
            case _:
                extras = {}
        special = special or bool(extras)
        before = part
    return "".join(texts), calls, tuple(encodable(aside)) if special else ()


def _call(part: ToolCallPart) -> ToolCall:
    id, name = encodable(part.tool_call_id), encodable(part.tool_name)
    try:
        args = json.loads(part.args) if isinstance(part.args, str) and part.args else (part.args or {})
    except (ValueError, RecursionError) as error:
        return ToolCall(id=id, name=name, problem=f"the arguments are not JSON: {error}")
    if not isinstance(args, dict):
        return ToolCall(id=id, name=name, problem="the arguments are no JSON object")
    if unreadable([[[[args]]]]):  # a task could not keep the reply, with as many levels around its arguments
        problem = "the arguments are nested too deep, or hold a number with too many digits"
        return ToolCall(id=id, name=name, problem=problem)
    return ToolCall(id=id, name=name, args=encodable(args))


def _response_parts(reply: Reply, system: str | None, client: str) -> Iterator[ModelResponsePart]:
    """A reply's parts as pydantic-ai's, in the provider's order if the provider depends on it."""
    calls = {call.id: ToolCallPart(call.name, call.args, tool_call_id=call.id) for call in reply.tool_calls}
    if not reply.aside:
        yield from _plain_parts(reply, calls.values())
        return
    at = 0
    for one in reply.aside:
        extras: dict[str, Any] = (
            {} if _is_foreign(one, system) else {name: one[name] for name in _EXTRAS if name in one}
        )
        match one:
            case {"text": int(length)}:
                at += cast("int", one.get("gap", 0))
                if (piece := reply.text[at : at + length]).strip():
                    yield TextPart(piece, **extras)
                at += length
            case {"call": str(id)} if id in calls:
                yield replace(calls[id], **extras)
            case {"thinking": dict(thinking)} if not (_is_foreign(thinking, system) or _is_of_other(thinking, client)):
                yield _THINKING.validate_python(thinking)
            case {"provider": dict(part)} if not _is_foreign(part, system):
                yield loaded(part)
            case {"file": int(number)} if not _is_foreign(one, system):
                yield file_part(reply.files[number], **extras)
            case _:
                pass
    if reply.value is not None:
        yield TextPart(json.dumps(reply.value, ensure_ascii=False))


def _is_foreign(part: Mapping[str, JsonValue], system: str | None) -> bool:
    """Whether another provider made a part, or the ids and signatures of one, which pydantic-ai would send as text."""
    return system is not None and part.get("provider_name") not in (None, system)


_IN_FIELDS = {"OpenAIChatModel": True, "OpenAIResponsesModel": False}
_FIELDS = ("content", "reasoning", "reasoning_content")


def _is_of_other(thinking: Mapping[str, JsonValue], client: str) -> bool:
    """Whether reasoning is from OpenAI's other API.

    Chat completions have it in a field, whose name pydantic-ai keeps as its id; Responses give it an id of its own,
    which would be sent as the name of a field.
    """
    in_field = _IN_FIELDS.get(client)
    if in_field is None or thinking.get("id") is None:
        return False
    return (thinking["id"] in _FIELDS) is not in_field


def _plain_parts(reply: Reply, calls: Iterable[ToolCallPart]) -> Iterator[ModelResponsePart]:
    if reply.text.strip():
        yield TextPart(reply.text)
    if reply.value is not None:
        yield TextPart(json.dumps(reply.value, ensure_ascii=False))
    yield from calls


# --- content


def user_content(content: Content) -> str | list[UserContent]:
    """A user's content in pydantic-ai's form."""
    if all(part.text is not None for part in content.parts):
        return content.text if content.text.strip() else EMPTY
    return [_piece(part) for part in content.parts]


def _piece(part: Part) -> UserContent:
    if part.text is not None:
        return part.text if part.text.strip() else EMPTY
    if part.data is not None:
        return json.dumps(part.data, ensure_ascii=False)
    return file_for_model(part)
