"""Tools that the provider has and calls itself: web search, code execution and so on, asked for by a setting.

The setting `provider_tools` is a list of names, or of objects with the name as `kind` and the tool's options. The
provider makes the calls while it answers. The reply has them (`Reply.provider_calls`), so the journal does; what they
returned is kept for the provider, which requires it back in the next request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_ai.messages import ModelResponse, NativeToolCallPart, NativeToolReturnPart
from pydantic_ai.models import Model
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool

from refold.core.chat import ToolCall
from refold.core.errors import brief
from refold.core.schema import problems
from refold.core.values import encodable
from refold.effects.failures.building import permanent
from refold.effects.failures.verdicts import Verdict

PROVIDER_TOOLS = "provider_tools"
"""The setting of a call that names the provider's own tools that the model may use."""

_TOOL: TypeAdapter[AbstractNativeTool] = TypeAdapter(AbstractNativeTool)
_PARTS: TypeAdapter[NativeToolCallPart | NativeToolReturnPart] = TypeAdapter(NativeToolCallPart | NativeToolReturnPart)


def provider_tools(settings: Mapping[str, JsonValue], name: str, model: Model) -> list[AbstractNativeTool]:
    """The provider's tools that a call asks for.

    Args:
        settings: The call's.
        name: The model, `provider:name`.
        model: The model.

    Raises:
        Verdict: The setting is no such list, there is no such tool or option, or the model does not have the tool.
    """
    given = settings.get(PROVIDER_TOOLS)
    if given is None:
        return []
    if not isinstance(given, list):
        raise _wrong(f"{brief(given)} is no list of tools, for example ['web_search']")
    found = [_tool(one) for one in given]
    has = model.profile.get("supported_native_tools", frozenset())
    if lacking := [one.kind for one in found if not one.optional and type(one) not in has]:
        there = ", ".join(sorted(kind.kind for kind in has)) or "none"
        raise _wrong(f"model {name!r} does not have {', '.join(lacking)}; it has: {there}")
    return found


def _tool(given: JsonValue) -> AbstractNativeTool:
    wanted: Any = {"kind": given} if isinstance(given, str) else given
    kind = wanted.get("kind") if isinstance(wanted, dict) else None
    known = NATIVE_TOOL_TYPES.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise _wrong(f"{brief(given)} is no tool of a provider; there are: {', '.join(sorted(NATIVE_TOOL_TYPES))}")
    options = [field.name for field in fields(known)]
    if unknown := [name for name in wanted if name not in options]:
        raise _wrong(f"{kind} has no option {', '.join(unknown)}; it has: {', '.join(sorted(options))}")
    try:
        return _TOOL.validate_python(wanted)
    except ValidationError as error:
        raise _wrong(f"{kind}: {problems(error)}") from None


def _wrong(why: str) -> Verdict:
    return Verdict(permanent("configuration", f"settings: {PROVIDER_TOOLS}: {why}"))


# --- in replies


def provider_calls(response: ModelResponse) -> tuple[ToolCall, ...]:
    """The calls that the provider made itself, for the journal."""
    return tuple(
        ToolCall(id=encodable(part.tool_call_id), name=encodable(part.tool_name), args=_args(part))
        for part in response.parts
        if isinstance(part, NativeToolCallPart)
    )


def dumped(part: NativeToolCallPart | NativeToolReturnPart) -> JsonValue:
    """A call, or what it returned, as JSON, to be sent back."""
    data: JsonValue = _PARTS.dump_python(part, mode="json", exclude_defaults=True)
    return {"part_kind": part.part_kind, **data} if isinstance(data, dict) else data


def loaded(data: JsonValue) -> NativeToolCallPart | NativeToolReturnPart:
    """What `dumped` wrote; `part_kind` says which of the two it is."""
    return _PARTS.validate_python(data)


def _args(part: NativeToolCallPart) -> dict[str, JsonValue]:
    try:
        args = part.args_as_dict()
    except (ValueError, AssertionError):
        return {}
    return dict(encodable(args)) if isinstance(args, dict) else {}
