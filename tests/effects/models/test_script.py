"""The scripted model's script: one line, one reply."""

from __future__ import annotations

from typing import Any

import pytest

from refold.core.chat import Reply, Said, ToolReturn, as_said
from refold.effects.models.script import Wish, scripted_reply, wishes_in
from refold.effects.models.scripted import converse

SCRIPT = """How is it in Oslo?
-> weather(city="Oslo"), clock(place="Oslo", day=-1)
-> At {clock} it is {weather}: {nothing}.
"""
WEATHER = {"weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}


def returned(**values: Any) -> list[Said]:
    return [ToolReturn(id=name, name=name, value=value) for name, value in values.items()]


def test_a_script_is_played_line_by_line() -> None:
    """
    Calls, then text with what the tools returned in it; then nothing more.
    """
    said = list(as_said(SCRIPT))
    assert scripted_reply("", said) == [
        Wish("weather", {"city": "Oslo"}),
        Wish("clock", {"place": "Oslo", "day": -1}),
    ]
    said += [Reply(), *returned(weather="wet", clock={"hour": 9})]
    assert scripted_reply("", said) == 'At {"hour": 9} it is wet: {nothing}.'
    assert scripted_reply("", [*said, Reply()]) == "Done."


def test_a_newer_script_takes_over() -> None:
    """
    The newest message that holds a script is played from its start; instructions are where no message does.
    """
    said = [*as_said(SCRIPT), Reply(), *as_said("And now?\n-> Night.")]
    assert scripted_reply("-> Never.", said) == "Night."
    assert scripted_reply("Help.\n-> One.\n-> Two.", [*as_said("x"), Reply(), *as_said("y")]) == "Two."
    assert scripted_reply("Help.", as_said("x")) is None


@pytest.mark.parametrize("line", ["It rains (a lot).", "weather('Oslo')", "f(x=g())", "f(a=1), then", "(", "", "f"])
def test_what_is_no_call_is_text(line: str) -> None:
    """
    Only calls with values by name are calls.
    """
    assert wishes_in(line) == []


def test_names_may_have_a_server_before_them() -> None:
    """
    As tools of an MCP server do.
    """
    assert wishes_in("shop.find(item='tea', tags=['a'])") == [Wish("shop.find", {"item": "tea", "tags": ["a"]})]


def test_a_tool_that_is_named_is_called() -> None:
    """
    With the strings and numbers that are named, in order; then the model says what came of it.
    """
    said = list(as_said('The weather in "Oslo" for 3 days, please.'))
    assert converse("", said, WEATHER) == [Wish("weather", {"city": "Oslo", "days": 3})]
    assert converse("", [*said, Reply(), *returned(weather=["wet"])], WEATHER) == 'weather: ["wet"]'
    assert converse("", as_said("Hello."), WEATHER) == "You said: Hello."
