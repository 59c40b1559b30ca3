"""Forms made from a type's JSON schema, or from a value, and what a person typed into them read back as JSON.

A field has the kind that its schema asks for: a line, several lines, a number, a choice, a date. What has no kind of
its own (lists, unions, objects within objects) is typed as JSON. Whether the whole fits is for the engine to say; here
only what could not be read at all is refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from pydantic import JsonValue, PydanticUserError

from refold.callbacks.address import without_addresses
from refold.core.errors import InputRejected
from refold.core.gates import digest_of
from refold.core.schema import Schema, adapter, resolve
from refold.web.page.brief import brief
from refold.words.as_json import KeyTwice, json_value

Kind = Literal["line", "lines", "integer", "number", "truth", "choice", "date", "time", "json"]

LONG_CHARS = 80
"""A text that is longer, or may be, gets several lines."""

MEMBERS = 200
"""How many members of one object have fields."""

FIELD_CHARS = 100_000
"""The longest value that has a field."""

DEEPEST = 50
"""References that follow one another in a schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of a form.

    Attributes:
        path: Where its value stands in the whole: keys from the outside in; empty for the whole itself.
        kind: What is typed in.
        required: Whether it must be filled in: also where a default that is no text is there, and null is not allowed.
        null: Whether null may stand in its place.
        given: Whether it must be given, as null at least.
        help: The schema's description.
        choices: The values to choose from, as JSON.
        value: What the field holds at first, as text.
    """

    path: tuple[str, ...]
    kind: Kind
    required: bool = True
    null: bool = False
    given: bool = False
    help: str = ""
    choices: tuple[str, ...] = ()
    value: str = ""

    @property
    def name(self) -> str:
        """Its name in the form."""
        return f"f:{json.dumps(self.path, ensure_ascii=False)}"

    @property
    def label(self) -> str:
        """Its name for people, as the schema has it."""
        return " / ".join(self.path) or "value"

    @property
    def mark(self) -> str:
        """A digest of what the field holds at first. The form sends it back, which tells whether it was touched."""
        return digest_of(_from_browser(self))


def schema_json(expected: Any) -> Mapping[str, Any]:
    """The JSON schema of a type, or of its `Schema`; empty if it is not known here."""
    if isinstance(expected, dict):
        return expected
    kind = resolve(expected) if isinstance(expected, str) else expected
    if kind is None:
        return {}
    try:
        return adapter(kind).json_schema()
    except PydanticUserError:
        return {}


def fields_for(expected: Schema | Any) -> tuple[Field, ...]:
    """The form for a value of a type: a field for each property of an object, else one for the whole."""
    schema = schema_json(expected)
    whole = _met(schema, schema)
    properties = whole.get("properties")
    if not isinstance(properties, dict) or not properties:
        return (_field((), whole, schema, required=True),)
    required = whole.get("required", ())
    return tuple(_field((name,), part, schema, required=name in required) for name, part in properties.items())


def _field(path: tuple[str, ...], part: Mapping[str, Any], root: Mapping[str, Any], *, required: bool) -> Field:
    met, optional = _without_null(_met(part, root), root)
    usual = part.get("default", met.get("default"))
    kind = _kind(met)
    if kind == "line" and isinstance(usual, str):
        kind = _kind_of(usual)
    choices = tuple(json.dumps(one, ensure_ascii=False) for one in met.get("enum", ()))
    if "const" in met:
        choices = (json.dumps(met["const"], ensure_ascii=False),)
    # Emptied, a text is an empty one; anything else would be the default again, which somebody has just removed.
    stays = usual is not None and kind not in ("line", "lines")
    return Field(
        path=path,
        kind=kind,
        required=(required or stays) and not optional,
        null=optional,
        given=required,
        help=str(part.get("description", met.get("description", ""))),
        choices=choices,
        value="" if usual is None else _written(usual, kind),
    )


def _met(part: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """A part of a schema, its reference followed."""
    for _ in range(DEEPEST):
        named = part.get("$ref")
        if not isinstance(named, str) or not named.startswith("#/"):
            break
        found: Any = root
        for step in named[2:].split("/"):
            found = found.get(step, {}) if isinstance(found, dict) else {}
        part = {**found, **{key: value for key, value in part.items() if key != "$ref"}}
    return part


def _without_null(part: Mapping[str, Any], root: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """`T | None` as T, and whether None is allowed."""
    among = part.get("anyOf")
    if not isinstance(among, list):
        return part, False
    others = [one for one in among if one != {"type": "null"}]
    if len(others) == len(among) or len(others) != 1:
        return part, len(others) < len(among)
    more = {key: value for key, value in part.items() if key not in ("anyOf", "default")}
    return {**_met(others[0], root), **more}, True


def _kind(part: Mapping[str, Any]) -> Kind:
    if "enum" in part or "const" in part:
        return "choice"
    match part.get("type"), part.get("format"):
        case "string", "date":
            return "date"
        case "string", "date-time":
            return "time"
        case "string", _:
            return "lines" if part.get("maxLength", 0) > LONG_CHARS else "line"
        case "integer", _:
            return "integer"
        case "number", _:
            return "number"
        case "boolean", _:
            return "truth"
        case _:
            return "json"


def fields_of_value(show: Mapping[str, JsonValue], editable: Sequence[str]) -> tuple[Field, ...]:
    """The form to change some keys of an object: a field for each, and one for each member of an object there. A key
    that is not there can be added, or left out.

    What holds the address of a callback has none, as nobody is shown it, nor has what is too long, or comes after so
    many members; it stays as it is.
    """
    found: list[Field] = []
    for key in editable:
        value = show.get(key)
        if isinstance(value, dict) and value:
            members = islice(value.items(), MEMBERS)
            found += [_of_value((key, name), inner) for name, inner in members if _fits(inner)]
        elif key in show and _fits(value):
            found.append(_of_value((key,), value))
        elif key not in show:
            found.append(Field(path=(key,), kind="json", required=False))
    return tuple(one for one in found if len(one.value) <= FIELD_CHARS and without_addresses(one.value) == one.value)


def unlisted(show: Mapping[str, JsonValue], editable: Sequence[str], fields: Sequence[Field]) -> int:
    """How much of what may be changed has no field."""
    values = [show.get(key) for key in editable]
    return sum(len(one) if isinstance(one, dict) and one else 1 for one in values) - len(fields)


def _fits(value: JsonValue) -> bool:
    """Whether a value has so few members that writing all of it as JSON takes no time."""
    return brief(value, FIELD_CHARS).whole


def _of_value(path: tuple[str, ...], value: JsonValue) -> Field:
    kind: Kind
    match value:
        case bool():
            kind = "truth"
        case int():
            kind = "integer"
        case float():
            kind = "number"
        case str():
            kind = _kind_of(value)
        case _:
            kind = "json"
    # A text may be emptied, so what is empty is not what was left out.
    return Field(path=path, kind=kind, value=_written(value, kind))


def _kind_of(text: str) -> Literal["line", "lines"]:
    return "lines" if len(text) > LONG_CHARS or "\n" in text or "\r" in text else "line"


def _written(value: JsonValue, kind: Kind) -> str:
    if kind in ("line", "lines", "date", "time") and isinstance(value, str):
        return value
    return "" if value is None and kind != "json" else json.dumps(value, ensure_ascii=False)


def filled(fields: Sequence[Field], form: Mapping[str, str]) -> JsonValue:
    """What a person typed, as JSON: an object of what is not left out, or the one value of a form for a whole, None
    if it is left empty and may be. A field that nobody touched, or that the form lacks, has the value that it had at
    first; one that somebody emptied is null where it may be, and an empty text where it is one.

    Raises:
        InputRejected: A field cannot be read, or is empty and may not be; the message names each, and what it takes.
    """
    whole: dict[str, JsonValue] = {}
    wrong: list[str] = []
    for field in fields:
        text = form.get(field.name)
        if text is None or text == _from_browser(field):
            text = field.value
        empty = not text.strip() and not field.required
        if empty and not field.path:
            return None
        if empty and not _says(field):
            continue
        try:
            value = None if empty and field.null else _read(field, text)
        except ValueError as error:
            wrong.append(f"{field.label}: {error}")
            continue
        if not field.path:
            return value
        inner: Any = whole
        for step in field.path[:-1]:
            inner = inner.setdefault(step, {})
        inner[field.path[-1]] = value
    if wrong:
        raise InputRejected("; ".join(wrong))
    return whole


def _says(field: Field) -> bool:
    """Whether a field that is empty says something, and is not left out."""
    emptied = field.value.strip() != ""
    return (emptied and field.kind in ("line", "lines")) or (field.null and (emptied or field.given))


def _read(field: Field, text: str) -> JsonValue:
    match field.kind:
        case "line" | "lines":
            return text
        case "date" | "time":
            return text.strip()
        case "integer":
            return _integer(text)
        case "number":
            return _number(text)
        case "truth":
            if text not in ("true", "false"):
                raise ValueError("choose yes or no")
            return text == "true"
        case "choice":
            if text not in field.choices:
                raise ValueError("choose one of the values")
            return _json(text)
        case "json":
            return _json(text)


def _integer(text: str) -> int:
    try:
        return int(text.strip())
    except ValueError:
        raise ValueError("a whole number is expected, such as 42") from None


def _number(text: str) -> int | float:
    try:
        value = float(text.strip())
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise ValueError("a number is expected, such as 1.5")
    return int(text) if text.strip().lstrip("+-").isdigit() else value


def _json(text: str) -> JsonValue:
    try:
        return json_value(text)
    except KeyTwice:
        raise
    except ValueError:
        raise ValueError('JSON is expected, such as {"id": 7}, ["a", "b"] or "text"') from None


def touched(form: Mapping[str, str]) -> dict[str, str]:
    """What a form has sent, without the fields that nobody touched: what those show may have changed since."""
    return {name: text for name, text in form.items() if form.get(f"was {name}") != digest_of(text)}


def changes(fields: Sequence[Field], form: Mapping[str, str], show: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What a person changed of the data of a gate, whole keys each; empty if nothing.

    Raises:
        InputRejected: A field cannot be read.
    """
    typed = filled(fields, form)
    assert isinstance(typed, dict)
    changed: dict[str, JsonValue] = {}
    for key, value in typed.items():
        before = show.get(key)
        now = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
        if key not in show or not _same(before, now):
            changed[key] = now
    return changed


def _from_browser(field: Field) -> str:
    """What a browser sends of a field that nobody has touched: its lines end in other characters, or are one; and HTML
    has no null character.
    """
    text = field.value.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
    return text if field.kind in ("lines", "json") else text.replace("\n", "")


def _same(one: JsonValue, other: JsonValue) -> bool:
    """Whether two values are the same JSON: True is not 1, and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
