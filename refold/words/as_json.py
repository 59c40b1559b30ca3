"""JSON that a person, or another program, wrote."""

from __future__ import annotations

import json
from math import isfinite

from pydantic import JsonValue

from refold.core.values import DEEPEST, shortened, unreadable

_TOO_DEEP = f"it is nested too deeply, in more than {DEEPEST} levels"


class KeyTwice(ValueError):
    """JSON with a key twice in one object: programs differ in which of the two values they take."""


def json_value(text: str | bytes) -> JsonValue:
    """The value of a JSON text.

    Raises:
        KeyTwice: An object in it has a key twice.
        ValueError: It is no JSON, or is what a task could not write again: nested too deeply, or with `NaN`, a number
            out of range, or half of a surrogate pair in it.
    """
    try:
        value: JsonValue = json.loads(text, parse_constant=_refuse, parse_float=_number, object_pairs_hook=_object)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except UnicodeEncodeError:
        raise ValueError("a text in it has half of a surrogate pair, which is no character") from None
    if unreadable(value):
        raise ValueError(_TOO_DEEP)
    return value


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found: dict[str, JsonValue] = {}
    for key, value in pairs:
        if key in found:
            raise KeyTwice(f"the key {shortened(key, 60)!r} is given twice in one object; give it once")
        found[key] = value
    return found


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not in JSON")


def _number(written: str) -> float:
    if not isfinite(number := float(written)):
        raise ValueError(f"{shortened(written, 20)} is out of a number's range")
    return number
