"""Structured output: asks a model for a value of a type, and reads the value from the answer.

The call's setting `output_mode`, else the model's profile in pydantic-ai, decides whether the schema is sent as a tool
that the model must call, as the provider's structured output, or in the prompt. The answer is read from the tool call
or from the text, since a server without tool support often answers with the JSON as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from pydantic import JsonValue
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from refold.conversation import json_schema
from refold.core.codec import misfit
from refold.core.retry_policy import Failure, FailureKind
from refold.core.schema import Schema
from refold.core.values import encodable
from refold.effects.failures.verdicts import OTHERS_S, Verdict
from refold.effects.models.content.fitting import fit_schema

WRAPPED = "response"
"""The property that wraps a value which is not an object: providers require an object at the top level."""

FINAL_RESULT = "final_result"
"""The tool that the model calls with its final answer, if the schema is sent as a tool."""

Mode = Literal["auto", "tool", "native", "prompted"]
OUTPUT_MODE = "output_mode"
"""The setting of a call that says how a type is asked for."""

_TOOL_SAYS = "The final answer, in the form that is asked for."


class Misfit(Exception):
    """The model's answer does not fit; the message says where, without the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A type that a model's answer must fit.

    Attributes:
        schema: The type as the command names it.
        name: The type's name, for people and for the provider.
        wire: The JSON schema sent to the provider; always of an object.
        wrapped: The value is the property `response` of the answered object.
        mode: How the type is asked for; `auto` is as the model's profile prefers.
    """

    schema: Schema
    name: str
    wire: dict[str, JsonValue]
    wrapped: bool
    mode: Mode = "auto"

    def parameters(self, tools: Sequence[ToolDefinition] = ()) -> ModelRequestParameters:
        """Request parameters that ask for the type in the way the model's profile prefers, and offer these tools."""
        wire, strict = fit_schema(self.wire)
        own: Any = {"strict": None if strict else False}
        return ModelRequestParameters(
            function_tools=list(tools),
            output_mode=self.mode,
            output_object=OutputObjectDefinition(json_schema=wire, name=self.name, **own),
            output_tools=[
                ToolDefinition(
                    name=FINAL_RESULT, description=_TOOL_SAYS, parameters_json_schema=wire, kind="output", **own
                )
            ],
            allow_text_output=self.mode in ("native", "prompted"),
        )

    def answered_by(self, response: ModelResponse) -> bool:
        """Whether a response is the final answer, not a call of a tool before it."""
        called = [part.tool_name for part in response.parts if isinstance(part, ToolCallPart)]
        return not called or FINAL_RESULT in called

    def read(self, response: ModelResponse) -> JsonValue:
        """The value that the model answered, as JSON.

        Validated if the type is loaded in this worker, else only parsed; the JSON is returned unchanged.

        Raises:
            Misfit: The answer is not JSON, or does not fit the type.
        """
        value = _answered(response)
        if self.wrapped and isinstance(value, dict) and value.keys() == {WRAPPED}:
            value = value[WRAPPED]
        if found := misfit(self.schema, value):
            raise Misfit(f"the answer does not fit {self.name}: {found}")
        return value


def expected(schema: Schema, settings: Mapping[str, JsonValue]) -> Expected:
    """How to ask a model for a value of a command's type.

    Args:
        schema: The type.
        settings: The call's settings; `output_mode` is one of them.

    Raises:
        Verdict: The type's module is not loaded in this worker, or the mode is unknown.
    """
    mode: Any = settings.get(OUTPUT_MODE, "auto")
    if mode not in get_args(Mode):
        message = f"settings: output_mode={mode!r} is unknown; there are: {', '.join(get_args(Mode))}"
        raise Verdict(Failure(kind=FailureKind.PERMANENT, type="configuration", message=message))
    try:
        found = json_schema(schema)
    except LookupError as error:
        said = str(error.args[0])
        failure = Failure(kind=FailureKind.PERMANENT, type="configuration", message=said, again_s=OTHERS_S)
        raise Verdict(failure) from None
    named = schema.rpartition(":")[2] if isinstance(schema, str) else str(found.get("title", "answer"))
    name = re.sub(r"[^\w-]+", "_", named)[:64]
    if _is_object(found):
        return Expected(schema=schema, name=name, wire=found, wrapped=False, mode=mode)
    inner = {key: value for key, value in found.items() if key != "$defs"}
    wire: dict[str, JsonValue] = {
        "type": "object",
        "properties": {WRAPPED: inner},
        "required": [WRAPPED],
        "additionalProperties": False,
    }
    if "$defs" in found:  # references start at the top
        wire["$defs"] = found["$defs"]
    return Expected(schema=schema, name=name, wire=wire, wrapped=True, mode=mode)


def _is_object(schema: dict[str, JsonValue]) -> bool:
    found: Any = schema
    if isinstance(ref := schema.get("$ref"), str) and ref.startswith("#/$defs/"):
        definitions = schema.get("$defs")
        found = definitions.get(ref.removeprefix("#/$defs/"), {}) if isinstance(definitions, dict) else {}
    return isinstance(found, dict) and found.get("type") == "object" and "properties" in found


def _answered(response: ModelResponse) -> JsonValue:
    called = [part for part in response.parts if isinstance(part, ToolCallPart)]
    final = next((part for part in called if part.tool_name == FINAL_RESULT), called[0] if called else None)
    if final is not None:
        return _parsed(final.args_as_json_str())
    return _parsed(response.text or "")


def _parsed(text: str) -> JsonValue:
    """The JSON in an answer: all of it, or the first block between fences; models like to put prose around it. A text
    in the JSON may hold fences of its own: then what is between the first fence and the last."""
    fenced = [re.search(rf"```(?:json|JSON)?({inside})```", text, re.DOTALL) for inside in (".*?", ".*")]
    for one in (text, *(found.group(1) for found in fenced if found)):
        try:
            value: JsonValue = encodable(json.loads(one))
        except (ValueError, RecursionError):
            continue
        return value
    raise Misfit("the answer is not JSON")
