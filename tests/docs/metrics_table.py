"""The table of metrics in the docs, made from the catalogue: `python -m tests.docs.metrics_table` writes it there."""

from __future__ import annotations

from refold.seen.metrics import METRICS
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "metrics.md"
BEGIN, END = "<!-- metrics -->\n", "<!-- /metrics -->"


def table() -> str:
    """All metrics as Prometheus names them, with their labels."""
    rows = [
        f"| `{one.shown}` | {one.kind} | {', '.join(f'`{label.name}`' for label in one.labels)} | {one.help} |"
        for one in METRICS
    ]
    return "\n".join(["| metric | kind | labels | |", "| --- | --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2])
