"""What people, models and skills say to one another: parts, contents, messages and artifacts."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal, Self, TypeVar

from annotated_types import MinLen
from pydantic import BeforeValidator, JsonValue, PlainSerializer, model_validator

from refold.core.errors import SkillError, shown
from refold.core.values import Value, encodable, lean, text, unreadable

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
        return self.joined_texts()

    @property
    def data(self) -> JsonValue:
        """The first data part's value; None if there is none."""
        return next((part.data for part in self.parts if part.data is not None), None)

    @property
    def has_data(self) -> bool:
        """Whether any part is data."""
        return any(part.data is not None for part in self.parts)

    def own(self) -> Self:
        """See `Value.own`; text cannot be written into."""
        return super().own() if self.has_data else self

    def joined_texts(self, separator: str = "\n") -> str:
        """All text parts, in order."""
        return separator.join(part.text for part in self.parts if part.text is not None)


def as_content(value: str | Content, what: str = "a message") -> Content:
    """What somebody says, as content that can be written as JSON and that nobody else holds: text is one part.

    Args:
        value: Text or content.
        what: What it is, for the error.

    Raises:
        SkillError: It is neither, or nested too deep.
    """
    if isinstance(value, str):
        return Content.from_text(text(value))
    return admitted(value, Content, what, "for data, write `Content.from_data(...)`")


def admitted(value: object, kind: type[V], what: str, way_out: str) -> V:
    """A value that an author gives, as one that can be written as JSON and that nobody else holds.

    Raises:
        SkillError: It is not of this kind, or nested too deep.
    """
    if not isinstance(value, kind):
        what_kind = "text or Content" if kind is Content else f"an {kind.__name__}"
        raise SkillError(f"{what} must be {what_kind}, not {shown(value)}; {way_out}")
    kept = encodable(value)
    if kept is not value and (why := unreadable(value)):
        raise SkillError(f"{what} {why}: keep such data elsewhere, and say where")
    return kept.own()


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
    """A result of a task, by name; a second one of the same name replaces the first.

    Attributes:
        name: Unique within the task, for example `final.txt`.
        parts: What it holds, one or more, in order.
        description: For people.
    """

    name: Annotated[str, MinLen(1)]
    parts: Annotated[tuple[Part, ...], MinLen(1)]
    description: str = lean("")

    @classmethod
    def from_text(cls, name: str, text: str) -> Artifact:
        """An artifact of one text part."""
        return cls(name=name, parts=(Part(text=text),))

    @classmethod
    def from_data(cls, name: str, data: JsonValue) -> Artifact:
        """An artifact of one data part."""
        return cls(name=name, parts=(Part(data=data),))

    @classmethod
    def from_url(cls, name: str, url: str, media_type: str | None = None) -> Artifact:
        """An artifact that is kept elsewhere."""
        return cls(name=name, parts=(Part(url=url, media_type=media_type),))

    @property
    def text(self) -> str:
        """All text parts, joined by newlines."""
        return Content(parts=self.parts).text
