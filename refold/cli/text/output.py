"""What a command prints: results on stdout, talk on stderr, JSON one value a line."""

from __future__ import annotations

import json
import sys
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.text import Text

from refold.words.reasoning import without_reasoning
from refold.words.text import clean


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
        """Print lines of a result for people, each cleaned; coloured only on a terminal, never wrapped."""
        self.end_line()
        for line in lines:
            shown = line if isinstance(line, Text) else Text(line)
            shown.plain = clean(shown.plain)
            self._people.print(shown, soft_wrap=True)

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
