"""What README and tutorial show of a terminal is what a terminal shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.console import README, TUTORIAL, compared, told


@pytest.mark.server
@pytest.mark.parametrize(
    "page", [pytest.param(README, id="README"), pytest.param(TUTORIAL, id="tutorial", marks=pytest.mark.sweep)]
)
def test_a_second_terminal_shows_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    """
    Each command, typed in order beside `refold dev`, prints what stands below it, times and run ids aside.
    """
    found = told(page, tmp_path)
    shown = [(one.line, "\n".join(one.printed)) for one, _ in found if compared(one)]
    printed = [(one.line, text) for one, text in found if compared(one)]

    assert found
    assert printed == shown, f"`python -m tests.docs.console` writes what is printed into {page.name}"
