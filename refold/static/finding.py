"""One thing that is wrong with a skill's code, and where."""

from __future__ import annotations

from refold.core.values import Value


class Finding(Value):
    """What `refold check` prints, one a line.

    Attributes:
        file: The file's path, as it was found.
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
