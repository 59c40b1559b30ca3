"""The journal: the numbered, append-only list of what happened to a task, and what can be read from it.

An entry's event holds the payload, once; the rest of the entry follows from the event and the entries before it, and
is kept so that people and programs can read the journal without the skill's code.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pydantic import Field

from refold.core.base import Value, lean
from refold.core.commands import Command
from refold.core.content import Artifact, Content
from refold.core.events import (
    ActivityResult,
    CommandFailed,
    Event,
    LlmResult,
    SkillResult,
    TimerFired,
    ToolResult,
    WorkflowResult,
)
from refold.core.lifecycle import Move
from refold.core.snapshot import Receipt, ReceiptStatus


class Issued(Value):
    """A command as it was issued, with its id."""

    invocation_id: str
    command: Command


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
        messages: What the skill said, in order.
        artifacts: What it handed over, in order.
        progress: The new line on what is going on, if there is one.
        patches: What `ctx.patched` answered for the first time.
    """

    seq: int
    at: datetime
    event: Event
    refused: str = lean("")
    held: bool = lean(False)
    note: str = lean("")
    moves: tuple[Move, ...] = lean(())
    commands: tuple[Issued, ...] = lean(())
    messages: tuple[Content, ...] = lean(())
    artifacts: tuple[Artifact, ...] = lean(())
    progress: str | None = lean()
    patches: dict[str, bool] = lean(factory=dict)

    @classmethod
    def trusted(cls, **fields: Any) -> Entry:
        """An entry whose parts are right by construction, unchecked: the fold's own."""
        return cls.model_construct(**fields)


class JournalPage(Value):
    """A stretch of a journal.

    Attributes:
        entries: In order, without gaps.
        base: The number of the last entry before this run's first; entries up to it are in earlier runs.
        last: The newest entry's number in this run.
        previous_run: The run that holds the entries up to `base`; None where there is none.
    """

    entries: tuple[Entry, ...] = Field(default=())
    base: int = 0
    last: int = 0
    previous_run: str | None = None


def receipts(entries: Iterable[Entry]) -> list[Receipt]:
    """The outcome of every command that came back for good, in the order they came."""
    found: list[Receipt] = []
    for entry in entries:
        if not entry.refused and (receipt := receipt_of(entry.event)) is not None:
            found.append(receipt)
    return found


def receipt_of(event: Event) -> Receipt | None:
    """The receipt that an event is; None for what is no command's outcome."""
    match event:
        case CommandFailed(invocation_id=id, failure=failure):
            outcome = failure.model_dump(mode="json")
            return Receipt.model_construct(invocation_id=id, status=ReceiptStatus.ERROR, outcome=outcome)
        case LlmResult() | ToolResult() | SkillResult() | ActivityResult() | WorkflowResult() | TimerFired():
            return Receipt.model_construct(
                invocation_id=event.invocation_id, status=ReceiptStatus.OK, outcome=event.value
            )
        case _:
            return None
