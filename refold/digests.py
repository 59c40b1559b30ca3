"""The digest that each journal entry continues, and what an entry says: equal digests are equal journals.

Rule 1: a digest is of the entries' JSON as a journal stores them, so anybody who has the entries can compute it again.
Rule 2: nothing here knows where digests are kept. On Temporal, history holds them (`refold.temporal.data.marks`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable

from refold.core.content import Artifact, Content, Part
from refold.core.events import ChatResult, Event, UserMessage
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


class BeyondHistory(Value):
    """What an entry says that history holds nowhere else; fields of the same name are those of `Entry`.

    The entry's event and the inputs of effects that have begun are left out: history has them.

    Attributes:
        seq: The entry's number.
        messages: `BROUGHT` stands for the text that the entry's event brought, such as a model's reply that is passed
            on; in the message of a question, too.
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


def said_of(entry: Entry, sent: Container[str] = ()) -> BeyondHistory | None:
    """What an entry says that history holds nowhere else; None if it is nothing.

    Args:
        entry: The entry.
        sent: The invocation ids of effects whose input history holds.
    """
    commands = tuple(one for one in entry.commands if one.invocation_id not in sent)
    same = {name: getattr(entry, name) for name in SAME}
    if not commands and not any(same.values()) and entry.progress is None:
        return None
    said = BeyondHistory.trusted(seq=entry.seq, commands=commands, **same)
    brought = brought_by(entry.event)
    return said if brought is None else with_message(said, brought, BROUGHT)


def with_message(said: BeyondHistory, old: Content, new: Content) -> BeyondHistory:
    """What was said with another message in place of one, wherever it stands."""
    commands = tuple(
        one.changed({"command": one.command.changed({"message": new})})
        if getattr(one.command, "message", None) == old
        else one
        for one in said.commands
    )
    return said.changed({"messages": tuple(new if one == old else one for one in said.messages), "commands": commands})


def brought_by(event: Event) -> Content | None:
    """The text that an event brought, which history holds with the event; None if it brought none."""
    if isinstance(event, UserMessage):
        return event.content
    text = event.reply.text if isinstance(event, ChatResult) else getattr(event, "value", None)
    return Content.from_text(text) if isinstance(text, str) and text else None


BROUGHT = Content.model_construct(parts=(Part.model_construct(data={"refold": "brought"}),))
"""What stands for the text that an entry's event brought: history holds it with the event, and only once."""

SAME = ("refused", "note", "reason", "messages", "artifacts", "progress")
"""The fields that `BeyondHistory` takes from an entry as they are."""
