"""The scripted model: the same answer to the same question, whoever asks."""

from __future__ import annotations

import json
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, TypeAdapter

from refold.effects.models.scripted import answer, smallest
from workflows.research import CRITIQUE, RESEARCH, Critique, Cycle, brief


def verdict(draft: str) -> Critique:
    return Critique.model_validate_json(answer(CRITIQUE, draft, Critique.model_json_schema()))


@pytest.mark.parametrize("topic", ["Tides", "Tides\nof the | North Sea", "Draft 7: on drafts", ""])
def test_the_research_loop_takes_three_rounds(topic: str) -> None:
    """
    Revise, ask a person, approve: what the note says is in the last draft.
    """
    history: list[Cycle] = []
    decisions = []
    for _ in range(3):
        draft = answer(RESEARCH, brief(topic, history))
        judged = verdict(draft)
        decisions.append(judged.decision)
        note = "for sailors" if judged.decision == "NeedsHumanInput" else None
        history.append(Cycle(draft=draft, critique=judged.text, human_note=note))

    assert decisions == ["NeedsRevision", "NeedsHumanInput", "Approved"]
    assert "for sailors" in history[-1].draft


@pytest.mark.parametrize(
    ("prompt", "said", "expected"),
    [
        ("Greet this person in one sentence.", "Ada", "Hello, Ada!"),
        ("Greet this person in one sentence.", "I am Ada. How are you?", "Hello, and welcome!"),
        ("Translate.", "Good morning", "You said: Good morning"),
        ("", "An answer. Is it right? Begin with yes or no.", "Yes."),
        ("", "Begin with yes, or with no.", "You said: Begin with yes, or with no."),
        ("", "", "You said nothing."),
    ],
)
def test_anything_else(prompt: str, said: str, expected: str) -> None:
    """
    A greeting where one is asked for, yes where yes or no is, else an echo.
    """
    assert answer(prompt, said) == expected


class Colour(Enum):
    RED = "red"


class Tree(BaseModel):
    name: Annotated[str, MinLen(3)]
    size: Annotated[int, Gt(4)]
    share: Annotated[float, Ge(0.5), Le(1)]
    colour: Colour
    kind: Literal["oak", "elm"]
    seen: datetime
    day: date
    id: UUID
    branches: list[Tree]
    first: Annotated[list[int], MinLen(2)]
    pair: tuple[int, str]
    parent: Tree | None
    either: int | str
    note: str = "none"


@pytest.mark.parametrize(
    "kind", [Tree, Critique, int, str, bool, float, list[int], dict[str, int], int | None, Tree | None, Any]
)
def test_the_smallest_value_fits(kind: Any) -> None:
    """
    For a schema that it has not seen the scripted model makes up a value that pydantic takes.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(kind)

    adapter.validate_python(smallest(adapter.json_schema()))


def test_an_unknown_schema_is_answered_in_json() -> None:
    """
    The answer to a question with a schema is JSON, whatever the question.
    """
    assert json.loads(answer("Translate.", "x", {"type": "object", "properties": {}})) == {}
