"""What the memory holds of one owner, for whoever answers a request for it; and how to delete it.

Rule 1: the database has hashes in place of owners and sessions, so it cannot tell whose memories there are: whoever
asks names the owner, and the namespace.
Rule 2: what is deleted is gone at once, for tasks that are running, too. Journals keep what was read before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Column, Connection, Table, delete, select

from refold.core.errors import RefoldError
from refold.effects.ledger.store import Store
from refold.effects.ledger.tables import is_there
from refold.effects.memory.memory import session_hash
from refold.effects.memory.tables import FACTS, TURNS
from refold.effects.memory.turn import Turn

ID_CHARS = 12
"""How much of a hash stands for a fact or session; more of it does, too."""


class NotRemembered(RefoldError):
    """What is to be deleted is not there; the message says what was looked for, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A remembered fact.

    Attributes:
        id: The beginning of its hash.
        at: When it was remembered, in seconds since 1970.
        said: Its text.
    """

    id: str
    at: float
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the memory holds of one owner.

    Attributes:
        facts: The newest one first.
        sessions: The turns of each session, oldest first, by the beginning of the session's hash.
    """

    facts: Sequence[Fact]
    sessions: Mapping[str, Sequence[Turn]]


def held(store: Store, scope: str) -> Held:
    """All that is remembered of an owner.

    Raises:
        LedgerUnavailable: The database does not answer, or its texts are encrypted and cannot be read.
    """

    def read(connection: Connection) -> Held:
        rows = select(FACTS).where(FACTS.c.owner == scope).order_by(FACTS.c.at.desc(), FACTS.c.digest)
        facts = [
            Fact(id=row.digest[:ID_CHARS], at=row.at, said=store.opened(row.said))
            for row in (connection.execute(rows) if is_there(connection, FACTS) else ())
        ]
        sessions: dict[str, list[Turn]] = {}
        turns = select(TURNS).where(TURNS.c.owner == scope).order_by(TURNS.c.session, TURNS.c.number)
        for row in connection.execute(turns) if is_there(connection, TURNS) else ():
            answered = None if row.answered is None else store.opened(row.answered)
            turn = Turn(asked=store.opened(row.asked), answered=answered)
            sessions.setdefault(row.session[:ID_CHARS], []).append(turn)
        return Held(facts=facts, sessions=sessions)

    return store.within(read)


def forget_all(store: Store, scope: str) -> tuple[int, int]:
    """Delete all that is remembered of an owner; returns how many facts and sessions there were.

    Raises:
        NotRemembered: There is nothing.
        LedgerUnavailable: The database does not answer.
    """

    def drop(connection: Connection) -> tuple[int, int]:
        facts = sessions = 0
        if is_there(connection, FACTS):
            facts = connection.execute(delete(FACTS).where(FACTS.c.owner == scope)).rowcount
        if is_there(connection, TURNS):
            mine = TURNS.c.owner == scope
            sessions = len(connection.execute(select(TURNS.c.session).where(mine).distinct()).all())
            connection.execute(delete(TURNS).where(mine))
        return facts, sessions

    facts, sessions = store.within(drop)
    if not facts and not sessions:
        raise NotRemembered("nothing is remembered")
    return facts, sessions


def forget_fact(store: Store, scope: str, id: str) -> None:
    """Delete a fact.

    Args:
        id: The beginning of its hash, as `Fact.id`.

    Raises:
        NotRemembered: There is none, or several begin so.
        LedgerUnavailable: The database does not answer.
    """
    _forget(store, FACTS, FACTS.c.digest, scope, "fact", id)


def forget_session(store: Store, scope: str, session: str) -> None:
    """Delete a session.

    Args:
        session: Its id as tasks name it, or the beginning of its hash, as in `Held.sessions`.

    Raises:
        NotRemembered: There is none, or several begin so.
        LedgerUnavailable: The database does not answer.
    """
    _forget(store, TURNS, TURNS.c.session, scope, "session", session_hash(session), session)


def _forget(store: Store, table: Table, column: Column[str], scope: str, what: str, *begins: str) -> None:
    def drop(connection: Connection) -> int:
        if not is_there(connection, table):
            return 0
        there = set(connection.execute(select(column).where(table.c.owner == scope)).scalars())
        usable = [begin for begin in begins if len(begin) >= ID_CHARS]
        found = next((some for begin in usable if (some := [one for one in there if one.startswith(begin)])), [])
        if len(found) == 1:
            connection.execute(delete(table).where(table.c.owner == scope, column == found[0]))
        return len(found)

    if (found := store.within(drop)) != 1:
        raise NotRemembered(f"{'several have a' if found else 'there is no'} {what} {begins[-1]!r}")
