"""A command that a message of refold names can be pasted into a shell as it stands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from refold.engine import TaskExists
from tests.syntax import parsed

REFOLD = Path(__file__).parents[1] / "refold"
COMMAND = re.compile(r"`(?:refold|temporal|mkdir|chmod|pip)\b[^`]*`")
PLAIN = {"extra"}
"""Values that are words of refold's own: the names of the package's extras."""


def _quotes(value: ast.expr) -> bool:
    """Whether a value, or a part of a tuple, is made by `shlex.quote`."""
    calls = (node.func for node in ast.walk(value) if isinstance(node, ast.Call))
    return any("quote" in ast.unparse(function) for function in calls)


def _quoted_names(function: ast.AST) -> set[str]:
    """The variables that `shlex.quote` made."""
    assigned = (node for node in ast.walk(function) if isinstance(node, ast.Assign) and _quotes(node.value))
    targets = (name for node in assigned for target in node.targets for name in ast.walk(target))
    return {name.id for name in targets if isinstance(name, ast.Name)}


def _as_they_stand(message: ast.JoinedStr, quoted: set[str]) -> Iterator[str]:
    """The values that the message puts into a command without quoting them."""
    values = [part.value for part in message.values if isinstance(part, ast.FormattedValue)]
    text = "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in message.values)
    for command in COMMAND.finditer(text):
        before = text[: command.start()].count("\0")
        for value in values[before : before + command[0].count("\0")]:
            if not _quotes(value) and ast.unparse(value) not in quoted | PLAIN:
                yield ast.unparse(value)


def test_what_a_command_in_a_message_names_is_quoted() -> None:
    """
    Ids of tasks, folders and the like may have spaces and quotes: none stands in a command as it is.
    """
    found = {
        f"{file.relative_to(REFOLD)}:{message.lineno} {value}"
        for file in REFOLD.rglob("*.py")
        for function in ast.walk(parsed(file))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for message in ast.walk(function)
        if isinstance(message, ast.JoinedStr)
        for value in _as_they_stand(message, _quoted_names(function))
    }

    assert found == set()


def test_a_task_whose_id_has_a_space_can_be_shown() -> None:
    """
    The id is one argument of the command.
    """
    assert "`refold show 'rail 2'`" in str(TaskExists("rail 2"))
