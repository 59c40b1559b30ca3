"""Which ways a test run has taken: moves of the lifecycle, cells of the failure table, steps of skills and their edges.

    with coverage() as seen:
        play(Refund, "A1", reply("draft", "Dear Ada"), approve("refund"))

    assert seen.untaken(Refund) == ["step 'apologise'", "edge 'draft' -> 'apologise'"]

Counted is what `play`, `FakeEngine` and the laws do within the block. For a task on a server, fold its journal there:
a fold takes the same ways.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import skill_id
from refold.core.fold.draft import Draft, watcher
from refold.core.fold.failures import TABLE
from refold.core.lifecycle import TRANSITION_TABLE, TaskEvent, TaskState


class Coverage:
    """What was taken so far.

    Attributes:
        moves: Moves of the lifecycle, as state and event.
        cells: Cells of the failure table, as stage, role and cause.
        places: Steps or states that were entered, by skill.
        edges: From which step or state each was entered, by skill.
    """

    def __init__(self) -> None:
        self.moves: set[tuple[TaskState, TaskEvent]] = set()
        self.cells: set[tuple[str, str, str]] = set()
        self.places: dict[str, set[str]] = defaultdict(set)
        self.edges: dict[str, set[tuple[str, str]]] = defaultdict(set)
        self._last: dict[tuple[str, str], str] = {}

    def untaken(self, skill: Any) -> list[str]:
        """The declared steps or states of a skill that no task entered, and the literal gotos, legal moves and resumes
        between its steps that no task took; each by name, in the order of the code."""
        compiled = skill_of(skill)
        id = skill_id(compiled)
        edges = [edge for edge in dict.fromkeys(compiled.edges()) if edge not in self.edges[id]]
        return [
            *(f"step {name!r}" for name in compiled.places() if name not in self.places[id]),
            *(f"edge {source!r} -> {target!r}" for source, target in edges),
        ]

    def untaken_moves(self) -> list[str]:
        """The moves of the lifecycle that no task made."""
        left = [(state, event) for state, event in TRANSITION_TABLE if (state, event) not in self.moves]
        return [f"{state} -> {TRANSITION_TABLE[state, event]} by {event}" for state, event in left]

    def untaken_cells(self) -> list[str]:
        """The cells of the failure table that no failure reached."""
        return [f"{' '.join(cell)} -> {action}" for cell, action in TABLE.items() if cell not in self.cells]

    def add(self, draft: Draft) -> None:
        """Count one event of a task; called by the fold."""
        self.moves |= {(move.from_state, move.event) for move in draft.moves}
        self.cells |= set(draft.cells)
        skill, task = draft.base.skill, (draft.base.skill, draft.base.task_id)
        if draft.base.lifecycle is TaskState.PLANNED:
            self._last.pop(task, None)  # another task of that id
        for place in draft.entered:
            if (before := self._last.get(task)) is not None:
                self.edges[skill].add((before, place))
            self.places[skill].add(place)
            self._last[task] = place


@contextmanager
def coverage() -> Iterator[Coverage]:
    """Count the ways that tasks take within the block. A block within a block counts for both."""
    seen, outer = Coverage(), watcher.get()

    def watch(draft: Draft) -> None:
        seen.add(draft)
        if outer is not None:
            outer(draft)

    token = watcher.set(watch)
    try:
        yield seen
    finally:
        watcher.reset(token)
