"""The digest that each journal entry continues, and what an entry says: equal digests are equal journals.

Rule 1: a digest is of the entries' JSON as a journal stores them, so anybody who has the entries can compute it again.
Rule 2: nothing here knows where digests are kept. On Temporal, history holds them (`refold.temporal.data.marks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable

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
    """What an entry says that history holds nowhere else; fields of the same name are those of `Entry`.

    The entry's event and the inputs of effects that have begun are left out: history has them.

    Attributes:
        seq: The entry's number.
        commands: Questions, gates, and effects that have not begun yet.
    """

    seq: int
    refused: str = lean("")
    note: str = lean("")
    reason: str = lean("")
    messages: tuple[Content, ...] = lean(())
    artifacts: tuple[Artifact, ...] = lean(())
    progress: str | None = lean()
    commands: tuple[Issued, ...] = lean(())


def said_of(entry: Entry, sent: Container[str] = ()) -> Said | None:
    """What an entry says that history holds nowhere else; None if it is nothing.

    Args:
        entry: The entry.
        sent: The invocation ids of effects whose input history holds.
    """
    commands = tuple(one for one in entry.commands if one.invocation_id not in sent)
    same = {name: getattr(entry, name) for name in SAME}
    if not commands and not any(same.values()) and entry.progress is None:
        return None
    return Said.trusted(seq=entry.seq, commands=commands, **same)


SAME = ("refused", "note", "reason", "messages", "artifacts", "progress")
"""The fields that `Said` takes from an entry as they are."""
