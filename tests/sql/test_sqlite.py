"""Files that several processes open at the same moment."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from refold.sql.sqlite import write_ahead


class Shared(sqlite3.Connection):
    """A connection to a file that another one reads, until this one was refused for the first time."""

    reader: sqlite3.Connection

    def execute(self, *args: Any) -> sqlite3.Cursor:
        try:
            return super().execute(*args)
        except sqlite3.OperationalError:
            self.reader.rollback()
            raise


def test_a_file_that_another_process_uses_is_switched_once_it_is_free(tmp_path: Path) -> None:
    """
    Where SQLite itself refuses at once: an error here would end a process that merely started beside another one.
    """
    file = tmp_path / "new.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.execute("CREATE TABLE rows (n)")
        reader.execute("BEGIN")
        reader.execute("SELECT n FROM rows").fetchall()
        with closing(sqlite3.connect(file, timeout=0, factory=Shared)) as connection:
            connection.reader = reader

            write_ahead(connection)

            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_what_is_no_database_is_refused_at_once(tmp_path: Path) -> None:
    """
    Trying again would not help.
    """
    file = tmp_path / "new.db"
    file.write_text("something else " * 100)

    with closing(sqlite3.connect(file)) as connection, pytest.raises(sqlite3.DatabaseError, match="not a database"):
        write_ahead(connection)
