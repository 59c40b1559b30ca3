"""The ledger's database: one table in a SQLite file or in PostgreSQL, created on first use.

SQLite serves all worker processes of one host: WAL mode, and each commit is on the disk (fsync) before it is reported.
PostgreSQL serves several hosts, and leases go by its clock.

With a `Seal` the database holds results and reasons encrypted; the other columns are ids, hashes and times.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4
from weakref import WeakSet

from sqlalchemy import (
    Connection,
    PoolProxiedConnection,
    delete,
    func,
    insert,
    inspect,
    or_,
    select,
)
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.schema import CreateIndex

from refold.effects.ledger.making import LOCK, VERSION, identity_of, make_file, make_tables, version_of
from refold.effects.ledger.place import BUSY_S, file_of, place_of, postgres_engine, refused, sqlite_engine, url_of
from refold.effects.ledger.receipts import ENV, LedgerReceipt, LedgerUnavailable, ReceiptState
from refold.effects.ledger.statements import (
    BY_TASK,
    CHANGE,
    CLOCK,
    NAMES,
    PRUNE,
    PRUNED_AT_ONCE,
    READ,
    RECEIPTS,
    SCHEMA,
    SEEN,
    Statement,
    adding,
    keeping,
)
from refold.engine import PayloadTooLarge
from refold.sql import postgres

T = TypeVar("T")

NO_SUCH_TABLE = "42P01"
"""What PostgreSQL says of a table that is gone; an effect that is under way must not find an empty one instead."""

_ID = "id:"
"""What the part begins with whose rest is the database's identity."""
_INSTEAD = "for:"
"""What a part begins with whose rest is the identity of a database whose place this one has taken."""

_KNOWN = select(SCHEMA.c.part).where(SCHEMA.c.part.startswith(_ID)).order_by(SCHEMA.c.part).limit(1)

_SEALED = "sealed:"
"""What encrypted texts begin with. Hardly another text does, so those from before there was a seal are read as they
are."""

_PLAIN = "sealed:plain:"
"""What a text is written with, before it, that begins as an encrypted one does and is not encrypted; base64, in which a
codec's texts are, has no colon."""


class Seal(Protocol):
    """Encrypts texts. Called in any thread that runs no event loop, within a transaction."""

    def sealed(self, text: str) -> str:
        """The text, encrypted."""

    def opened(self, sealed: str) -> str:
        """The text that `sealed` encrypted; raises if it cannot be read."""


Change = Callable[[LedgerReceipt | None, float], LedgerReceipt | None]
"""Computes the new receipt from the stored one (None: there is none) and the time in seconds since 1970."""


class Store:
    """Receipts by key. Thread-safe.

    A change is written by one statement that finds the receipt as it was read, else it is computed again: no worker
    that stands still amid a change keeps others from the receipt.

    Attributes:
        place: The file or database, without user and password.
        seal: Encrypts results and reasons; None leaves them readable.
    """

    seal: Seal | None = None

    def __init__(self, url: URL, *, clock: Callable[[], float] | None = None, make_folder: bool = False) -> None:
        """Open nothing yet.

        Args:
            url: `sqlite:///file` or `postgresql+psycopg://…`.
            clock: Seconds since 1970; None is the machine's clock for SQLite, the server's for PostgreSQL.
            make_folder: Make the file's folder if it is missing.

        Raises:
            DefinitionError: The URL names a database that is not supported, or its driver is not installed.
        """
        self.file = file_of(url)
        self.place = f"the file {self.file}" if self.file else place_of(url)
        self._clock = clock or (time.time if self.file else None)
        self._make_folder = make_folder
        self._engine = sqlite_engine(self.file) if self.file else postgres_engine(url)
        dialect = self._engine.dialect
        self._read = Statement(READ, dialect)
        self._time = Statement(select(CLOCK), dialect)
        self._add = Statement(adding(dialect).on_conflict_do_nothing().returning(RECEIPTS.c.key), dialect, NAMES)
        self._change = Statement(CHANGE, dialect, [name for name in NAMES if name != "key"])
        self._keep = Statement(*keeping(dialect, its_clock=self._clock is None))
        # SQLite allows one writer at a time. A writer waits for those of other processes by polling; within a process
        # a lock wakes the next writer at once, and one connection is enough.
        self._turn = threading.Lock() if self.file else None
        self._kept: PoolProxiedConnection | None = None
        self._ready = threading.Lock()
        self._made = False
        self._left = False
        self._identity: tuple[int, int] | None = None
        _STORES.add(self)

    @property
    def one_host(self) -> bool:
        """Whether only processes of one host can share this database."""
        return self.file is not None

    def change(self, key: str, change: Change) -> LedgerReceipt | None:
        """Change one receipt; no other changes it in between.

        Args:
            key: The receipt's key.
            change: Computes the new receipt; called again if another process changes the receipt meanwhile.

        Returns:
            The receipt after the change; None if there is none.

        Raises:
            LedgerUnavailable: The receipt has not changed, or it is not known whether it has.
        """
        with self._guarded():
            while True:
                found, now = self._found(key)
                changed = change(found, now)
                if changed is None or changed == found:
                    return found
                if self._written(found, changed):
                    return changed

    def read(self, key: str) -> LedgerReceipt | None:
        """The stored receipt; None if there is none.

        Raises:
            LedgerUnavailable: The receipt cannot be read.
        """
        with self._guarded():
            [row] = self._alone((self._read, {"of": key}))
            return None if row is None else self._receipt(row)

    def keep(self, receipt: LedgerReceipt) -> LedgerReceipt:
        """Write a receipt, with the time, unless its key has one already; returns the one that is there now.

        Args:
            receipt: What to write; its times are filled in here.

        Raises:
            LedgerUnavailable: The receipt was not written, or it is not known whether it was.
        """
        row: dict[str, Any] = {name: getattr(receipt, name) for name in NAMES}
        row |= {"state": receipt.state.value, "result": self.sealed(receipt.result or "")}
        if self._clock is not None:
            row |= {"began_at": self._clock(), "changed_at": self._clock()}
        with self._guarded():
            return self._receipt(self._alone((self._keep, row))[0] or ())

    def of_task(self, task_id: str) -> list[LedgerReceipt]:
        """The receipts whose latest attempt a task made, oldest first.

        Raises:
            LedgerUnavailable: The receipts cannot be read.
        """
        wanted = select(RECEIPTS).where(RECEIPTS.c.task_id == task_id).order_by(RECEIPTS.c.began_at, RECEIPTS.c.key)
        with self._guarded():
            self._make_once()
            with self._unhurried() as connection:
                return [self._receipt(tuple(row)) for row in connection.execute(wanted)]

    def remove(self, keys: Sequence[str]) -> None:
        """Delete receipts by their keys, unless they have begun to change since: only of effects that are over.

        Raises:
            LedgerUnavailable: The receipts cannot be deleted; some may have been. Also without keys, to find out.
        """
        over = RECEIPTS.c.state.in_([ReceiptState.DONE.value, ReceiptState.RELEASED.value])
        with self._guarded():
            self._make_once()
            for start in range(0, len(keys) or 1, PRUNED_AT_ONCE):
                with self._begun() as connection:
                    connection.execute(
                        delete(RECEIPTS).where(over, RECEIPTS.c.key.in_(keys[start : start + PRUNED_AT_ONCE]))
                    )

    def identity(self) -> str:
        """The id of this database: made when it is first asked for, and kept in the database itself.

        Raises:
            LedgerUnavailable: It cannot be read, or not be written at first.
        """
        with self._guarded():
            self._make_once()
            with self._begun() as connection:  # without the lock that `within` takes: mostly it is there
                found = connection.scalar(_KNOWN)
        return self.within(self._identified) if found is None else str(found).removeprefix(_ID)

    def make_index(self) -> None:
        """Make the index that tables of an earlier release lack, however long it takes; who writes waits meanwhile.

        Raises:
            LedgerUnavailable: It is not made, or it is not known whether it is.
        """
        with self._guarded():
            self._make_once()
            with self._unhurried() as connection:
                known = inspect(connection).get_indexes(RECEIPTS.name)
                if not any(one["name"] == BY_TASK.name for one in known):  # else for the owner alone, there or not
                    connection.execute(CreateIndex(BY_TASK, if_not_exists=True))
                    connection.commit()

    def stands_for(self, identity: str) -> bool:
        """Whether this database is the one of this identity, or has taken its place.

        Raises:
            LedgerUnavailable: It cannot be read.
        """
        return self.within(lambda connection: self._has(connection, identity))

    def is_marked(self, mark: str) -> bool:
        """Whether a worker's mark (`refold.effects.ledger.mark`) is of this database, or of one whose place it has
        taken.

        Raises:
            LedgerUnavailable: It cannot be read.
        """
        parts = or_(SCHEMA.c.part.startswith(_ID + mark), SCHEMA.c.part.startswith(_INSTEAD + mark))
        wanted = select(SCHEMA.c.part).where(parts).limit(1)
        with self._guarded():
            self._make_once()
            with self._begun() as connection:
                return connection.scalar(wanted) is not None

    def adopt(self, identity: str) -> None:
        """Take the place of another database, which is lost, or was copied to this one.

        Raises:
            LedgerUnavailable: It is not written, or it is not known whether it is.
        """

        def write(connection: Connection) -> None:
            if not self._has(connection, identity):
                connection.execute(insert(SCHEMA), {"part": _INSTEAD + identity, "version": VERSION})

        self.within(write)

    def _has(self, connection: Connection, identity: str) -> bool:
        parts = (_ID + identity, _INSTEAD + identity)
        return connection.scalar(select(SCHEMA.c.part).where(SCHEMA.c.part.in_(parts)).limit(1)) is not None

    def _identified(self, connection: Connection) -> str:
        found = connection.scalar(_KNOWN)
        if found is None:
            if not self.file:  # else two workers would both make one
                connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
                found = connection.scalar(_KNOWN)
            if found is None:
                found = _ID + uuid4().hex[:24]
                connection.execute(insert(SCHEMA), {"part": found, "version": VERSION})
        return str(found).removeprefix(_ID)

    def counts(self) -> dict[ReceiptState, int]:
        """How many receipts there are, by state.

        Raises:
            LedgerUnavailable: The receipts cannot be read.
        """
        counted = select(RECEIPTS.c.state, func.count()).group_by(RECEIPTS.c.state)
        with self._guarded():
            self._make_once()
            with self._unhurried() as connection:
                found = {ReceiptState(state): int(count) for state, count in connection.execute(counted)}
        return {state: found.get(state, 0) for state in ReceiptState}

    def prune(self, older_than_s: float) -> int:
        """Delete receipts by age, some at a time, so that workers wait for no long transaction.

        Receipts of unknown outcomes, of running effects and of effects that were undone stay.

        Args:
            older_than_s: Delete receipts that have not changed for so many seconds.

        Returns:
            How many were deleted.

        Raises:
            LedgerUnavailable: The receipts cannot be deleted; some may have been.
        """
        pruned = 0
        with self._guarded():
            self._make_once()
            with self._engine.connect() as connection:
                now = self.now(connection)
            while True:
                with self._begun() as connection:
                    some = connection.execute(PRUNE, {"before": now - older_than_s}).rowcount
                pruned += some
                if some < PRUNED_AT_ONCE:
                    return pruned

    def within(self, work: Callable[[Connection], T]) -> T:
        """Run statements on other tables of this database, in one transaction.

        Raises:
            LedgerUnavailable: They have changed nothing, or it is not known whether they have.
        """
        with self._guarded():
            self._make_once()
            with self._turn or nullcontext(), self._engine.begin() as connection:
                connection.exec_driver_sql("BEGIN IMMEDIATE" if self.file else postgres.SAFELY)
                return work(connection)

    def now(self, connection: Connection) -> float:
        """The time, in seconds since 1970, by the clock that receipts go by."""
        return self._clock() if self._clock else float(connection.execute(select(CLOCK)).scalar_one())

    def sealed(self, text: str) -> str:
        """A text as the database holds it.

        Raises:
            LedgerUnavailable: It cannot be encrypted now, as while a service with the keys is away.
            PayloadTooLarge: The codec never takes it.
        """
        if self.seal is None or not text:
            return _PLAIN + text if text.startswith(_SEALED) else text
        try:
            return _SEALED + self.seal.sealed(text)
        except PayloadTooLarge:
            raise
        except Exception as error:  # a codec may raise anything
            raise LedgerUnavailable(self.place, f"a text cannot be encrypted: {error}") from error

    def opened(self, text: str) -> str:
        """A text of the database, readable.

        Raises:
            LedgerUnavailable: It is encrypted, and cannot be decrypted.
        """
        if text.startswith(_PLAIN):
            return text.removeprefix(_PLAIN)
        if not text.startswith(_SEALED):
            return text
        if self.seal is None:
            raise LedgerUnavailable(self.place, "its texts are encrypted; give this process the codec of the others")
        try:
            return self.seal.opened(text.removeprefix(_SEALED))
        except Exception as error:  # a codec may raise anything
            raise LedgerUnavailable(self.place, f"a text cannot be decrypted: {error}") from error

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        with self._turn or nullcontext():
            self._close()

    def _close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None
        self._engine.dispose()

    def before_fork(self) -> None:
        """Close a file's connections until the fork is over: with its parent's, a child would have none of SQLite's
        locks, and the next process to close the ledger would delete the log that the child writes to."""
        self._left = self._turn is not None and self._turn.acquire(timeout=BUSY_S)
        if self._left:
            self._close()

    def after_fork(self, *, in_child: bool) -> None:
        """Go on; in a child with connections and locks of its own."""
        if self._left and self._turn is not None:
            self._turn.release()
        if in_child:
            self._turn, self._ready = self._turn and threading.Lock(), threading.Lock()
            self._engine.dispose(close=False)  # the sessions are the parent's, which goes on with them

    def __del__(self) -> None:
        # For users that forget to: from Python 3.13 on, sqlite3 warns of a connection that is left open.
        if not sys.is_finalizing() and hasattr(self, "_kept"):
            self.close()

    # --- transactions

    def _found(self, key: str) -> tuple[LedgerReceipt | None, float]:
        """The receipt, and the time."""
        timed = [] if self._clock else [(self._time, dict[str, Any]())]
        row, *times = self._alone((self._read, {"of": key}), *timed)
        now = self._clock() if self._clock else float((times[0] or (0.0,))[0])
        return None if row is None else self._receipt(row), now

    def _written(self, found: LedgerReceipt | None, changed: LedgerReceipt) -> bool:
        """Write a receipt, unless the stored one is not `found` any more."""
        row: dict[str, Any] = {name: getattr(changed, name) for name in NAMES}
        row["state"] = changed.state.value
        row |= {name: self.sealed(row[name]) for name in ("result", "why") if row[name]}
        if found is None:
            return self._alone((self._add, row))[0] is not None
        seen = {f"seen_{name}": getattr(found, name) for name in SEEN} | {"seen_state": found.state.value}
        return self._alone((self._change, {**row, **seen, "of": found.key}))[0] is not None

    def _receipt(self, row: Sequence[Any]) -> LedgerReceipt:
        values = dict(zip(NAMES, row, strict=True))
        values |= {name: self.opened(values[name]) for name in ("result", "why") if values[name]}
        return LedgerReceipt(**{**values, "state": ReceiptState(values["state"])})

    def _alone(self, *asked: tuple[Statement, Mapping[str, Any]]) -> list[Sequence[Any] | None]:
        """The first row of each statement. In a file each is a transaction of its own; in PostgreSQL all are one."""
        self._make_once()
        if self._turn is not None:
            with self._turn, closing(self._connected().cursor()) as cursor:
                return [statement.run(cursor, values).fetchone() for statement, values in asked]
        with closing(self._engine.raw_connection()) as connection, ExitStack() as cursors:
            driver: Any = connection.driver_connection
            driver.autocommit = True  # the transaction begins and ends with statements, which are sent together
            try:
                ends, *each = [cursors.enter_context(closing(connection.cursor())) for _ in (None, *asked)]
                with self._together(connection):
                    _all(ends, "BEGIN", postgres.SAFELY)
                    for cursor, (statement, values) in zip(each, asked, strict=True):
                        statement.run(cursor, values)
                    ends.execute("COMMIT")
                return [cursor.fetchone() for cursor in each]
            finally:
                try:
                    driver.rollback()  # sends nothing after a commit
                    driver.autocommit = False
                except Exception:  # noqa: BLE001 - the error that led here is the one to raise
                    connection.invalidate()  # else the pool rolls back, too, and logs its failure with a traceback

    def _connected(self) -> PoolProxiedConnection:
        if self._kept is None:
            self._kept = self._engine.raw_connection()
        return self._kept

    def _together(self, connection: PoolProxiedConnection) -> AbstractContextManager[Any]:
        """Within it, statements are sent together and their answers read later: a round trip for all of them."""
        psycopg, driver = self._engine.dialect.loaded_dbapi, connection.driver_connection
        # Not with a library older than PostgreSQL 14's.
        return driver.pipeline() if driver and psycopg.Pipeline.is_supported() else nullcontext()

    @contextmanager
    def _begun(self) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            if not self.file:
                connection.exec_driver_sql(postgres.SAFELY)
            yield connection

    @contextmanager
    def _unhurried(self) -> Iterator[Connection]:
        with self._engine.connect() as connection, nullcontext() if self.file else postgres.unhurried(connection):
            yield connection

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        driver = self._engine.dialect.loaded_dbapi
        try:
            yield
        except (driver.DataError, UnicodeError):
            raise  # no outage: the same value would be refused each time
        except (DBAPIError, driver.Error) as error:
            text = str(error.orig if isinstance(error, DBAPIError) else error)
            said = next((line.strip() for line in text.splitlines() if line.strip()), "it does not answer")
            if getattr(getattr(error, "orig", error), "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                # A deletion, too, is written to the log beside the file first.
                said += (
                    "; free some megabytes there by other means, since deleting needs room itself: `refold ledger "
                    "prune` then makes room for new receipts within the file, which stays as large as it is"
                )
            if getattr(getattr(error, "orig", error), "sqlstate", None) == NO_SUCH_TABLE:
                said += "; restore it, or start the workers again, which makes an empty one"
            raise LedgerUnavailable(self.place, said) from None
        except SQLAlchemyError as error:
            raise LedgerUnavailable(self.place, type(error).__name__) from None
        except OSError as error:
            raise LedgerUnavailable(self.place, error.strerror or type(error).__name__) from None

    # --- the first use

    def _make_once(self) -> None:
        if not self._made:
            with self._ready:
                if not self._made:
                    self._make()
        self._same_file()

    def _make(self) -> None:
        if self.file:
            make_file(self.file, self.place, with_folder=self._make_folder)
        with self._begun() as connection:
            # Looked up first: a role that may only read and write the tables cannot create them, even if they exist.
            if version_of(connection, self.place) != VERSION:
                make_tables(connection, self.place)
        if self.file:
            self._identity = identity_of(self.file)
        self._made = True

    def _same_file(self) -> None:
        # A file that was removed or replaced while it is open still accepts writes, but no process reads them again.
        if self.file and identity_of(self.file) != self._identity:
            said = "it was removed or replaced while this worker used it; put it back, then start the worker again"
            raise LedgerUnavailable(self.place, said)


_STORES: WeakSet[Store] = WeakSet()


def _before_fork() -> None:
    for store in tuple(_STORES):
        store.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for store in tuple(_STORES):
        store.after_fork(in_child=in_child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, in_child=False),
    after_in_child=partial(_after_fork, in_child=True),
)


def _all(cursor: DBAPICursor, *statements: str) -> None:
    for statement in statements:
        cursor.execute(statement)


def store_of(named: str, *, clock: Callable[[], float] | None = None) -> Store:
    """The store that a setting names: a file's path or URL, or a PostgreSQL URL.

    Raises:
        DefinitionError: The setting names an unsupported database.
    """
    return Store(url_of(named), clock=clock)


def store_from_env(environ: Mapping[str, str] = os.environ) -> Store:
    """The store that `REFOLD_LEDGER` names; if unset, a file in the user's data folder, created on first use.

    Raises:
        DefinitionError: The setting names an unsupported database, or this user has no home folder.
    """
    named = environ.get(ENV, "").strip()
    if named:
        return store_of(named)
    data_home = Path(environ.get("XDG_DATA_HOME", ""))
    if not data_home.is_absolute():  # the XDG specification: a relative path is to be ignored
        try:
            data_home = Path("~/.local/share").expanduser()
        except RuntimeError:  # how pathlib says that this user has no home
            raise refused("this user has no home folder; name a file") from None
    return Store(URL.create("sqlite", database=str(data_home / "refold" / "ledger.db")), make_folder=True)
