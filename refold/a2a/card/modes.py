"""Media types: whether a skill accepts a message's parts, and whether a caller accepts the skill's output."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from a2a.utils.errors import ContentTypeNotSupportedError

from refold.core.authoring.skill import Card
from refold.core.content import Content, Part

TEXT, DATA, BYTES = "text/plain", "application/json", "application/octet-stream"


def check_input(card: Card, content: Content) -> None:
    """Check that a skill accepts each part of a content.

    Raises:
        ContentTypeNotSupportedError: The skill does not accept one; nothing was done.
    """
    for number, part in enumerate(content.parts):
        mode = mode_of(part)
        if not _any_fits([mode], card.input_modes):
            raise ContentTypeNotSupportedError(
                f"parts[{number}] is {mode}; skill {card.id!r} takes {', '.join(card.input_modes)}"
            )


def check_output(card: Card, accepted: Sequence[str]) -> None:
    """Check that the caller accepts one of the skill's output types; a caller that names none accepts all.

    Raises:
        ContentTypeNotSupportedError: The caller accepts none of them; nothing was done.
    """
    if accepted and not _any_fits(card.output_modes, accepted):
        raise ContentTypeNotSupportedError(
            f"skill {card.id!r} answers with {', '.join(card.output_modes)}, not with {', '.join(accepted)}"
        )


def mode_of(part: Part) -> str:
    """A part's media type: the one it states, else that of its kind, or of its file's name."""
    if part.media_type:
        return part.media_type.partition(";")[0].strip().lower()
    if part.text is not None:
        return TEXT
    if part.data is not None:
        return DATA
    guessed, _ = mimetypes.guess_type(part.filename or part.url or "")
    return guessed or BYTES


def _any_fits(modes: Iterable[str], patterns: Iterable[str]) -> bool:
    """Whether one of the types matches one of the patterns, such as `image/*` or `*/*`."""
    lowered = [pattern.partition(";")[0].strip().lower() for pattern in patterns]
    return any(fnmatchcase(mode, pattern) or fnmatchcase(pattern, mode) for mode in modes for pattern in lowered)
