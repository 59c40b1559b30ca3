"""The journal: the numbered, append-only list of what happened to a task, and the receipt made of an event.

`fold/draft.py` writes the entries. An entry's event holds the payload; the other fields follow from the event and the
entries before it, and are stored so that people and programs can read the journal without the skill's code.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from refold.core.commands import Command
from refold.core.content import Artifact, Content, Message
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.events import RESULT_TYPES, CancelRequested, CommandFailed, Event, Notified, UserMessage
from refold.core.fold.snapshot import Receipt, ReceiptStatus
from refold.core.lifecycle import TERMINAL, LifecycleMove, Status
from refold.core.values import Value, lean


class Issued(Value):
    """A command of the skill, with its invocation id."""

    invocation_id: str
    command: Command


class Backoff(Value):
    """A failed command's next retry.

    Attributes:
        invocation_id: The command's id, the same in all attempts.
        retry: The number of the retry; 1 is the first.
        due_at: When the retry is due.
    """

    invocation_id: str
    retry: int
    due_at: datetime


class Entry(Value):
    """One event and what it caused. To a reader, messages and artifacts come after the event and before the moves.

    Attributes:
        seq: The entry's number: 1 is the first, without gaps, over the whole life of the task.
        at: When the event was taken.
        event: What happened, with its payload.
        refused: Why the event was refused; empty if it was taken.
        held: The event is not delivered to the skill before the task runs again.
        note: Remarks for people: why the task failed, what is retried.
        moves: The lifecycle's moves, in order.
        commands: The skill's new commands, in order.
        backoffs: Retries that were scheduled.
        messages: The skill's messages, in order.
        artifacts: The skill's artifacts, in order.
        progress: The skill's new progress line, if there is one.
        patches: Answers of `ctx.patched` that were given for the first time. Ids that begin with `refold.` are asked
            for by refold, where an earlier release did otherwise.
        cause: The command whose failure ended the task, if one did.
        status: The new A2A status, if it changed.
        reason: Why the task failed, if it failed with this entry.
        closed: The gates of the questions that were closed.
        audit: The audit of each step that ended, in order, if the skill has a contract.
    """

    seq: int
    at: datetime
    event: Event
    refused: str = lean("")
    held: bool = lean(False)
    note: str = lean("")
    moves: tuple[LifecycleMove, ...] = lean(())
    commands: tuple[Issued, ...] = lean(())
    backoffs: tuple[Backoff, ...] = lean(())
    messages: tuple[Content, ...] = lean(())
    artifacts: tuple[Artifact, ...] = lean(())
    progress: str | None = lean()
    patches: dict[str, bool] = lean(factory=dict)
    cause: str | None = lean()
    status: Status | None = lean()
    reason: str = lean("")
    closed: tuple[str, ...] = lean(())
    audit: tuple[StateTransitionEvent, ...] = lean(())

    @property
    def ends(self) -> bool:
        """Whether the task ended with this entry."""
        if isinstance(self.event, CancelRequested) and not self.refused:
            return True
        return bool(self.moves) and self.moves[-1].to_state in TERMINAL


def no_entry(task_id: str, seq: int, first: int, last: int) -> str:
    """The error for an entry number that a task does not have: it names those that it has."""
    if last < first:
        return f"task {task_id!r} has no entries, so none with the number {seq}"
    return f"task {task_id!r} has the entries {first} to {last}, not {seq}"


def as_said(message: UserMessage, seq: int) -> Message:
    """A user's message as the task keeps it; `seq` is the entry that took the message."""
    return Message.trusted(
        role="user", content=message.content, seq=seq, id=message.message_id, delivery_id=message.delivery_id
    )


def with_latest(known: Iterable[Artifact], new: Iterable[Artifact]) -> tuple[Artifact, ...]:
    """Artifacts with newer ones, which replace those of the same name or add to them."""
    before, latest = {artifact.name: artifact for artifact in known}, dict[str, Artifact]()
    for artifact in new:
        old = latest.get(artifact.name) or before.get(artifact.name)
        if artifact.append:
            artifact = artifact.changed({"append": False, "parts": (*(old.parts if old else ()), *artifact.parts)})
        latest[artifact.name] = artifact
    return (*(artifact for name, artifact in before.items() if name not in latest), *latest.values())


def receipt_of(event: Event) -> Receipt | None:
    """The receipt of the outcome that an event brings; None if the event is no outcome of a command."""
    match event:
        case CommandFailed(invocation_id=id, failure=failure):
            outcome = failure.model_dump(mode="json")
            return Receipt.trusted(invocation_id=id, status=ReceiptStatus.ERROR, outcome=outcome)
        case result if isinstance(result, RESULT_TYPES) and not isinstance(result, Notified):
            return Receipt.trusted(invocation_id=result.invocation_id, status=ReceiptStatus.OK, outcome=result.value)
        case _:
            return None
