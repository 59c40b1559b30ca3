"""What a command prints: results on stdout, talk on stderr, JSON one value a line."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from refold.cli.text.reasoning import without_reasoning

# Text comes from models, tools and users; a terminal obeys escape sequences, so none gets through.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Output:
    """Writes a command's results to stdout, and its talk to stderr.

    Attributes:
        json: Print results as JSON, one value a line, instead of as text.
        reasoning: Print the models' reasoning too.
    """

    def __init__(self, *, json: bool, talk: bool = False) -> None:
        """An output.

        Args:
            json: See the class.
            talk: Everything is talk, and goes to stderr.
        """
        self.json = json
        self.reasoning = False
        self._talk = talk
        self._people = Console(stderr=talk, highlight=False, markup=False, emoji=False)
        self._open_line = False

    def value(self, value: BaseModel | dict[str, Any]) -> None:
        """Print one result as JSON."""
        text = value.model_dump_json() if isinstance(value, BaseModel) else json.dumps(value, ensure_ascii=False)
        sys.stdout.write((text if self.reasoning else without_reasoning(text)) + "\n")
        sys.stdout.flush()

    def say(self, *lines: str | Text) -> None:
        """Print lines of a result for people; coloured only on a terminal, never wrapped."""
        self.end_line()
        for line in lines:
            self._people.print(line if isinstance(line, Text) else Text(line), soft_wrap=True)

    def stream(self, text: str) -> None:
        """Print text that the model is still writing; the line stays open."""
        file = sys.stderr if self._talk else sys.stdout
        file.write(text)
        file.flush()
        self._open_line = not text.endswith("\n")

    def end_line(self) -> None:
        """Close a line that `stream` left open."""
        if self._open_line:
            self._open_line = False
            (sys.stderr if self._talk else sys.stdout).write("\n")

    def note(self, text: str) -> None:
        """Print talk, unless results are JSON."""
        if not self.json:
            self.alert(text)

    def alert(self, text: str) -> None:
        """Print talk, also if results are JSON."""
        self.end_line()
        sys.stdout.flush()
        sys.stderr.write(clean(text) + "\n")
        sys.stderr.flush()


def clean(text: str) -> str:
    """Text that is safe to print: control characters are shown as `�`, line ends and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def snippet(text: str, limit: int = 160) -> str:
    """Text in one line, shortened if it is long."""
    line = " ".join(clean(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def indented(text: str, by: str = "  ") -> list[str]:
    """Text as indented lines."""
    return [f"{by}{line}".rstrip() for line in clean(text).splitlines()]
