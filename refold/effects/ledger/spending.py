"""What each owner has spent on model calls, by day, in the ledger's database: one sum for all tasks and workers."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from sqlalchemy import BigInteger, Column, Connection, MetaData, String, Table, delete, insert, select, update

from refold.effects.ledger.store import Store
from refold.effects.ledger.tables import make, make_now

KEPT_DAYS = 40
"""For how many days sums are kept; older ones are deleted where a new day begins."""

_PER_USD = 1_000_000_000
_TABLE = Table(
    "refold_spending",
    MetaData(),
    Column("owner", String(64), primary_key=True),
    Column("day", String(10), primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("nano_usd", BigInteger, nullable=False),  # whole numbers: sums of fractions would drift
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DaySpent:
    """What an owner has spent in a day.

    Attributes:
        day: In UTC: `2026-03-01`.
        calls: Answered model calls.
        tokens: Input and output together.
        usd: In US dollars, as far as prices are known.
    """

    day: str
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


class Spending:
    """Sums by owner and day; each change is one transaction. Thread-safe. The table is made on first use."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def today(self, owner: str) -> DaySpent:
        """What an owner has spent since midnight UTC, by the database's clock.

        Args:
            owner: The hash of the owner.

        Raises:
            LedgerUnavailable: The database does not answer.
        """

        def read(connection: Connection) -> DaySpent:
            make(self.store, connection, _TABLE)
            return self._read(connection, owner, self._day(connection))

        return self.store.within(read)

    def add(self, owner: str, *, tokens: int, usd: float) -> DaySpent:
        """Add an answered model call to its owner's day.

        Raises:
            LedgerUnavailable: It is not added, or it is not known whether it is.
        """

        def write(connection: Connection) -> DaySpent:
            make(self.store, connection, _TABLE)
            day = self._day(connection)
            mine = (_TABLE.c.owner == owner) & (_TABLE.c.day == day)
            nano = round(usd * _PER_USD)
            more = {
                "calls": _TABLE.c.calls + 1,
                "tokens": _TABLE.c.tokens + tokens,
                "nano_usd": _TABLE.c.nano_usd + nano,
            }
            if not connection.execute(update(_TABLE).where(mine).values(more)).rowcount:
                before = (datetime.fromisoformat(day) - timedelta(days=KEPT_DAYS)).date().isoformat()
                connection.execute(delete(_TABLE).where(_TABLE.c.day < before))
                row = {"owner": owner, "day": day, "calls": 1, "tokens": tokens, "nano_usd": nano}
                connection.execute(insert(_TABLE), row)
            return self._read(connection, owner, day)

        return self.store.within(write)

    def make(self) -> None:
        """Make the table before it is used; see `make_now`."""
        make_now(self.store, _TABLE)

    def _day(self, connection: Connection) -> str:
        return datetime.fromtimestamp(self.store.now(connection), UTC).date().isoformat()

    def _read(self, connection: Connection, owner: str, day: str) -> DaySpent:
        found = connection.execute(select(_TABLE).where(_TABLE.c.owner == owner, _TABLE.c.day == day)).first()
        if found is None:
            return DaySpent(day=day)
        return DaySpent(day=day, calls=found.calls, tokens=found.tokens, usd=found.nano_usd / _PER_USD)
