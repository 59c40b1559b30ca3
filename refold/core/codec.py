"""How state, arguments and results become JSON data and are decoded again, and whether data fits a type (`misfit`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import Any

from pydantic import (
    BaseModel,
    JsonValue,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, from_json, to_json

from refold.core.errors import describe
from refold.core.schema import adapter, first_line, per_type, problems, resolve
from refold.core.values import DEEPEST, UNREADABLE, fields_of, mended, text, unreadable

CACHES_LEFT_OUT = "refold.caches_left_out"
"""The patch with which a value that reads back without the value of a cached property is taken.

Earlier releases refused such a value if its type had a `Decimal` or several models of one generic."""

MOMENTS = "refold.moments_compared"
"""The patch with which a time of a zone is compared by its moment and its offset.

In an hour that the zone's clocks repeat or skip, such a time equals no time of another zone in Python, so that earlier
releases refused it: it reads back with its offset alone."""

_SETS = dict.fromkeys(("set", "frozenset"), "a set, which has no order: use a list, or a tuple")
_NO_DATA = {"is-instance": "instances of a plain class", "is-subclass": "classes", "callable": "functions", **_SETS}
_UNORDERED = ["set", "frozenset", "any"]  # no set: the `type` of a schema may be a schema, that of a field so named
_WRITTEN = {"json-or-python": "json_schema", "lax-or-strict": "lax_schema"}
# A reference to a definition elsewhere in the schema is found where the definition stands.
_UNRELATED = ("metadata", "default", "expected", "cls", "config", "serialization")
_NESTED = (dict, list, tuple)


class NoData(ValueError):
    """A value cannot be written as JSON data, or is not of its type; the message says where, without the value."""


class Codec:
    """Converts values of one type to JSON data and back.

    Attributes:
        adapter: The type's pydantic adapter.
        from_text: Whether parsing JSON text differs from validating the parsed data, as with `val_json_bytes="base64"`.
        chooses: Whether a value may be decoded as an equal value of another type, in a union: `Decimal(1)` as 1,
            `Box[str](all=[])` as `Box[int](all=[])`.
    """

    __slots__ = ("adapter", "chooses", "from_text")

    def __init__(self, how: TypeAdapter[Any]) -> None:
        self.adapter = how
        schemas = list(_schemas(how.core_schema))
        self.from_text = any("val_json_bytes" in (one.get("config") or ()) for one in schemas)
        models = {one["cls"] for one in schemas if one.get("type") == "model"}
        generic = [model for model in models if model.__pydantic_generic_metadata__["origin"]]
        self.chooses = any(one.get("type") == "decimal" for one in schemas) or len(generic) > 1

    def data(self, value: Any) -> JsonValue:
        """`value` as JSON data.

        Raises:
            NoData: The value is not of the type, cannot be written as JSON, or could not be read back.
        """
        return parsed(self._written(value))

    def field(self, model: Any, name: str) -> JsonValue:
        """A field of a model as JSON data, as the model writes it.

        Raises:
            NoData: As in `data`; or the model does not write the field under its name.
        """
        data = parsed(self._written(model, include={name}, by_alias=False))
        if not isinstance(data, dict) or name not in data:
            raise NoData(f"{name} is left out of the data")
        return data[name]

    def _written(self, value: Any, **how: Any) -> bytes:
        def dump(one: Any) -> bytes:
            data = self.adapter.serializer.to_python(one, mode="json", warnings="error", **how)
            return to_json(data, inf_nan_mode="strings")

        try:
            return dumped(dump, value)
        except ValueError as error:
            raise NoData(unwritten(error)) from None

    def fresh(self, data: JsonValue, *, outside: bool = False) -> Any:
        """A new value decoded from `data`. It shares nothing with `data`, so changes to it do not change the data.

        Data from `outside` names fields by their aliases alone; `data` writes their names.

        Raises:
            ValidationError: The data does not fit the type.
        """
        return self._read(to_json(data), by_name=None if outside else True)

    def _read(self, written: bytes, *, by_name: bool | None = True) -> Any:
        if self.from_text:
            return self.adapter.validator.validate_json(written, by_name=by_name)
        try:
            return self.adapter.validator.validate_python(from_json(written), by_name=by_name)
        except ValidationError as error:
            # A strict field takes a date from JSON text, and refuses the string that the text is parsed to.
            try:
                return self.adapter.validator.validate_json(written, by_name=by_name)
            except ValidationError:
                raise error from None

    def saved(self, value: Any, patched: Callable[[str], bool] = lambda _: True) -> tuple[JsonValue, Any]:
        """`value` as JSON data, and a new value decoded from that data.

        Args:
            value: The value.
            patched: Answers whether what `CACHES_LEFT_OUT` and `MOMENTS` say holds, asked only where it matters.

        Raises:
            NoData: As in `data`; or the data does not fit the type, or is decoded to another value.
        """
        written = self._written(value)
        data = parsed(written)
        try:
            fresh = self._read(written)
        except ValidationError as error:
            raise NoData(problems(error)) from None
        if lost := self.lost(value, fresh, patched=patched):
            other = self.lost(value, fresh, cached=False, patched=patched)
            if other != lost and patched(CACHES_LEFT_OUT):
                lost = other
        if lost:
            raise NoData(lost)
        return data, fresh

    def lost(
        self, value: Any, fresh: Any, *, cached: bool = True, patched: Callable[[str], bool] = lambda _: True
    ) -> str:
        """What differs between a value and `fresh`, decoded from the value's data; empty if no difference is visible.

        Examples: a subclass decoded as its base, a union member decoded as another, a secret, a field excluded from the
        data, a private attribute. With `cached`, also the value of a model's cached property.

        Args:
            value: The value.
            fresh: The value that its data is decoded to.
            cached: See above.
            patched: Answers whether what `MOMENTS` says holds, asked only where it matters.
        """
        try:
            if not self.chooses and value == fresh:
                return ""
        except Exception:  # noqa: BLE001 - the author's `__eq__`; what follows looks closer
            pass
        found = self._found(value, fresh, cached, _equal)
        if found and (other := self._found(value, fresh, cached, _equal_by_moment)) != found and patched(MOMENTS):
            return other
        return found

    def _found(self, value: Any, fresh: Any, cached: bool, equal: Callable[[Any, Any], bool]) -> str:
        found = _lost(value, fresh, "", cached, equal)
        if found:
            with suppress(ValidationError):  # a validator may have changed the value, as it would without JSON
                return _lost(self.adapter.validate_python(value), fresh, "", cached, equal)
        return found


@per_type
def codec(kind: Any) -> Codec:
    """The codec of a type.

    Raises:
        PydanticUserError: pydantic does not know the type, or a name in it is not defined yet.
    """
    return Codec(adapter(kind))


def dumped(dump: Callable[[Any], bytes], value: Any) -> bytes:
    """`dump(value)`; if this fails, of the value with each half of a surrogate pair replaced."""
    try:
        return dump(value)
    except (UnicodeEncodeError, PydanticSerializationError):
        return dump(mended(value))


def parsed(written: bytes) -> JsonValue:
    """JSON text as data.

    Raises:
        NoData: The text could not be read as a part of a task.
    """
    try:
        data: JsonValue = from_json(written)
        if not too_deep(written, data):
            return data
    except ValueError:
        pass
    raise NoData(f"it {UNREADABLE}")


def too_deep(written: bytes, value: Any) -> bool:
    """Whether a value is `unreadable`, given its JSON text, which holds no number that is too long."""
    return written.count(b"[") + written.count(b"{") > DEEPEST and bool(unreadable(value))


def copied(data: Any) -> Any:
    """JSON data that shares nothing with `data`."""
    return from_json(to_json(data)) if isinstance(data, dict | list) else data


def misfit(expected: Any, value: JsonValue) -> str:
    """Why `value` does not fit a type; empty if it does. Never raises, even if the type's own validator does.

    Args:
        expected: The type or its `Schema`; any value fits if only the type's JSON schema is known here.
        value: The value as JSON data.
    """
    kind = resolve(expected)
    try:
        if kind is not None:
            codec(kind).fresh(value, outside=True)
    except ValidationError as error:
        return problems(error)
    except Exception as error:  # noqa: BLE001 - a validator is the author's code
        return f"its check failed with {describe(error)}"
    return ""


def unwritten(error: ValueError) -> str:
    """Why pydantic could not write a value as data, in one line, without the value."""
    if isinstance(error, UnicodeDecodeError):
        return "bytes that are no UTF-8; keep them as `pydantic.Base64Bytes`"
    if not isinstance(error, PydanticSerializationError):
        return "it is nested too deep, or holds itself"
    found = re.findall(r"Expected (.+?) - .*?(?:field_name='(\w+)'|input_type=(\w+))", str(error))
    named = [
        f"{field}: expected {wanted}" if field else f"expected {wanted}, got {kind}" for wanted, field, kind in found
    ]
    return "; ".join(named) or str(error).replace("\n", " ")


@per_type
def unsavable(kind: Any) -> str:
    """Why values of a type cannot be saved as data; empty if the type shows no reason."""
    try:
        schema = adapter(kind).core_schema
    except PydanticUserError as error:
        named = getattr(kind, "__name__", str(kind))
        why = "" if isinstance(error, PydanticSchemaGenerationError) else f" ({first_line(error)})"
        return (
            f"cannot be saved as data: pydantic does not know {named}, or a type in it{why}; use a BaseModel, a "
            "dataclass, or plain types"
        )
    if not (found := _no_data(schema)):
        return ""
    at = "it"
    for name, field in _all_fields(schema, written=True):
        if held := _no_data(field):  # the innermost field comes last
            at, found = f"its field {name!r}", held
    return f"cannot be saved as data: {at} may hold {found}"


def _no_data(schema: Any) -> str:
    """What a type's values may hold that cannot be written as data, by its core schema; empty if they hold nothing."""
    kinds = (one["type"] for one in _schemas(schema, written=True) if type(one.get("type")) is str)
    return next((_NO_DATA[kind] for kind in kinds if kind in _NO_DATA), "")


@per_type
def misnamed(kind: Any) -> str:
    """Which field of a type is written by its alias under a name that it is not read by; empty if none is.

    Its value would be lost: in its place would come the field's default.
    """
    for name, field in _all_fields(adapter(kind).core_schema):
        written, read = field.get("serialization_alias", name), field.get("validation_alias", name)
        if written != read and not (isinstance(read, list) and [written] in read):
            return (
                f"the field {name!r} is written as {written!r} and not read under that name: give it `alias=`, or "
                "the same validation_alias and serialization_alias"
            )
    return ""


@per_type
def may_hold_set(kind: type) -> bool:
    """Whether a type allows sets, which would be written in no defined order."""
    return any(one.get("type") in _UNORDERED for one in _schemas(adapter(kind).core_schema, written=True))


def _all_fields(schema: Any, *, written: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields of all models, dataclasses and typed dicts in a core schema, each after the one that holds it."""
    for one in _schemas(schema, written=written):
        if one.get("type") in ("model-fields", "dataclass-args", "typed-dict"):
            fields = one["fields"]  # a dataclass has a list of them
            yield from fields.items() if isinstance(fields, dict) else ((field["name"], field) for field in fields)


def _schemas(schema: Any, *, written: bool = False) -> Iterator[dict[str, Any]]:
    """A pydantic core schema and all that it is made of; with `written`, only what decides how values are written."""
    waiting = [schema]
    while waiting:
        here = waiting.pop()
        # By `type`: a schema holds nothing else, and in Temporal's sandbox `isinstance` is a function of Python.
        if type(here) is not dict:
            waiting.extend(one for one in here if type(one) in _NESTED)
        elif not (written and "serialization" in here):
            yield here
            branch = _WRITTEN.get(here["type"]) if written and type(here.get("type")) is str else None
            inner = [here[branch]] if branch else [value for key, value in here.items() if key not in _UNRELATED]
            waiting.extend(one for one in inner if type(one) in _NESTED)


def _lost(value: Any, fresh: Any, where: str, cached: bool, equal: Callable[[Any, Any], bool]) -> str:
    at = where or "it"
    kind: Any = type(value)
    if isinstance(value, list | tuple) and isinstance(fresh, list | tuple):
        if len(value) != len(fresh):
            return f"{at} reads back with another length"
        pairs = [(f"{where}[{n}]", one, other) for n, (one, other) in enumerate(zip(value, fresh, strict=True))]
        return next((found for at, one, other in pairs if (found := _lost(one, other, at, cached, equal))), "")
    text_of_text = isinstance(value, str) and isinstance(fresh, str)
    if not (kind is type(fresh) or text_of_text or _numbers(value, fresh)):
        if isinstance(value, Set):
            return f"{at} holds a set, which has no order: use a list, or a tuple"
        return (
            f"{at} is a {kind.__name__}, and reads back as a {type(fresh).__name__}; tell the classes apart, for "
            "example by a field `kind: Literal[...]`"
        )
    held, other = fields_of(value), fields_of(fresh)
    if held is not None and other is not None:
        for name, one in held.items():
            if name not in other:
                if not cached and isinstance(value, BaseModel) and isinstance(getattr(kind, name, 0), cached_property):
                    continue
                return f"{at} loses {name!r}"
            if found := _lost(one, other[name], f"{where}.{name}" if where else str(name), cached, equal):
                return found + _hint(kind, name)
        return ""
    same = text(value) == fresh if text_of_text else equal(value, fresh)
    if same or value != value or kind.__eq__ is object.__eq__:
        return ""
    if hasattr(value, "get_secret_value"):
        return f"{at} reads back as asterisks: look a secret up where it is used"
    return f"{at} reads back changed"


def _equal(one: Any, other: Any) -> bool:
    return bool(one == other)


def _equal_by_moment(one: Any, other: Any) -> bool:
    if isinstance(one, datetime) and isinstance(other, datetime) and one.utcoffset() == other.utcoffset():
        return one.replace(tzinfo=None) == other.replace(tzinfo=None)
    return _equal(one, other)


def _numbers(one: Any, other: Any) -> bool:
    return isinstance(one, int | float) and isinstance(other, int | float) and one == other


def _hint(kind: type, name: Any) -> str:
    """Why a field is lost, for the error."""
    field = getattr(kind, "__pydantic_fields__", {}).get(name)
    if field is not None and field.exclude:
        return "; the field is excluded from the data: a task could not keep it"
    return "; a private attribute is no data: make it a field" if str(name).startswith("_") else ""
