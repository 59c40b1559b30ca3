"""The table of refused updates, in the ledger's database.

Its size is bounded: equal refusals of a task are one row with a count, and a task has the newest `PER_TASK` rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)

from refold.effects.ledger.refused import Refusal
from refold.effects.ledger.store import Store
from refold.effects.ledger.tables import is_there, make, make_now

PER_TASK = 100
"""How many different refusals of one task are kept: the newest."""

_TABLE = Table(
    "refold_refusals",
    MetaData(),
    Column("task_id", Text, primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("trigger", Text, nullable=False),
    Column("by_whom", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("times", Integer, nullable=False),
    Column("first_at", Float(53), nullable=False),
    Column("last_at", Float(53), nullable=False),
)


class RefusedTable:
    """Refusals in a ledger's database; the table is made when the first one is written.

    With a seal the database holds names and reasons encrypted.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def add(self, refusals: Sequence[Refusal]) -> None:
        """Add refusals to those in the database.

        Raises:
            LedgerUnavailable: They are not written, or it is not known whether they are.
        """
        self.store.within(lambda connection: self._write(connection, refusals))

    def newest(self, task_id: str | None = None, *, limit: int = 100) -> list[Refusal]:
        """The newest refusals, newest first.

        Args:
            task_id: Of this task only; None for all.
            limit: How many at most.

        Raises:
            LedgerUnavailable: They cannot be read.
        """
        asked = select(_TABLE).order_by(_TABLE.c.last_at.desc(), _TABLE.c.task_id, _TABLE.c.digest).limit(limit)
        if task_id is not None:
            asked = asked.where(_TABLE.c.task_id == task_id)

        def read(connection: Connection) -> list[Refusal]:
            return [
                Refusal(
                    task_id=row.task_id,
                    trigger=row.trigger,
                    by=self.store.opened(row.by_whom),
                    reason=self.store.opened(row.reason),
                    first_at=row.first_at,
                    last_at=row.last_at,
                    times=row.times,
                )
                for row in connection.execute(asked)
            ]

        return self.store.within(lambda connection: read(connection) if is_there(connection, _TABLE) else [])

    def prune(self, older_than_s: float) -> int:
        """Delete refusals that were not repeated for so many seconds, and count them.

        Raises:
            LedgerUnavailable: They cannot be deleted.
        """

        def prune(connection: Connection) -> int:
            before = self.store.now(connection) - older_than_s
            return connection.execute(delete(_TABLE).where(_TABLE.c.last_at < before)).rowcount

        return self.store.within(lambda connection: prune(connection) if is_there(connection, _TABLE) else 0)

    def forget(self, task_id: str, *, dry: bool = False) -> int:
        """Delete the refusals of a task, and count them; with `dry` only count.

        Raises:
            LedgerUnavailable: They cannot be read or deleted.
        """
        mine = _TABLE.c.task_id == task_id

        def forget(connection: Connection) -> int:
            if dry:
                return connection.execute(select(func.count()).select_from(_TABLE).where(mine)).scalar_one()
            return connection.execute(delete(_TABLE).where(mine)).rowcount

        return self.store.within(lambda connection: forget(connection) if is_there(connection, _TABLE) else 0)

    def close(self) -> None:
        """Close the database."""
        self.store.close()

    def make(self) -> None:
        """Make the table before it is used; see `make_now`."""
        make_now(self.store, _TABLE)

    def _write(self, connection: Connection, refusals: Sequence[Refusal]) -> None:
        make(self.store, connection, _TABLE)
        for one in refusals:
            mine = _TABLE.c.task_id == one.task_id
            again = {"times": _TABLE.c.times + one.times, "last_at": one.last_at}
            if connection.execute(update(_TABLE).where(mine, _TABLE.c.digest == one.digest).values(again)).rowcount:
                continue
            row = {
                "task_id": one.task_id,
                "digest": one.digest,
                "trigger": one.trigger,
                "by_whom": self.store.sealed(one.by),
                "reason": self.store.sealed(one.reason),
                "times": one.times,
                "first_at": one.first_at,
                "last_at": one.last_at,
            }
            connection.execute(insert(_TABLE), row)
            if (connection.scalar(select(func.count()).where(mine)) or 0) > PER_TASK:
                newest = select(_TABLE.c.digest).where(mine).order_by(_TABLE.c.last_at.desc(), _TABLE.c.digest)
                connection.execute(delete(_TABLE).where(mine, _TABLE.c.digest.not_in(newest.limit(PER_TASK))))
