"""The failure table as "How it works" shows it: `python -m tests.docs.failure_table` writes it there."""

from __future__ import annotations

from refold.core.fold.failures import TABLE, Cause, Cell
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "how-it-works.md"
HEAD = f"| task | command | {' | '.join(Cause)} |\n"


def drawn() -> str:
    """The table in Markdown: a row for each stage and role, a column for each cause."""
    rows = list(dict.fromkeys((stage, role) for stage, role, _ in TABLE))
    lines = [f"|{' --- |' * (2 + len(Cause))}"]
    for stage, role in rows:
        actions = (TABLE.get(Cell(stage, role, cause), "") for cause in Cause)
        lines.append(f"| {stage} | {role} | {' | '.join(str(one).replace('_', ' ') for one in actions)} |")
    return HEAD + "".join(f"{line}\n" for line in lines).replace("|  |", "| |").replace("|  |", "| |")


def shown() -> str:
    """The table on the page."""
    _, head, rest = PAGE.read_text().partition(HEAD)
    return head + rest.partition("\n\n")[0] + "\n"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(shown(), drawn()))
