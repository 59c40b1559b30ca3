"""The rows that a journal makes: pure, so that the same journal always makes the same rows.

Source: S3.56, S3.57.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pydantic import JsonValue

from refold.core.commands import AskApproval, AskUser
from refold.core.fold.journal import Entry, receipt_of
from refold.core.lifecycle import TERMINAL, TaskEvent, TaskState
from refold.core.values import Value
from refold.engine.arguments import takes

CANCELED = "canceled"
"""The event of a transition that no table of the lifecycle has: a cancellation ends a task from any state."""


class TransitionRow(Value):
    """One change of a task's lifecycle. It contains no texts: messages, and why a task failed, are in the journal.

    Attributes:
        task_id: The task.
        number: 1 is the task's first, without gaps.
        seq: The journal entry; an entry may make several transitions.
        skill: The task's skill.
        from_state: The state before.
        to_state: The state after.
        event: The lifecycle's event, or `canceled`.
        at: When.
        cause: The kind of the journal's event.
        by: Who sent it, as the sender says; empty if nobody did.
    """

    task_id: str
    number: int
    seq: int
    skill: str
    from_state: TaskState
    to_state: TaskState
    event: str
    at: datetime
    cause: str
    by: str = ""

    @property
    def id(self) -> int:
        """The row's id: the same however often the table is made."""
        return id_of(self.task_id, self.number)

    @property
    def metadata(self) -> dict[str, JsonValue]:
        """What the column `metadata` has."""
        known: dict[str, JsonValue] = {"number": self.number, "seq": self.seq, "skill": self.skill, "cause": self.cause}
        return {**known, "by": self.by} if self.by else known


def id_of(task_id: str, number: int) -> int:
    """The id of the row of a task's transition with this number."""
    digest = hashlib.sha256(f"{task_id}\0{number}".encode()).digest()
    return int.from_bytes(digest[:8]) >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as it is projected.

    Attributes:
        task_id: The task.
        skill: Its skill.
        seq: The newest entry that is in the row; 0 for none.
        number: How many transitions there were.
        state: The lifecycle's state.
        retry_count: How many retries began.
        effects: The status of each command by its invocation id: `open`, or that of its receipt. No results.
        updated_at: The time of that entry; None for none.
    """

    task_id: str
    skill: str
    seq: int = 0
    number: int = 0
    state: TaskState = TaskState.PLANNED
    retry_count: int = 0
    effects: Mapping[str, str] = field(default_factory=dict)
    updated_at: datetime | None = None

    @property
    def settled(self) -> bool:
        """Whether the task has ended, and compensates nothing any more."""
        return self.state in TERMINAL and "open" not in self.effects.values()

    @property
    def data(self) -> dict[str, JsonValue]:
        """What the column `checkpoint_data` has."""
        return {"skill": self.skill, "seq": self.seq, "number": self.number, "effects": dict(self.effects)}


@takes()
def checkpoint(task_id: str, skill: str, entries: Iterable[Entry]) -> dict[str, JsonValue]:
    """A task's row of `task_checkpoints`, from its journal alone, with `checkpoint_data` as data.

    Args:
        task_id: The task.
        skill: Its skill.
        entries: Its journal, from the first entry on.
    """
    row, _ = after(TaskRow(task_id=task_id, skill=skill), entries)
    at = None if row.updated_at is None else row.updated_at.isoformat()
    return {
        "task_id": task_id, "state": row.state.value, "retry_count": row.retry_count, "checkpoint_data": row.data,
        "updated_at": at,
    }  # fmt: skip


def after(row: TaskRow, entries: Iterable[Entry]) -> tuple[TaskRow, list[TransitionRow]]:
    """The row and the new transitions after more entries; entries that are in the row already are skipped."""
    made: list[TransitionRow] = []
    for entry in entries:
        if entry.seq > row.seq:
            new = _transitions(row, entry)
            made += new
            row = _with(row, entry, new)
    return row, made


def _transitions(row: TaskRow, entry: Entry) -> list[TransitionRow]:
    if entry.refused:
        return []
    moves = [(move.from_state, move.to_state, move.event.value) for move in entry.moves]
    if entry.ends and not moves:
        moves = [(row.state, TaskState.FAILED, CANCELED)]
    event = entry.event
    said = next(
        (name for key in ("approver", "sender", "by") if isinstance(name := getattr(event, key, None), str)), ""
    )
    return [
        TransitionRow(
            task_id=row.task_id, number=row.number + place, seq=entry.seq, skill=row.skill,
            from_state=source, to_state=target, event=name, at=entry.at.astimezone(UTC),
            cause=event.kind, by=said,
        )
        for place, (source, target, name) in enumerate(moves, start=1)
    ]  # fmt: skip


def _with(row: TaskRow, entry: Entry, made: list[TransitionRow]) -> TaskRow:
    if entry.refused:
        return replace(row, seq=entry.seq, updated_at=entry.at.astimezone(UTC))
    effects = dict(row.effects)
    receipt = receipt_of(entry.event)
    if receipt is not None:
        effects[receipt.invocation_id] = receipt.status.value
    for waiting in entry.backoffs:
        effects[waiting.invocation_id] = "open"
    if entry.ends:  # what was open is canceled; the commands of this entry are compensations
        effects = {id: "canceled" if status == "open" else status for id, status in effects.items()}
    for one in entry.commands:
        if not isinstance(one.command, AskUser | AskApproval):
            effects[one.invocation_id] = "open"
    return replace(
        row,
        seq=entry.seq,
        number=row.number + len(made),
        state=made[-1].to_state if made else row.state,
        retry_count=row.retry_count + sum(one.event == TaskEvent.RETRY.value for one in made),
        effects=effects,
        updated_at=entry.at.astimezone(UTC),
    )
