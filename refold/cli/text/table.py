"""Aligned text: the rows of a table, and the labelled rows of a card."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from refold.words.text import clean

LABEL = 12
"""How many columns the labels of a card have."""

_LINE_END = re.compile(r"[\n\t]")  # a row is one line, whatever id or text Temporal's own tools gave a task


def row(label: str, text: str) -> str:
    """A row of a card."""
    return f"{label.ljust(LABEL)}{clean(text)}"


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """The rows of a table as lines.

    Args:
        rows: Of one length, the head first; the last column is not padded.
        right: The columns that are aligned to the right, from 0.
    """
    cleaned = [[_LINE_END.sub("\N{REPLACEMENT CHARACTER}", clean(cell)) for cell in cells] for cells in rows]
    widths = [max(len(cells[column]) for cells in cleaned) for column in range(len(cleaned[0]) - 1)]
    for cells in cleaned:
        padded = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=False))
        ]
        yield "  ".join([*padded, cells[-1]]).rstrip()
