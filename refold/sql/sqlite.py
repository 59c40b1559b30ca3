"""SQLite files that several processes share."""

from __future__ import annotations

import sqlite3
import time

PATIENCE_S = 5.0
"""How long to try, in seconds."""

STEP_S = 0.005
"""The pause between two tries, in seconds: SQLite's own first ones are as short."""


_OF_A_SERVER = ("current_executions", "history_node")
"""Tables that a Temporal server makes."""


def has_tables_of_a_server(connection: sqlite3.Connection) -> bool:
    """Whether the file has a Temporal server's tasks: `refold dev --db` writes to it, and locks others out.

    Raises:
        sqlite3.Error: The file cannot be read.
    """
    wanted = f"SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name IN {_OF_A_SERVER}"
    return bool(connection.execute(wanted).fetchone()[0] == len(_OF_A_SERVER))


def write_ahead(connection: sqlite3.Connection) -> None:
    """Switch a file to the write-ahead log, which is kept in the file, so that readers and a writer do not wait for
    each other. Tried again, since SQLite fails at once while another process switches the file.

    Raises:
        sqlite3.Error: It cannot be switched, or others use the file for longer than `PATIENCE_S`.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(STEP_S)
        else:
            return
