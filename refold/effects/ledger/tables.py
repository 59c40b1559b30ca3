"""Tables beside the receipts in the ledger's database, each made when it is first used."""

from __future__ import annotations

import hashlib

from sqlalchemy import Connection, Table, func, inspect, select
from sqlalchemy.schema import CreateTable

from refold.effects.ledger.store import Store


def make(store: Store, connection: Connection, table: Table) -> None:
    """Make a table, in this transaction, if the database does not have it."""
    # Looked up first: a role that may only read and write the table cannot create it, even if it exists.
    if not is_there(connection, table):
        alone(store, connection, table.name)  # two that create it at once would fail in PostgreSQL
        connection.execute(CreateTable(table, if_not_exists=True))


def make_now(store: Store, *tables: Table) -> None:
    """Make tables before they are used: `refold ledger` does so with a role that may, which a worker's may not.

    Raises:
        LedgerUnavailable: They cannot be made.
    """

    def made(connection: Connection) -> None:
        for table in tables:
            make(store, connection, table)

    store.within(made)


def is_there(connection: Connection, table: Table) -> bool:
    """Whether the database has a table."""
    return inspect(connection).has_table(table.name)


def alone(store: Store, connection: Connection, name: str) -> None:
    """Wait for others that write under this name, until they have committed; in SQLite every write waits anyway."""
    if store.file is None:
        lock = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], signed=True)
        connection.execute(select(func.pg_advisory_xact_lock(lock)))
