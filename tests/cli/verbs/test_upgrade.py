"""`refold upgrade`: what it prints, and what it refuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from refold import temporal
from refold.cli.verbs import upgrade
from refold.temporal import Outcome, TaskUpgrade
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[3]

MOVES = [
    TaskUpgrade(task_id="tides", skill="research_loop", outcome=Outcome.MOVED, to="shop:v2"),
    TaskUpgrade(task_id="milk", skill="expense", outcome=Outcome.WAITS, to="shop:v2", why="waits for tool book"),
    TaskUpgrade(task_id="tea", skill="expense", outcome=Outcome.CANNOT, why="it does not fit", way_out="ctx.patched"),
]


@pytest.fixture(autouse=True)
def in_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the code at hand."""
    monkeypatch.chdir(ROOT)


def test_only_a_temporal_server_has_tasks_to_move(refold: Shell) -> None:
    """
    An engine in memory keeps no histories.
    """
    done = refold("upgrade")

    assert done.exit == 2
    assert "only tasks on a Temporal server can be moved" in done.err


def test_to_a_build_or_before_a_deploy(refold: Shell) -> None:
    """
    Before a deployment nobody knows the build yet.
    """
    done = refold("upgrade", "--to", "b2", "--before-deploy")

    assert done.exit == 2
    assert "give one" in done.err


@pytest.mark.parametrize("words", [["--before-deploy"], ["--dry-run"], []])
def test_a_skill_that_the_code_does_not_have(refold: Shell, words: list[str]) -> None:
    """
    A misspelt id is no skill without open tasks: nothing would be looked at, and the exit code would say that all is
    well.
    """
    done = refold("upgrade", "--skill", "helo", *words)

    assert done.exit == 2
    assert "no skill 'helo'; the skills known here: " in done.err
    assert "hello" in done.err


@pytest.mark.parametrize(("told", "code"), [(MOVES[:1], 0), (MOVES, 1), (MOVES[1:2], 1), ([], 0)])
def test_what_became_of_each_task(
    refold: Shell, monkeypatch: pytest.MonkeyPatch, told: list[TaskUpgrade], code: int
) -> None:
    """
    A line for each task, what it waits for or why it cannot below; exit 1 if some have not moved.
    """
    given: dict[str, Any] = {}

    async def moves(*_: Any, **options: Any) -> AsyncIterator[TaskUpgrade]:
        given.update(options)
        for one in told:
            yield one

    monkeypatch.setattr(temporal, "upgrade_tasks", moves, raising=False)
    monkeypatch.setattr(temporal, "TemporalEngine", object, raising=False)

    done = refold("upgrade", "--skill", "refund", "--pace", "5", "tea", "milk")
    as_json = refold("upgrade", "--json")

    assert (done.exit, as_json.exit) == (code, code)
    assert [line.split()[:2] for line in done.out.splitlines() if not line.startswith(" ")] == [
        [one.outcome, one.task_id] for one in told
    ]
    assert as_json.lines == [one.model_dump(mode="json") for one in told]
    if len(told) == 3:
        assert "               it does not fit\n               ctx.patched" in done.out
        assert done.err.endswith("1 moved, 1 waits, 1 cannot\n")
    assert given["pace"] == upgrade.PACE
