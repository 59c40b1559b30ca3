"""A store for `refold.task_lifecycle` in a SQLite file: the source's two tables, state and move in one transaction.

For programs without a server. Tasks on a server need no store: see `refold.projection` for their tables.
Source: S3.56, S3.57, S3.59.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from refold.core.errors import DefinitionError
from refold.core.lifecycle import TaskEvent, TaskState
from refold.engine.arguments import defining, takes
from refold.sql.sqlite import has_tables_of_a_server, write_ahead
from refold.task_lifecycle import StateTransition, StoredTask, refuse_stale

BUSY_S = 5.0
"""How long a write waits for another process's write, in seconds."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS task_checkpoints (
    task_id TEXT PRIMARY KEY, state TEXT NOT NULL, retry_count INTEGER NOT NULL, checkpoint_data TEXT NOT NULL,
    version INTEGER NOT NULL, updated_at TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS state_transitions (
    id INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, from_state TEXT NOT NULL, to_state TEXT NOT NULL,
    event TEXT NOT NULL, timestamp TEXT NOT NULL, metadata TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS by_task ON state_transitions (task_id, timestamp);
"""


@takes(defining("SqlitePersistence", "store"))
class SqlitePersistence:
    """Tasks in a SQLite file, for all processes of one host; see `StatePersistence`.

    Each write is on the disk before it is reported. Any number of tasks share a file.
    """

    def __init__(self, path: Path | str, clock: Callable[[], datetime] | None = None) -> None:
        """Make the file and its tables, if they are missing.

        Args:
            path: The file; its folder must be there.
            clock: Supplies the time, aware; None takes the machine's.

        Raises:
            DefinitionError: The file has another program's tables of these names, or is that of a development server;
                nothing is changed there.
            sqlite3.Error: The file cannot be opened, or is no database.
        """
        self.path = Path(path)
        self._clock = clock or _now
        try:
            with closing(self._connect()) as db:
                if problem := _problem_with(db):
                    raise DefinitionError(str(path), [f"{problem}; name another file"], what="store")
                write_ahead(db)
                db.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise type(error)(f"{path}: {error}") from error

    def now(self) -> datetime:
        """See `StatePersistence.now`."""
        return self._clock()

    def load(self, task_id: str) -> StoredTask | None:
        """See `StatePersistence.load`.

        Raises:
            sqlite3.Error: The file cannot be read.
        """
        wanted = "SELECT state, retry_count, checkpoint_data, version, updated_at FROM task_checkpoints WHERE task_id=?"
        with closing(self._connect()) as db:
            found = db.execute(wanted, [task_id]).fetchone()
        if found is None:
            return None
        state, retries, checkpoint, version, at = found
        return StoredTask(
            task_id=task_id,
            state=TaskState(state),
            retry_count=retries,
            checkpoint=json.loads(checkpoint),
            version=version,
            updated_at=datetime.fromisoformat(at),
        )

    def save(self, stored: StoredTask, transition: StateTransition | None) -> None:
        """See `StatePersistence.save`.

        Raises:
            InputRejected: Another process changed the task meanwhile.
            sqlite3.Error: The file cannot be written; nothing was stored.
        """
        with self._transaction() as db:
            held = db.execute("SELECT version FROM task_checkpoints WHERE task_id=?", [stored.task_id]).fetchone()
            refuse_stale(stored, 0 if held is None else held[0])
            row = [stored.task_id, stored.state.value, stored.retry_count, json.dumps(dict(stored.checkpoint))]
            db.execute(
                "INSERT OR REPLACE INTO task_checkpoints VALUES (?, ?, ?, ?, ?, ?)",
                [*row, stored.version, stored.updated_at.isoformat()],
            )
            if transition is not None:
                states = [transition.from_state.value, transition.to_state.value, transition.event.value]
                db.execute(
                    "INSERT INTO state_transitions (task_id, from_state, to_state, event, timestamp, metadata) "
                    "VALUES (?, ?, ?, ?, ?, ?)",
                    [
                        transition.task_id,
                        *states,
                        transition.timestamp.isoformat(),
                        json.dumps(dict(transition.metadata)),
                    ],
                )

    def history(self, task_id: str) -> Sequence[StateTransition]:
        """See `StatePersistence.history`.

        Raises:
            sqlite3.Error: The file cannot be read.
        """
        wanted = (
            "SELECT from_state, to_state, event, timestamp, metadata FROM state_transitions WHERE task_id=? ORDER BY id"
        )
        with closing(self._connect()) as db:
            rows = db.execute(wanted, [task_id]).fetchall()
        return [
            StateTransition(
                task_id=task_id,
                from_state=TaskState(source),
                to_state=TaskState(target),
                event=TaskEvent(event),
                timestamp=datetime.fromisoformat(at),
                metadata=json.loads(metadata),
            )
            for source, target, event, at, metadata in rows
        ]

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, isolation_level=None, timeout=BUSY_S)
        try:
            db.execute("PRAGMA synchronous=FULL")
        except sqlite3.Error:  # it is no database
            db.close()
            raise
        return db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connect()) as db:
            db.execute("BEGIN IMMEDIATE")  # takes the write lock at once, so that the version read is the newest
            try:
                yield db
            except BaseException:
                db.execute("ROLLBACK")
                raise
            db.execute("COMMIT")


def _problem_with(db: sqlite3.Connection) -> str:
    """Why the file is not this store's; empty if it is, or may become so."""
    if has_tables_of_a_server(db):
        return "it has the tasks of a Temporal server, which writes to it (`refold dev --db`)"
    with closing(sqlite3.connect(":memory:")) as own:
        own.executescript(_SCHEMA)
        for table in ("task_checkpoints", "state_transitions"):
            there, ours = _columns(db, table), _columns(own, table)
            if there and there != ours:
                return (
                    f"its table {table} has the columns {', '.join(there)}, and a store's has {', '.join(ours)}, so "
                    "another program made it, such as `refold project`"
                )
    return ""


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]


def _now() -> datetime:
    return datetime.now(UTC)
