"""The table of changes as docs/upgrades.md shows it: `python -m tests.docs.change_table` writes it there."""

from __future__ import annotations

from tests.docs.pages import ROOT
from tests.temporal.changes.rows import PEOPLE, ROWS, Fate, Place, Row

PAGE = ROOT / "docs" / "upgrades.md"
COLUMNS = (
    "change", "at a gate or question", "asleep", "in an effect", "after a seal, or on versions", "after a rollback",
    "to do",
)  # fmt: skip
HEAD = f"| {' | '.join(COLUMNS)} |\n"
STANDS = f"**{Fate.STILL}**"
NO_CASE = "–"


def drawn() -> str:
    """The table in Markdown."""
    lines = [f"|{' --- |' * len(COLUMNS)}\n"]
    lines += [f"| {' | '.join(_cells(row))} |\n" for row in ROWS.values()]
    return HEAD + "".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    places = [PEOPLE, (Place.SLEEP,), (Place.EFFECT,)]
    now = [_shown(row.now) if set(row.at) & set(place) else NO_CASE for place in places]
    sealed = _shown(row.sealed)
    if row.after_effect is not None:
        sealed += "; after a seal that waited for an effect, " + _shown(row.after_effect)
    back = _shown(row.back) if row.now is Fate.ON else NO_CASE
    return (row.change, *now, sealed, back, row.do)


def _shown(fate: Fate) -> str:
    return STANDS if fate is Fate.STILL else str(fate)


def shown() -> str:
    """The table on the page."""
    _, head, rest = PAGE.read_text().partition(HEAD)
    return head + rest.partition("\n\n")[0] + "\n"


if __name__ == "__main__":
    PAGE.write_text(PAGE.read_text().replace(shown(), drawn()))
