"""The ledger in PostgreSQL: a real server, from PyPI, that is shut down in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import Connection, inspect, make_url
from structlog.testing import capture_logs

from refold import tool
from refold.core.commands import CallTool
from refold.core.errors import DefinitionError
from refold.effects.activities import Effects
from refold.effects.ledger.ledger import Ledger, LedgerUnavailable
from refold.effects.ledger.receipts import (
    Begun,
    Finished,
    InDoubt,
    InProgress,
    KeyReused,
    LedgerReceipt,
    begin,
    renew,
)
from refold.effects.ledger.spending import Spending
from refold.effects.ledger.store import store_of
from refold.sql.postgres import SAFELY
from tests.effects.conftest import Bench
from tests.effects.ledger.test_ledger import run
from tests.services.postgres import NO_ENCODING, Postgres, postgres

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def two(server: Postgres) -> Iterator[tuple[Ledger, Ledger]]:
    """Two workers; without the threads that keep leases."""
    one, other = Ledger(server.url), Ledger(server.url)
    yield one, other
    one.store.close()
    other.store.close()


def test_a_result_is_found_by_all(two: tuple[Ledger, Ledger]) -> None:
    """
    The same rules as in a file.
    """
    one, other = two
    ask = one.ask("found", "charge", {"cents": 5})
    assert one.begin(ask) == Begun(fence=1)
    assert isinstance(other.begin(other.ask("found", "charge", {"cents": 5})), InProgress)
    assert isinstance(other.begin(other.ask("found", "charge", {"cents": 6})), KeyReused)
    one.finish("found", 1, {"text": "ä\x00\ud800"})

    told = other.begin(other.ask("found", "charge", {"cents": 5}))

    assert isinstance(told, Finished)
    assert told.value == {"text": "ä\x00\ud800"}


def test_a_database_that_takes_the_place_of_another_keeps_its_own_identity(server: Postgres) -> None:
    """
    So that tasks which began with it find it, also if the lost one comes back.
    """
    store = store_of(server.another("in_place_of_another"))
    own, lost = store.identity(), "0" * 24

    store.adopt(lost)
    store.adopt(lost)

    assert (store.identity(), store.stands_for(own), store.stands_for(lost)) == (own, True, True)
    assert not store.stands_for("1" * 24)
    assert [store.is_marked(id[:6]) for id in (own, lost, "1" * 24)] == [True, True, False]
    store.close()


def test_a_database_without_an_encoding_serves(server: Postgres) -> None:
    """
    It is what `initdb` makes where no locale is set; texts are read as they were written.
    """
    ledger = Ledger(server.another("without_encoding", NO_ENCODING))
    ledger.begin(ledger.ask("late", "charge", {"cents": 5}))
    ledger.doubt("late", 1, "nobody knows: 5 €")

    found = ledger.store.read("late")

    assert found is not None
    assert found.why == "nobody knows: 5 €"
    ledger.store.close()


def test_its_clock_is_the_servers(two: tuple[Ledger, Ledger]) -> None:
    """
    A lease is over when the server says so, whatever the hosts' clocks say.
    """
    one, other = two
    assert isinstance(one.begin(one.ask("clock", "charge", {}, lease_s=0.05)), Begun)
    ask = other.ask("clock", "charge", {})
    while isinstance(told := other.begin(ask), InProgress):
        threading.Event().wait(0.005)

    assert isinstance(told, InDoubt)
    assert other.take_over(ask, 1) == Begun(fence=2)


def test_many_at_the_same_moment(server: Postgres) -> None:
    """
    Eight workers that want one effect, before there is a table: one performs it.
    """
    url = server.another("race")
    workers = [Ledger(url) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda worker: worker.begin(worker.ask("race", "charge", {})), workers))
    for worker in workers:
        worker.store.close()

    assert sum(isinstance(one, Begun) for one in told) == 1
    assert sum(isinstance(one, InProgress) for one in told) == 7


async def test_a_server_that_is_gone(server: Postgres) -> None:
    """
    The effect does not start: its activity waits until the database is back, and then performs it. Nothing is lost.
    """
    calls: list[str] = []

    @tool(effect="at_most_once")
    async def charge(order: str) -> str:
        calls.append(order)
        if order == "during":
            server.stop()
        return f"paid {order}"

    def ask(order: str) -> CallTool:
        return CallTool(id="c", name="charge", args={"order": order}, key=f"gone-{order}")

    ledger = Ledger(server.url)
    async with Effects([charge], ledger=ledger) as effects:
        bench = Bench(effects)
        assert await bench.tool(ask("before")) == "paid before"
        assert await bench.tool(ask("during")) == "paid during"
        with capture_logs() as logs:
            waiting = asyncio.create_task(bench.tool(ask("after")))
            while len(logs) < 2:  # noqa: ASYNC110 - it asks again and again
                await asyncio.sleep(0)
            assert calls == ["before", "during"]
            await asyncio.to_thread(server.start)
            assert await waiting == "paid after"
        assert await bench.tool(ask("before")) == "paid before"
        assert await bench.tool(ask("during")) == "paid during"

    awaited = [log["error"] for log in logs if log["event"] == "ledger_awaited"]
    assert awaited[0].startswith("the receipt ledger (REFOLD_LEDGER) in the PostgreSQL database postgres on ")
    assert calls == ["before", "during", "after"]


async def test_a_server_that_stands_still(
    server: Postgres, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """
    A call that nobody answers is unavailable after a while, so that a worker can leave; then it serves as before. The
    connection that is lost amid a call goes without a traceback in the log.
    """
    ledger = Ledger(server.url)
    with ledger:
        told = await ledger.run(ledger.begin, ledger.ask("still", "charge", {}))
        with monkeypatch.context() as impatient, server.frozen():
            impatient.setattr("refold.sql.postgres.ANSWER_S", 0.2)
            with pytest.raises(LedgerUnavailable, match=r"has not answered for 0\.2 s"):
                await ledger.run(ledger.look, "still")
        assert told == Begun(fence=1)
        assert ledger.finish("still", 1, "paid") == "paid"

        assert isinstance(ledger.begin(ledger.ask("still", "charge", {})), Finished)
    assert [line.getMessage() for line in caplog.records if line.levelname == "ERROR"] == []


def test_a_worker_that_stands_still_amid_a_transaction_holds_up_nobody(
    two: tuple[Ledger, Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The server ends its transaction after a while: others go on, and it finds out that nothing was written.
    """
    one, other = Spending(two[0].store), Spending(two[1].store)
    one.add("paused", tokens=1, usd=0.0)
    other.add("paused", tokens=1, usd=0.0)
    monkeypatch.setattr("refold.sql.postgres.SAFELY", SAFELY.replace("'30s'", "'300ms'").replace("'5s'", "'60s'"))

    def pause(connection: Connection) -> None:
        connection.exec_driver_sql("UPDATE refold_spending SET tokens = 9 WHERE owner = 'paused'")
        other.add("paused", tokens=1, usd=0.0)  # waits for this row

    with pytest.raises(LedgerUnavailable, match="idle-in-transaction timeout"):
        two[0].store.within(pause)

    assert one.today("paused").tokens == 3


def test_a_worker_that_stands_still_amid_a_change_holds_up_nobody(two: tuple[Ledger, Ledger]) -> None:
    """
    No lock of its own keeps others from the receipt, and it overwrites nothing of theirs.
    """
    one, other = two
    ask = other.ask("change", "charge", {})

    def begun(found: LedgerReceipt | None, now: float) -> LedgerReceipt | None:
        other.begin(ask)
        return begin(found, replace(ask, holder="slow"), now)[0]

    def renewed(found: LedgerReceipt | None, now: float) -> LedgerReceipt | None:
        other.finish("change", 1, "paid")
        return renew(found, 1, 30.0, now)

    one.store.change("change", begun)
    one.store.change("change", renewed)

    found = one.store.read("change")
    assert found is not None
    assert (found.holder, found.result) == (other.holder, '"paid"')


def test_a_worker_that_is_forked_from_one_that_used_the_ledger_has_a_session_of_its_own(
    server: Postgres, tmp_path: Path
) -> None:
    """
    In one session each would read the other's answers.
    """
    process = run("forked_session", tmp_path / "other.db", server.url)

    told, _ = process.communicate(timeout=100)

    assert (told, process.returncode) == ("two True\n", 0)


def test_a_session_may_be_handed_from_one_client_to_the_next(two: tuple[Ledger, Ledger]) -> None:
    """
    As a pooler such as PgBouncer does: nothing that a session keeps is relied on, such as prepared statements.
    """
    spending = Spending(two[0].store)
    for _ in range(10):
        spending.today("handed on")
    with two[0].store._engine.begin() as connection:
        connection.exec_driver_sql("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")

    assert spending.today("handed on").calls == 0


def test_any_text_is_written(two: tuple[Ledger, Ledger]) -> None:
    """
    PostgreSQL stores no NUL, and no database half a surrogate pair: what a tool's exception quotes may hold both.
    """
    one, other = two
    ask = one.ask("text", "charge", {}, task_id="T\0", invocation_id="T\0/1.1")
    assert one.begin(ask) == Begun(fence=1)
    one.doubt("text", 1, "the answer was \0\ud800")

    answer = other.begin(ask)

    assert isinstance(answer, InDoubt)
    assert answer.receipt.task_id == "T\ufffd"
    assert answer.receipt.why == "the answer was \ufffd\ufffd"


async def test_a_refused_report_holds_nobody_up(server: Postgres) -> None:
    """
    One that the database takes at no time is dropped; those that came after it are written, and its key is free.
    """
    with Ledger(server.url) as ledger:
        for key in ("bad", "good"):
            assert isinstance(ledger.begin(ledger.ask(key, "charge", {})), Begun)
        with capture_logs() as logs:
            server.stop()
            ledger._end("bad", 1, lambda found, now: found and replace(found, tool="cannot be written: \0"))
            ledger.finish("good", 1, "paid")
            server.start()
            while ledger._pending_writes:  # noqa: ASYNC110 - a thread writes them
                await asyncio.sleep(0.01)

        assert [log["event"] for log in logs] == ["receipt_owed", "receipt_owed", "receipt_not_written"]
        assert isinstance(ledger.begin(ledger.ask("good", "charge", {})), Finished)
        assert ledger._holds == {}


def test_a_role_that_may_not_create_tables(server: Postgres) -> None:
    """
    It works with tables that are there, and says what it lacks where they are not.
    """
    url = server.another("shared")
    server.run(
        "CREATE ROLE teller LOGIN; \\c shared\nREVOKE CREATE ON SCHEMA public FROM PUBLIC; "
        "ALTER DEFAULT PRIVILEGES GRANT SELECT, INSERT, UPDATE ON TABLES TO teller;"
    )
    teller = Ledger(make_url(url).set(username="teller").render_as_string(hide_password=False))
    owner = Ledger(url)

    with pytest.raises(LedgerUnavailable, match="permission denied for schema public"):
        teller.begin(teller.ask("k", "charge", {}))
    owner.look("k")

    assert teller.begin(teller.ask("k", "charge", {})) == Begun(fence=1)
    assert teller.finish("k", 1, "paid") == "paid"
    with pytest.raises(LedgerUnavailable, match="permission denied for table refold_receipts"):
        teller.store.prune(0)
    with pytest.raises(LedgerUnavailable, match="permission denied for table refold_receipts"):
        teller.store.remove([])  # how a purge finds out, before it deletes anything
    owner.store.close()
    teller.store.close()


def test_old_receipts_are_pruned(server: Postgres) -> None:
    """
    By the server's clock, in the tables of an earlier version too.
    """
    url = server.another("old")
    ledger = Ledger(url)
    for key in ("settled", "under way"):
        assert ledger.begin(ledger.ask(key, "charge", {})) == Begun(fence=1)
    ledger.finish("settled", 1, "paid")
    with ledger.store._engine.begin() as connection:
        connection.exec_driver_sql("DROP INDEX refold_receipts_changed_at")
        connection.exec_driver_sql("UPDATE refold_schema SET version = 2")
    ledger.store.close()

    ledger = Ledger(url)
    assert ledger.store.prune(3600) == 0
    assert ledger.store.prune(0) == 1

    assert ledger.store.counts() == {"executing": 1, "done": 0, "unknown": 0, "released": 0}
    with ledger.store._engine.begin() as connection:
        made = {one["name"] for one in inspect(connection).get_indexes("refold_receipts")}
        assert made == {"refold_receipts_changed_at", "refold_receipts_task_id"}
    ledger.store.close()


def test_tables_that_go_away_are_not_made_anew(server: Postgres) -> None:
    """
    As those of a database that somebody has emptied: receipts would be missing, and nobody would know.
    """
    ledger = Ledger(server.another("emptied"))
    ledger.look("k")
    with ledger.store._engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE refold_receipts")

    with pytest.raises(LedgerUnavailable, match="does not exist; restore it, or start the workers again"):
        ledger.begin(ledger.ask("k", "charge", {}))
    with pytest.raises(LedgerUnavailable, match="does not exist; restore it, or start the workers again"):
        ledger.store.of_task("t")
    ledger.store.close()


def test_it_may_be_shared_by_hosts(two: tuple[Ledger, Ledger]) -> None:
    """
    Wherever the Temporal server is.
    """
    two[0].refuse_remote("x.tmprl.cloud:7233")


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("postgresql://me:secret@db.example/refold", "the PostgreSQL database refold on db.example"),
        ("postgresql+psycopg://db.example:1", "the PostgreSQL database of the user on db.example"),
    ],
)
def test_its_name_for_people(named: str, place: str) -> None:
    """
    Without user and password.
    """
    assert store_of(named).place == place


def test_nobody_answers() -> None:
    """
    A port where nothing listens.
    """
    ledger = Ledger("postgresql://me:secret@127.0.0.1:1/refold")
    with pytest.raises(LedgerUnavailable) as caught:
        ledger.begin(ledger.ask("k", "charge", {}))

    assert "secret" not in str(caught.value)


def test_another_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Without psycopg the message says what to install.
    """
    monkeypatch.setitem(sys.modules, "psycopg", None)

    with pytest.raises(DefinitionError, match=r"refold\[postgres\]"):
        store_of("postgresql://db/refold")


def test_an_owners_day_is_one_sum(server: Postgres) -> None:
    """
    Workers of several hosts that count at once, the first of them making the table, lose nothing.
    """
    url = server.another("spending")
    days = [Spending(store_of(url)), Spending(store_of(url))]

    def add(number: int) -> None:
        while True:
            with contextlib.suppress(LedgerUnavailable):  # the table or the row was made in between, and all is undone
                days[number % 2].add("ada", tokens=1, usd=0.1)
                return

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))
    spent = [one.today("ada") for one in days]
    for one in days:
        one.store.close()

    assert spent[0] == spent[1]
    assert (spent[0].calls, spent[0].tokens, spent[0].usd) == (40, 40, 4.0)
