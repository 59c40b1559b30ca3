"""Media types: whether a skill accepts a message's parts, and whether a caller accepts the skill's output."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Sequence
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
        if not any(_fits(mode, pattern) for pattern in card.input_modes):
            raise ContentTypeNotSupportedError(
                f"parts[{number}] is {mode}; skill {card.id!r} takes {', '.join(card.input_modes)}"
            )


def check_output(card: Card, accepted: Sequence[str]) -> None:
    """Check that the caller accepts one of the skill's output types; a caller that names none accepts all.

    Raises:
        ContentTypeNotSupportedError: The caller accepts none of them; nothing was done.
    """
    # Either side may name a pattern.
    if accepted and not any(_fits(own, its) or _fits(its, own) for own in card.output_modes for its in accepted):
        raise ContentTypeNotSupportedError(
            f"skill {card.id!r} answers with {', '.join(card.output_modes)}, not with {', '.join(accepted)}"
        )


def mode_of(part: Part) -> str:
    """A part's media type: the one it states, else that of its kind, or of its file's name."""
    if part.media_type:
        return _bare(part.media_type)
    if part.text is not None:
        return TEXT
    if part.data is not None:
        return DATA
    path = re.split("[?#]", part.url or "", maxsplit=1)[0]  # what follows is often a signature
    guessed, _ = mimetypes.guess_type(part.filename or path)
    return guessed or BYTES


def _fits(mode: str, pattern: str) -> bool:
    """Whether a type is one of a pattern, such as `image/*` or `*/*`."""
    return fnmatchcase(_bare(mode), _bare(pattern))


def _bare(mode: str) -> str:
    """A media type without its parameters."""
    return mode.partition(";")[0].strip().lower()
