"""How a task ends, and what it does afterwards: record a late grant, wait for running effects, compensate.

Compensation begins when no late grant and no result of a running effect can come any more: newest first, one at a time.
"""

from __future__ import annotations

from refold.core.commands import CallTool
from refold.core.errors import CommandError, DecodeError, describe, plain
from refold.core.events import BackoffOver, CommandFailed, Event, GraceOver, ToolResult
from refold.core.fold.draft import Draft
from refold.core.fold.snapshot import UNDO, Pending, ReceiptStatus
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Ending, TaskEvent, TaskState
from refold.core.retry_policy import FailureKind

REDONE = "refold.redone"
"""The patch with which an effect that was performed again is compensated, too, where an operator gave its outcome."""

_ENDED_BY = {
    Ending.COMPLETED: TaskEvent.COMPLETE,
    Ending.FAILED: TaskEvent.FATAL_ERROR,
    Ending.REJECTED: TaskEvent.FATAL_ERROR,
}


def end(draft: Draft, ending: Ending, reason: str, event: TaskEvent | None = None) -> None:
    """End the task.

    Args:
        draft: The task.
        ending: How the task ends.
        reason: Why the task does not complete; ignored if it completes.
        event: The event for the lifecycle's table; None takes the one of `_ENDED_BY`.
    """
    reason = plain(reason)
    if ending is Ending.CANCELED:
        # Cancel is outside the lifecycle's table, as termination is: allowed in every open state. DESIGN section 6.
        draft.lifecycle = TaskState.FAILED
    else:
        draft.move(event or _ENDED_BY[ending])
    draft.changes["ending"] = ending
    if draft.killed_by is None and ending is not Ending.COMPLETED:
        # Failures that the skill's current await has received and not raised.
        kept = ((id, draft.receipts.get(id)) for id in draft.skill.awaiting(draft.state))
        draft.changes["unraised"] = tuple(id for id, one in kept if one and one.status is ReceiptStatus.ERROR)
    if ending is Ending.COMPLETED:
        draft.done = ()
    else:
        draft.changes["reason"] = reason
        draft.notes.append(reason)
    _drop_commands(draft, ending)
    if draft.early:
        draft.notes.append(f"nobody asked for {len(draft.early)} of the messages that came")
    draft.waits, draft.held, draft.early, draft.receipts = (), (), (), {}
    undo_next(draft)


def end_by_failure(draft: Draft, error: CommandError) -> None:
    """Fail the task because of a failed command, and note which failures recovery has to skip."""
    if not isinstance(error, DecodeError):  # the command succeeded: corrected code can read its value
        draft.killed_by, draft.changes["unraised"] = error.invocation_id, error.beside
    if error.failure.kind is FailureKind.TRANSIENT:
        draft.move(TaskEvent.TRANSIENT_ERROR)
        end(draft, Ending.FAILED, f"{error} (no retry left)", TaskEvent.MAX_RETRIES_EXCEEDED)
    else:
        end(draft, Ending.FAILED, str(error))


def crash(draft: Draft, bug: Exception) -> None:
    """End the task in its state before an event that met a bug, of the skill or of the core.

    What is to be compensated is compensated, and the journal goes on. A task that has ended stays as it is.
    """
    if draft.base.ended:
        draft.notes.append(f"bug: {describe(bug)}; the task stays as it was")
        return
    if draft.lifecycle is TaskState.PLANNED:
        draft.move(TaskEvent.START)
    elif draft.lifecycle is TaskState.PAUSED:
        draft.move(TaskEvent.APPROVAL_GRANTED)
    end(draft, Ending.FAILED, f"bug: {describe(bug)}")


def _drop_commands(draft: Draft, ending: Ending) -> None:
    """Drop pending commands, except running effects that have a compensation.

    Such an effect is not canceled: if it were, it would not be known whether there is anything to compensate.
    """
    failed = {event.invocation_id: event for event in draft.held if isinstance(event, CommandFailed)}
    kept = {}
    for id, one in draft.pending.items():
        if isinstance(one.command, CallTool) and one.blocked and (one.due_at is None or one.looks):
            draft.notes.append(f"NOT known whether {one.command.id} took place: {one.failure}")
        if ending is Ending.COMPLETED:
            continue
        if one.given is not None and (id in failed or not under_way(one)):
            if not one.background or draft.patched(REDONE):
                _take_given(draft, one)
        elif not under_way(one):
            continue
        elif id in failed:
            draft.notes.append(_did_not_take_place(failed[id]))
        else:
            kept[id] = one
    draft.pending = kept


def under_way(pending: Pending) -> bool:
    """Whether a command is an effect with a compensation that is being performed now."""
    command, out = pending.command, pending.started and pending.due_at is None
    return out and isinstance(command, CallTool) and command.undo is not None


def _take_given(draft: Draft, pending: Pending) -> None:
    """Keep an effect for compensation that took place as an operator says, although it has no receipt."""
    assert pending.given is not None
    result = ToolResult(id=pending.command.id, invocation_id=pending.invocation_id, value=pending.given.outcome)
    before = draft.done
    draft.keep_undo(pending, result)
    if draft.done is not before:
        draft.notes.append(f"{pending.command.id} took place, as an operator says: to be undone")


def _did_not_take_place(failed: CommandFailed) -> str:
    unknown = failed.failure.kind is FailureKind.UNKNOWN
    known = "NOT known whether it took place" if unknown else "did not take place"
    return f"{failed.id}: {known}: {failed.failure.message}"


# --- after the end


def take_late(draft: Draft, event: Event) -> None:
    """Take an event of an ended task. `refusal` lets no other kinds of events through than those listed here."""
    match event:
        case DecisionMade():
            record_late_grant(draft, event)
        case GraceOver():
            draft.changes["grace"] = None
            undo_next(draft)
        case ToolResult(invocation_id=id):
            pending = draft.pending.pop(id)
            if id.endswith(UNDO):
                draft.changes["undone"] = (*draft.base.undone, id.removesuffix(UNDO))
                draft.notes.append(f"undone: {draft.done[-1].command.id}")
                draft.done = draft.done[:-1]
            else:
                draft.keep_undo(pending, event)
                draft.notes.append(f"{pending.command.id} took place, too late: to be undone")
            undo_next(draft)
        case BackoffOver(invocation_id=id):
            draft.change_pending(id, retries=draft.pending[id].attempt, due_at=None, started=True)
        case _:
            raise AssertionError(f"{event.kind} is refused after the end")


def record_late_grant(draft: Draft, grant: DecisionMade) -> None:
    """Record a grant that came after its gate's timeout, so that recovery can use it."""
    draft.changes["late"] = grant
    draft.notes.append(f"late grant by {grant.approver}: `refold recover` goes on from here")
    # Recovery repeats compensated effects only, so compensation begins now instead of when the grace time ends.
    draft.changes["grace"] = None
    undo_next(draft)


def failed_late(draft: Draft, failed: CommandFailed) -> None:
    """Note that an effect which was being performed when the task ended did not take place.

    If an operator stated that the effect took place, only its receipt failed, and the effect is compensated.
    """
    pending = draft.pending.pop(failed.invocation_id)
    if pending.given is not None:
        _take_given(draft, pending)
    else:
        draft.notes.append(_did_not_take_place(failed))
    undo_next(draft)


def give_up_undo(draft: Draft, failed: CommandFailed) -> None:
    """Note that an effect could not be compensated, and compensate the next one."""
    del draft.pending[failed.invocation_id]
    draft.notes.append(f"NOT undone: {draft.done[-1].command.id}: {failed.failure.message}")
    draft.done = draft.done[:-1]
    undo_next(draft)


def undo_next(draft: Draft) -> None:
    """Compensate the newest effect that is not compensated yet, unless a late grant or a result can still come."""
    in_grace = draft.changes.get("grace", draft.base.grace)
    if not in_grace and not draft.pending and draft.done:
        draft.issue_undo(draft.done[-1])
