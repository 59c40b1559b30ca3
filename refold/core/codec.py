"""How state, arguments and results become JSON data, and how data is decoded to new values of a type."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import fields, is_dataclass
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
from refold.core.schema import Schema, adapter, first_line, kept, problems, resolve
from refold.core.values import encodable, mended, text, unreadable

_SETS = dict.fromkeys(("set", "frozenset"), "a set, which has no order: use a list, or a tuple")
_NO_DATA = {"is-instance": "instances of a plain class", "is-subclass": "classes", "callable": "functions", **_SETS}
_UNORDERED = ["set", "frozenset", "any"]  # no set: the `type` of a schema may be a schema, that of a field so named
_UNSEEN = ("any", "is-instance", "generator")
_SEQUENCES = (list, tuple)
_NESTED = (dict, list)
# A reference to a definition elsewhere in the schema is met where the definition stands.
_UNRELATED = ("metadata", "default", "expected", "cls", "config", "serialization")
_CONTAINERS = {"list": "items_schema", "set": "items_schema", "tuple": "items_schema", "dict": "values_schema"}


class NoData(ValueError):
    """A value cannot be written as JSON data, or is not of its type; the message says where, without the value."""


class Codec:
    """Converts values of one type to JSON data and back.

    Attributes:
        adapter: The type's pydantic adapter.
        shares: Whether decoded values may share parts with the data, where the type describes none: `Any`, `dict`.
        from_text: Whether parsing JSON text differs from validating the parsed data, as with `val_json_bytes="base64"`.
        chooses: Whether a value may be decoded as an equal value of another type: `Decimal(1)` as 1, in a union.
    """

    __slots__ = ("adapter", "chooses", "from_text", "shares")

    def __init__(self, how: TypeAdapter[Any]) -> None:
        self.adapter = how
        schemas = list(_schemas(how.core_schema))
        self.shares = any(map(_may_share, schemas))
        self.from_text = any("val_json_bytes" in (one.get("config") or ()) for one in schemas)
        self.chooses = any(one.get("type") == "decimal" for one in schemas)

    def data(self, value: Any) -> JsonValue:
        """`value` as JSON data.

        Raises:
            NoData: The value is not of the type, cannot be written as JSON, or could not be read back.
        """
        try:
            try:
                data: JsonValue = self.adapter.dump_python(value, mode="json", warnings="error")
            except UnicodeEncodeError:  # half a surrogate pair, in a key
                data = self.adapter.dump_python(mended(value), mode="json", warnings="error")
        except PydanticSerializationError as error:
            raise NoData(_findings(error)) from None
        except UnicodeDecodeError:
            raise NoData("bytes that are no UTF-8; keep them as `pydantic.Base64Bytes`") from None
        except ValueError:
            raise NoData("it is nested too deep, or holds itself") from None
        kept = encodable(data)
        if kept is not data and (why := unreadable(data)):
            raise NoData(f"it {why}")
        return kept

    def fresh(self, data: JsonValue) -> Any:
        """A new value decoded from `data`. It shares nothing with `data`, so changes to it do not change the data.

        Raises:
            ValidationError: The data does not fit the type.
        """
        if self.from_text:
            return self.adapter.validate_json(to_json(data))
        try:
            return self.adapter.validate_python(copied(data) if self.shares else data)
        except ValidationError as error:
            # A strict field takes a date from JSON text, and refuses the string that the text is parsed to.
            try:
                return self.adapter.validate_json(to_json(data))
            except ValidationError:
                raise error from None

    def lost(self, value: Any, fresh: Any) -> str:
        """What differs between a value and `fresh`, decoded from the value's data; empty if no difference is visible.

        Examples: a subclass decoded as its base, a union member decoded as another, a secret, a field excluded from the
        data, a private attribute.
        """
        try:
            if not self.chooses and value == fresh:
                return ""
        except Exception:  # noqa: BLE001 - the author's `__eq__`; what follows looks closer
            pass
        found = _lost(value, fresh, "")
        if found:
            with suppress(ValidationError):  # a validator may have changed the value, as it would without JSON
                return _lost(self.adapter.validate_python(value), fresh, "")
        return found


def codec(kind: Any) -> Codec:
    """The codec of a type, built once if the type is hashable.

    Raises:
        PydanticUserError: pydantic does not know the type, or a name in it is not defined yet.
    """
    return kept(kind, "__refold_codec__", _make)


def _make(kind: Any) -> Codec:
    return Codec(adapter(kind))


def copied(data: Any) -> Any:
    """JSON data that shares nothing with `data`."""
    return from_json(to_json(data)) if isinstance(data, dict | list) else data


def misfit(schema: Schema, value: JsonValue) -> str:
    """Why `value` does not fit the type; empty if it does, or if only the JSON schema of the type is known."""
    kind = resolve(schema)
    return "" if kind is None else misfit_of(kind, value)


def misfit_of(kind: Any, value: JsonValue) -> str:
    """Why `value` does not fit a type; empty if it does. Never raises, even if the type's own validator does."""
    try:
        codec(kind).fresh(value)
    except ValidationError as error:
        return problems(error)
    except Exception as error:  # noqa: BLE001 - a validator is the author's code
        return f"its check failed with {describe(error)}"
    return ""


def _findings(error: PydanticSerializationError) -> str:
    """What pydantic found that cannot be written as data, in one line, without the values."""
    found = re.findall(r"Expected (.+?) - .*?(?:field_name='(\w+)'|input_type=(\w+))", str(error))
    named = [
        f"{field}: expected {wanted}" if field else f"expected {wanted}, got {kind}" for wanted, field, kind in found
    ]
    return "; ".join(named) or str(error).replace("\n", " ")


def unsavable(kind: Any) -> str:
    """Why values of a type cannot be saved as data; empty if the type shows no reason."""
    return kept(kind, "__refold_unsavable__", _unsavable)


def _unsavable(kind: Any) -> str:
    try:
        schema = adapter(kind).core_schema
    except PydanticUserError as error:
        named = getattr(kind, "__name__", str(kind))
        why = "" if isinstance(error, PydanticSchemaGenerationError) else f" ({first_line(error)})"
        return (
            f"cannot be saved as data: pydantic does not know {named}, or a type in it{why}; use a BaseModel, a "
            "dataclass, or plain types"
        )
    found = _no_data_in(schema)
    return f"cannot be saved as data: it may hold {found}" if found else ""


def _no_data_in(schema: Any) -> str:
    """What in a pydantic core schema has no form as data."""
    if type(schema) in _SEQUENCES:
        return next((found for item in schema if (found := _no_data_in(item))), "")
    if type(schema) is not dict or "serialization" in schema:
        return ""
    match schema.get("type"):
        case str(kind) if kind in _NO_DATA:
            return _NO_DATA[kind]
        case "json-or-python":
            return _no_data_in(schema["json_schema"])
        case "lax-or-strict":
            return _no_data_in(schema["lax_schema"])
        case _:
            return next((found for inner in _inner(schema) if (found := _no_data_in(inner))), "")


def may_hold_set(kind: type) -> bool:
    """Whether a type allows sets, which would be written in no defined order."""
    return kept(kind, "__refold_may_hold_set__", _may_hold_set)


def _may_hold_set(kind: type) -> bool:
    return any(
        one.get("type") in _UNORDERED and "serialization" not in one for one in _schemas(adapter(kind).core_schema)
    )


def _may_share(here: dict[str, Any]) -> bool:
    """Whether a pydantic core schema passes data through without validating it."""
    kind, config = here.get("type"), here.get("config") or {}
    if type(kind) is str and (kind in _UNSEEN or kind.startswith("function-")):
        return True
    if type(kind) is str and kind in _CONTAINERS and _CONTAINERS[kind] not in here:
        return True
    return "allow" in (
        here.get("extra_behavior"),
        here.get("extra_fields_behavior"),
        config.get("extra_fields_behavior"),
    )


def _schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """A pydantic core schema and all that it is made of."""
    waiting = [schema]
    while waiting:
        here = waiting.pop()
        # By `type`: a schema holds nothing else, and in Temporal's sandbox `isinstance` is a function of Python.
        if type(here) is dict:
            yield here
            waiting.extend(_inner(here))
        elif type(here) in _SEQUENCES:
            waiting.extend(here)


def _inner(schema: dict[str, Any]) -> list[Any]:
    return [value for key, value in schema.items() if type(value) in _NESTED and key not in _UNRELATED]


def _lost(value: Any, fresh: Any, where: str) -> str:
    at = where or "it"
    kind: Any = type(value)
    if isinstance(value, str):
        same_type, equal = isinstance(fresh, str), text(value) == fresh
    elif isinstance(value, list | tuple) and isinstance(fresh, list | tuple):
        if len(value) != len(fresh):
            return f"{at} reads back with another length"
        pairs = [(f"{where}[{n}]", one, other) for n, (one, other) in enumerate(zip(value, fresh, strict=True))]
        return next((found for at, one, other in pairs if (found := _lost(one, other, at))), "")
    else:
        same_type, equal = kind is type(fresh) or _numbers(value, fresh), None
    if not same_type:
        if isinstance(value, Set):
            return f"{at} holds a set, which has no order: use a list, or a tuple"
        return (
            f"{at} is a {kind.__name__}, and reads back as a {type(fresh).__name__}; tell the classes apart, for "
            "example by a field `kind: Literal[...]`"
        )
    held, other = _fields_of(value), _fields_of(fresh)
    if held is not None and other is not None:
        for name, one in held.items():
            if name not in other:
                return f"{at} loses {name!r}"
            if found := _lost(one, other[name], f"{where}.{name}" if where else str(name)):
                return found + _hint(kind, name)
        return ""
    if equal is None:
        equal = value == fresh or value != value or kind.__eq__ is object.__eq__
    if equal:
        return ""
    if hasattr(value, "get_secret_value"):
        return f"{at} reads back as asterisks: look a secret up where it is used"
    return f"{at} reads back changed"


def _numbers(one: Any, other: Any) -> bool:
    return isinstance(one, int | float) and isinstance(other, int | float) and one == other


def _fields_of(value: Any) -> dict[Any, Any] | None:
    """The fields of a value, by name; None if it has no visible fields."""
    if isinstance(value, dict):
        return value
    if isinstance(value, BaseModel):
        return {**value.__dict__, **(value.__pydantic_extra__ or {}), **(value.__pydantic_private__ or {})}
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    return None


def _hint(kind: type, name: Any) -> str:
    """Why a field is lost, for the error."""
    field = getattr(kind, "__pydantic_fields__", {}).get(name)
    if field is not None and field.exclude:
        return "; the field is excluded from the data: a task could not keep it"
    return "; a private attribute is no data: make it a field" if str(name).startswith("_") else ""
