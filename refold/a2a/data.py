"""JSON data as A2A carries it: in protobuf's values, which are neither as deep nor as exact as JSON.

A parser of protobuf stops at 100 nested messages. An object takes three of them, a list two, and what is around the
data in a list of tasks takes six. So data of `MOST_LEVELS` passes every method in every binding.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from a2a.types import Part as A2APart
from a2a.utils.errors import InvalidParamsError
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.struct_pb2 import Struct, Value
from pydantic import JsonValue
from pydantic_core import to_json

MOST_LEVELS = 30
"""How deep a data part may be nested."""

EXACT = 2**53
"""Up to here a double tells each whole number from the next."""

JSON = "application/json"


def data_of(value: Value | Struct, where: str = "data") -> JsonValue:
    """A protobuf value as JSON, with whole numbers as ints again.

    Raises:
        InvalidParamsError: It cannot be JSON: a number is infinite or NaN.
    """
    try:
        return _whole(MessageToDict(value))
    except ValueError as error:
        raise InvalidParamsError(f"{where} is no JSON: {error}") from None


def _whole(data: JsonValue) -> JsonValue:
    """Data with each float that is a whole number as an int; one beyond `EXACT` stays, as others may be meant by it."""
    match data:
        case dict():
            return {key: _whole(value) for key, value in data.items()}
        case list():
            return [_whole(value) for value in data]
        case float() if data.is_integer() and abs(data) <= EXACT:
            return int(data)
        case _:
            return data


def part_of(data: JsonValue) -> A2APart:
    """A part of data; of JSON text, if A2A cannot carry the data as it is."""
    if is_carried(data):
        return A2APart(data=value_of(data))
    return A2APart(text=text_of(data), media_type=JSON)


def text_of(data: JsonValue) -> str:
    """Data as JSON text."""
    return to_json(data).decode()


def is_carried(data: JsonValue) -> bool:
    """Whether data is the same after protobuf carried it: not deeper than `MOST_LEVELS`, and of exact numbers."""
    rest = [(data, MOST_LEVELS)]
    while rest:
        value, levels = rest.pop()
        if isinstance(value, list | dict):
            if levels == 0:
                return False
            rest += [(inner, levels - 1) for inner in (value.values() if isinstance(value, dict) else value)]
        elif isinstance(value, int) and not _is_exact(value):
            return False
    return True


def value_of(data: JsonValue) -> Value:
    """JSON as a protobuf value."""
    return ParseDict(cast("dict[str, Any]", data), Value())  # typed for objects only, but it accepts any value


def struct_of(data: Mapping[str, JsonValue]) -> Struct:
    """A JSON object as a protobuf struct."""
    struct = Struct()
    struct.update(dict(data))
    return struct


def _is_exact(number: int) -> bool:
    """Whether a double has this number."""
    try:
        return int(float(number)) == number
    except OverflowError:
        return False
