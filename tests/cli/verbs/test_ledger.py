"""The verbs about receipts, on a ledger in a file."""

from pathlib import Path
from typing import Any

import pytest

from refold.effects.ledger.ledger import Ledger
from refold.effects.ledger.refused import Refusal
from refold.effects.ledger.refused_table import RefusedTable
from refold.effects.ledger.store import store_of
from tests.cli.conftest import Shell


@pytest.fixture
def paid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with an effect of 1970, and one that is under way."""
    file = tmp_path / "ledger.db"
    monkeypatch.setenv("REFOLD_LEDGER", str(file))
    then = Ledger(store_of(str(file), clock=lambda: 1.0))
    for key in ("done", "under way"):
        then.begin(then.ask(key, "charge", {}))
    then.finish("done", 1, "paid")
    return file


def test_receipts_are_counted_and_pruned(refold: Shell, paid: Path) -> None:
    """
    For people and for programs.
    """
    counted = refold("ledger", "show", "--json").json
    assert counted == {
        "place": f"the file {paid}",
        "receipts": {"executing": 1, "done": 1, "unknown": 0, "released": 0},
    }

    assert refold("ledger", "prune", "--older-than", "30d").out == "1 receipt deleted\n"
    assert refold("ledger", "prune", "--older-than", "30d", "--json").json == {"pruned": 0, "refusals": 0}
    assert [line.split() for line in refold("ledger", "show").out.splitlines()[1:3]] == [
        ["executing", "1"],
        ["done", "0"],
    ]


@pytest.mark.parametrize("age", ["", "30", "d", "-1d", "1w", "9999999d"])
def test_an_age_has_a_unit(refold: Shell, paid: Path, age: str) -> None:
    """
    Nothing is deleted where it is not certain what was meant.
    """
    done = refold("ledger", "prune", f"--older-than={age}", "--json")

    assert done.exit == 2
    assert "write a number and a unit" in done.error["message"]
    assert Ledger(str(paid)).look("done") is not None


def test_refused_updates_are_listed_and_pruned(refold: Shell, paid: Path) -> None:
    """
    Who was refused what, why, and how often; of one task, or of all.
    """
    assert refold("ledger", "refused").err == "no update was refused\n"
    what: dict[str, Any] = {
        "trigger": "update decide",
        "by": "eve",
        "reason": "eve may not decide here",
        "first_at": 0.0,
    }
    RefusedTable(store_of(str(paid))).add([Refusal(task_id="t1", **what, last_at=60.0, times=3)])

    listed = refold("ledger", "refused", "t1").out.splitlines()
    assert listed[0].endswith("  t1  update decide  by eve  3 times")
    assert listed[1:] == ["  eve may not decide here"]
    assert refold("ledger", "refused", "--json").json == {"task_id": "t1", **what, "last_at": 60.0, "times": 3}
    assert refold("ledger", "refused", "t2").out == ""
    assert refold("ledger", "prune", "--older-than", "30d").out == "1 receipt deleted\n1 refusal deleted\n"
