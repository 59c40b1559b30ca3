"""Text that is safe to show, and short enough."""

from __future__ import annotations

import re

# Text comes from models, tools and users; a terminal obeys escape sequences, so none gets through.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Characters that turn the direction of what follows, or are not seen: shown by their number, so that what a person
# reads is what stands there.
UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    "\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)


def clean(text: str) -> str:
    """Text that is safe to show: control characters as `�`, unseen ones as `[U+202E]`; line ends and tabs stay."""
    seen = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))
    return UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", seen)


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
