"""The table of changes is the one whose rows are run."""

from __future__ import annotations

from tests.docs import change_table


def test_the_table_of_changes_is_the_one_that_runs() -> None:
    """
    Each row on the page is one of `tests.temporal.changes`. `python -m tests.docs.change_table` writes them anew.
    """
    assert change_table.shown() == change_table.drawn()
