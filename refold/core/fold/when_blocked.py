"""What becomes of a task whose dependency is down, or of whose effect nobody knows whether it took place."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from pydantic import JsonValue

from refold.core.chat import as_reply
from refold.core.commands import CallActivity, CallChat, CallLlm, CallTool
from refold.core.events import (
    ActivityResult,
    ChatResult,
    CommandFailed,
    DependencyResolved,
    LlmResult,
    Result,
    ToolResult,
)
from refold.core.fold.journal import Backoff
from refold.core.fold.snapshot import Given, Pending
from refold.core.lifecycle import TaskEvent, TaskState
from refold.core.retry import FailureKind

if TYPE_CHECKING:
    from refold.core.fold.turn import Turn


def block(turn: Turn, event: CommandFailed) -> None:
    """Keep the task until the dependency answers, or an operator says how it goes on."""
    turn.change_pending(event.invocation_id, blocked=True, given=None)
    _wait(turn, event)
    turn.move(TaskEvent.BLOCK_ON_DEPENDENCY)


def probed(turn: Turn, event: CommandFailed) -> None:
    """A probe failed: wait longer for the next one; or, if the answer was "never", let the skill have it."""
    if event.failure.kind is not FailureKind.PERMANENT:
        _wait(turn, event)
        return
    turn.change_pending(event.invocation_id, blocked=False, due_at=None)
    release(turn)
    if turn.pending[event.invocation_id].aside:
        turn.failed(event)
        return
    turn.run([event])


def resolved(turn: Turn, event: DependencyResolved) -> None:
    """Go on as the operator says."""
    pending = blocked_one(turn.pending, event)
    assert pending is not None
    id = pending.invocation_id
    by = f" by {event.by}" if event.by else ""
    said = f": {event.comment}" if event.comment else ""
    if event.retry:
        turn.change_pending(
            id, blocked=False, started=False, due_at=None, decided=True,
            retries=pending.retries + 1, forgiven=pending.retries + 1,
        )  # fmt: skip
        turn.notes.append(f"{pending.command.id}: to be performed again, as decided{by}{said}")
        release(turn)
        turn.run([])
        return
    turn.notes.append(f"{pending.command.id}: outcome given{by}{said}")
    if isinstance(pending.command, CallTool):
        # Its receipt must say so before the task goes on: else a later caller of the same key would be in doubt again.
        turn.pending[id] = with_outcome(pending, event.outcome)
        release(turn)
        turn.run([])
        return
    result = given_outcome(pending, event)
    del turn.pending[id]
    turn.hear(pending, result)
    if not pending.aside:
        turn.keep_receipt(result)
    release(turn)
    turn.run([] if pending.aside else [result])


def with_outcome(pending: Pending, outcome: JsonValue) -> Pending:
    """A blocked call of a tool, on its way to its receipt with the outcome that an operator gives it."""
    tries = pending.retries + 1
    return Pending(
        invocation_id=pending.invocation_id,
        command=pending.command,
        retries=tries,
        forgiven=tries,
        aside=pending.aside,
        given=Given(outcome=outcome),
    )


def take_at_word(turn: Turn, event: CommandFailed) -> None:
    """Go on with the outcome that an operator gave, though no receipt could be written of it."""
    pending = turn.pending.pop(event.invocation_id)
    assert pending.given is not None
    turn.notes.append(f"{event.id}: no receipt says what came of it: {event.failure.message}")
    result = ToolResult(id=event.id, invocation_id=event.invocation_id, value=pending.given.outcome)
    turn.keep_undo(pending, result)
    if not pending.aside:
        turn.keep_receipt(result)
        turn.call(result)


def release(turn: Turn) -> None:
    """Run again once nothing is blocked any more."""
    if turn.lifecycle is TaskState.BLOCKED and not any(one.blocked for one in turn.pending.values()):
        turn.move(TaskEvent.DEPENDENCY_RESOLVED)


def blocked_one(pending: Mapping[str, Pending], event: DependencyResolved) -> Pending | None:
    """The blocked command that is meant; None where it is not blocked, or not clear."""
    blocked = [one for one in pending.values() if one.blocked]
    if event.invocation_id is None:
        return blocked[0] if len(blocked) == 1 else None
    return next((one for one in blocked if one.invocation_id == event.invocation_id), None)


def _wait(turn: Turn, event: CommandFailed) -> None:
    pending, policy = turn.pending[event.invocation_id], turn.policy(event.invocation_id)
    failure = event.failure
    turn.change_pending(pending.invocation_id, decided=False)  # that try is over; another one needs another word
    if failure.kind is FailureKind.UNKNOWN:
        turn.change_pending(pending.invocation_id, started=False, due_at=None, failure=failure.message)
        turn.notes.append(f"{event.id}: {failure.message}; a person must decide: `refold resolve`")
        return
    probe = pending.retries - pending.forgiven - policy.max_retries + 1
    due_at = turn.at + timedelta(seconds=max(policy.probe_delay(probe), failure.retry_after or 0.0))
    turn.change_pending(pending.invocation_id, started=False, due_at=due_at, failure=failure.message)
    turn.backoffs.append(Backoff(invocation_id=pending.invocation_id, retry=pending.retries + 1, due_at=due_at))
    turn.notes.append(f"{event.id}: {failure.message}; probe {probe} at {due_at:%H:%M:%S}")


def given_outcome(pending: Pending, event: DependencyResolved) -> Result:
    """The outcome that an operator gives a command, as if it had come back with it."""
    id, invocation_id = pending.command.id, pending.invocation_id
    match pending.command:
        case CallLlm():
            return LlmResult(id=id, invocation_id=invocation_id, value=event.outcome)
        case CallChat():
            return ChatResult(id=id, invocation_id=invocation_id, reply=as_reply(event.outcome))
        case CallActivity():
            return ActivityResult(id=id, invocation_id=invocation_id, value=event.outcome)
        case other:
            raise AssertionError(f"a {other.kind} is never blocked")
