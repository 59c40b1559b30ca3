"""`refold explain`, and what the journal tells of a skill with a contract."""

from __future__ import annotations

import json

import pytest

from refold.testing import FakeEngine
from tests.cli.conftest import Shell
from workflows.react import React

THOUGHT = {"intent": "define ebb", "suggested_tools": [{"tool": "define_word", "about": "ebb"}]}


@pytest.fixture
def refold() -> Shell:
    """A command line with a task that has answered its question."""
    answers = {
        "think": THOUGHT,
        "define_word": "the tide going out",
        "observe": {"summary": "clear"},
        "answer": "It is the tide going out.",
    }
    shell = Shell(FakeEngine([React], answers=answers))
    shell.start("react", "What is an ebb?", "r1")
    return shell


def test_explain_says_who_when_and_from_what(refold: Shell) -> None:
    """
    One line each, and the numbers of the entries that lead further back.
    """
    lines = refold("explain", "r1", "action").out.splitlines()

    assert lines[0].startswith('action = {"requested_tools": [{"tool": "define_word", "about": "ebb"}], "tool_outputs"')
    assert lines[1] == "written by  act, acting → observing"
    assert lines[2].endswith("entry 3, after 0 s")
    assert lines[3:] == [
        "waited for  r1/2.1",
        'read        session_id = "r1"  (orchestrator, entry 1)',
        "            iteration = 0  (orchestrator, entry 1)",
        f'            thought = {json.dumps(THOUGHT)[:-1]}, "reasoning": ""}}  (think, entry 2)',
    ]


def test_explain_as_json(refold: Shell) -> None:
    """
    The whole explanation, one value.
    """
    found = refold("explain", "r1", "thought", "--upto", "2", "--json").json

    assert (found["step"], found["seq"], found["awaited"]) == ("think", 2, ["r1/1.1"])


def test_a_field_that_nobody_wrote(refold: Shell) -> None:
    """
    The error lists what was written.
    """
    result = refold("explain", "r1", "answer")

    assert result.exit == 2
    assert "nobody has written 'answer' in this task; written so far: lifecycle, session_id, user_input" in result.err


def test_an_entry_that_is_not_there(refold: Shell) -> None:
    """
    It was taken for the newest.
    """
    result = refold("explain", "r1", "thought", "--upto", "99")

    assert (result.exit, "there is no entry 99: the newest is " in result.err) == (2, True)


def test_the_journal_tells_each_step(refold: Shell) -> None:
    """
    Where it led, and what it wrote.
    """
    out = refold("journal", "r1").out

    assert "    orchestrator: initialized, writes lifecycle, session_id, user_input, iteration, settings\n" in out
    assert "    think: thinking → acting, writes thought, lifecycle\n" in out
