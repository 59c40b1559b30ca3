"""The journal: the numbered, append-only list of what happened to a task, and what can be read from it.

An entry's event holds the payload, once; the rest of the entry follows from the event and the entries before it, and
is kept so that people and programs can read the journal without the skill's code.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from refold.core.commands import AskApproval, AskUser, Command
from refold.core.content import Artifact, Content
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.events import RESULT_TYPES, CancelRequested, CommandFailed, Event, Notified
from refold.core.fold.snapshot import Receipt, ReceiptStatus
from refold.core.lifecycle import TERMINAL, Move, Status
from refold.core.values import Value, lean


class Issued(Value):
    """A command as it was issued, with its id."""

    invocation_id: str
    command: Command


class Backoff(Value):
    """A command that failed and will be tried again.

    Attributes:
        invocation_id: The command's own id.
        retry: Which retry it will be; 1 is the first.
        due_at: When.
    """

    invocation_id: str
    retry: int
    due_at: datetime


class Entry(Value):
    """One event and what it caused. Inside an entry: event, then messages and artifacts, then moves.

    Attributes:
        seq: Its number: 1 is the first, without gaps, over the whole life of the task.
        at: When it was taken.
        event: What happened, with its payload.
        refused: Why it changed nothing; empty if it was taken.
        held: It waits for the task to run again before the skill hears of it.
        note: What people should know: why the task failed, what was retried.
        moves: What the lifecycle did, in order.
        commands: What was asked for, in order.
        backoffs: What is tried again, and when.
        messages: What the skill said, in order.
        artifacts: What it handed over, in order.
        progress: The new line on what is going on, if there is one.
        patches: What `ctx.patched` answered for the first time.
        cause: The command whose failure ended the task, if one did.
        status: What the outside sees from here on, where that changed.
        reason: Why the task failed, where it did with this entry.
        closed: The gates of the questions that are open no more.
        audit: What became of each step that ended, in order, where the skill has a contract.
    """

    seq: int
    at: datetime
    event: Event
    refused: str = lean("")
    held: bool = lean(False)
    note: str = lean("")
    moves: tuple[Move, ...] = lean(())
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
        """The task ended with this entry."""
        if isinstance(self.event, CancelRequested) and not self.refused:
            return True
        return bool(self.moves) and self.moves[-1].to_state in TERMINAL


def receipts(entries: Iterable[Entry]) -> list[Receipt]:
    """The outcome of every command that is over, in the order they came: those still out at the end are canceled.

    A failure that is tried again is no outcome. A failure that is held is one, until the task says otherwise.
    """
    found: dict[str, Receipt] = {}
    out: dict[str, None] = {}
    for entry in entries:
        if not entry.refused and (receipt := receipt_of(entry.event)) is not None:
            found[receipt.invocation_id] = receipt
            out.pop(receipt.invocation_id, None)
        for backoff in entry.backoffs:
            found.pop(backoff.invocation_id, None)
            out[backoff.invocation_id] = None
        issued = {
            one.invocation_id: None for one in entry.commands if not isinstance(one.command, AskUser | AskApproval)
        }
        if entry.ends:  # what this entry still asks for is to undo effects
            canceled = ReceiptStatus.CANCELED
            found |= {id: Receipt.trusted(invocation_id=id, status=canceled) for id in out}
            out = {}
        out |= issued
    return list(found.values())


def receipt_of(event: Event) -> Receipt | None:
    """The receipt that an event is; None for what is no command's outcome."""
    match event:
        case CommandFailed(invocation_id=id, failure=failure):
            outcome = failure.model_dump(mode="json")
            return Receipt.trusted(invocation_id=id, status=ReceiptStatus.ERROR, outcome=outcome)
        case result if isinstance(result, RESULT_TYPES) and not isinstance(result, Notified):
            return Receipt.trusted(invocation_id=result.invocation_id, status=ReceiptStatus.OK, outcome=result.value)
        case _:
            return None
