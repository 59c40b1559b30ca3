"""How a ledger's file and tables are made, on first use, and brought to the version of this release."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Connection, func, insert, inspect, select, update
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable

from refold.effects.ledger.receipts import ENV, LedgerUnavailable
from refold.effects.ledger.statements import BY_AGE, BY_TASK, RECEIPTS, SCHEMA

VERSION = 3
LOCK = 0x7265666F6C64  # any number that nobody else locks: "refold"

_MAKING = threading.Lock()
"""Held while a file is made, so that nothing else of this process has opened it before it is closed again."""

_PART = "ledger"


def make_file(file: Path, place: str, *, with_folder: bool) -> None:
    """Make the file, readable by this user alone, unless it is there.

    Raises:
        LedgerUnavailable: Its folder does not exist, and is not made here.
        OSError: It cannot be made, or not be read and written.
    """
    if with_folder:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    elif not file.parent.is_dir():
        raise LedgerUnavailable(place, f"the folder {file.parent} does not exist; make it, or correct {ENV}")
    # Receipts hold tool results, so only this user may read them. SQLite gives its other files the same mode.
    # A file that is there is not opened: to close any descriptor of it would drop all locks that SQLite holds on it
    # in this process, and the next process to close the ledger would delete the log that is written to here.
    with _MAKING, suppress(FileExistsError):
        os.close(os.open(file.resolve(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    if not os.access(file, os.R_OK | os.W_OK):  # SQLite would say less
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def identity_of(file: Path) -> tuple[int, int] | None:
    """The device and inode of a file, which a new file of the same name does not share; None if there is no file."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def version_of(connection: Connection, place: str) -> int | None:
    """The version of the tables that are there; None if there are none.

    Raises:
        LedgerUnavailable: A newer refold has made them.
    """
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    found: int | None = connection.scalar(select(SCHEMA.c.version).where(SCHEMA.c.part == _PART))
    if found is not None and found > VERSION:
        said = f"a newer refold has made it (version {found}, known here: {VERSION}); upgrade this worker"
        raise LedgerUnavailable(place, said)
    return found


def make_tables(connection: Connection, place: str) -> None:
    """Make the tables, or bring those of an earlier release to today's version."""
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        # Without the lock, two workers that start together would both create the tables, and one would fail.
        connection.execute(select(func.pg_advisory_xact_lock(LOCK)))
    for table in (SCHEMA, RECEIPTS):
        connection.execute(CreateTable(table, if_not_exists=True))
    found = version_of(connection, place)
    if found == 1:
        for name in ("undone", "undone_by"):
            added = CreateColumn(RECEIPTS.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {RECEIPTS.name} ADD COLUMN {added}")
    connection.execute(CreateIndex(BY_AGE, if_not_exists=True))
    if found is None:
        connection.execute(CreateIndex(BY_TASK, if_not_exists=True))  # of receipts that are there: `make_index`
        connection.execute(insert(SCHEMA), {"part": _PART, "version": VERSION})
    else:
        connection.execute(update(SCHEMA).where(SCHEMA.c.part == _PART), {"version": VERSION})
