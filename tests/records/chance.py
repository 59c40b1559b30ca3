"""Journals of what chance did to the skills that are made to be hard: few histories, chosen to differ most.

Chance is asked once, when such a journal is recorded for the first time; from then on the events in the file stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from refold.core.errors import RefoldError
from refold.testing import histories
from refold.testing.plausible import OWNER
from refold.testing.strategies import Happening
from tests.records import skills
from tests.records.hand import START, Hand
from tests.records.tapes import Tape

EXAMPLES = 150
"""How many histories of a skill are looked at."""

KEPT = 2
"""How many of them are kept."""

HARD: dict[str, dict[str, Any]] = {
    "Gathers": {"tools": [skills.stock, skills.charge]},
    "Asks": {},
    "WEIGHS": {"values": {"weight": int}},
    "Patched": {},
    "Juggles": {},
    "Gated": {"tools": [skills.take], "max_events": 30},
    "GatedReducer": {"tools": [skills.take], "max_events": 30},
    "Books": {"tools": [skills.pay]},
    "Hurries": {"tools": [skills.pay]},
    "Pays": {},
    "Edits": {},
    "Interview": {},
    "Whole": {},
    "SideBySide": {},
    "Talks": {"max_events": 15},
    "Writes": {},
    "SHOP": {"max_events": 15},
}


def every() -> Iterator[tuple[str, Tape]]:
    """The histories of all hard skills, and what is recovered from and branched off from them."""
    for name, options in HARD.items():
        for number, task in enumerate(_chosen(name, options), 1):
            journal = f"chance-{name.lower()}-{number}"
            yield journal, task.tape()
            if number == 1:
                yield from _made_of(journal, task)


def _made_of(journal: str, task: Hand) -> Iterator[tuple[str, Tape]]:
    for letter, make in (
        ("recovered", lambda: task.recovered(journal)),
        ("forked", lambda: task.forked(journal, len(task.entries) // 2, live=bool(len(task.entries) % 2))),
    ):
        try:
            yield f"{journal}.{letter}", make().tape()  # type: ignore[no-untyped-call]  # a lambda's types are not known
        except RefoldError:
            continue  # it has not failed, or had ended by then


def _chosen(name: str, options: dict[str, Any]) -> list[Hand]:
    compiled = Hand(name).compiled
    found: list[Hand] = []

    @seed(2026)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(histories(compiled, **options))
    def look(history: list[Happening]) -> None:
        task = Hand(name, owner=OWNER)
        for happening in history:
            task.feed(happening.event, second=(happening.at - START).total_seconds())
        found.append(task)

    look()
    return _most_different(found)


def _most_different(found: list[Hand]) -> list[Hand]:
    seen: set[str] = set()
    chosen: list[Hand] = []
    while found and len(chosen) < KEPT:
        best = max(found, key=lambda task: len(_features(task) - seen) / (5000 + _size(task)))
        if not _features(best) - seen:
            break
        seen |= _features(best)
        chosen.append(best)
        found.remove(best)
    return chosen


def _size(task: Hand) -> int:
    return sum(len(entry.model_dump_json()) for entry in task.entries)


def _features(task: Hand) -> set[str]:
    """What was seen in a journal: kinds of events by state, why they were refused, notes, moves."""
    seen = set()
    for entry in task.entries:
        said = re.sub(r"'[^']*'|[\d/.]+", "…", f"{entry.refused}{entry.note}")[:60]
        seen |= {
            f"{entry.event.kind} {entry.held} {said}",
            f"{entry.event.kind} {[move.event for move in entry.moves]}",
        }
    return seen
