"""Where a ledger is: what its setting names, what is refused, and how its database is connected to."""

from __future__ import annotations

import select
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, InvalidatePoolError, NoSuchModuleError

from refold.core.errors import DefinitionError
from refold.effects.ledger.receipts import ENV
from refold.sql import postgres
from refold.sql.sqlite import write_ahead

BUSY_S = 5.0
"""How long a write waits for another process's write, in seconds, before it fails with `LedgerUnavailable`."""


def url_of(named: str) -> URL:
    """The database that a setting names: a file's path or URL, or a PostgreSQL URL.

    Raises:
        DefinitionError: The setting is no path and no URL.
    """
    if "://" not in named:
        if named.startswith(("postgresql:", "postgres:", "sqlite:")):  # else it would be a file of this name
            raise refused(f"{named.partition(':')[0]}: is followed by two slashes; name a file, or postgresql://…")
        return URL.create("sqlite", database=named)
    try:
        url = make_url(named)
    except (ArgumentError, ValueError):  # a port that is no number is a ValueError
        raise not_a_url() from None
    if "@" in (url.host or ""):  # errors that name the host would show a part of the password
        raise refused("its user or password has an @; write it as %40")
    return url.set(drivername="postgresql+psycopg") if url.drivername == "postgresql" else url


def file_of(url: URL) -> Path | None:
    """The SQLite file that a URL names; None for PostgreSQL.

    Raises:
        DefinitionError: No ledger can be kept there.
    """
    if url.get_backend_name() == "postgresql":
        return None
    if url.get_backend_name() != "sqlite":
        raise refused(f"{url.get_backend_name()!r} is not supported: name a file, or postgresql://…")
    if not url.database or url.database == ":memory:":
        raise refused("a ledger in memory is lost with its process: name a file")
    file = Path(url.database).expanduser().absolute()
    if file.is_dir():
        raise refused(f"{file} is a folder: name a file in it, such as {file / 'ledger.db'}")
    if file.exists() and not file.is_file():
        raise refused(f"{file} is no regular file: name one, or postgresql://…")
    if file.exists() and _is_something_else(file):
        raise refused(f"{file} is no SQLite database: name another file, or restore it from a backup if it was one")
    return file


def _is_something_else(file: Path) -> bool:
    """Whether a file is no database; asked of SQLite, whose locks in this process any other descriptor would drop."""
    try:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", timeout=0, uri=True)) as connection:
            connection.execute("PRAGMA schema_version")
    except sqlite3.Error as error:
        return error.sqlite_errorcode == sqlite3.SQLITE_NOTADB
    return False


def place_of(url: URL) -> str:
    """A PostgreSQL database as errors name it, without user and password."""
    host = url.host or url.query.get("host") or "this host"
    return f"the PostgreSQL database {url.database or 'of the user'} on {host}"


def sqlite_engine(file: Path) -> Engine:
    """Connections to a file: a commit is on the disk (fsync) before it is reported."""
    engine = create_engine(
        URL.create("sqlite", database=str(file)), connect_args={"timeout": BUSY_S, "isolation_level": None}
    )

    @event.listens_for(engine, "connect")
    def connected(connection: sqlite3.Connection, _record: object) -> None:
        write_ahead(connection)
        connection.execute("PRAGMA synchronous=FULL")

    return engine


def postgres_engine(url: URL) -> Engine:
    """Connections to a PostgreSQL database.

    Raises:
        DefinitionError: There is no such driver, or it is not installed.
    """
    try:
        engine = postgres.engine_of(url, {"application_name": "refold-ledger"}, pool_size=8)
    except NoSuchModuleError:
        raise not_a_url() from None
    except ModuleNotFoundError:
        raise refused("PostgreSQL needs a driver: pip install 'refold[postgres]'") from None
    event.listen(engine, "checkout", _still_there)
    return engine


def _still_there(connection: Any, *_: object) -> None:
    """Notice a connection that the server has closed, without a round trip: an idle one has nothing to read.

    One that broke in silence fails with its first statement, when nothing has changed yet.
    """
    waiting = select.poll()
    waiting.register(connection.pgconn.socket, select.POLLIN)
    if waiting.poll(0):
        raise InvalidatePoolError  # the others are as old


def refused(problem: str) -> DefinitionError:
    """What is wrong with the setting."""
    return DefinitionError(ENV, [problem], what="ledger")


def not_a_url() -> DefinitionError:
    """For a setting that SQLAlchemy cannot read."""
    return refused("it is no database URL; name a file, or postgresql://user@host/database")
