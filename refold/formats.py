"""Formats of saved data: which one this release writes, and how older ones are read.

These are saved whole, each with the number of its format, once: a task's *start*, a *segment* of its journal, its
*result*, what it shows while its code differs (*stopped*), what an entry *said* (`refold.temporal.data.marks`), and an
export, in its header. The entries, events, commands and snapshots inside, or stored beside, have the format of what
holds them. The number is left out while it is 1, which is the format of everything that has no number.

To change how something is saved, raise `FORMAT`, keep a sample of the old format in `tests/formats`, and add to
`UPCASTERS`, under the old number, a function for each kind of data that changed: it gets JSON data of the old format,
and returns that of the next one. Data inside is upcast before what holds it. A field that is added with a default needs
no new format, and neither does a value of a closed list, such as a kind of failure: a worker that does not know it
leaves to others a run that begins with it, an outcome that has it, and what a task and its parts tell each other; a
client says so.

Rule 1: a newer format is never guessed at. Whoever meets one leaves the task to a newer release, and says so.
Rule 2: digests are of entries as they were written (`refold.digests`), so a release that writes other entries stops the
open tasks of earlier ones, unless they were sealed. A field that is added to what an entry holds is left out where it
is empty (`lean`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from pydantic import Field, ValidationError
from pydantic_core import from_json, to_json

from refold.core.schema import problems
from refold.core.values import REFUSAL_CHARS, shortened
from refold.engine import EngineError

FORMAT = 1
"""The format in which this release saves, and the newest that it reads."""

Upcast = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTERS: Mapping[int, Mapping[str, Upcast]] = {}
"""By the number of the format that they read: a function for each kind of data that the next format has changed."""

PARTS: Mapping[str, Mapping[str, str]] = {
    "start": {"message": "event", "snapshot": "snapshot", "cancellation": "event"},
    "result": {"mark.value": "snapshot"},
    "stopped": {"snapshot.value": "snapshot"},
    "segment": {"base": "snapshot", "entries.*": "entry"},
    "said": {"commands.*.command": "command"},
    "snapshot": {
        "pending.*": "pending",
        "waits.*": "wait",
        "held.*": "event",
        "early.*": "event",
        "late": "event",
        "done.*.command": "command",
        "done.*.undo": "command",
        "redo.base": "snapshot",
        "redo.past.*.event": "event",
    },
    "pending": {"command": "command", "asks.*": "wait", "answers.*": "event"},
    "wait": {"ask": "command", "grants.*": "event"},
    "entry": {"event": "event", "commands.*.command": "command"},
    "event": {"waits.*": "wait", "again": "event"},
    "command": {},
}
"""What each kind of data holds of other kinds, by field; `*` is each item. Segments inside others have own numbers."""


class NewerFormat(EngineError):
    """Something was saved in a format that this release does not know.

    Attributes:
        kind: What: `start`, `segment`, `export`, and so on.
        number: Its format.
    """

    def __init__(self, kind: str, number: object) -> None:
        self.kind = kind
        self.number = number
        super().__init__(
            f"this {kind} was saved in format {number}, and this release of refold reads formats up to {FORMAT}: "
            "use the release that saved it, or a newer one"
        )


class NewerFields(NewerFormat):
    """Something has the format of today and holds what this release does not know, such as a field."""

    def __init__(self, kind: str, error: ValidationError) -> None:
        self.kind = kind
        self.number = FORMAT
        EngineError.__init__(
            self,
            f"this {kind} is none that this release of refold reads: {shortened(problems(error), REFUSAL_CHARS)}; use "
            "the release that wrote it, or a newer one",
        )


@contextmanager
def known_here(kind: str) -> Iterator[None]:
    """For reading what a newer release may have written, or sent.

    Raises:
        NewerFields: It does not fit the types of this release.
    """
    try:
        yield
    except ValidationError as error:
        raise NewerFields(kind, error) from error


def current(kind: str, data: Any, number: object) -> Any:
    """Saved JSON data in the format of today.

    Args:
        kind: What it is, one of `PARTS`.
        data: The data; anything but an object is returned as it is, for its type to refuse.
        number: The format that it says it has.

    Raises:
        NewerFormat: This release does not know the format.
    """
    if type(number) is not int or not 1 <= number <= FORMAT:
        raise NewerFormat(kind, number)
    for older in range(number, FORMAT):
        data = _upcast(kind, UPCASTERS[older], data)
    return data


def current_json(kind: str, data: bytes, number: int) -> bytes:
    """As `current`, from JSON text to JSON text; text that is in the format of today is returned as it is."""
    return data if number == FORMAT else to_json(current(kind, from_json(data), number))


def numbered(number: int = FORMAT) -> Any:
    """The field `format` of something that is saved whole; left out of the JSON while it is 1."""
    return Field(default=number, exclude_if=lambda value: value == 1)


def read(kind: str, data: Any) -> Any:
    """Saved JSON data with a field `format` in the format of today; the field itself stays as it is.

    Raises:
        NewerFormat: See `current`.
    """
    return current(kind, data, data.get("format", 1)) if isinstance(data, dict) else data


def loaded(data: Any, kind: str) -> Any:
    """As `read`, for a type that writes its own number again: the data then says that it has the format of today."""
    found = read(kind, data)
    return {**found, "format": FORMAT} if isinstance(found, dict) and "format" in found else found


def _upcast(kind: str, casts: Mapping[str, Upcast], data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    for path, part in PARTS[kind].items():
        data = _replaced(data, path.split("."), partial(_upcast, part, casts))
    return casts[kind](data) if kind in casts else data


def _replaced(data: Any, path: list[str], change: Callable[[Any], Any]) -> Any:
    """A copy of JSON data with what is at a path changed; where nothing is there, the data itself."""
    if not path:
        return change(data)
    name, *rest = path
    if name == "*":
        if isinstance(data, dict):
            return {key: _replaced(one, rest, change) for key, one in data.items()}
        return [_replaced(one, rest, change) for one in data] if isinstance(data, list) else data
    if not isinstance(data, dict) or name not in data:
        return data
    return {**data, name: _replaced(data[name], rest, change)}
