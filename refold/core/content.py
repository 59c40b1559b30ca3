"""What people, models and skills say to one another: parts, contents, messages and artifacts."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal, Self, TypeVar

from annotated_types import MinLen
from pydantic import BeforeValidator, JsonValue, PlainSerializer, ValidationError, model_validator

from refold.core.codec import dumped, too_deep
from refold.core.errors import SkillError, shown
from refold.core.schema import problems
from refold.core.values import UNREADABLE, Value, lean, text, unreadable

V = TypeVar("V", bound=Value)


def _bytes_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, altchars=b"-_" if "-" in value or "_" in value else None, validate=True)
    except binascii.Error as error:
        raise ValueError(f"a file's bytes are written in base64: {error}") from None


# Text is base64 wherever it comes from. pydantic's own setting reads it so from JSON text only, and would take the
# base64 itself for the bytes when a value comes back from JSON data.
FileBytes = Annotated[
    bytes, BeforeValidator(_bytes_of), PlainSerializer(lambda raw: base64.b64encode(raw).decode(), str, "json")
]


class Part(Value):
    """One piece of content: text, data, a file by value or a file by reference; exactly one of them.

    Source: A2A specification 1.0, Part.

    Attributes:
        text: Plain text.
        data: Any JSON value but null.
        raw: A file's bytes, base64 in JSON.
        url: Where a file can be fetched.
        filename: The file's own name, if it has one.
        media_type: For example `image/png`; None where unknown.
    """

    text: str | None = lean()
    data: JsonValue = lean()
    raw: FileBytes | None = lean()
    url: str | None = lean()
    filename: str | None = lean()
    media_type: str | None = lean()

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        if (self.text is None) + (self.data is None) + (self.raw is None) + (self.url is None) == 3:
            return self
        came = ", ".join(name for name in ("text", "data", "raw", "url") if getattr(self, name) is not None)
        raise ValueError(f"a part holds exactly one of text, data, raw, url; got {came or 'none of them'}")


class Content(Value):
    """What one message holds: one or more parts, in order."""

    parts: Annotated[tuple[Part, ...], MinLen(1)]

    @classmethod
    def from_text(cls, text: str) -> Content:
        """Content of one text part."""
        return cls(parts=(Part(text=text),))

    @classmethod
    def from_data(cls, data: JsonValue) -> Content:
        """Content of one data part."""
        return cls(parts=(Part(data=data),))

    @property
    def text(self) -> str:
        """All text parts, joined by newlines; empty if there is none."""
        return "\n".join(part.text for part in self.parts if part.text is not None)

    def __str__(self) -> str:
        """The text, so that a content may stand in a sentence."""
        return self.text

    @property
    def data(self) -> JsonValue:
        """The first data part's value; None if there is none."""
        return next((part.data for part in self.parts if part.data is not None), None)

    @property
    def has_data(self) -> bool:
        """Whether any part is data."""
        return any(part.data is not None for part in self.parts)


def as_content(value: str | Content, what: str = "a message") -> Content:
    """Text as content of one part, or a copy of content; see `admitted`."""
    if isinstance(value, str):
        return Content.from_text(text(value))
    return admitted(value, Content, what, "for data, write `Content.from_data(...)`")


def admitted(value: object, kind: type[V], what: str, way_out: str) -> V:
    """A copy of a value that an author gives; see `stored`.

    Raises:
        SkillError: The value is not of this kind, or could not be read back.
    """
    if not isinstance(value, kind):
        what_kind = "text or Content" if kind is Content else f"an {kind.__name__}"
        raise SkillError(f"{what} must be {what_kind}, not {shown(value)}; {way_out}")
    return stored(value, kind, what)


def stored(value: V, kind: type[V], what: str) -> V:
    """A copy of an author's value, as it is after it was written to JSON and read back.

    Raises:
        SkillError: It could not be read back: it is nested too deep, or `model_construct` made it of fields that do
            not fit. `what` names the value in the message.
    """
    try:
        written = dumped(lambda one: kind.__pydantic_serializer__.to_json(one, warnings=False), value)
        copy: V = kind.__pydantic_validator__.validate_json(written)
    except ValueError as error:
        found = problems(error) if isinstance(error, ValidationError) else error
        raise SkillError(f"{what} {unreadable(value) or f'is not valid: {found}'}") from None
    if too_deep(written, value):
        raise SkillError(f"{what} {UNREADABLE}")
    return copy


class Message(Value):
    """Something said in a task, by its user or by its skill.

    Attributes:
        role: Who speaks.
        content: What is said.
        seq: The journal entry that holds it.
        id: Its sender's own id of it; None where the sender gave none.
        delivery_id: The sender's id of this delivery, where it gave one.
    """

    role: Literal["user", "agent"]
    content: Content
    seq: int
    id: str | None = lean()
    delivery_id: str | None = lean()

    @property
    def text(self) -> str:
        """The content's text."""
        return self.content.text


class Artifact(Value):
    """A result of a task, by name; a second one of the same name replaces the first, or adds to it.

    Attributes:
        name: Unique within the task, for example `final.txt`.
        parts: What it holds, one or more, in order.
        description: For people.
        append: Its parts come after those of the artifact of this name, if there is one.
        last_chunk: No more parts follow.
    """

    name: Annotated[str, MinLen(1)]
    parts: Annotated[tuple[Part, ...], MinLen(1)]
    description: str = lean("")
    append: bool = lean(False)
    last_chunk: bool = lean(True)

    @classmethod
    def from_text(cls, name: str, text: str, *, append: bool = False, last_chunk: bool = True) -> Artifact:
        """An artifact of one text part, or a chunk of it."""
        return cls(name=name, parts=(Part(text=text),), append=append, last_chunk=last_chunk)

    @classmethod
    def from_data(cls, name: str, data: JsonValue) -> Artifact:
        """An artifact of one data part."""
        return cls(name=name, parts=(Part(data=data),))

    @property
    def text(self) -> str:
        """All text parts, joined by newlines."""
        return Content(parts=self.parts).text
