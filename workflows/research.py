"""Shared by the three styles of the research loop: its types and its prompts."""

from typing import Literal

from pydantic import BaseModel

RESEARCH = "You are a researcher. Write a short draft on the topic. Take the critiques and notes so far into account."
CRITIQUE = (
    "You are an editor. Judge the draft: Approved, NeedsRevision, or NeedsHumanInput where only a person can say "
    "what is wanted. Say why in `text`."
)
Decision = Literal["Approved", "NeedsRevision", "NeedsHumanInput"]


class Critique(BaseModel):
    """The editor's verdict on a draft."""

    decision: Decision
    text: str = ""


class Cycle(BaseModel):
    """One round: a draft, what the editor said, and what a person added."""

    draft: str
    critique: str
    human_note: str | None = None


def brief(topic: str, history: list[Cycle]) -> str:
    """The researcher's input: the topic, then one line for each round."""
    rounds = [f"{cycle.draft} | {cycle.critique} | {cycle.human_note or ''}" for cycle in history]
    return "\n".join([topic, *rounds])
