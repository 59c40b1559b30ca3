"""The tables of sessions and facts, and the statements on them, each within a transaction."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)

from refold.effects.ledger.store import Store
from refold.effects.ledger.tables import alone, is_there, make, make_now
from refold.effects.memory.turn import Turn

SEARCHED = 1_000
"""How many of an owner's facts are kept and searched, the newest ones."""

TICK_S = 1e-6
"""By how much a fact is newer than the one before it, at the least, in seconds."""

_CONTINUES = re.compile(r"(.+)\.(?:r\d+|(f[0-9a-f]+))((?:/.*)?)", re.DOTALL)
"""The id of a task that recovers another one, or was forked from it: by number, or on the page under hex digits."""

_METADATA = MetaData()
TURNS = Table(
    "refold_turns",
    _METADATA,
    Column("owner", String(64), primary_key=True),
    Column("session", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("task_id", Text, nullable=False),
    Column("asked", Text, nullable=False),
    Column("answered", Text),
)
FACTS = Table(
    "refold_facts",
    _METADATA,
    Column("owner", String(64), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("at", Float(53), nullable=False),
    Column("said", Text, nullable=False),
)


def _storable(text: str) -> str:
    """A text that every database stores: PostgreSQL takes no NUL, and neither database half a surrogate pair."""
    return text.replace("\0", "\ufffd").encode(errors="replace").decode()


def make_tables(store: Store) -> None:
    """Make both tables before they are used; see `make_now`."""
    make_now(store, FACTS, TURNS)


def open_turn(
    store: Store, connection: Connection, owner: str, session: str, task_id: str, asked: str, last: int
) -> list[Turn]:
    """Add a task's turn if it has none in the session, and read the turns before it."""
    make(store, connection, TURNS)
    alone(store, connection, owner)
    here = (TURNS.c.owner == owner) & (TURNS.c.session == session)
    number = connection.execute(select(TURNS.c.number).where(here, TURNS.c.task_id == task_id)).scalar()
    if number is None:
        row = _next(connection, here, owner, session, task_id)
        number = row["number"]
        connection.execute(insert(TURNS), {**row, "asked": store.sealed(_storable(asked))})
    before = select(TURNS).where(here, TURNS.c.number < number).order_by(TURNS.c.number.desc()).limit(max(0, last))
    turns = [
        Turn(asked=store.opened(row.asked), answered=None if row.answered is None else store.opened(row.answered))
        for row in connection.execute(before)
    ]
    return turns[::-1]


def close_turn(store: Store, connection: Connection, owner: str, session: str, task_id: str, answered: str) -> None:
    """Answer the task's turn, or that of a task that it recovers. Other turns are other tasks' questions.

    A live fork without a turn gets one, with the question of the task that it branched off from, which goes on and
    answers its own. A fork whose id does not name that task gets none.
    """
    make(store, connection, TURNS)
    alone(store, connection, owner)
    here = (TURNS.c.owner == owner) & (TURNS.c.session == session)
    answer = store.sealed(_storable(answered))
    own, origins = _lineage(task_id)
    if (turn := _turn(connection, here, own)) is not None:
        mine = here & (TURNS.c.number == turn.number) & TURNS.c.answered.is_(None)
        connection.execute(update(TURNS).where(mine).values(answered=answer))
    elif (other := _turn(connection, here, origins)) is not None:
        row = _next(connection, here, owner, session, own[-1])
        connection.execute(insert(TURNS), {**row, "asked": other.asked, "answered": answer})


def _next(connection: Connection, here: ColumnElement[bool], owner: str, session: str, task_id: str) -> dict[str, Any]:
    """The next turn of a session, as yet without texts."""
    newest = connection.execute(select(func.max(TURNS.c.number)).where(here)).scalar()
    return {"owner": owner, "session": session, "number": (newest or 0) + 1, "task_id": task_id}


def _turn(connection: Connection, here: ColumnElement[bool], tasks: Sequence[str]) -> Row[Any] | None:
    """The turn of the first of these tasks that has one."""
    turns = {row.task_id: row for row in connection.execute(select(TURNS).where(here, TURNS.c.task_id.in_(tasks)))}
    return next((turns[id] for id in tasks if id in turns), None)


def _lineage(task_id: str) -> tuple[list[str], list[str]]:
    """The ids of a task and the tasks that it recovers, up to a fork; and those of the tasks before that fork.

    `T.r1/2.1` is a part of the task that recovers `T`.
    """
    own, origins = [task_id], list[str]()
    before = own
    while found := _CONTINUES.fullmatch(task_id):
        task_id = f"{found[1]}{found[3]}"
        before = origins if found[2] else before
        before.append(task_id)
    return own, origins


def keep(store: Store, connection: Connection, owner: str, text: str) -> None:
    """Add a fact, unless the owner has it; drop the owner's oldest ones beyond the limit."""
    make(store, connection, FACTS)
    alone(store, connection, owner)
    mine, digest = FACTS.c.owner == owner, hashlib.sha256(f"{owner}\0{text}".encode(errors="replace")).hexdigest()
    if connection.execute(select(FACTS.c.at).where(mine, FACTS.c.digest == digest)).scalar() is not None:
        return
    newest = connection.execute(select(func.max(FACTS.c.at)).where(mine)).scalar() or 0.0
    at = max(store.now(connection), newest + TICK_S)  # the newest one, whatever a clock that was set back says
    row = {"owner": owner, "digest": digest, "at": at, "said": store.sealed(_storable(text))}
    connection.execute(insert(FACTS), row)
    kept = select(FACTS.c.digest).where(mine).order_by(FACTS.c.at.desc(), FACTS.c.digest).limit(SEARCHED)
    connection.execute(delete(FACTS).where(mine, FACTS.c.digest.not_in(kept.scalar_subquery())))


def facts(store: Store, connection: Connection, owner: str) -> list[str]:
    """An owner's facts, the newest one first."""
    if not is_there(connection, FACTS):
        return []
    rows = select(FACTS.c.said).where(FACTS.c.owner == owner).order_by(FACTS.c.at.desc(), FACTS.c.digest)
    return [store.opened(said) for said in connection.execute(rows.limit(SEARCHED)).scalars()]
