"""Where a step's parameters get their values: read from the annotations once, when the skill is defined.

Source: S0.49 to S0.53.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, JsonValue, ValidationError

from refold.core.authoring.context import Ctx
from refold.core.codec import Codec, NoData, codec, unsavable
from refold.core.content import Content
from refold.core.contracts.audit import ErrorRecord
from refold.core.errors import SkillError, brief, plain
from refold.core.events import UserMessage
from refold.core.gates import DecisionMade
from refold.core.schema import problems
from refold.core.values import text

MISSING = inspect.Parameter.empty


class Source(StrEnum):
    """Where a parameter's value comes from."""

    CTX = "ctx"
    CONTENT = "content"
    EVENT = "event"
    DECISION = "decision"
    INPUT = "input"
    PAYLOAD = "payload"
    STATE = "state"
    ERROR = "error"

    @property
    def beside(self) -> bool:
        """Whether `Drive` supplies the value at each call, so that it is not saved with the step's arguments."""
        return self in (Source.CTX, Source.STATE, Source.ERROR)

    @property
    def from_message(self) -> bool:
        """Whether the message or decision that enters the step supplies the value."""
        return self in (Source.CONTENT, Source.EVENT, Source.DECISION, Source.INPUT)


@dataclass(frozen=True, slots=True)
class Json:
    """A value that is JSON data already: a carried argument, a command's result, the data of a message."""

    data: JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter of a step.

    Attributes:
        name: The parameter's name.
        source: Where its value comes from, if a payload does not give it.
        annotation: Its type.
        codec: Converts values of the type to JSON data and back.
        type_name: The type, for people.
        default: Its default; `MISSING` if it has none.
    """

    name: str
    source: Source
    annotation: Any
    codec: Codec
    type_name: str
    default: Any = MISSING

    @property
    def needed(self) -> bool:
        """Whether a payload or a message must give the value."""
        return not self.source.beside and self.default is MISSING

    def encode(self, value: Any, step: str, patched: Callable[[str], bool] = lambda _: True) -> tuple[JsonValue, Any]:
        """`value` as JSON data, and a new value decoded from that data.

        Args:
            value: The parameter's value, or its data as `Json`.
            step: The step's name, for the error.
            patched: See `Codec.saved`.

        Raises:
            SkillError: The value does not fit the annotation, or is not the same after decoding.
        """
        try:
            if type(value) is str and self.annotation is str:
                said = text(value)
                return said, said
            if isinstance(value, Json):
                return value.data, self.codec.fresh(value.data)
            return self.codec.saved(value, patched)
        except (ValidationError, NoData) as error:
            found = problems(error) if isinstance(error, ValidationError) else error
            came = value.data if isinstance(value, Json) else value
            raise SkillError(
                f"step {step!r} takes {self.name}: {self.type_name}, but got {brief(came)}: {found}"
            ) from None


def read_params(
    function: Callable[..., Any], *, bound: bool, input: Any = None, state: Any = None
) -> tuple[list[Param], list[str]]:
    """The parameters of a step's function, and the problems found in them.

    `bound` says whether the first one is `self`; `input` is the skill's input type, `state` its contract's.
    """
    found: list[str] = []
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError, SyntaxError) as error:
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
        source = _source(annotation, input, state)
        kind = Any if source.beside else annotation
        if problem := unsavable(kind):
            found.append(f"parameter {parameter.name!r} {problem}")
            continue
        param = Param(
            name=parameter.name,
            source=source,
            annotation=annotation,
            codec=codec(kind),
            type_name=type_name(annotation),
            default=parameter.default,
        )
        params.append(param)
        if param.default is not MISSING and not source.beside:
            try:
                param.encode(param.default, "")
            except SkillError:
                found.append(f"the default of parameter {param.name!r}, {param.default!r}, is no {param.type_name}")
    return params, found


def type_name(annotation: Any) -> str:
    """A type, for people."""
    named = str(annotation) if get_args(annotation) else str(getattr(annotation, "__name__", annotation))
    return plain(named)  # a refusal quotes it in a journal


def _source(annotation: Any, input: Any, state: Any) -> Source:
    # Equal, not the same: each time that `list[Item]` is written it is another object.
    while get_origin(annotation) is Annotated and annotation != input:
        annotation = get_args(annotation)[0]
    if input is not None and annotation == input:
        return Source.INPUT
    options = [one for one in get_args(annotation) if one is not type(None)]
    if type(None) in get_args(annotation) and len(options) == 1:
        annotation = options[0]
    if annotation is Ctx:
        return Source.CTX
    if state is not None and _is_state(annotation, state):
        return Source.STATE
    if state is not None and annotation is ErrorRecord:
        return Source.ERROR
    if annotation is Content:
        return Source.CONTENT
    if annotation is DecisionMade:
        return Source.DECISION
    if annotation is UserMessage:
        return Source.EVENT
    if input is not None and annotation == input:
        return Source.INPUT
    return Source.PAYLOAD


def _is_state(annotation: Any, state: Any) -> bool:
    """Whether the annotation is the state's class or a base class of it, which a step may name instead."""
    return annotation in state.__mro__ and annotation not in BaseModel.__mro__


def start_default(param: Param) -> Any:
    """The first value of a start step's extra parameter: its default, else an empty container, `Model()` or None.

    `MISSING` if none of these exists. Source: S0.50.
    """
    if param.default is not MISSING:
        return param.default
    annotation = param.annotation
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    origin = get_origin(annotation) or annotation
    if origin in (list, dict, tuple):
        return origin()
    if type(None) in get_args(annotation) and get_origin(annotation) in (Union, type(int | None)):
        return None
    if inspect.isclass(origin) and (hasattr(origin, "__pydantic_validator__") or is_dataclass(origin)):
        try:
            return origin()
        except (ValidationError, TypeError):
            return MISSING
    return MISSING
