"""What the model says in a benchmark: nothing is computed and nothing is remembered, so that it costs nothing.

The topic says how the task goes: `cycles=8 pause=4 size=2000 …`. Every draft repeats that, so that the critic, who sees
nothing else, knows it too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NOTE = "Be brief, and say where the figures come from."
_PLAN = re.compile(r"cycles=(\d+) pause=(\d+) size=(\d+)(?: round=(\d+))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one task goes.

    Attributes:
        name: For the report.
        cycles: Drafts and critiques; the last critique approves.
        pause: The cycle whose critique asks for a person, once; 0 asks never.
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
    """The draft that a brief leads to: its round is the number of the brief's lines."""
    cycles, pause, size, _ = _plan(brief)
    return padded(f"cycles={cycles} pause={pause} size={size} round={brief.count(chr(10)) + 1} ", size)


def verdict(draft: str) -> dict[str, str]:
    """What the critic says of a draft, as data."""
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
    """`text`, with words behind it up to this length in characters."""
    words = "the tide turns twice a day and nobody has asked it to "
    return (text + words * (size // len(words) + 1))[: max(size, len(text))].strip()
