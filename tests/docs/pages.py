"""The pages of the documentation, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]

_FENCE = re.compile(r"^```([\w+-]*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# ([\w/]+\.py)\n")
_CLOCK = re.compile(r"\b\d\d:\d\d:\d\d\b")
_DAY = re.compile(r"\b20\d\d-\d\d-\d\d\b")
_RUN = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block.

    Attributes:
        page: Where it stands.
        line: Its first line's number.
        language: What follows the fence.
        text: What is in it.
    """

    page: Path
    line: int
    language: str
    text: str

    @property
    def file(self) -> str | None:
        """The file that it is the content of, if its first line says so."""
        found = _FILE.match(self.text)
        return found[1] if found else None

    @property
    def content(self) -> str:
        """The file's content: all but the line that names it."""
        return _FILE.sub("", self.text, count=1)


@dataclass(slots=True)
class Command:
    """A line of a console block that begins with `$`, and what is printed.

    Attributes:
        block: Where it stands.
        line: What is typed.
        printed: What follows, line by line; empty where the page shows nothing.
    """

    block: Block
    line: str
    printed: list[str] = field(default_factory=list)


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of these languages, in order."""
    text = page.read_text()
    return [
        Block(page=page, line=text[: found.start()].count("\n") + 2, language=found[1], text=found[2])
        for found in _FENCE.finditer(text)
        if found[1] in languages
    ]


def commands(page: Path) -> list[Command]:
    """What the console blocks of a page type, in order."""
    found: list[Command] = []
    for block in blocks(page, "console"):
        for line in block.text.splitlines():
            if line.startswith("$ "):
                found.append(Command(block, line[2:]))
            else:
                found[-1].printed.append(line)
    return found


def normal(text: str) -> str:
    """Text with times and run ids as the pages write them."""
    text = _CLOCK.sub("12:00:00", text)
    return _RUN.sub("…", _DAY.sub("2026-11-22", text)).rstrip()
