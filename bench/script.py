"""The model of a benchmark: its answers follow from its input and cost nothing.

The topic holds the plan of the task: `cycles=8 pause=4 size=2000 …`. Every draft repeats the plan, because the critic
sees nothing else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NOTE = "Be brief, and say where the figures come from."
_PLAN = re.compile(r"cycles=(\d+) pause=(\d+) size=(\d+)(?: round=(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of one task.

    Attributes:
        name: For the report.
        cycles: Drafts and critiques; the last critique approves.
        pause: The cycle whose critique asks for a person, once; 0 never asks.
        topic_chars: The length of the first message.
        draft_chars: The length of each draft.
    """

    name: str
    cycles: int
    pause: int
    topic_chars: int
    draft_chars: int

    @property
    def steps(self) -> int:
        """Model calls."""
        return 2 * self.cycles

    @property
    def topic(self) -> str:
        """The first message."""
        return padded(f"cycles={self.cycles} pause={self.pause} size={self.draft_chars} ", self.topic_chars)


def draft(brief: str) -> str:
    """The draft for a brief: its round is the number of the brief's lines."""
    cycles, pause, size, _ = _plan(brief)
    return padded(f"cycles={cycles} pause={pause} size={size} round={brief.count(chr(10)) + 1} ", size)


def verdict(draft: str) -> dict[str, str]:
    """The critic's verdict on a draft, as data."""
    cycles, pause, _, number = _plan(draft)
    if number == cycles:
        return {"decision": "Approved"}
    if number == pause:
        return {"decision": "NeedsHumanInput", "text": "For whom is this written?"}
    return {"decision": "NeedsRevision", "text": "Say more on the causes."}


def _plan(text: str) -> tuple[int, int, int, int]:
    found = _PLAN.match(text)
    if found is None:
        raise ValueError(f"no plan at the start of {text[:80]!r}")
    cycles, pause, size, number = found.groups(default="0")
    return int(cycles), int(pause), int(size), int(number)


def padded(text: str, size: int) -> str:
    """`text`, padded with words to this length in characters."""
    words = "the tide turns twice a day and nobody has asked it to "
    return (text + words * (size // len(words) + 1))[: max(size, len(text))].strip()
