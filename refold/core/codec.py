"""How values of a type become JSON data, and how data becomes fresh values again."""

from __future__ import annotations

import re
from typing import Any

from pydantic import JsonValue, PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from refold.core.schema import adapter, first_line, kept

_NO_DATA = {"is-instance": "instances of a plain class", "is-subclass": "classes", "callable": "functions"}
_UNSEEN = ("any", "is-instance", "generator")
_SEQUENCES = (list, tuple)
_NESTED = (dict, list)
# A reference to a definition elsewhere in the schema is met where the definition stands.
_UNRELATED = ("metadata", "default", "expected", "cls", "config", "serialization")
_CONTAINERS = {"list": "items_schema", "set": "items_schema", "tuple": "items_schema", "dict": "values_schema"}


class NoData(ValueError):
    """A value has no form as data, or is not of its type; the message says where, without the value."""


class Codec:
    """The way of one type to and from data.

    Attributes:
        adapter: pydantic's half of it.
        shares: Whether pydantic may hand on parts of the data as they are: those that no type describes.
        from_text: Whether it reads JSON text otherwise than the data that the text reads as: bytes, where a model is
            set to base64.
    """

    __slots__ = ("adapter", "from_text", "shares")

    def __init__(self, how: TypeAdapter[Any]) -> None:
        self.adapter = how
        self.shares = _may_share(how.core_schema)
        self.from_text = _has_config(how.core_schema, "val_json_bytes")

    def data(self, value: Any) -> JsonValue:
        """`value` as JSON data.

        Raises:
            NoData: It is not of the type, or has no form as data.
        """
        try:
            data: JsonValue = self.adapter.dump_python(value, mode="json", warnings="error")
        except PydanticSerializationError as error:
            raise NoData(_findings(error)) from None
        except UnicodeDecodeError:
            raise NoData("bytes that are no UTF-8; keep them as `pydantic.Base64Bytes`") from None
        return data

    def fresh(self, data: JsonValue) -> Any:
        """The value that `data` reads as. It shares nothing with `data`: who writes into it changes nothing else.

        Raises:
            ValidationError: It does not fit the type.
        """
        if self.from_text:
            return self.adapter.validate_json(to_json(data))
        try:
            return self.adapter.validate_python(copied(data) if self.shares else data)
        except ValidationError as error:
            # A strict field takes its value from JSON, not from what JSON reads as.
            try:
                return self.adapter.validate_json(to_json(data))
            except ValidationError:
                raise error from None


def codec(kind: Any) -> Codec:
    """The codec of a type, built once where the type can be hashed.

    Raises:
        PydanticUserError: pydantic does not know the type, or cannot yet.
    """
    return kept(kind, "__refold_codec__", _make)


def _make(kind: Any) -> Codec:
    return Codec(adapter(kind))


def copied(data: Any) -> Any:
    """JSON data that shares nothing with `data`."""
    return from_json(to_json(data)) if isinstance(data, dict | list) else data


def _findings(error: PydanticSerializationError) -> str:
    """What pydantic found that cannot be written as data, in one line, without the values."""
    found = re.findall(r"Expected (.+?) - .*?(?:field_name='(\w+)'|input_type=(\w+))", str(error))
    named = [
        f"{field}: expected {wanted}" if field else f"expected {wanted}, got {kind}" for wanted, field, kind in found
    ]
    return "; ".join(named) or str(error).replace("\n", " ")


def unsavable(kind: Any) -> str:
    """Why values of a type cannot be kept as data; empty if they can, as far as the type says."""
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


def _may_share(schema: Any) -> bool:
    """Whether a pydantic core schema lets through data that it does not look into."""
    waiting = [schema]
    while waiting:
        here = waiting.pop()
        # By `type`: a schema holds nothing else, and in Temporal's sandbox `isinstance` is a function of Python.
        if type(here) is dict:
            kind = here.get("type")
            if type(kind) is str:
                if kind in _UNSEEN or kind.startswith("function-"):
                    return True
                if kind in _CONTAINERS and _CONTAINERS[kind] not in here:
                    return True
            if here.get("extra_behavior") == "allow" or here.get("extra_fields_behavior") == "allow":
                return True
            waiting.extend(_inner(here))
            if "config" in here:
                waiting.append(here["config"])
        elif type(here) in _SEQUENCES:
            waiting.extend(here)
    return False


def _has_config(schema: Any, name: str) -> bool:
    waiting = [schema]
    while waiting:
        here = waiting.pop()
        if type(here) is dict:
            if name in (here.get("config") or ()):
                return True
            waiting.extend(_inner(here))
        elif type(here) in _SEQUENCES:
            waiting.extend(here)
    return False


def _inner(schema: dict[str, Any]) -> list[Any]:
    return [value for key, value in schema.items() if type(value) in _NESTED and key not in _UNRELATED]
