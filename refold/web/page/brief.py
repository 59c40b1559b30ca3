"""How much of a value a page shows: its beginning, up to a bound.

What a task holds may be many megabytes, and a process makes one page at a time, between all its other requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from refold.words.reasoning import unreasoned

LONGEST = 20_000
"""How much of one text or value a page shows, in characters."""

SHORTEST = 200
"""A text or key that is not longer is not cut, even if there is less room."""

NOTE = 100
"""Room for the sentence that says that a text is cut, in characters."""

MEMBER = 20
"""What a field or an item counts for beside its text and its indent, in characters."""

DEEPEST = 50
"""Objects and lists within one another."""


@dataclass(slots=True)
class Brief:
    """The beginning of a value.

    Attributes:
        value: The value, its long texts cut.
        left: How many fields and items it lacks, each counted with what is in it as one.
        cut: How many of its texts are cut.
    """

    value: Any
    left: int = 0
    cut: int = 0

    @property
    def whole(self) -> bool:
        """Whether it is all of the value."""
        return not self.left and not self.cut


def brief(value: Any, room: int = LONGEST, *, reasoning: bool = True) -> Brief:
    """As much of JSON data as a page shows. The work depends on that much, and not on the size of the whole.

    Args:
        value: The data.
        room: How many characters of it are shown.
        reasoning: Whether a model's reasoning is shown. It is in what people decide on: whoever wrote that could hide
            anything as reasoning.
    """
    taking = _Taking(room)
    found = taking.of(value)
    return Brief(found if reasoning else unreasoned(found), taking.left, taking.cut)


class _Taking:
    """Takes members in their order, the inner ones first, for as long as there is room."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._depth = 0
        self.left = 0
        self.cut = 0

    @property
    def _longest(self) -> int:
        return max(self._room, SHORTEST)

    def of(self, value: Any) -> Any:
        """The beginning of a value."""
        if isinstance(value, str):
            text = _beginning(value, self._longest)
            self._room -= len(text)
            self.cut += text is not value
            return text
        if not isinstance(value, dict | list):
            self._room -= len(str(value))
            return value
        self._depth += 1
        members = value.items() if isinstance(value, dict) else ((None, one) for one in value)
        taken = [] if self._depth > DEEPEST else list(self._fitting(members))
        self._depth -= 1
        self.left += len(value) - len(taken)
        return dict(taken) if isinstance(value, dict) else [one for _, one in taken]

    def _fitting(self, members: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        for key, one in members:
            if self._room <= 0 or len(key or "") > self._longest:
                return
            self._room -= MEMBER + 2 * self._depth + len(key or "")
            yield key, self.of(one)


def _beginning(text: str, longest: int) -> str:
    """The text if it is not longer than that; else how it begins, and how long it is."""
    whole = len(text)
    return text if whole <= longest else f"{text[: longest - NOTE]}… (cut here; {whole:,} characters in all)"
