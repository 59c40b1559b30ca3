"""One thing that is wrong with a skill's code, and where."""

from __future__ import annotations

from pathlib import Path

from refold.core.values import Value


class Finding(Value):
    """One line of `refold check`.

    Attributes:
        file: The file's path, from the current folder where it lies below it.
        line: 1 is the first.
        column: 1 is the first.
        rule: Which rule is broken; one word, the one that `# refold: ignore[rule]` takes.
        message: What is done where, why that is wrong, and what to write instead.
    """

    file: str
    line: int
    column: int
    rule: str
    message: str


def shown(file: str | Path) -> str:
    """A file's path as findings have it."""
    here, whole = Path.cwd(), Path(file).resolve()
    return str(whole.relative_to(here)) if whole.is_relative_to(here) else str(file)
