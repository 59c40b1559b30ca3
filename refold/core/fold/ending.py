"""What becomes of a task that has ended and is not over: late grants, what is under way, then the undoing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from refold.core.commands import CallTool
from refold.core.events import BackoffOver, CommandFailed, GraceOver, ToolResult
from refold.core.fold.journal import Backoff, Issued
from refold.core.fold.snapshot import Pending
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Ending
from refold.core.retry import FailureKind, RetryPolicy

if TYPE_CHECKING:
    from refold.core.fold.turn import Turn

UNDO = "~undo"
UNDO_RETRIES = RetryPolicy(max_retries=20)
"""An effect that cannot be undone is worse than one that takes its time: about an hour and a half."""


def take(turn: Turn) -> None:
    """Take an event of an ended task; `refusal` has let through only what is met here."""
    match turn.event:
        case DecisionMade() as late:
            turn.changes["late"] = late
            turn.notes.append(f"late grant by {late.approver}: `refold recover` goes on from here")
            # What is undone must be undone before it can be done again, so nobody is kept waiting for more grants.
            turn.changes["grace"] = None
            undo_next(turn)
        case GraceOver():
            turn.changes["grace"] = None
            undo_next(turn)
        case ToolResult(invocation_id=id) if id.endswith(UNDO):
            del turn.pending[id]
            _undone(turn, id)
        case ToolResult(invocation_id=id) as late:
            pending = turn.pending.pop(id)
            turn.keep_undo(pending, late)
            turn.notes.append(f"{pending.command.id} took place, too late: to be undone")
            undo_next(turn)
        case BackoffOver(invocation_id=id):
            turn.change_pending(id, retries=turn.pending[id].retries + 1, due_at=None, started=True)
        case CommandFailed(invocation_id=id) as failed if id.endswith(UNDO):
            _failed(turn, failed)
        case CommandFailed(id=name, invocation_id=id, failure=failure):
            del turn.pending[id]
            known = "NOT known whether it took place" if failure.kind is FailureKind.UNKNOWN else "did not take place"
            turn.notes.append(f"{name}: {known}: {failure.message}")
            undo_next(turn)
        case _:
            raise AssertionError(f"{turn.event.kind} is refused after the end")


def let_go(turn: Turn, ending: Ending) -> None:
    """Drop what is still asked for; all but effects that are under way and would have to be undone.

    Such a one is not told to stop: halfway, nobody would know whether there is anything to undo.
    """
    for one in turn.pending.values():
        if isinstance(one.command, CallTool) and one.blocked and one.due_at is None:
            turn.notes.append(f"NOT known whether {one.command.id} took place: {one.failure}")
    kept = {} if ending is Ending.COMPLETED else {id: one for id, one in turn.pending.items() if under_way(one)}
    turn.pending = kept


def under_way(pending: Pending) -> bool:
    """Whether it is an effect that is being performed now, and is undone if the task does not complete."""
    command, out = pending.command, pending.started and pending.due_at is None
    return out and isinstance(command, CallTool) and command.undo is not None


def undo_next(turn: Turn) -> None:
    """Undo the newest effect that is not undone; one at a time, newest first, once no more can come."""
    in_grace = turn.changes.get("grace", turn.base.grace)
    if in_grace or turn.pending or not turn.done:
        return
    newest = turn.done[-1]
    id = newest.invocation_id + UNDO
    turn.issued.append(Issued.trusted(invocation_id=id, command=newest.undo))
    turn.pending[id] = Pending.trusted(invocation_id=id, command=newest.undo, started=True, aside=True)


def _undone(turn: Turn, id: str) -> None:
    turn.changes["undone"] = (*turn.base.undone, id.removesuffix(UNDO))
    turn.notes.append(f"undone: {turn.done[-1].command.id}")
    turn.done = turn.done[:-1]
    undo_next(turn)


def _failed(turn: Turn, failed: CommandFailed) -> None:
    pending, failure = turn.pending[failed.invocation_id], failed.failure
    retry = pending.retries + 1
    if failure.kind is FailureKind.TRANSIENT and retry <= UNDO_RETRIES.max_retries:
        wait = UNDO_RETRIES.delay(retry, pending.invocation_id, failure.retry_after)
        due_at = turn.at + timedelta(seconds=wait)
        turn.change_pending(pending.invocation_id, started=False, due_at=due_at, failure=failure.message)
        turn.backoffs.append(Backoff(invocation_id=pending.invocation_id, retry=retry, due_at=due_at))
        return
    del turn.pending[failed.invocation_id]
    turn.notes.append(f"NOT undone: {turn.done[-1].command.id}: {failure.message}")
    turn.done = turn.done[:-1]
    undo_next(turn)
