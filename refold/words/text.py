"""Text that is safe to show, and short enough."""

from __future__ import annotations

import re

# Text comes from models, tools and users; a terminal obeys escape sequences, so none gets through.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Text that is safe to print: control characters are shown as `�`, line ends and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def snippet(text: str, limit: int = 160) -> str:
    """Text in one line, shortened if it is long."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def indented(text: str, by: str = "  ") -> list[str]:
    """Text as indented lines."""
    return [f"{by}{line}".rstrip() for line in clean(text).splitlines()]


def counted(number: int, what: str) -> str:
    """`1 call`, `2 calls`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
