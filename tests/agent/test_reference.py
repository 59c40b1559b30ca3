"""The pages name what there is."""

import re
from pathlib import Path

import refold.agent
from refold.agent import AgentState
from refold.agent.plugins import EVENTS

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference.md").read_text()
PART = REFERENCE[REFERENCE.index("### Agents") : REFERENCE.index("## Settings")]


def test_every_public_name_is_in_the_reference() -> None:
    """
    And each name there exists.
    """
    words = set(re.findall(r"\w+", PART))

    assert set(refold.agent.__all__) <= words
    assert refold.agent.__all__ == sorted(refold.agent.__all__, key=lambda name: (name[0].islower(), name))


def test_the_page_tells_what_hooks_may_write() -> None:
    """
    For each event, exactly its flags.
    """
    page = (DOCS / "agent.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", page, re.MULTILINE))

    for event in EVENTS:
        written = re.findall(r"`(\w+)`", rows[event.__name__].partition("; see")[0])
        assert sorted(written) == sorted(event.WRITABLE), event


def test_the_state_is_listed() -> None:
    """
    Its fields that hooks and middleware may read; how a conversation is carried is its own affair.
    """
    inner = {"unsaid", "found", "told", "resumed", "under_way", "withheld", "owed", "passes"}

    assert set(AgentState.model_fields) - inner <= set(re.findall(r"\w+", PART))
