"""Files on their way to a model and back: each with its type, and checked before it is sent.

A file by value (`Part.raw`) is sent by value, a file by reference (`Part.url`) by its address. History holds the bytes
of a large file once, in the storage for large values.
"""

from __future__ import annotations

import mimetypes
import re
from typing import Any
from urllib.parse import urlsplit

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    DocumentUrl,
    FilePart,
    ImageUrl,
    ModelResponse,
    UserContent,
    VideoUrl,
)

from refold.core.content import Part
from refold.core.values import encodable
from refold.effects.failures.building import permanent
from refold.effects.failures.verdicts import Verdict

ATTACHMENT = "attachment"
"""The type of the failure of a call with a file that cannot be sent."""

_BEGINNINGS = {
    "image/png": rb"\x89PNG\r\n\x1a\n",
    "image/jpeg": rb"\xff\xd8\xff",
    "image/gif": rb"GIF8[79]a",
    "image/webp": rb"(?s:RIFF.{4}WEBP)",  # sounds and films begin with RIFF, too
    "application/pdf": rb"%PDF-",
}
"""How files of types that each provider checks begin."""


def file_for_model(part: Part) -> UserContent:
    """A file of a message as pydantic-ai's.

    Raises:
        Verdict: The file is empty, or its bytes are not of its type; or its address is none.
    """
    if part.raw is None:
        url = part.url or ""
        try:
            path = urlsplit(url).path
        except ValueError as error:
            raise Verdict(permanent(ATTACHMENT, f"a file's address is {url!r}: {error}; send a URL")) from None
        return _by_reference(url, part.media_type or _guessed(path))
    media = part.media_type or _guessed(part.filename or "") or "application/octet-stream"
    named = f"file {part.filename!r}" if part.filename else f"a file of type {media}"
    if not part.raw:
        raise Verdict(permanent(ATTACHMENT, f"{named} is empty; send it with its bytes, or by its address"))
    begins = _BEGINNINGS.get(media.partition(";")[0].strip().lower())
    if begins and not re.match(begins, part.raw):
        found = next((kind for kind, begins in _BEGINNINGS.items() if re.match(begins, part.raw)), "something else")
        raise Verdict(permanent(ATTACHMENT, f"{named} is sent as {media}, and its bytes are {found}; send its type"))
    return BinaryContent(data=part.raw, media_type=media)


def files_in(response: ModelResponse) -> tuple[Part, ...]:
    """The files that a model made, in order."""
    made = [part for part in response.parts if isinstance(part, FilePart) and part.has_content()]
    return tuple(
        Part(raw=one.content.data, media_type=encodable(one.content.media_type), filename=_named(one, number))
        for number, one in enumerate(made, 1)
    )


def file_part(part: Part, **extras: Any) -> FilePart:
    """A file that a model made, as it is sent back to that model, with the provider's own fields."""
    media = part.media_type or "application/octet-stream"
    return FilePart(content=BinaryContent(data=part.raw or b"", media_type=media), **extras)


def _named(one: FilePart, number: int) -> str:
    return f"file-{number}{mimetypes.guess_extension(one.content.media_type) or ''}"


def _guessed(name: str) -> str | None:
    return mimetypes.guess_type(name)[0]


def _by_reference(url: str, media_type: str | None) -> UserContent:
    kinds: dict[str, type[ImageUrl | AudioUrl | VideoUrl]] = {"image": ImageUrl, "audio": AudioUrl, "video": VideoUrl}
    kind = kinds.get((media_type or "").partition("/")[0], DocumentUrl)
    return kind(url=url, media_type=media_type)
