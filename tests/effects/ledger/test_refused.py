"""Refused updates in the ledger's database."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from refold.effects.ledger.receipts import LedgerUnavailable
from refold.effects.ledger.refused import PENDING, Refusal, RefusalRecord
from refold.effects.ledger.refused_table import PER_TASK, RefusedTable
from refold.effects.ledger.store import store_of
from tests.services.postgres import Postgres, postgres


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(params=["file", pytest.param("server", marks=pytest.mark.fault)])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RefusedTable]:
    if request.param == "file":
        url = str(tmp_path / "ledger.db")
    else:
        url = request.getfixturevalue("server").another("refused")
    table = RefusedTable(store_of(url, clock=lambda: 1000.0))
    yield table
    table.prune(0)
    table.close()


def refusal(number: int, task_id: str = "t") -> Refusal:
    at = float(number)
    return Refusal(task_id=task_id, trigger="update decide", by="eve", reason=f"no {number}", first_at=at, last_at=at)


def test_equal_refusals_are_counted(table: RefusedTable) -> None:
    """
    With the first and the last time; whatever the text.
    """
    once = replace(refusal(5), reason="no\0 \ud800")
    table.add([once, refusal(6), replace(once, last_at=9.0, first_at=9.0, times=2)])

    newest, other = table.newest("t")
    assert (newest.times, newest.first_at, newest.last_at, newest.reason) == (3, 5.0, 9.0, "no\ufffd \ufffd")
    assert other == refusal(6)
    assert table.newest("another") == []


def test_a_stranger_fills_no_table(table: RefusedTable) -> None:
    """
    A task has the newest refusals, to a bound; those of other tasks stay. Old ones go by their age.
    """
    table.add([refusal(1, "other")])
    table.add([refusal(number) for number in range(2, PER_TASK + 50)])

    assert [one.last_at for one in table.newest("t", limit=1000)] == [float(n) for n in range(PER_TASK + 49, 49, -1)]
    assert len(table.newest(limit=1000)) == PER_TASK + 1
    assert table.prune(1000 - 2) == 1
    assert table.newest("other") == []


class Seal:
    def sealed(self, text: str) -> str:
        return text[::-1]

    def opened(self, sealed: str) -> str:
        return sealed[::-1]


def test_names_and_reasons_are_encrypted(table: RefusedTable, tmp_path: Path) -> None:
    """
    Where receipts are; who has no codec is told so.
    """
    table.store.seal = Seal()
    table.add([refusal(1)])
    assert table.newest() == [refusal(1)]

    table.store.seal = None
    with pytest.raises(LedgerUnavailable, match="its texts are encrypted"):
        table.newest()


@pytest.mark.fault
def test_a_role_that_may_not_create_tables(server: Postgres) -> None:
    """
    Refusals are kept in a table that the owner has made.
    """
    url = server.another("strict")
    server.run(
        "CREATE ROLE clerk LOGIN; \\c strict\nREVOKE CREATE ON SCHEMA public FROM PUBLIC; "
        "ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE ON TABLES TO clerk;"
    )
    owner = RefusedTable(store_of(url))
    clerk = RefusedTable(store_of(make_url(url).set(username="clerk").render_as_string(hide_password=False)))
    owner.make()

    clerk.add([refusal(1)])
    assert owner.newest() == [refusal(1)]
    owner.close()
    clerk.close()


class Away:
    """A database that is away until the test lets it come back."""

    def __init__(self) -> None:
        self.back = threading.Event()
        self.asked = threading.Event()
        self.kept: list[Refusal] = []

    def add(self, refusals: Sequence[Refusal]) -> None:
        self.asked.set()
        if not self.back.is_set():
            raise LedgerUnavailable("the test", "it is away")
        self.kept += refusals

    def close(self) -> None: ...


def test_whoever_refuses_never_waits() -> None:
    """
    While the database is away, refusals are counted and kept to a bound, and written by the time that the worker ends.
    """
    away = Away()
    with RefusalRecord(lambda: away) as record:
        for number in range(PENDING + 10):
            record.note(task_id="t", trigger="update decide", by="eve", reason=f"no {number}", at=1.0)
            record.note(task_id="t", trigger="update decide", by="eve", reason="no 0", at=2.0)
        assert away.asked.wait(10)
        away.back.set()

    kept = {one.reason: one for one in away.kept}
    assert len(kept) == len(away.kept)
    assert PENDING <= len(kept) <= PENDING + 10
    assert (kept["no 0"].times, kept["no 0"].last_at) == (PENDING + 11, 2.0)
