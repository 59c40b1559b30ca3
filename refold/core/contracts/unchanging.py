"""Whether values of a type can be changed in place, as far as the type says."""

from __future__ import annotations

from typing import Any

from pydantic import PydanticUserError

from refold.core.schema import adapter, kept

_PLAIN = {
    "bool", "bytes", "complex", "date", "datetime", "decimal", "enum", "float", "int", "literal", "multi-host-url",
    "none", "str", "time", "timedelta", "url", "uuid",
}  # fmt: skip
_AROUND = {
    "chain", "dataclass-args", "dataclass-field", "default", "definitions", "function-after", "function-before",
    "function-wrap", "json-or-python", "lax-or-strict", "model-field", "model-fields", "nullable", "tagged-union",
    "tuple", "union",
}  # fmt: skip
_NO_SCHEMA = {"config", "default", "function", "metadata", "serialization"}


def unchanging(kind: Any) -> bool:
    """Whether nothing in values of a type can be changed in place; False where that is not known."""
    return kept(kind, "__refold_unchanging__", _unchanging)


def _unchanging(kind: Any) -> bool:
    try:
        return _of(adapter(kind).core_schema)
    except PydanticUserError:
        return False


def _of(schema: Any) -> bool:
    if isinstance(schema, list | tuple):
        return all(_of(one) for one in schema)
    if not isinstance(schema, dict):
        return True
    match schema.get("type"):
        case str(plain) if plain in _PLAIN:
            return True
        case "model" | "dataclass":
            frozen = schema.get("frozen") or schema.get("config", {}).get("frozen")
            return bool(frozen) and _of(schema["schema"])
        case str(around) if around in _AROUND:
            return all(_of(inner) for key, inner in schema.items() if key not in _NO_SCHEMA)
        case None:  # a mapping of schemas by name
            return all(_of(inner) for inner in schema.values())
        case _:
            return False
