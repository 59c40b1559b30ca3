"""The digest that each journal entry continues, and what an entry says: equal digests are equal journals.

Rule 1: a digest is of the entries' JSON as a journal stores them, so anybody who has the entries can compute it again.
Rule 2: nothing here knows where digests are kept. On Temporal, history holds them (`refold.temporal.data.marks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from refold.core.commands import AskApproval, AskUser
from refold.core.content import Artifact, Content
from refold.core.fold.journal import Entry, Issued
from refold.core.values import Value, lean

DIGEST_BYTES = 12
"""The length of a digest: nobody finds another text of a given digest, and each workflow task writes one to history."""

START = b""
"""The digest before a task's first entry."""


def chained(before: bytes, entry: Entry) -> bytes:
    """The digest of a journal that goes on with an entry.

    Args:
        before: The digest of the journal up to the entry before; `START` for the first.
        entry: The next entry.

    Returns:
        `DIGEST_BYTES` bytes.
    """
    return hashlib.sha256(before + entry.model_dump_json().encode()).digest()[:DIGEST_BYTES]


def digest_after(entries: Iterable[Entry], before: bytes = START) -> bytes:
    """The digest of a journal that goes on with these entries, in order."""
    for entry in entries:
        before = chained(before, entry)
    return before


class Said(Value):
    """What people could read in one entry and history holds nowhere else; fields of the same name are `Entry`'s.

    The entry's event and the inputs of effects are left out: history has them.

    Attributes:
        seq: The entry's number.
        asks: The questions and gates that the entry opened: message, shown data, policy.
    """

    seq: int
    refused: str = lean("")
    note: str = lean("")
    reason: str = lean("")
    messages: tuple[Content, ...] = lean(())
    artifacts: tuple[Artifact, ...] = lean(())
    progress: str | None = lean()
    asks: tuple[Issued, ...] = lean(())


def said_of(entry: Entry) -> Said | None:
    """What people could read in an entry; None if it is nothing."""
    asks = tuple(one for one in entry.commands if isinstance(one.command, AskUser | AskApproval))
    same = {name: getattr(entry, name) for name in _SAME}
    if not asks and not any(same.values()) and entry.progress is None:
        return None
    return Said.trusted(seq=entry.seq, asks=asks, **same)


_SAME = tuple(name for name in Said.model_fields if name in Entry.model_fields and name != "seq")
