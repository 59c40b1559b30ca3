"""What clients and A2A see of a task: messages, artifacts, open questions, status; and what its journal tells.

A record is made in two ways with the same result: `record_of` a snapshot, or from the journal without the skill's code,
where `with_entry` updates a record by one entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from pydantic import JsonValue

from refold.core.commands import AskApproval, AskUser
from refold.core.content import Artifact, Message
from refold.core.contracts.audit import ORCHESTRATOR
from refold.core.errors import InputRejected
from refold.core.events import EVENT, ChildAsked, Event, Recovered, ReminderDue, UserMessage
from refold.core.fold.gates import CHECKED_AGAIN, as_kept
from refold.core.fold.journal import Entry, as_said, receipt_of, with_latest
from refold.core.fold.snapshot import Receipt, ReceiptStatus, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Status, TaskState
from refold.core.lineage.ids import place
from refold.core.values import Value, lean
from refold.core.waits import Wait

ENDED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELED, Status.REJECTED})
PAUSED = frozenset({Status.INPUT_REQUIRED, Status.AUTH_REQUIRED})


class TaskRecord(Value):
    """A task as of one journal entry, without the skill's state. Fields of the same name are those of `Snapshot`.

    Attributes:
        status: The A2A status.
        waits: Questions that this task takes answers to, oldest first: its own, then those of its parts.
        reported_by: The part that reported a question, by the question's gate; only for questions of parts.
        note: Why the record is incomplete, if it is: no worker answered, for example.
        differs: What the task's code says otherwise than this record, which is as it was recorded; and what to do.
    """

    task_id: str
    skill: str
    seq: int = 0
    at: datetime
    status: Status
    status_at: datetime
    lifecycle: TaskState
    reason: str = lean("")
    messages: tuple[Message, ...] = lean(())
    artifacts: tuple[Artifact, ...] = lean(())
    waits: tuple[Wait, ...] = lean(())
    reported_by: Mapping[str, str] = lean(factory=dict)
    progress: str = lean("")
    owner: str | None = lean()
    context: str | None = lean()
    parent: str | None = lean()
    recovered_from: str | None = lean()
    note: str = lean("")
    differs: str = lean("")

    @property
    def ended(self) -> bool:
        """Whether the task has ended."""
        return self.status in ENDED

    @property
    def paused(self) -> bool:
        """Whether the task waits for a person, or for the agent that started it."""
        return self.status in PAUSED


def record_of(snapshot: Snapshot) -> TaskRecord:
    """The public record of a task."""
    same = {name: getattr(snapshot, name) for name in TaskRecord.model_fields if name in Snapshot.model_fields}
    reported_by = {wait.gate: id for id, pending in snapshot.pending.items() for wait in pending.asks}
    own = {"waits": snapshot.open_waits, "status": snapshot.status, "status_at": snapshot.status_at or snapshot.at}
    return TaskRecord.trusted(**{**same, **own, "reported_by": reported_by})


def with_entry(record: TaskRecord, entry: Entry) -> TaskRecord:
    """The record after one more entry."""
    fields = dict(record.__dict__)
    fields.update(seq=entry.seq, at=entry.at)
    if not entry.refused:
        fields.update(_changes(record, entry))
    return TaskRecord.trusted(**fields)


def with_entries(record: TaskRecord, entries: Iterable[Entry]) -> TaskRecord:
    """The record after these entries; entries that the record includes already are skipped."""
    for entry in entries:
        if entry.seq > record.seq:
            record = with_entry(record, entry)
    return record


def said_in(entry: Entry) -> tuple[Message, ...]:
    """The messages of an entry: the user's, then the skill's."""
    if entry.refused:
        return ()
    agent = tuple(Message.trusted(role="agent", content=content, seq=entry.seq) for content in entry.messages)
    user = _taken(entry)
    if not isinstance(user, UserMessage) or user.called_back:
        return agent
    return (as_said(user, entry.seq), *agent)


def _taken(entry: Entry) -> Event:
    """The event itself; for `Recovered`, the event of the failed task that is delivered once more, if it counts."""
    event = entry.event
    if isinstance(event, Recovered) and event.again is not None and not entry.patches.get(CHECKED_AGAIN):
        return EVENT.validate_python(event.again)
    return event


def _changes(record: TaskRecord, entry: Entry) -> dict[str, object]:
    changes: dict[str, object] = {}
    if said := said_in(entry):
        changes["messages"] = (*record.messages, *said)
    if entry.artifacts:
        changes["artifacts"] = with_latest(record.artifacts, entry.artifacts)
    if entry.progress is not None:
        changes["progress"] = entry.progress
    if entry.moves:
        changes["lifecycle"] = entry.moves[-1].to_state
    waits = _waits(record, entry)
    changes |= {"waits": waits, "reported_by": _reported_by(record, entry, waits)}
    if entry.status is not None:
        changes |= {"status": entry.status, "status_at": entry.at}
        if entry.status in ENDED:
            done = entry.status is Status.COMPLETED
            changes |= {"waits": (), "reported_by": {}, "lifecycle": TaskState.DONE if done else TaskState.FAILED}
            if entry.status is not Status.COMPLETED:
                changes["reason"] = entry.reason
    return changes


def _waits(record: TaskRecord, entry: Entry) -> tuple[Wait, ...]:
    """The open questions after an entry: the task's own first, each in the order asked."""
    still = [wait for wait in record.waits if wait.gate not in entry.closed]
    own = [wait for wait in still if wait.gate not in record.reported_by]
    parts = [wait for wait in still if wait.gate in record.reported_by]
    match _taken(entry):
        case ChildAsked(invocation_id=part, waits=waits):
            parts = [wait for wait in parts if record.reported_by[wait.gate] != part]
            parts += [wait for wait in waits if wait.gate not in entry.closed]
            asked_by = {**record.reported_by, **{wait.gate: part for wait in waits}}
            parts.sort(key=lambda wait: [int(number) for number in place(asked_by[wait.gate]).split(".")])
        case DecisionMade(gate=gate) as grant:
            own = [_decided(wait, grant) if wait.gate == gate else wait for wait in own]
        case ReminderDue(gate=gate):
            own = [wait.model_copy(update={"reminded": True}) if wait.gate == gate else wait for wait in own]
        case _:
            pass
    own += [
        Wait.trusted(gate=one.invocation_id, ask=one.command, since=entry.at)
        for one in entry.commands
        if isinstance(one.command, AskUser | AskApproval) and one.invocation_id not in entry.closed
    ]
    return (*own, *parts)


def _decided(wait: Wait, decision: DecisionMade) -> Wait:
    return wait.decided(as_kept(decision, wait.ask)) if isinstance(wait.ask, AskApproval) else wait


def _reported_by(record: TaskRecord, entry: Entry, waits: tuple[Wait, ...]) -> Mapping[str, str]:
    reported = dict(record.reported_by)
    if isinstance(entry.event, ChildAsked):
        reported |= {wait.gate: entry.event.invocation_id for wait in entry.event.waits}
    return {wait.gate: reported[wait.gate] for wait in waits if wait.gate in reported}


def receipts(entries: Iterable[Entry]) -> list[Receipt]:
    """The receipts of a journal, in the order the outcomes came; commands without one when the task ends are canceled.

    A failure that is retried gives no receipt. A held failure does, until the task schedules its retry.
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
        if entry.ends:  # the commands of this entry are compensations
            canceled = ReceiptStatus.CANCELED
            found |= {id: Receipt.trusted(invocation_id=id, status=canceled) for id in out}
            out = {}
        out |= issued
    return list(found.values())


class Written(Value):
    """One write to a field.

    Attributes:
        field: The field's name.
        value: The written value.
        step: The step that wrote the value, or `orchestrator`.
        seq: The number of the journal entry.
        at: When the value was written.
    """

    field: str
    value: JsonValue = lean()
    step: str
    seq: int
    at: datetime


class Explanation(Written):
    """Where the value of a field comes from.

    Attributes:
        started_at: When the step that wrote the value was entered.
        from_state: The lifecycle's state before that step.
        to_state: The state after that step.
        sources: The fields that the step could read, with their values at that time.
        awaited: The invocation ids of the commands and questions that the step waited for.
        earlier: The entries that wrote the field before, oldest first.
    """

    started_at: datetime
    from_state: str
    to_state: str
    sources: tuple[Written, ...] = lean(())
    awaited: tuple[str, ...] = lean(())
    earlier: tuple[int, ...] = lean(())


def explain(entries: Iterable[Entry], field: str, *, upto: int | None = None) -> Explanation:
    """Which step wrote a field last, when, and from which values.

    Args:
        entries: The journal, from its first entry on.
        field: A field of the contract's state.
        upto: The number of the last entry to consider; None considers all. To explain a source, pass its `seq`.

    Raises:
        InputRejected: The field was never written, the skill has no contract, or there is no entry `upto`.
    """
    last: dict[str, Explanation] = {}
    newest = 0
    for entry in entries:
        if upto is not None and entry.seq > upto:
            break
        newest = entry.seq
        for event in entry.audit:
            known = (last[name] for name in event.read_set if name in last)
            sources = tuple(Written(**{name: getattr(one, name) for name in Written.model_fields}) for one in known)
            by_step = [(name, value, event.stage, sources, event.awaited) for name, value in event.patch.items()]
            by_move = [(name, value, ORCHESTRATOR, (), ()) for name, value in event.owned.items()]
            for name, value, writer, read, awaited in (*by_step, *by_move):
                before = last.get(name)
                last[name] = Explanation(
                    field=name, value=value, step=writer, seq=entry.seq, at=event.finished_at,
                    started_at=event.started_at, from_state=event.from_state, to_state=event.to_state,
                    sources=read, awaited=awaited,
                    earlier=() if before is None else (*before.earlier, before.seq),
                )  # fmt: skip
    if upto is not None and newest < upto:
        raise InputRejected(f"there is no entry {upto}: the newest is {newest}")
    if field not in last:
        written = ", ".join(last) or "nothing: its skill has no contract, or it has not begun"
        raise InputRejected(f"nobody has written {field!r} in this task; written so far: {written}")
    return last[field]
