"""JSON values that fit a JSON schema, for Hypothesis: plausible answers of a model or a tool.

It supports the part of JSON Schema that pydantic writes: types, enums, constants, unions, references, objects, lists,
tuples, bounds, patterns and the usual formats. For anything else it generates too wide a range of values, never too
narrow a one; a caller that has the type filters them.
"""

from __future__ import annotations

from datetime import UTC
from math import ceil, floor
from typing import Any

from hypothesis import strategies as st
from pydantic import JsonValue, TypeAdapter

from refold.conversation import json_schema
from refold.core.codec import misfit
from refold.core.schema import Schema

Values = st.SearchStrategy[JsonValue]
TEXTS = st.text(max_size=8)
# Finite, and far from the edges at which JSON libraries differ: the notation of a number is no law of a skill.
NUMBERS = st.floats(min_value=-1e6, max_value=1e6, allow_nan=False) | st.integers(-(10**6), 10**6)

any_json: Values = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
"""Any JSON value, small."""


def _uuids(version: int) -> st.SearchStrategy[str]:
    return st.uuids(version=4).map(lambda one: f"{str(one)[:14]}{version}{str(one)[15:]}")


_FORMATS: dict[str, st.SearchStrategy[str]] = {
    "date-time": st.datetimes(timezones=st.sampled_from([UTC, None])).map(lambda moment: moment.isoformat()),
    "date": st.dates().map(lambda day: day.isoformat()),
    "time": st.times().map(lambda moment: moment.isoformat()),
    "uuid": st.uuids().map(str),
    "uri": st.just("https://example.org/"),
    "email": st.emails(),
    "duration": st.just("PT1M"),
    **{f"uuid{version}": _uuids(version) for version in range(1, 9)},
    **{f"ipv4{kind}": st.ip_addresses(v=4).map(str) for kind in ("", "interface", "network")},
    **{f"ipv6{kind}": st.ip_addresses(v=6).map(str) for kind in ("", "interface", "network")},
    **{f"ipvany{kind}": st.ip_addresses().map(str) for kind in ("address", "interface", "network")},
}


def values_for(expected: Any) -> Values:
    """Values that fit: from a strategy, a type, or a type's name or JSON schema as a command carries it."""
    if isinstance(expected, st.SearchStrategy):
        return expected
    if isinstance(expected, str | dict):
        return values_of_schema(expected)
    adapter = TypeAdapter(expected)

    def fits(value: JsonValue) -> bool:
        try:
            adapter.validate_python(value)
        except ValueError:
            return False
        return True

    return _of(adapter.json_schema(), {}).filter(fits)


def values_of_schema(schema: Schema) -> Values:
    """Values that fit what a command expects; any JSON if the type is not known here."""
    try:
        whole = json_schema(schema)
    except LookupError:
        return any_json
    return _of(whole, {}).filter(lambda value: not misfit(schema, value))


def _of(schema: Any, defs: dict[str, Any]) -> Values:
    if not isinstance(schema, dict):
        return any_json
    defs = {**defs, **schema.get("$defs", {})}
    match schema:
        case {"$ref": str(reference)}:
            target = defs.get(reference.rpartition("/")[2], {})
            # A type may contain itself.
            return st.deferred(lambda: _of(target, defs))
        case {"const": value}:
            return st.just(value)
        case {"enum": [*choices]}:
            return st.sampled_from(choices)
        case {"anyOf": [*choices]} | {"oneOf": [*choices]}:
            return st.one_of([_of(choice, defs) for choice in choices])
        case {"allOf": [only]}:
            return _of(only, defs)
        case {"type": [*kinds]}:
            return st.one_of([_of({**schema, "type": kind}, defs) for kind in kinds])
        case {"type": "null"}:
            return st.none()
        case {"type": "boolean"}:
            return st.booleans()
        case {"type": "integer" | "number", "multipleOf": step}:
            return _multiples(step, *_bounds(schema))
        case {"type": "integer"}:
            return _integers(*_bounds(schema))
        case {"type": "number"}:
            return _numbers(*_bounds(schema))
        case {"type": "string"}:
            return _strings(schema)
        case {"type": "array"}:
            return _lists(schema, defs)
        case {"type": "object"}:
            return _objects(schema, defs)
        case _:
            return any_json


def _bounds(schema: dict[str, Any]) -> tuple[float | None, float | None]:
    low, high = schema.get("minimum"), schema.get("maximum")
    step = 1 if schema.get("type") == "integer" else 1e-6
    if "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + step
    if "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - step
    return low, high


def _integers(low: float | None, high: float | None) -> st.SearchStrategy[int]:
    return st.integers(None if low is None else ceil(low), None if high is None else floor(high))


def _multiples(step: float, low: float | None, high: float | None) -> Values:
    times = _integers(None if low is None else low / step, None if high is None else high / step)
    return times.map(lambda number: number * step)


def _numbers(low: float | None, high: float | None) -> Values:
    low = min(-1e6, high or 0.0) if low is None else low
    high = max(1e6, low) if high is None else high
    floats = st.floats(low, high, allow_nan=False)
    # Whole numbers fit where a type allows few decimal places, of which the schema says nothing.
    return floats | _integers(low, high) if ceil(low) <= floor(high) else floats


def _strings(schema: dict[str, Any]) -> Values:
    if "pattern" in schema:
        return st.from_regex(schema["pattern"])
    if schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]
    least = schema.get("minLength", 0)
    return st.text(min_size=least, max_size=min(schema.get("maxLength", least + 8), least + 8))


def _lists(schema: dict[str, Any], defs: dict[str, Any]) -> Values:
    if "prefixItems" in schema:
        return st.tuples(*(_of(item, defs) for item in schema["prefixItems"])).map(list)
    least = schema.get("minItems", 0)
    most = min(schema.get("maxItems", least + 3), least + 3)
    items = _of(schema.get("items", {}), defs)
    if schema.get("uniqueItems"):
        return st.lists(items, min_size=least, max_size=most, unique_by=repr)
    return st.lists(items, min_size=least, max_size=most)


def _objects(schema: dict[str, Any], defs: dict[str, Any]) -> Values:
    properties = {name: _of(kind, defs) for name, kind in schema.get("properties", {}).items()}
    required = {name: properties.get(name, any_json) for name in schema.get("required", [])}
    optional = {name: kind for name, kind in properties.items() if name not in required}
    fixed: Values = st.fixed_dictionaries(required, optional=optional)
    more = schema.get("additionalProperties")
    if isinstance(more, dict) and not properties:
        return st.dictionaries(TEXTS, _of(more, defs), max_size=3)
    if more is not False and not properties:
        return st.dictionaries(TEXTS, any_json, max_size=3)
    return fixed
