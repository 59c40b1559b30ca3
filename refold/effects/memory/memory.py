"""Sessions and remembered facts, in the ledger's database: SQLite, or PostgreSQL for several hosts.

Rule 1: every row belongs to one owner, by a hash; no statement reads or writes without it.
Rule 2: texts are encrypted where receipts are; the search therefore reads an owner's facts, and compares here.
Rule 3: a call that is made again writes nothing new, so the tools that use it may be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import unicodedata
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

from refold.effects.failures.verdicts import Never
from refold.effects.http.keys import wire_key
from refold.effects.memory.turn import Turn

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from refold.effects.ledger.store import Store

FACT_CHARS = 4_000
Patiently = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class Memory:
    """The memory of one tool call's owner; `current().memory` in a tool.

    Args:
        open: Opens the database.
        scope: The hash of the owner; None if the worker was not told whose call it is.
        task_id: The task.
        patiently: Makes a call to the database, again and again while the database is away.
    """

    def __init__(self, open: Callable[[], Store], *, scope: str | None, task_id: str, patiently: Patiently) -> None:
        self._open, self._scope, self._task_id, self._patiently = open, scope, task_id, patiently

    async def open_turn(self, session_id: str, asked: str, last: int) -> list[Turn]:
        """Record a question of this task, and get the earlier turns of the session, newest last.

        Args:
            session_id: The session; any text that is not empty. Equal ids of two owners are two sessions.
            asked: The user's words.
            last: How many earlier turns to get.

        Raises:
            Never: The session has no name, or the call has no owner's key.
        """
        session = _named(session_id)
        turns: list[Turn] = await self._within(
            lambda store, connection, scope: _tables().open_turn(
                store, connection, scope, session, self._task_id, asked, last
            )
        )
        return turns

    async def close_turn(self, session_id: str, answered: str) -> None:
        """Record the first answer to this task's question.

        A task that recovers another one answers its question. A live fork that has not asked records an answer of its
        own to the question of the task that it branched off from, if its id names that task.

        Raises:
            Never: As `open_turn` raises it.
        """
        session = _named(session_id)
        await self._within(
            lambda store, connection, scope: _tables().close_turn(
                store, connection, scope, session, self._task_id, answered
            )
        )

    async def remember(self, text: str) -> None:
        """Keep a fact; the same text again keeps nothing new. Beyond 1,000, the oldest fact is dropped.

        Raises:
            Never: The text is empty, or longer than 4,000 characters; or the call has no owner's key.
        """
        if not text.strip() or len(text) > FACT_CHARS:
            raise Never(f"a fact has 1 to {FACT_CHARS:,} characters; this one has {len(text):,}", type="arguments")
        await self._within(lambda store, connection, scope: _tables().keep(store, connection, scope, text))

    async def recall(self, query: str, limit: int = 5) -> list[str]:
        """The facts that share words with a query: those with most of its words first, then the newest.

        No meaning is compared: "car" does not find "vehicle". An empty query gets the newest facts.

        Raises:
            Never: The call has no owner's key.
        """
        found = await self._within(lambda store, connection, scope: _tables().facts(store, connection, scope))
        return ranked(found, query)[: max(0, limit)]

    async def _within(self, work: Callable[[Store, Connection, str], Any]) -> Any:
        if self._scope is None:
            raise Never(
                "the worker does not know whose memory this is: give the call a business key of the owner's own, such "
                'as key=f"turn:{ctx.task_id}"',
                type="no_owner",
            )
        scope, store = self._scope, self._open()
        return await self._patiently(
            lambda: asyncio.to_thread(store.within, lambda connection: work(store, connection, scope))
        )


def _tables() -> Any:
    from refold.effects.memory import tables

    return tables


def _named(session_id: str) -> str:
    if not session_id.strip():
        raise Never("a session's id is a text that is not empty", type="arguments")
    return session_hash(session_id)


def session_hash(session_id: str) -> str:
    """What the database has in place of a session's id."""
    return hashlib.sha256(session_id.encode(errors="surrogatepass")).hexdigest()


def scope_of(namespace: str, owner: str) -> str:
    """What the database has in place of an owner; the empty text stands for tasks without an owner."""
    return wire_key(namespace=namespace, tool="refold.memory", key="", owner=owner)


_WORD = re.compile(r"\w+")


def ranked(facts: Sequence[str], query: str) -> list[str]:
    """The facts that share a word with a query, best first; without words in the query all of them.

    Args:
        facts: The newest one first.
        query: Any text.
    """
    words = _words(query)
    if not words:
        return list(facts)
    shared = [(len(words & _words(fact)), fact) for fact in facts]
    return [fact for count, fact in sorted(shared, key=lambda one: -one[0]) if count]


def _words(said: str) -> set[str]:
    """The words of a text; the accents and vowel signs of a word are a part of it, however they are written."""
    letters = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", said).casefold())  # which may decompose again
    if letters.isascii():
        return set(_WORD.findall(letters))
    marks = (one if one.isalnum() or one == "_" or unicodedata.category(one)[0] == "M" else " " for one in letters)
    return set("".join(marks).split())
