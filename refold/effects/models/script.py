"""A script for the scripted model: its replies, line by line, inside the instructions or the user's message.

    How is it in Oslo?
    -> weather(city="Oslo"), clock(place="Oslo")
    -> At {clock} it is {weather}.

Each line that begins with `->` is one reply: tool calls, separated by commas, or text. `{weather}` is the latest result
of the tool `weather`. The script is in the user's newest message; if that has no such line, in the instructions. After
the last line there is no further reply.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from refold.core.chat import Reply, Said, ToolReturn, UserSaid

USED_UP = "Done."
_LINE = re.compile(r"^\s*->\s?(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Wish:
    """A tool call that the scripted model makes.

    Attributes:
        tool: The tool's name.
        args: The arguments.
    """

    tool: str
    args: dict[str, JsonValue] = field(default_factory=dict)


def scripted_reply(instructions: str, said: Sequence[Said]) -> str | list[Wish] | None:
    """The script's next reply; None without a script."""
    heard = [(number, turn) for number, turn in enumerate(said) if isinstance(turn, UserSaid)]
    if heard and (lines := _LINE.findall(heard[-1][1].content.text)):
        return _line(lines, said[heard[-1][0] :], said)
    lines = _LINE.findall(instructions)
    return _line(lines, said, said) if lines else None


def _line(lines: list[str], since: Sequence[Said], said: Sequence[Said]) -> str | list[Wish]:
    played = sum(isinstance(turn, Reply) for turn in since)
    line = lines[played] if played < len(lines) else USED_UP
    wishes = wishes_in(line)
    return wishes or _filled(line, said)


def wishes_in(line: str) -> list[Wish]:
    """The tool calls in a line; empty if the line is text."""
    try:
        read = ast.parse(line.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return []
    calls = read.elts if isinstance(read, ast.Tuple) else [read]
    wishes = [_wish(call) for call in calls]
    found = [wish for wish in wishes if wish is not None]
    return found if len(found) == len(wishes) else []


def _wish(node: ast.expr) -> Wish | None:
    if not isinstance(node, ast.Call) or node.args:
        return None
    try:
        args = {str(one.arg): ast.literal_eval(one.value) for one in node.keywords}
    except ValueError:
        return None
    return Wish(ast.unparse(node.func), args)


def _filled(text: str, said: Sequence[Said]) -> str:
    returned = {turn.name: turn.value for turn in said if isinstance(turn, ToolReturn)}

    def value(found: re.Match[str]) -> str:
        name = found.group(1)
        if name not in returned:
            return found.group(0)
        held = returned[name]
        return held if isinstance(held, str) else json.dumps(held, ensure_ascii=False)

    return re.sub(r"\{([\w.-]+)\}", value, text)
