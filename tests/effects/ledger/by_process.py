"""A worker in small, as a process of its own: `python -m tests.effects.ledger.by_process VERB LEDGER ...`.

Each verb says what it does line by line on stdout, and waits for a line on stdin where the test decides the moment.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path

from refold.effects.ledger.ledger import Ledger, LedgerUnavailable
from refold.effects.ledger.receipts import Begun, Finished, InProgress
from refold.effects.ledger.store import store_of


def say(*words: object) -> None:
    sys.stdout.write(" ".join(str(word) for word in words) + "\n")
    sys.stdout.flush()


def wait() -> None:
    sys.stdin.readline()


def hold(ledger: Ledger, key: str) -> None:
    """Begin an effect, and finish it when told."""
    told = ledger.begin(ledger.ask(key, "charge", {}))
    assert isinstance(told, Begun)
    say("began", told.fence)
    wait()
    say("finished", ledger.finish(key, told.fence, "by the process"))


def first_use(_: Ledger, folder: str, count: str) -> None:
    """Open new ledgers, each when told."""
    for number in range(int(count)):
        store = store_of(f"{folder}/{number}.db")
        say(number)
        wait()
        store.read("k")
        store.close()
    say("done")


def race(ledger: Ledger, effects: str, count: str) -> None:
    """Perform every key, as fast as it goes; say what each gave."""
    say("ready")
    wait()
    with Path(effects).open("a") as done:
        for number in range(int(count)):
            key = f"key-{number}"
            ask = ledger.ask(key, "charge", {"number": number})
            while isinstance(told := ledger.begin(ask), InProgress):
                threading.Event().wait(0.005)
            if isinstance(told, Begun):
                done.write(f"{key}\n")
                done.flush()
                ledger.finish(key, told.fence, os.getpid())
            else:
                assert isinstance(told, Finished)


def forked(_: Ledger, file: str) -> None:
    """Fork two workers from a process that has made the ledger; the second asks for what the first performs."""
    ledger = Ledger(file)
    ledger.ask("k", "charge", {})  # the parent has its name
    begun, go_on = os.pipe(), os.pipe()
    if (first := os.fork()) == 0:
        with ledger:
            assert isinstance(ledger.begin(ledger.ask("k", "charge", {})), Begun)
            os.write(begun[1], b".")
            os.read(go_on[0], 1)
            os._exit(0)
    os.read(begun[0], 1)
    if (second := os.fork()) == 0:
        with ledger:
            say(type(ledger.begin(ledger.ask("k", "charge", {}))).__name__)
            os._exit(0)
    os.waitpid(second, 0)
    os.write(go_on[1], b".")
    os.waitpid(first, 0)


def forked_later(_: Ledger, file: str) -> None:
    """Fork a worker from a process that has used the ledger and then closes it; the worker is killed after its report,
    and a third one asks for the same effect."""
    ledger = Ledger(file)
    ledger.look("k")
    go_on = os.pipe()
    if (worker := os.fork()) == 0:
        os.read(go_on[0], 1)
        with ledger:
            begun = ledger.begin(ledger.ask("k", "charge", {}))
            assert isinstance(begun, Begun)
            ledger.finish("k", begun.fence, "charged")
            os._exit(0)
    ledger.store.close()
    os.write(go_on[1], b".")
    os.waitpid(worker, 0)
    say(type(Ledger(file).begin(ledger.ask("k", "charge", {}))).__name__)


def forked_at_work(_: Ledger, file: str) -> None:
    """Fork a worker from one that performs an effect; it asks for the same effect, and for another one."""

    async def asked() -> None:
        with ledger:
            one, other = (ledger.ask(key, "charge", {}) for key in ("k", "other"))
            say(*[type(await asyncio.wait_for(ledger.run(ledger.begin, ask), 20)).__name__ for ask in (one, other)])
            os._exit(0)

    with Ledger(file) as ledger:
        begun = ledger.begin(ledger.ask("k", "charge", {}))
        assert isinstance(begun, Begun)
        if (worker := os.fork()) == 0:
            asyncio.run(asked())
        os.waitpid(worker, 0)
        ledger.finish("k", begun.fence, "charged")
    say(type(Ledger(file).begin(ledger.ask("k", "charge", {}))).__name__)


def forked_session(_: Ledger, url: str) -> None:
    """Fork from a process that has used PostgreSQL, and say whether both ask it in one session."""
    store = Ledger(url).store

    def session() -> str:
        return str(store.within(lambda connection: connection.exec_driver_sql("SELECT pg_backend_pid()").scalar()))

    mine, its = session(), os.pipe()
    if (child := os.fork()) == 0:
        os.write(its[1], session().encode())
        os._exit(0)
    os.waitpid(child, 0)
    say("one" if os.read(its[0], 100).decode() == mine else "two", session() == mine)


def unprivileged(ledger: Ledger) -> None:
    """Try to begin an effect, as a user whom nobody has given any rights."""
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        say(ledger.begin(ledger.ask("k", "charge", {})))
    except LedgerUnavailable as error:
        say("unavailable:", error)


if __name__ == "__main__":
    verb, file, *rest = sys.argv[1:]
    with Ledger(file) as opened:
        globals()[verb](opened, *rest)
