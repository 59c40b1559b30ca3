"""What a step's parameters say: what each one is filled with, read once, when the skill is defined.

Source: S0.49 to S0.53.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Union, get_args, get_origin, get_type_hints

from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from refold.core.content import Content
from refold.core.context import Ctx
from refold.core.errors import SkillError
from refold.core.events import UserMessage
from refold.core.schema import adapter, problems

MISSING = inspect.Parameter.empty


class Source(StrEnum):
    """Where a parameter's value comes from."""

    CTX = "ctx"
    CONTENT = "content"
    EVENT = "event"
    INPUT = "input"
    PAYLOAD = "payload"


@dataclass(frozen=True, slots=True)
class Json:
    """A value that is JSON already: a carried argument, a command's result, the data of a message."""

    data: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of a step."""

    name: str
    source: Source
    adapter: TypeAdapter[Any]
    type_name: str
    default: Any = MISSING

    def encode(self, value: Any, step: str) -> tuple[JsonValue, Any]:
        """`value` as JSON, and the fresh value that the JSON reads back as.

        Args:
            value: What the parameter is to be, or that as `Json`.
            step: The step's name, for the error.

        Raises:
            SkillError: It does not fit the annotation, or does not survive the way through JSON.
        """
        try:
            data: JsonValue
            if isinstance(value, Json):
                data = value.data
            else:
                data = self.adapter.dump_python(value, mode="json", warnings="error")
            return data, self.adapter.validate_python(data)
        except (ValidationError, PydanticSerializationError) as error:
            found = problems(error) if isinstance(error, ValidationError) else str(error).replace("\n", " ")
            came = value.data if isinstance(value, Json) else value
            raise SkillError(
                f"step {step!r} takes {self.name}: {self.type_name}, but got {repr(came)[:200]}: {found}"
            ) from None


def read_params(function: Callable[..., Any], *, bound: bool, input: Any = None) -> tuple[list[Param], list[str]]:
    """A step's parameters, and what is wrong with them.

    Args:
        function: The step's function.
        bound: Whether its first parameter is `self`.
        input: The type that the skill starts from, if it says.
    """
    found: list[str] = []
    try:
        hints = get_type_hints(function, include_extras=True)
    except Exception as error:
        return [], [f"its annotations cannot be read: {error}"]
    params: list[Param] = []
    for parameter in list(inspect.signature(function).parameters.values())[1 if bound else 0 :]:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found.append(f"parameter {parameter.name!r} must be a plain one, not `*` or `**` or positional-only")
            continue
        annotation = hints.get(parameter.name, Ctx if parameter.name == "ctx" else MISSING)
        if annotation is MISSING:
            found.append(f"parameter {parameter.name!r} needs an annotation")
            continue
        source = _source(annotation, input)
        try:
            how = adapter(Any if source is Source.CTX else annotation)
        except Exception as error:
            found.append(f"parameter {parameter.name!r}: {annotation!r} cannot be saved as data: {error}")
            continue
        type_name = getattr(annotation, "__name__", str(annotation)) if not get_args(annotation) else str(annotation)
        params.append(
            Param(name=parameter.name, source=source, adapter=how, type_name=type_name, default=parameter.default)
        )
    return params, found


def _source(annotation: Any, input: Any) -> Source:
    if annotation is Ctx:
        return Source.CTX
    if annotation is Content:
        return Source.CONTENT
    if annotation is UserMessage:
        return Source.EVENT
    if input is not None and annotation is input:
        return Source.INPUT
    return Source.PAYLOAD


def start_default(function: Callable[..., Any], param: Param) -> Any:
    """What a start step's extra parameter begins as: its default, else an empty container, `Model()` or None.

    `MISSING` where there is nothing to begin with. Source: S0.50.
    """
    if param.default is not MISSING:
        return param.default
    annotation = get_type_hints(function).get(param.name)
    origin = get_origin(annotation) or annotation
    if origin in (list, dict, set, frozenset, tuple):
        return origin()
    if type(None) in get_args(annotation) and get_origin(annotation) in (Union, type(int | None)):
        return None
    if inspect.isclass(origin) and hasattr(origin, "__pydantic_validator__"):
        try:
            return origin()
        except ValidationError:
            return MISSING
    return MISSING
