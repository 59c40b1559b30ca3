"""What every recorded value shares: frozen, closed, small as JSON, and always readable from JSON again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import cache, partial
from math import inf, isfinite
from operator import eq, is_
from types import NoneType
from typing import Annotated, Any, Self, TypeVar, cast

from annotated_types import MaxLen
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import InitErrorDetails, ValidationError, from_json, to_json

T = TypeVar("T")
V = TypeVar("V", bound="Value")

REFUSAL_CHARS = 2_000
"""How much of the reason for a refusal is kept: it may quote what was sent."""

Name = Annotated[str, MaxLen(5_000)]
"""Who or what is meant, as somebody outside says it: journals and refusals repeat it."""

Remark = Annotated[str, MaxLen(20_000)]
"""What somebody outside says beside what matters."""

LONGEST_S = 100 * 365 * 24 * 3600.0
"""A hundred years, the longest time that a skill can name: what is later cannot always be written as a date."""

LONGEST_CALL_S = 3000.0
"""The most seconds that one attempt of a tool may take: the server ends an attempt after an hour, in which the tool may
also wait for a thread and for the storage of its result."""

DEEPEST = 100
"""How many levels JSON data may nest. A reader of JSON takes about 200, and there is a task around the data."""

UNREADABLE = f"is nested deeper than {DEEPEST} levels, or holds a number of more than 4,300 digits: keep it elsewhere"
"""Why a value cannot be read back, after the words for it: "the message", "the state", "what the tool returned"."""

_CUT = DEEPEST + 10
_TOO_LONG = 10**4300
_UNREADABLE = 2
_set = object.__setattr__
_PLAIN = {str, bytes, int, float, bool, NoneType, datetime}


class Deferred(BaseModel):
    """A frozen model whose validator is built at first use: a process uses few of these classes, and starts sooner."""

    model_config = ConfigDict(frozen=True, defer_build=True)

    @classmethod
    def model_rebuild(cls, *, _types_namespace: Mapping[str, Any] | None = None, **options: Any) -> bool | None:
        """Build the class, by the names of where it is defined. pydantic would take those of whoever uses it first,
        too; and to read them amid a comprehension crashes Python 3.13.0."""
        return super().model_rebuild(_types_namespace=_types_namespace or {}, **options)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """As pydantic's. Refuses what is registered as a mapping and is none, such as a `google.protobuf.Struct`:
        pydantic would ask it for a `get` that it lacks."""
        try:
            return super().model_validate(obj, **options)
        except AttributeError:
            if isinstance(obj, dict | cls):
                raise
            wrong: InitErrorDetails = {"type": "model_type", "input": obj, "ctx": {"class_name": cls.__name__}}
            raise ValidationError.from_exception_data(cls.__name__, [wrong]) from None


class Value(Deferred):
    """A fact or a request: it never changes, and a misspelt field is an error.

    Two values with equal fields are equal, so tests compare them directly.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings")

    def own(self) -> Self:
        """The value itself; a copy if it holds JSON data, so that changes of the copy's data change nothing else."""
        if not _holds_data(self.__dict__.values()):
            return self
        kind = type(self)
        return cast("Self", kind.__pydantic_validator__.validate_json(kind.__pydantic_serializer__.to_json(self)))

    @classmethod
    def trusted(cls, **fields: Any) -> Self:
        """A value whose fields are right by construction, unchecked: the fold's own.

        What pydantic's `model_construct` does, in a fifth of the time: a fold makes several for each event.
        """
        defaults, factories, names = _defaults(cls)
        values = {**defaults, **fields}
        for name, factory in factories:
            if name not in fields:
                values[name] = factory()
        return _unchecked(cls, values, names)

    def changed(self, fields: Mapping[str, Any]) -> Self:
        """A copy with other fields, which are right by construction; as `trusted`."""
        return _unchecked(type(self), {**self.__dict__, **fields}, self.__pydantic_fields_set__)


def _unchecked(cls: type[V], values: dict[str, Any], names: set[str]) -> V:
    made = cls.__new__(cls)
    _set(made, "__dict__", values)
    _set(made, "__pydantic_fields_set__", names)
    _set(made, "__pydantic_extra__", None)
    _set(made, "__pydantic_private__", None)
    return made


@cache
def _defaults(cls: type[BaseModel]) -> tuple[dict[str, Any], list[tuple[str, Callable[[], Any]]], set[str]]:
    """The fields of a class: their defaults in order, the makers of defaults that are made for each value, their names.

    In order, so that equal values are equal as JSON text, too. All values of a class share the one set of names, as
    they are frozen: a set for each value would be a third of a waiting task's memory.
    """
    fields = cls.__pydantic_fields__
    factories = [(name, field.default_factory) for name, field in fields.items() if field.default_factory is not None]
    defaults = {name: field.default for name, field in fields.items()}
    return defaults, cast("list[tuple[str, Callable[[], Any]]]", factories), set(fields)


def _holds_data(values: Iterable[Any]) -> bool:
    """Whether there is a list or dict among the values, or in one of them."""
    for one in [one for one in values if type(one) not in _PLAIN]:
        kind = type(one)
        if kind is dict or kind is list or _holds_data(one if kind is tuple else getattr(one, "__dict__", {}).values()):
            return True
    return False


def text(value: str) -> str:
    """`value` as UTF-8 can write it: half a surrogate pair, as an answer that was cut off may end in, is replaced."""
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return value


def _a_time(seconds: float) -> float:
    if 0 <= seconds <= LONGEST_S:
        return seconds
    raise ValueError(f"a time is given in seconds, from 0 to {LONGEST_S:.0f} (a hundred years)")


Seconds = Annotated[float, AfterValidator(_a_time)]
"""A time that a skill names: finite, so that it can be added to a date."""


def _has_an_end(value: Any) -> Any:
    if value == inf:
        raise ValueError("write None to wait for ever")
    return value


Patience = Annotated[Seconds, BeforeValidator(_has_an_end)]
"""How long a question waits for its answer; a field of it may be None, which waits for ever."""


def _in_order(names: Any) -> Any:
    return sorted(names, key=str) if isinstance(names, set | frozenset) else names


Names = Annotated[tuple[str, ...], BeforeValidator(_in_order)]
"""Names that a skill gives. Those of a set are sorted: the set has another order in each process, and a replay would
differ."""

Text = Annotated[str, AfterValidator(text)]
"""Text that came from outside, and can be written whatever it is."""


def encodable(value: T) -> T:
    """JSON data, or a `Value`, as it reads once it was written: the same object wherever that makes no difference.

    What JSON cannot hold is replaced: half a surrogate pair by U+FFFD, a number that is infinite or none by its name.
    What nobody could read back is cut, and is still `unreadable`, but can be kept and shown.
    """
    if not _flaw(value):
        return value
    whole = mended(value)
    if isinstance(whole, BaseModel):
        return cast("T", type(whole).model_validate_json(whole.model_dump_json()))
    return cast("T", from_json(to_json(whole, inf_nan_mode="strings")))


def unreadable(value: Any) -> str:
    """`UNREADABLE` if JSON data, or data in a `Value`, could not be read back from the JSON of a task; else empty."""
    return UNREADABLE if _flaw(value) == _UNREADABLE else ""


def _flaw(value: Any) -> int:
    """Whether a value reads back as it is (0), changed (1), or is `_UNREADABLE`.

    Level by level, so that the depth is counted, and texts are looked at without being written: each task does this
    with each event, state and command.
    """
    found, level = 0, [value]
    for _ in range(DEEPEST + 1):
        below: list[Any] = []
        for one in level:
            kind = type(one)
            if one is None:
                continue
            if kind is str:
                if not one.isascii() and text(one) is not one:
                    found = 1
            elif kind is dict:
                below += one.values()
                if not all(map(str.isascii, one)) and any(text(key) is not key for key in one):
                    found = 1
            elif kind is list or kind is tuple:
                below += one
            elif kind is float:
                if not isfinite(one):
                    found = 1
            elif kind is int:
                if not -_TOO_LONG < one < _TOO_LONG:
                    return _UNREADABLE
            elif hasattr(kind, "__pydantic_fields__"):  # `isinstance` is a function of Python there
                below += one.__dict__.values()
        if not below:
            return found
        level = below
    return _UNREADABLE


def has_set(value: Any, passed_over: Callable[[type], bool] = lambda kind: False) -> bool:
    """Whether a value holds a set, whose order differs between processes. Models `passed_over` are not searched."""
    if isinstance(value, Set) or (isinstance(value, BaseModel) and passed_over(type(value))):
        return isinstance(value, Set)
    parts = value if isinstance(value, list | tuple) else (fields_of(value) or {}).values()
    return any(has_set(part, passed_over) for part in parts)


def fields_of(value: Any) -> dict[Any, Any] | None:
    """The fields of a model or dataclass, or the items of a dict, by name; None for any other value."""
    if isinstance(value, dict):
        return value
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return None


def mended(value: Any, levels: int = _CUT) -> Any:
    """A value with what UTF-8 cannot write replaced, and what nobody could read cut."""
    match value:
        case str():
            return text(value)
        case dict() | list() | tuple() if not levels:
            return "…"
        case dict():
            return {mended(key, 0): mended(one, levels - 1) for key, one in value.items()}
        case list() | tuple():
            return type(value)(mended(one, levels - 1) for one in value)
        case int() if not -_TOO_LONG < value < _TOO_LONG:
            return "…"
        case BaseModel():
            return value.model_copy(update={name: mended(one, levels - 1) for name, one in value.__dict__.items()})
        case _:
            return value


def is_number(value: object) -> bool:
    """Whether a value is a number above 0. A truth value is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def is_count(value: object) -> bool:
    """Whether a value is a whole number above 0."""
    return isinstance(value, int) and is_number(value)


def lean(default: T | None = None, *, factory: Callable[[], T] | None = None, **kwargs: Any) -> Any:
    """A field that stays out of the JSON while it holds its default.

    Journals and activity inputs are written to history for ever; a default that is written each time is paid for
    each time. Reading it back gives the same value, so nothing is lost.
    """
    if factory is not None:
        usual = cache(factory)  # made when it is first asked for: a model is built by its first value
        return Field(default_factory=factory, exclude_if=lambda value: _same(value, usual()), **kwargs)
    return Field(default=default, exclude_if=_equal_to(default), **kwargs)


def _equal_to(usual: Any) -> Callable[[Any], bool]:
    # Asked for each field of each value that is written, so without a function of Python's where it can be.
    if usual is None or usual is False:
        return partial(is_, usual)
    if usual == "":
        return partial(eq, usual)
    return partial(_same, usual)


def _same(one: Any, other: Any) -> bool:
    # By type too: 0 equals False, and 1.0 equals 1.
    return type(one) is type(other) and one == other


def shortened(text: str, chars: int) -> str:
    """`text`, cut where it is longer than `chars`, with its length."""
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text):,} characters)"
