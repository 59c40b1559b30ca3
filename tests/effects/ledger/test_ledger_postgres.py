"""The ledger in PostgreSQL: a real server, from PyPI, that is shut down in the middle."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from temporalio.exceptions import ApplicationError

from refold import tool
from refold.core.commands import CallTool
from refold.core.errors import DefinitionError
from refold.effects.activities import Effects
from refold.effects.ledger.ledger import Ledger, LedgerUnavailable
from refold.effects.ledger.receipts import Finished, InProgress, KeyReused, OutcomeUnknown, Perform
from refold.effects.ledger.store import store_of
from tests.effects.conftest import Bench, failure_in
from tests.services.postgres import Postgres

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    # Sockets want a short path, and the server, if the tests run as root, a user and a folder that it may enter.
    with tempfile.TemporaryDirectory() as name:
        running = Postgres(Path(name))
        yield running
        with contextlib.suppress(Exception):
            running.stop()


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
    assert one.begin(ask) == Perform(fence=1)
    assert isinstance(other.begin(other.ask("found", "charge", {"cents": 5})), InProgress)
    assert isinstance(other.begin(other.ask("found", "charge", {"cents": 6})), KeyReused)
    one.finish("found", 1, {"text": "ä\x00\ud800"})

    told = other.begin(other.ask("found", "charge", {"cents": 5}))

    assert isinstance(told, Finished)
    assert told.value == {"text": "ä\x00\ud800"}


def test_its_clock_is_the_servers(two: tuple[Ledger, Ledger]) -> None:
    """
    A lease is over when the server says so, whatever the hosts' clocks say.
    """
    one, other = two
    assert isinstance(one.begin(one.ask("clock", "charge", {}, lease_s=0.05)), Perform)
    ask = other.ask("clock", "charge", {})
    while isinstance(told := other.begin(ask), InProgress):
        threading.Event().wait(0.005)

    assert isinstance(told, OutcomeUnknown)
    assert other.take_over(ask, 1) == Perform(fence=2)


def test_many_at_the_same_moment(server: Postgres) -> None:
    """
    Eight workers that want one effect, before there is a table: one performs it.
    """
    url = server.another()
    workers = [Ledger(url) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(lambda worker: worker.begin(worker.ask("race", "charge", {})), workers))
    for worker in workers:
        worker.store.close()

    assert sum(isinstance(one, Perform) for one in told) == 1
    assert sum(isinstance(one, InProgress) for one in told) == 7


async def test_a_server_that_is_gone(server: Postgres) -> None:
    """
    The effect does not start, the failure is transient and names the database without a password; nothing is lost.
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
        with pytest.raises(ApplicationError) as caught:
            await bench.tool(ask("after"))
        server.start()
        assert await bench.tool(ask("after")) == "paid after"
        assert await bench.tool(ask("before")) == "paid before"
        assert await bench.tool(ask("during")) == "paid during"

    failure = failure_in(caught.value)
    assert (failure.kind, failure.type) == ("transient", "ledger_unavailable")
    assert failure.message.startswith("the receipt ledger in the PostgreSQL database postgres on ")
    assert calls == ["before", "during", "after"]


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
