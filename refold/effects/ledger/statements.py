"""The ledger's table, and the statements that change it, compiled for the driver once.

A change finds the receipt as it was read (`SEEN`), and changes nothing where another process was faster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    ClauseElement,
    Column,
    Dialect,
    Float,
    Index,
    Insert,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
    bindparam,
    delete,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine.interfaces import DBAPICursor
from sqlalchemy.sql.compiler import SQLCompiler

from refold.effects.ledger.receipts import ReceiptState

PRUNED_AT_ONCE = 1000
"""The most receipts that one statement deletes, so that nobody waits long for it."""

_METADATA = MetaData()

RECEIPTS = Table(
    "refold_receipts",
    _METADATA,
    Column("key", String(64), primary_key=True),
    Column("tool", Text, nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("fence", Integer, nullable=False),
    Column("lease_until", Float(53), nullable=False),
    Column("holder", Text, nullable=False),
    Column("result", Text),
    Column("why", Text, nullable=False),
    Column("task_id", Text, nullable=False),
    Column("invocation_id", Text, nullable=False),
    Column("began_at", Float(53), nullable=False),
    Column("changed_at", Float(53), nullable=False),
    Column("undone", Integer, nullable=False, server_default="0"),
    Column("undone_by", Text, nullable=False, server_default=""),
    sqlite_with_rowid=False,  # one page to write instead of two
)
BY_AGE = Index("refold_receipts_changed_at", RECEIPTS.c.changed_at)
BY_TASK = Index("refold_receipts_task_id", RECEIPTS.c.task_id)
SCHEMA = Table(
    "refold_schema",
    _METADATA,
    Column("part", String(32), primary_key=True),
    Column("version", Integer, nullable=False),
)

CLOCK = literal_column("extract(epoch FROM clock_timestamp())::double precision", Float)

READ = select(RECEIPTS).where(RECEIPTS.c.key == bindparam("of", type_=String))
NAMES = [column.name for column in RECEIPTS.c]
SEEN = ("state", "fence", "changed_at")
"""The columns of which every change of a receipt changes one."""

CHANGE = (
    update(RECEIPTS)
    .where(RECEIPTS.c.key == bindparam("of", type_=String))
    .where(*(RECEIPTS.c[name] == bindparam(f"seen_{name}", type_=RECEIPTS.c[name].type) for name in SEEN))
    .returning(RECEIPTS.c.key)
)
# Never pruned: what may have happened without a known outcome, and a count of compensations, which is part of the key
# that the receiver gets.
_OLD = and_(
    RECEIPTS.c.changed_at < bindparam("before"),
    RECEIPTS.c.state.in_([ReceiptState.DONE.value, ReceiptState.RELEASED.value]),
    RECEIPTS.c.undone == 0,
)
_SOME_OLD = select(RECEIPTS.c.key).where(_OLD).limit(PRUNED_AT_ONCE).scalar_subquery()
# Asked twice: in PostgreSQL a receipt may change between the inner statement and the deletion.
PRUNE = delete(RECEIPTS).where(_OLD, RECEIPTS.c.key.in_(_SOME_OLD))


def adding(dialect: Dialect) -> postgresql.Insert | sqlite.Insert:
    """A statement that adds a receipt; its caller says what to do if the key has one already."""
    return postgresql.insert(RECEIPTS) if dialect.name == "postgresql" else sqlite.insert(RECEIPTS)


def keeping(dialect: Dialect, *, its_clock: bool) -> tuple[Insert, Dialect, list[str]]:
    """A statement that adds a receipt unless its key has one, and returns the one that is there then."""
    added = adding(dialect)
    times = ("began_at", "changed_at") if its_clock else ()
    if times:
        added = added.values(dict.fromkeys(times, CLOCK))
    unchanged = {"key": RECEIPTS.c.key}  # a statement that does nothing would return nothing
    kept = added.on_conflict_do_update(index_elements=["key"], set_=unchanged).returning(*RECEIPTS.c)
    return kept, dialect, [name for name in NAMES if name not in times]


class Statement:
    """A statement, compiled once. The driver executes it, since executing by SQLAlchemy takes longer than the disk."""

    def __init__(self, statement: ClauseElement, dialect: Dialect, sets: list[str] | None = None) -> None:
        compiled = statement.compile(dialect=dialect, column_keys=sets)
        assert isinstance(compiled, SQLCompiler)
        self._sql = compiled.string
        self._order = compiled.positiontup

    def run(self, cursor: DBAPICursor, values: Mapping[str, Any]) -> DBAPICursor:
        cursor.execute(self._sql, values if self._order is None else [values[name] for name in self._order])
        return cursor
