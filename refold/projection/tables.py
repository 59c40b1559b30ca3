"""The two tables, in a SQLite file or in PostgreSQL, made on first use.

Each call of `take` is one transaction that reads how far the task is projected and writes what comes after, so a
projector may be killed at any moment, and several may run at once: no row is missing, and none is there twice.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import JsonValue
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    create_engine,
    delete,
    event,
    func,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from refold.core.errors import DefinitionError, RefoldError
from refold.core.fold.journal import Entry
from refold.core.lifecycle import TaskState
from refold.engine.arguments import defining, takes
from refold.projection.rows import TaskRow, TransitionRow, after, id_of
from refold.sql import postgres
from refold.sql.sqlite import has_tables_of_a_server, write_ahead

T = TypeVar("T")
_LOCK = 0x70726F6A  # any number that nobody else locks: "proj"
_AT_ONCE = 1_000
"""The most tasks whose rows are deleted in one transaction, and the most rows that are dumped in one."""

_NAMED = {"application_name": "refold-projection"}
_METADATA = MetaData()

TASKS = Table(
    "task_checkpoints",
    _METADATA,
    Column("task_id", Text, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("retry_count", Integer, nullable=False),
    Column("checkpoint_data", Text, nullable=False),
    Column("updated_at", String(40), nullable=False),
)
TRANSITIONS = Table(
    "state_transitions",
    _METADATA,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("task_id", Text, nullable=False),
    Column("from_state", String(16), nullable=False),
    Column("to_state", String(16), nullable=False),
    Column("event", String(32), nullable=False),
    Column("timestamp", String(40), nullable=False),
    Column("metadata", Text, nullable=False),
)
Index("state_transitions_by_task", TRANSITIONS.c.task_id, TRANSITIONS.c.timestamp)
_MADE = Table(
    "refold_made",
    _METADATA,
    Column("task_id", Text, primary_key=True),
    Column("number", Integer, nullable=False),
)
"""How many transitions each task has."""

_TOLD = Table(
    "refold_told",
    _METADATA,
    Column("task_id", Text, primary_key=True),
    Column("number", Integer, nullable=False),
)
"""Up to which transition hooks have been told of a task; stays when the two tables are made anew."""

_CLEARED = Table(
    "refold_cleared",
    _METADATA,
    Column("task_id", Text, primary_key=True),
    Column("began", String(40), nullable=False),
)
"""When each task that `clear` has removed made its first transition, which tells it from another task of its id."""


class ProjectionUnavailable(RefoldError):
    """The projection's database does not answer, or refuses. Nothing has changed, or all of one call has."""


class RowRefused(ProjectionUnavailable):
    """The database refuses a row, such as by a trigger that somebody added; it may take other rows."""


class Emptied(RefoldError):
    """The tables were emptied since a task's entries were asked for; these entries alone would leave a gap."""


class Gap(RefoldError):
    """Entries between those that are projected and those that came are missing; nothing is written."""


class Projection:
    """The two tables. Its methods block; thread-safe.

    The first call makes the tables. It raises `DefinitionError` if the database has tables of these names with other
    columns, such as those of `refold.task_store.SqlitePersistence`, or if it is the file of a development server, and
    changes nothing there.

    Attributes:
        place: The file or database, without user and password.
    """

    @takes(defining("Projection", "projection"))
    def __init__(self, named: str | Path) -> None:
        """Open nothing yet.

        Args:
            named: A file, or `postgresql://user@host/database`.

        Raises:
            DefinitionError: It names a folder, nothing, or an unsupported database, or the driver is not installed.
        """
        named = str(named)
        if "://" not in named and (not named.strip() or Path(named).is_dir()):
            raise DefinitionError(named, ["it is no file; name a file, or postgresql://…"], what="projection")
        try:
            url = make_url(named) if "://" in named else URL.create("sqlite", database=str(Path(named).absolute()))
            if url.drivername == "postgresql":
                url = url.set(drivername="postgresql+psycopg")
            if url.get_backend_name() not in ("sqlite", "postgresql"):
                raise DefinitionError(url.get_backend_name(), ["name a file, or postgresql://…"], what="projection")
            sqlite = url.get_backend_name() == "sqlite"
            self._engine = create_engine(url) if sqlite else postgres.engine_of(url, _NAMED, pool_pre_ping=True)
        except (ArgumentError, NoSuchModuleError, ValueError):  # a port that is no number is a ValueError
            raise DefinitionError(
                "", ["it is no database URL; name a file, or postgresql://…"], what="projection"
            ) from None
        except ModuleNotFoundError:
            raise DefinitionError(
                "", ["PostgreSQL needs a driver: pip install 'refold[postgres]'"], what="projection"
            ) from None
        self._sqlite = sqlite
        self.place = (
            f"the file {url.database}" if self._sqlite else f"the database {url.database} on {url.host or 'this host'}"
        )
        self._file = url.database if self._sqlite else None
        self._made = False
        self._identity: tuple[int, int] | None = None
        if self._sqlite:
            event.listen(self._engine, "connect", _settings)

    def take(self, task_id: str, skill: str, entries: Sequence[Entry], *, after: int = 0) -> TaskRow:
        """Project a task's next entries; those that are projected already are skipped.

        Args:
            task_id: The task.
            skill: Its skill.
            entries: In order, without gaps, from entry `row(task_id).seq + 1` on or earlier.
            after: The number after which they were asked for.

        Raises:
            ProjectionUnavailable: The database does not answer.
            Emptied: Another process has emptied the tables meanwhile; nothing is written.
            Gap: Entries between the projected ones and these are missing.
        """
        return self._within(lambda connection: self._take(connection, task_id, skill, entries, after), writes=True)

    def row(self, task_id: str) -> TaskRow:
        """A task as it is projected; an empty row for one that is not.

        Raises:
            ProjectionUnavailable: The database does not answer.
        """
        return self._within(lambda connection: _row(connection, task_id, ""))

    def untold(self, after: str = "", tasks: int = 100) -> list[list[TransitionRow]]:
        """Transitions that hooks have not received, in order for each task: one page of tasks, by id.

        Args:
            after: The id of the last task that was looked at; empty begins.
            tasks: The most tasks.

        Raises:
            ProjectionUnavailable: The database does not answer.
        """
        known = func.coalesce(_TOLD.c.number, 0)
        behind = (
            select(_MADE.c.task_id, known.label("told"))
            .outerjoin(_TOLD, _TOLD.c.task_id == _MADE.c.task_id)
            .where(_MADE.c.number > known, _MADE.c.task_id > after)
            .order_by(_MADE.c.task_id)
            .limit(tasks)
        )

        def read(connection: Connection) -> list[list[TransitionRow]]:
            found = []
            for row in connection.execute(behind).all():
                mine = select(TRANSITIONS).where(TRANSITIONS.c.task_id == row.task_id)
                made = sorted(map(_transition, connection.execute(mine)), key=lambda one: one.number)
                if untold := made[row.told :]:  # none where another process has emptied the tables meanwhile
                    found.append(untold)
            return found

        return self._within(read)

    def told(self, transition: TransitionRow) -> None:
        """Record that hooks have received a transition, and all before it.

        Changes nothing if another task has the id by now, or hooks have received later transitions. Counts also where
        `clear` has removed the task meanwhile.

        Raises:
            ProjectionUnavailable: The database does not answer.
        """
        task_id, number = transition.task_id, transition.number
        there = select(TRANSITIONS.c.timestamp).where(TRANSITIONS.c.id == transition.id)
        cleared = select(_CLEARED.c.began).where(_CLEARED.c.task_id == task_id)
        known = select(_TOLD.c.number).where(_TOLD.c.task_id == task_id)

        def write(connection: Connection) -> None:
            same = connection.execute(there).scalar() == transition.at.isoformat()
            if (began := connection.execute(cleared).scalar()) is not None:  # a task before that one ended earlier
                same = datetime.fromisoformat(began) <= transition.at
            if same and number > (connection.execute(known).scalar() or 0):
                _put(connection, _TOLD, task_id, number)

        self._within(write, writes=True)

    def forget(self, row: TaskRow) -> bool:
        """Delete a task's rows, and the record of what hooks received of it: another task has its id now.

        Args:
            row: The task as it was read. Where another process has changed it since, nothing is deleted.

        Returns:
            Whether the rows were deleted.

        Raises:
            ProjectionUnavailable: The database does not answer.
        """

        def write(connection: Connection) -> bool:
            now = _row(connection, row.task_id, row.skill)
            if (now.seq, now.updated_at) != (row.seq, row.updated_at):
                return False
            for table in (TRANSITIONS, TASKS, _MADE, _TOLD, _CLEARED):
                connection.execute(delete(table).where(table.c.task_id == row.task_id))
            return True

        return self._within(write, writes=True)

    def clear(self) -> None:
        """Empty the two tables, to project again. What hooks have received stays recorded: none is called twice.

        Unless another task has the id by then, whose transitions they have not received.

        Raises:
            ProjectionUnavailable: The database does not answer.
        """

        def write(connection: Connection) -> str | None:
            some = select(TASKS.c.task_id).where(TASKS.c.task_id > last).order_by(TASKS.c.task_id).limit(_AT_ONCE)
            ids = connection.execute(some).scalars().all()
            connection.execute(delete(_CLEARED).where(_CLEARED.c.task_id.in_(ids)))
            first = TRANSITIONS.c.id.in_([id_of(task_id, 1) for task_id in ids])
            began = select(TRANSITIONS.c.task_id, TRANSITIONS.c.timestamp).where(first)
            connection.execute(insert(_CLEARED).from_select(["task_id", "began"], began))
            for table in (TRANSITIONS, TASKS, _MADE):
                connection.execute(delete(table).where(table.c.task_id.in_(ids)))
            return ids[-1] if ids else None

        last: str | None = ""
        while last is not None:  # some at a time: a transaction has a time limit, and others wait for it
            last = self._within(write, writes=True)

    def cleared(self) -> list[str]:
        """The ids of the tasks that `clear` has removed, and of which nobody has projected a transition since.

        Raises:
            ProjectionUnavailable: The database does not answer.
        """
        return self._within(lambda connection: [*connection.execute(select(_CLEARED.c.task_id)).scalars()])

    def dump(self) -> Iterator[str]:
        """Both tables as lines of JSON, in an order of their own: equal for equal tables that nobody writes to.

        Raises:
            ProjectionUnavailable: The database does not answer.
        """
        for table, key in ((TASKS, TASKS.c.task_id), (TRANSITIONS, TRANSITIONS.c.id)):
            wanted = select(table).order_by(key).limit(_AT_ONCE)
            rows = self._read(wanted)
            while rows:
                yield from (json.dumps(row, ensure_ascii=False) for row in rows)
                rows = self._read(wanted.where(key > rows[-1][key.name]))

    def _read(self, wanted: Select[Any]) -> list[dict[str, Any]]:
        return self._within(lambda connection: [dict(row) for row in connection.execute(wanted).mappings()])

    def close(self) -> None:
        """Close the connections; the next call opens new ones."""
        self._engine.dispose()

    def __del__(self) -> None:
        # For users that forget to: from Python 3.13 on, sqlite3 warns of a connection that is left open. As a process
        # ends, Python may have emptied this module.
        if sys is not None and not sys.is_finalizing() and hasattr(self, "_engine"):
            self.close()

    def _take(self, connection: Connection, task_id: str, skill: str, entries: Sequence[Entry], asked: int) -> TaskRow:
        before = _row(connection, task_id, skill)
        if before.seq < asked:
            raise Emptied(f"the projection in {self.place} was emptied while task {task_id!r} was read")
        if entries and before.seq and entries[0].seq > before.seq + 1:
            raise Gap(
                f"task {task_id!r} is projected up to entry {before.seq}; entry {entries[0].seq} came next: "
                "`refold project --rebuild` makes the tables anew"
            )
        row, made = after(before, entries)
        if row == before or not row.number:  # a task's row begins with its first transition
            return before
        assert row.updated_at is not None, "an entry has a time"
        values: dict[str, Any] = {
            "state": row.state.value,
            "retry_count": row.retry_count,
            "checkpoint_data": _json(row.data),
            "updated_at": row.updated_at.isoformat(),
        }
        if before.seq:
            connection.execute(update(TASKS).where(TASKS.c.task_id == task_id).values(values))
        else:
            connection.execute(insert(TASKS), {"task_id": task_id, **values})
        if before.number == 0:
            _forget_told_of_another(connection, made[0])
        if made:
            connection.execute(insert(TRANSITIONS), [_values(one) for one in made])
            _put(connection, _MADE, task_id, row.number)
        return row

    def _within(self, work: Callable[[Connection], T], *, writes: bool = False) -> T:
        try:
            if not self._made:
                with self._transaction(writes=True) as connection:
                    self._refuse_others(connection)
                    _METADATA.create_all(connection)
                self._identity = self._identified()
                self._made = True
            # A file that was removed or replaced while it is open still accepts writes, but nobody reads them.
            if self._identified() != self._identity:
                said = "it was removed or replaced while this process wrote to it; start the command again"
                raise ProjectionUnavailable(f"the projection in {self.place} stands still: {said}")
            with self._transaction(writes=writes) as connection:
                return work(connection)
        except SQLAlchemyError as error:
            said = str(getattr(error, "orig", None) or type(error).__name__).strip().splitlines()[0]
            if _of_a_row(error):
                raise RowRefused(
                    f"the projection in {self.place} refuses a row: {said}; remove what refuses it there, such as a "
                    "trigger or a constraint, or name another database"
                ) from None
            raise ProjectionUnavailable(f"the projection in {self.place} does not answer: {said}") from None

    def _identified(self) -> tuple[int, int] | None:
        """What tells the file from another of its name; None where there is none."""
        if self._file is None:
            return None
        try:
            found = Path(self._file).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _refuse_others(self, connection: Connection) -> None:
        known = inspect(connection)
        if self._sqlite and has_tables_of_a_server(cast(sqlite3.Connection, connection.connection.driver_connection)):
            problem = "it has the tasks of a Temporal server, which writes to it (`refold dev --db`); name another file"
            raise DefinitionError(self.place, [problem], what="projection")
        for table in _METADATA.sorted_tables:
            if known.has_table(table.name):
                there = {one["name"] for one in known.get_columns(table.name)}
                ours = {column.name for column in table.columns}
                more, drop = "has, besides ours, the column", "or drop the table if nobody needs it"
                for what, names, way_out in (
                    ("has no column", ours - there, drop),
                    (more, there - ours, f"remove the column if somebody added it by hand, {drop}"),
                ):
                    if names:
                        problem = (
                            f"its table {table.name} {what} {', '.join(sorted(names))}, so another program or release "
                            f"made it; name another database, {way_out}"
                        )
                        raise DefinitionError(self.place, [problem], what="projection")

    @contextmanager
    def _transaction(self, *, writes: bool) -> Iterator[Connection]:
        with self._engine.begin() as connection:
            if self._sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
            else:
                connection.exec_driver_sql(postgres.SAFELY)
                if writes:  # one writer at a time: two that project a task for the first time see no row to lock
                    connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            yield connection


def _of_a_row(error: SQLAlchemyError) -> bool:
    """Whether the database refuses a row. SQLAlchemy has no class for what a trigger of PostgreSQL raises."""
    state = str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")
    return isinstance(error, DataError | IntegrityError) or state == "P0001" or state[:2] in ("22", "23", "44")


def _settings(connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # the transaction is begun by hand, with its lock
    connection.execute("PRAGMA busy_timeout=10000")
    write_ahead(connection)


def _put(connection: Connection, table: Table, task_id: str, number: int) -> None:
    if not connection.execute(update(table).where(table.c.task_id == task_id).values(number=number)).rowcount:
        connection.execute(insert(table), {"task_id": task_id, "number": number})


def _forget_told_of_another(connection: Connection, first: TransitionRow) -> None:
    """Forget what hooks received of the task that `clear` has removed, if this one is another of its id."""
    mine = _CLEARED.c.task_id == first.task_id
    began = connection.execute(select(_CLEARED.c.began).where(mine)).scalar()
    if began is None:
        return
    connection.execute(delete(_CLEARED).where(mine))
    if began != first.at.isoformat():
        connection.execute(delete(_TOLD).where(_TOLD.c.task_id == first.task_id))


def _row(connection: Connection, task_id: str, skill: str) -> TaskRow:
    found = connection.execute(select(TASKS).where(TASKS.c.task_id == task_id)).first()
    if found is None:
        return TaskRow(task_id=task_id, skill=skill)
    data = json.loads(found.checkpoint_data)
    return TaskRow(
        task_id=task_id,
        skill=data["skill"],
        seq=data["seq"],
        number=data["number"],
        state=TaskState(found.state),
        retry_count=found.retry_count,
        effects=data["effects"],
        updated_at=datetime.fromisoformat(found.updated_at),
    )


def _values(one: TransitionRow) -> dict[str, Any]:
    return {
        "id": one.id,
        "task_id": one.task_id,
        "from_state": one.from_state.value,
        "to_state": one.to_state.value,
        "event": one.event,
        "timestamp": one.at.isoformat(),
        "metadata": _json(one.metadata),
    }


def _transition(row: Any) -> TransitionRow:
    known = json.loads(row.metadata)
    return TransitionRow(
        task_id=row.task_id,
        from_state=TaskState(row.from_state),
        to_state=TaskState(row.to_state),
        event=row.event,
        at=datetime.fromisoformat(row.timestamp),
        **known,
    )


def _json(value: JsonValue) -> str:
    return json.dumps(_without_zero(value))  # in ASCII, which every encoding of a database has


def _without_zero(value: JsonValue) -> JsonValue:
    """The value with no zero character in any text, which PostgreSQL cannot store."""
    match value:
        case str():
            return value.replace("\0", "\ufffd")
        case list():
            return [_without_zero(one) for one in value]
        case dict():
            return {name.replace("\0", "\ufffd"): _without_zero(one) for name, one in value.items()}
        case _:
            return value
