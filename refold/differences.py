"""Where two pieces of JSON data differ: which fields, and both values of each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

SHOWN_CHARS = 300
BESIDE_CHARS = 40
"""How much of what is equal is shown before the place where two long values part."""


class _Nothing:
    def __repr__(self) -> str:
        return "nothing"


NOTHING: Final = _Nothing()
"""What stands for a field or an item that is not there."""


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field in which two values differ.

    Attributes:
        path: The field, as `commands[0].args.amount`; empty for the whole.
        was: The first value, or `NOTHING`.
        now: The second value, or `NOTHING`.
    """

    path: str
    was: Any
    now: Any

    def below(self, path: str) -> FieldDifference:
        """The same difference, as one of a field."""
        between = "" if not self.path or self.path.startswith("[") else "."
        return FieldDifference(f"{path}{between}{self.path}" if path else self.path, self.was, self.now)


def first_difference(was: Any, now: Any) -> FieldDifference | None:
    """The first of `differences`; None if there is none."""
    return next(differences(was, now), None)


def differences(was: Any, now: Any, path: str = "") -> Iterator[FieldDifference]:
    """The differences of JSON data, deepest field first, fields in the order of the first value.

    Values of other types differ, as 0 and False, and 1 and 1.0 do.

    Args:
        was: The first value.
        now: The second value.
        path: The field that the values are of.
    """
    match was, now:
        case dict(), dict():
            for key in {**was, **now}:
                inner = f"{path}.{key}" if path else str(key)
                yield from differences(was.get(key, NOTHING), now.get(key, NOTHING), inner)
        case list(), list():
            for number, (one, other) in enumerate(zip_longest(was, now, fillvalue=NOTHING)):
                yield from differences(one, other, f"{path}[{number}]")
        case _:
            if type(was) is not type(now) or was != now:
                yield FieldDifference(path, was, now)


def both(was: Any, now: Any, chars: int = SHOWN_CHARS) -> tuple[str, str]:
    """Two values that differ, for people: JSON, cut where one is long, so that the place where they part is shown."""
    return parted(shown(was, sys.maxsize), shown(now, sys.maxsize), chars)


def parted(one: str, other: str, chars: int = SHOWN_CHARS) -> tuple[str, str]:
    """Two texts that differ, cut where one is long, so that the place where they part is shown."""
    if max(len(one), len(other)) <= chars:
        return one, other
    pairs = enumerate(zip(one, other, strict=False))
    equal = next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
    start = max(0, equal - BESIDE_CHARS) if equal > BESIDE_CHARS * 2 else 0
    return _cut(one, start, chars), _cut(other, start, chars)


def _cut(text: str, start: int, chars: int) -> str:
    if len(text) <= chars:
        return text
    end = f"… ({len(text):,} characters)" if start + chars < len(text) else f" ({len(text):,} characters)"
    return f"{'…' if start else ''}{text[start : start + chars]}{end}"


def shown(value: Any, chars: int = SHOWN_CHARS) -> str:
    """A value for people: JSON, cut where it is long."""
    text = repr(value) if value is NOTHING else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= chars else f"{text[:chars]}… ({len(text):,} characters)"
