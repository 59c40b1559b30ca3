"""The pages agree with the code, with each other, and with what may be said."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from refold import TRANSITION_TABLE
from refold.core.fold.failures import Action
from refold.temporal.data.search_attributes import KINDS
from tests.docs import failure_table, metrics_table
from tests.docs.pages import PAGES, ROOT, blocks

EACH_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
HOW_IT_WORKS = ROOT / "docs" / "how-it-works.md"
OPERATE = ROOT / "docs" / "operate.md"

_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_MACHINE = re.compile(r"(?<![\w.])/(?:(?:root|work)\b|(?:home|tmp|Users)/)\S*|pypi\.org|files\.pythonhosted")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """A page without its blocks."""
    return _CODE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """What a link can point to on a page, as GitHub names headings."""
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(prose(page)))
    return {title.replace(" ", "-") for title in titles}


@EACH_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    """
    Each link within the repository names a file that is there, and a heading in it.
    """
    dead = []
    for link in _LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)

    assert dead == []


@EACH_PAGE
def test_pages_name_no_machine(page: Path) -> None:
    """
    No path of one machine, no address of a package registry.
    """
    assert _MACHINE.findall(page.read_text()) == []


@pytest.mark.parametrize(
    ("text", "names_one"),
    [
        ("see `/work/main/x.py`", True),
        ("`cd /work`", True),
        ("file:///root/x", True),
        ("/home/ada", True),
        ("refold/temporal/data/workflow_tasks.py", False),
        ("GET /workflow_tasks.py", False),
        ("/rooted", False),
        ("docs/work/x.md", False),
    ],
)
def test_what_names_a_machine(text: str, names_one: bool) -> None:
    """
    A whole part of a path, at its beginning.
    """
    assert bool(_MACHINE.search(text)) is names_one


@EACH_PAGE
def test_lines_fit_a_screen(page: Path) -> None:
    """
    Prose is at most 120 columns wide; tables and code are as they are.
    """
    lines = prose(page).splitlines()

    assert [line for line in lines if len(line) > 120 and not line.startswith("|")] == []


@EACH_PAGE
def test_a_row_of_a_table_is_one_line(page: Path) -> None:
    """
    A row that is broken over two lines ends the table there.
    """
    assert [line for line in prose(page).splitlines() if line.startswith("|") and not line.endswith("|")] == []


def test_the_diagram_is_the_table() -> None:
    """
    The lifecycle that is drawn is the one that runs: seven states, fourteen moves.
    """
    (diagram,) = [block for block in blocks(HOW_IT_WORKS, "mermaid") if "stateDiagram" in block.text]
    drawn = re.findall(r"(\w+) --> (\w+) : (\w+)", diagram.text)

    assert sorted(drawn) == sorted(
        (state.value, target.value, event.value) for (state, event), target in TRANSITION_TABLE.items()
    )


def test_the_failure_table_is_the_one_that_runs() -> None:
    """
    Each action has its row below it. `python -m tests.docs.failure_table` writes the table anew.
    """
    below = HOW_IT_WORKS.read_text().partition("| action | refold |")[2]
    explained = re.findall(r"^\| ([\w ,]+) \| \w", below, re.MULTILINE)

    assert failure_table.shown() == failure_table.drawn()
    assert {name.replace("_", " ") for name in Action} <= {one for row in explained for one in row.split(", ")}


def test_the_metrics_are_those_of_the_catalogue() -> None:
    """
    Each metric stands in the table, with its labels. `python -m tests.docs.metrics_table` writes the table anew.
    """
    assert metrics_table.table() in metrics_table.PAGE.read_text()


def test_the_search_attributes_are_listed() -> None:
    """
    The page for operators has the command that registers each.
    """
    page = OPERATE.read_text()

    assert [name for name, kind in KINDS.items() if f"--name {name} --type {kind}" not in page] == []
