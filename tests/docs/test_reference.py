"""The reference lists what the code has."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from pydantic import BaseModel

import refold
from refold import Ctx, EffectPolicy, Transition
from refold.core import errors
from refold.core.events import Event
from refold.core.fold.journal import Entry
from refold.engine import ArtifactView, MessageView, PendingView, TaskView, Tokens, WaitView
from refold.engine import errors as engine_errors
from refold.static.check import RULES
from tests.docs.help_texts import HEADING, REFERENCE, section

PAGE = REFERENCE.read_text()


def part(heading: str) -> str:
    """What stands under a heading, up to the next one."""
    found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def test_the_help_texts_are_those_of_the_command_line() -> None:
    """
    `python -m tests.docs.help_texts` writes them anew.
    """
    assert PAGE[PAGE.index(HEADING) :] == section()


@pytest.mark.parametrize(
    ("heading", "model"),
    [("A task", TaskView), ("An entry", Entry)],
)
def test_each_field_has_its_row(heading: str, model: type[BaseModel]) -> None:
    """
    No field of a task or an entry is missing, and none is made up.
    """
    first_column = "".join(re.findall(r"^\| (`[^|]*)\|", part(heading), re.MULTILINE))

    assert sorted(re.findall(r"`(\w+)`", first_column)) == sorted(model.model_fields)


@pytest.mark.parametrize("model", [MessageView, ArtifactView, PendingView, WaitView, Tokens])
def test_the_fields_of_parts_are_named(model: type[BaseModel]) -> None:
    """
    What a task's lists hold is spelt as it is.
    """
    words = set(re.findall(r"\w+", part("A task") + part("An entry")))

    assert set(model.model_fields) - words == set()


def test_each_kind_of_event_is_named() -> None:
    """
    The journal holds no kind of event that the reference does not name.
    """
    kinds = [kind.model_fields["kind"].default for kind in get_args(get_args(Event)[0])]

    assert [kind for kind in kinds if f"`{kind}`" not in PAGE] == []


def test_the_errors_are_the_tree() -> None:
    """
    The trees are those at the top of `core/errors.py` and `engine/errors.py`; what `refold` exports is in the first.
    """
    tree = str(errors.__doc__).partition("\n\n")[2].strip()
    exported = {name for name in refold.__all__ if isinstance(getattr(refold, name), type)}

    assert tree in PAGE
    assert str(engine_errors.__doc__).partition("\n\n")[2].strip() in PAGE
    assert {name for name in exported if issubclass(getattr(refold, name), refold.RefoldError)} <= set(
        re.findall(r"\w+", tree)
    )


@pytest.mark.parametrize("author", [Ctx, Transition])
def test_each_way_to_write_is_listed(author: type) -> None:
    """
    Every public method that an author may call stands in a table.
    """
    by_the_engine = {"after", "waits"}  # of a transition: for the fold, not for authors
    public = {name for name, value in vars(author).items() if not name.startswith("_") and callable_or_property(value)}

    assert {name for name in public - by_the_engine if f".{name}" not in PAGE} == set()


def callable_or_property(value: object) -> bool:
    return callable(value) or isinstance(value, property | staticmethod)


def test_each_effect_policy_is_explained() -> None:
    """
    One row for each choice.
    """
    assert [policy.value for policy in EffectPolicy] == re.findall(
        r"^\| `(\w+)` \|", part("Effect policies"), re.MULTILINE
    )


def test_each_rule_of_check_is_explained() -> None:
    """
    Every rule stands in a row's first cell, and no other word does.
    """
    rows = re.findall(r"^\| (`[^|]*`) \|", part("What refold check finds"), re.MULTILINE)

    assert sorted(re.findall(r"`([\w-]+)`", " ".join(rows))) == sorted(RULES)
