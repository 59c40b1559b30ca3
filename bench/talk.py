"""The conversation of the benchmark: a turn is a reply with a tool call, and the tool's result.

Both follow from the number of the turn, so nothing is computed or remembered.
"""

from __future__ import annotations

from dataclasses import dataclass

from bench.script import padded

INSTRUCTIONS = padded("You look up what the user asks for, one source after the other, and say what you found. ", 1_000)
TOOL = "look_up"
TOOL_SAYS = "Looks up one source, by its number."
FINAL = "That is all."
MODEL = "openai:gpt-bench"


def call_id(turn: int) -> str:
    """The id of the tool call of a turn; of one length, as a provider's are."""
    return f"call_{turn:024}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """How long a conversation is.

    Attributes:
        turns: Replies with a tool call; one without ends it.
        said_chars: The length of each reply.
        returned_chars: The length of what each call returns.
    """

    turns: int
    said_chars: int
    returned_chars: int

    @property
    def question(self) -> str:
        """The first message, which contains the plan."""
        return f"turns={self.turns} said={self.said_chars} returned={self.returned_chars}"

    @classmethod
    def of(cls, question: str) -> Talk:
        """The plan in a first message."""
        numbers = [int(one.partition("=")[2]) for one in question.split()]
        return cls(turns=numbers[0], said_chars=numbers[1], returned_chars=numbers[2])

    def said(self, turn: int) -> str:
        """The model's reply in a turn, counted from 1."""
        return padded(f"In turn {turn} I look at source {turn}. ", self.said_chars) if turn <= self.turns else FINAL

    def returned(self, source: int) -> str:
        """The tool's result for a source."""
        return padded(f"Source {source} says: ", self.returned_chars)
