"""`refold check` finds nothing in what is shipped: the application, its scripts, and the documentation's code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.static.conftest import Checked, check


def test_the_shipped_application_has_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Skills, tools, the scripts beside them and the worker.
    """
    monkeypatch.chdir(ROOT)

    assert check() == Checked(0, [])
    assert check("workflows", "activities", "./client", "./worker.py") == Checked(0, [])


@pytest.mark.parametrize("page", ["tutorial.md", "contracts.md", "conversations.md"])
def test_a_pages_application_has_no_finding(page: str, empty: Path) -> None:
    """
    The files that a page makes, one after the other.
    """
    for block in blocks(ROOT / "docs" / page, "python"):
        if block.file is not None and not block.file.startswith("tests/"):
            file = empty / block.file
            file.parent.mkdir(exist_ok=True)
            file.write_text(block.content)
    (empty / "workflows" / "__init__.py").touch()

    assert check(*[f"./{file.relative_to(empty)}" for file in empty.rglob("*.py")]) == Checked(0, [])


@pytest.mark.parametrize("page", ["agent.md", "gates.md"])
def test_what_a_page_shows_has_no_finding(page: str, empty: Path) -> None:
    """
    The blocks of a page that make a workflow, as one module.
    """
    shown = [block.text for block in blocks(ROOT / "docs" / page, "python") if "workflow_for(" in block.text]
    assert shown
    (empty / "page.py").write_text("\n".join(shown))

    assert check("page") == Checked(0, [])
