"""The verbs about receipts, on a ledger in a file."""

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from refold.effects.ledger.ledger import Ledger
from refold.effects.ledger.refused import Refusal
from refold.effects.ledger.refused_table import RefusedTable
from refold.effects.ledger.spending import DaySpent, Spending
from refold.effects.ledger.store import store_of
from refold.effects.memory import Memory, held
from refold.effects.short.outcomes import Outcomes
from tests.cli.conftest import Shell
from tests.services.postgres import postgres

OPERATE = Path(__file__).parents[3] / "docs" / "operate.md"


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


def test_receipts_of_a_task_are_found_by_an_index(refold: Shell, paid: Path) -> None:
    """
    In a new ledger, and in one of an earlier release once its owner has looked.
    """

    def plan() -> str:
        with closing(sqlite3.connect(paid)) as database:
            found = database.execute("EXPLAIN QUERY PLAN SELECT * FROM refold_receipts WHERE task_id = 't'")
            return str(found.fetchall())

    assert "refold_receipts_task_id" in plan()
    with closing(sqlite3.connect(paid)) as database:
        database.execute("DROP INDEX refold_receipts_task_id")
    assert "SCAN" in plan()

    assert refold("ledger", "show").out

    assert "refold_receipts_task_id" in plan()


def test_a_ledger_takes_the_place_of_a_lost_one(refold: Shell, paid: Path) -> None:
    """
    Said twice as said once; its own tasks go on with it, too.
    """
    own, lost = store_of(str(paid)).identity(), "0123456789abcdef01234567"

    for _ in range(2):
        assert refold("ledger", "adopt", lost).out == f"the ledger in the file {paid} takes the place of {lost}\n"
    wrong = refold("ledger", "adopt", "lost")

    assert (wrong.exit, "'lost' is no ledger's id" in wrong.err) == (2, True)
    assert [store_of(str(paid)).stands_for(id) for id in (own, lost, own[::-1])] == [True, True, False]


@pytest.mark.parametrize(
    ("age", "says"),
    [*((age, "write a number and a unit") for age in (" ", "30", "d", "-1d", "1w")), ("9999999d", "long")],
)
def test_an_age_has_a_unit(refold: Shell, paid: Path, age: str, says: str) -> None:
    """
    Nothing is deleted where it is not certain what was meant.
    """
    done = refold("ledger", "prune", f"--older-than={age}", "--json")

    assert done.exit == 2
    assert says in done.error["message"]
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


@pytest.mark.fault
def test_a_role_for_workers_needs_no_more_than_the_page_says(refold: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Once the owner has looked: receipts, records of effects within workflow tasks, refusals, what owners spend, and
    what tasks remember.
    """
    grants = re.findall(r"^GRANT .*", OPERATE.read_text(), re.MULTILINE)
    with postgres() as server:
        monkeypatch.setenv("REFOLD_LEDGER", server.url)
        assert refold("ledger", "show").out
        server.run("REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE worker LOGIN;\n" + "\n".join(grants))
        owner = store_of(server.url)
        worker = Ledger(make_url(server.url).set(username="worker").render_as_string(hide_password=False))

        worker.begin(worker.ask("k", "charge", {}))
        assert worker.finish("k", 1, "paid") == "paid"
        assert worker.store.identity() == owner.identity()
        outcomes = Outcomes(worker)
        outcomes.record(outcomes.asked("refold.llm", b"{}", "default", "run", "t1", "t1/1.0"), "said")
        RefusedTable(worker.store).add(
            [Refusal(task_id="t1", trigger="update decide", by="eve", reason="no", first_at=1.0, last_at=1.0)]
        )
        spent = Spending(worker.store).add("olga", tokens=3, usd=0.5)
        assert spent == DaySpent(day=spent.day, calls=1, tokens=3, usd=0.5)
        memory = Memory(lambda: worker.store, scope="olga", task_id="t1", patiently=lambda call: call())
        asyncio.run(memory.remember("Likes tea."))
        asyncio.run(memory.open_turn("s1", "why?", last=0))
        asyncio.run(memory.close_turn("s1", "because"))
        assert [one.said for one in held.held(owner, "olga").facts] == ["Likes tea."]
        for store in (owner, worker.store):
            store.close()
