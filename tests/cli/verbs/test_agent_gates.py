"""A gate before an agent's tool, from the command line: grant it, change it, answer for the tool."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import JsonValue

from refold import Content
from refold.core.commands import CallTool
from refold.core.fold.journal import Entry
from refold.testing import FakeEngine, calls
from tests.agent.shop import TOOLS, shop
from tests.cli.conftest import Shell


@pytest.fixture
def buying() -> Shell:
    """An agent wants to buy tea, and waits for somebody."""
    answers = {"model": [calls("buy", item="tea", count=9), "Bought."]}
    engine = FakeEngine([shop(gates="effects")], answers=answers, tools=TOOLS)
    asyncio.run(engine.start("shop", Content.from_text("Tea is low."), task_id="s1"))
    return Shell(engine)


def bought(shell: Shell) -> list[dict[str, JsonValue]]:
    """The arguments of every tool call that the task asked for."""

    async def collected() -> list[Entry]:
        return [entry async for entry in shell.engine.journal("s1")]

    issued = [one.command for entry in asyncio.run(collected()) for one in entry.commands]
    return [command.args for command in issued if isinstance(command, CallTool)]


def test_the_inbox_says_what_can_be_changed(buying: Shell) -> None:
    """
    Tool and arguments as data, and the way to change them.
    """
    told = buying("inbox").out

    assert '{"tool": "buy", "arguments": {"item": "tea", "count": 9}}' in told
    assert "may be changed with --set KEY=JSON: arguments, result" in told


def test_a_grant_that_changes_the_arguments(buying: Shell) -> None:
    """
    What was changed is called.
    """
    granted = buying("approve", "s1", "--as", "Ann", "--set", 'arguments={"item": "tea", "count": 3}', "--json")

    assert (granted.exit, granted.json["status"]) == (0, "completed")
    assert bought(buying) == [{"item": "tea", "count": 3}]


def test_an_answer_in_the_tools_place(buying: Shell) -> None:
    """
    The tool is not called.
    """
    granted = buying("approve", "s1", "--as", "Ann", "--set", 'result="bought by hand"', "--json")

    assert (granted.json["status"], bought(buying)) == ("completed", [])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param("arguments", "--set takes KEY=JSON", id="no value"),
        pytest.param("arguments={", "--set arguments takes JSON", id="no JSON"),
        pytest.param('arguments={"count": NaN}', "NaN is not in JSON", id="no number"),
        pytest.param('arguments={"count": 1e999}', "1e999 is out of a number's range", id="no finite number"),
        pytest.param("arguments=" + "[" * 200 + "]" * 200, "it is nested too deeply", id="too deep"),
        pytest.param("tool='\"sell\"'", "--set tool takes JSON", id="quoted twice"),
        pytest.param('tool="sell"', "tool cannot be changed at gate 'buy'; what can: arguments, result", id="not that"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(buying: Shell, changed: str, said: str) -> None:
    """
    The task waits on, and the way out is said.
    """
    refused = buying("approve", "s1", "--as", "Ann", "--set", changed)

    assert refused.exit == 2
    assert said in " ".join(refused.err.split())
