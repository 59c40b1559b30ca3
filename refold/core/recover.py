"""How a task goes on from where another one failed: its journal, folded again without what killed it.

The failed task stays as it is. The new one has its state, receipts and open commands, under the ids they had, so that
no finished effect is asked for again and an open one is recognised by who received it before. Source: S3.27.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from refold.core.after_end import UNDO
from refold.core.commands import CallTool
from refold.core.errors import InputRejected
from refold.core.events import (
    RESULT_TYPES,
    BackoffOver,
    CancelRequested,
    CommandFailed,
    Event,
    GateTimedOut,
    GraceOver,
    Recovered,
    ToolResult,
)
from refold.core.gates import DecisionMade
from refold.core.journal import Entry
from refold.core.lifecycle import TaskState
from refold.core.skill import Live, Skill
from refold.core.snapshot import Pending, Snapshot
from refold.core.turn import Turn

REDO = "~2"


def recover(
    skill: Skill, base: Snapshot, entries: Sequence[Entry], task_id: str, at: datetime
) -> tuple[Snapshot, Recovered]:
    """The new task, planned, and its first event.

    Args:
        skill: Today's code of the failed task's skill.
        base: The failed task before the first of the entries.
        entries: Its journal, to the end.
        task_id: The new task's id.
        at: Now; open gates and waits begin anew.

    Raises:
        InputRejected: The task has not failed, or folded again it ends all the same.
    """
    last = next((entry for entry in entries if entry.ends), None)
    if last is None or (last.moves and last.moves[-1].to_state is TaskState.DONE):
        how = "is open" if last is None else "is done"
        raise InputRejected(f"task {base.task_id!r} {how}; only a task that failed or was canceled recovers")
    kept = [entry for entry in entries if entry.seq <= last.seq and not entry.refused]
    again: Event | None = None
    if _is_cause(last.event, last.cause):
        kept = [entry for entry in kept if not _is_cause(entry.event, last.cause)]
    else:
        kept, again = kept[:-1], last.event
    snapshot = _folded(skill, base, kept)
    if snapshot.ended:
        raise InputRejected(
            f"task {base.task_id!r} ends without what killed it, too: {snapshot.reason}; change the skill, then recover"
        )
    data = None if again is None else again.model_dump(mode="json")
    return _planned(snapshot, entries, task_id, at), Recovered(task_id=base.task_id, again=data)


def _is_cause(event: Event, cause: str | None) -> bool:
    """Whether the event is of what killed the task, and not the event that a bug met."""
    match event:
        case CancelRequested() | GateTimedOut() | GraceOver():
            return True
        case DecisionMade():
            return not event.approved
        case CommandFailed(invocation_id=id) | BackoffOver(invocation_id=id):
            return id == cause
        case _:
            return False


def _folded(skill: Skill, base: Snapshot, entries: Sequence[Entry]) -> Snapshot:
    # Numbers are kept where entries are left out: ids are made of them.
    snapshot, live = base, Live()
    for entry in entries:
        snapshot = snapshot.changed({"seq": entry.seq - 1})
        turn = Turn(skill, snapshot, entry.event, entry.at, live, None, recorded=entry.patches)
        turn.take()
        snapshot = turn.snapshot()
    return snapshot


def _planned(snapshot: Snapshot, entries: Sequence[Entry], task_id: str, at: datetime) -> Snapshot:
    results = {entry.event.invocation_id for entry in entries if isinstance(entry.event, ToolResult)}
    undone = {done.invocation_id: done for done in snapshot.done if done.invocation_id + UNDO in results}
    pending = {id: _anew(one) for id, one in snapshot.pending.items()}
    for id, done in undone.items():
        pending[id + REDO] = Pending(invocation_id=id + REDO, command=_again(done.command), aside=True)
    return snapshot.changed(
        {
            "task_id": task_id,
            "seq": entries[-1].seq,
            "at": at,
            "lifecycle": TaskState.PLANNED,
            "pending": pending,
            "waits": tuple(wait.model_copy(update={"since": at, "reminded": False}) for wait in snapshot.waits),
            "done": tuple(done for done in snapshot.done if done.invocation_id not in undone),
            "held": tuple(event for event in snapshot.held if isinstance(event, RESULT_TYPES)),
        }
    )


def _again(command: CallTool) -> CallTool:
    """A command that was undone, to be done again: whoever received it must not take it for the one it knows."""
    return command if command.key is None else command.model_copy(update={"key": command.key + REDO})


def _anew(pending: Pending) -> Pending:
    """A command as it is sent out by the new task: under its own id, its tries counted from the start."""
    return pending.model_copy(
        update={"started": False, "due_at": None, "retries": 0, "forgiven": 0, "blocked": False, "failure": ""}
    )
