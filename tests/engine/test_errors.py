"""What an engine's errors say."""

from __future__ import annotations

import pytest

from refold.engine import UnknownSkill


@pytest.mark.parametrize(
    ("skill", "known", "said"),
    [
        ("echo ", ["hello", "echo"], "no skill 'echo '; the skills known here: echo, hello; did you mean 'echo'?"),
        ("expnse", ["expense", "refund"], "known here: expense, refund; did you mean 'expense'?"),
        ("expnse", ["expense"], "no skill 'expnse'; the skills known here: expense"),
        ("refund", ["echo", "hello"], "no skill 'refund'; the skills known here: echo, hello"),
        ("refund", [], "no skill 'refund'; the skills known here: none"),
    ],
)
def test_an_unknown_skill_names_the_nearest(skill: str, known: list[str], said: str) -> None:
    """
    Where there are several: a blank at the end of a name is easily overlooked among twenty names.
    """
    assert str(UnknownSkill(skill, known)).endswith(said)
