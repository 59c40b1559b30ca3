"""The verbs about receipts, on a ledger in a file."""

from pathlib import Path

import pytest

from refold.effects.ledger.ledger import Ledger
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
    assert refold("ledger", "prune", "--older-than", "30d", "--json").json == {"pruned": 0}
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
