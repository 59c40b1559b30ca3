"""Where a retry is decided: one table of what each failure leads to (retry, hold, block, deliver, end).

`TABLE[stage, role, cause]` is the action, which `delivery.act_on_failure` takes, for where the task stands, what the
command is for and which kind of failure it is. A cell that is not in the table cannot be reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from pydantic import JsonValue

from refold.core.chat import Reply
from refold.core.commands import CallActivity, CallChat, CallLlm, CallTool, Notify, fallbacks_of, retry_of
from refold.core.events import (
    ActivityResult,
    ChatResult,
    CommandFailed,
    DependencyResolved,
    LlmResult,
    Result,
    ToolResult,
)
from refold.core.fold.draft import Draft
from refold.core.fold.redo import note_redone
from refold.core.fold.snapshot import UNDO, Given, Pending
from refold.core.lifecycle import TERMINAL, TaskEvent, TaskState
from refold.core.retry_policy import LEFT, NO_TOOL, Failure, FailureKind, RetryPolicy

UNDO_RETRIES = RetryPolicy.model_construct(max_retries=20)
"""Retries of a compensation, over about an hour and a half: a late compensation is better than none."""

NO_TOOL_ENDS = "refold.no_tool_ends"
"""The patch with which `on_unknown="repeat"` does not ask without end for a tool that no worker has any more."""

LEFT_ENDS = "refold.left_ends"
"""The patch with which it does not either where no worker can make the call any more for another reason."""

GIVEN_COUNTS = "refold.given_counts"
"""The patch with which an outcome that a person gave counts though no worker can read the call."""

FALLBACK_RETRIES = 2
"""The most retries of a model while its call has another one."""

FALLBACK_WAIT_S = 30.0
"""The longest wait, in seconds, that a model may ask for while its call has another one."""


class Stage(StrEnum):
    """Where the task stands when a failure is decided on."""

    RUNNING = "running"
    REDOING = "redoing"
    """Running; a compensated effect is being performed again, and the skill is not called until that is done."""
    RETRYING = "retrying"
    PAUSED = "paused"
    BLOCKED = "blocked"
    """Blocked on another command."""
    PROBED = "probed"
    """Blocked on this command."""
    ENDED = "ended"


class Role(StrEnum):
    """What a command is for."""

    SKILL = "skill"
    """The skill asked for it."""
    QUESTION = "question"
    """A question or gate of the skill that timed out."""
    REDO = "redo"
    """Repeats an effect that was compensated before the task was recovered."""
    UNDO = "undo"
    """Compensates an effect."""
    REMINDER = "reminder"


class Cause(StrEnum):
    """The kind of a command's failure."""

    RETRYABLE = "retryable"
    """Transient, and a retry is left; or there is another model to ask."""
    EXHAUSTED = "exhausted"
    """Transient, and no retry is left."""
    DOWN = "down"
    """Transient, no retry is left, and the policy says `on_exhausted="block"`, or there is an outage and no policy; or
    the workers failed, not the effect, and there is time to send the command again (`Failure.again_s`)."""
    PERMANENT = "permanent"
    UNKNOWN = "unknown"
    """It is not known whether the effect took place."""
    GIVEN = "given"
    """An operator stated the outcome, and its receipt could not be written."""
    SKIPPED = "skipped"
    """Recovery skips this failure (`Draft.skipped`)."""


class Action(StrEnum):
    """What the fold does about a failure."""

    RETRY = "retry"
    """Back off, then send the command again."""
    HOLD = "hold"
    """Hold the failure until the task runs again, then look it up in the table again."""
    BLOCK = "block"
    """Block the task until the dependency answers, or an operator decides."""
    PROBE = "probe"
    """Stay blocked until the next, later probe; or, if the outcome is unknown, until an operator decides."""
    RELEASE = "release"
    """Unblock the task, then look the failure up in the table again."""
    DELIVER = "deliver"
    """Give the failure to the skill, which may catch it."""
    ACCEPT = "accept"
    """Deliver the outcome that the operator stated."""
    REISSUE = "reissue"
    """Send the command again, with attempts counted from the start."""
    END = "end"
    """Fail the task."""
    NOTE = "note"
    """Note in the journal that a late effect did not take place; compensate it, if an operator says that it did."""
    RETRY_UNDO = "retry_undo"
    GIVE_UP = "give_up"
    """Note in the journal that an effect is NOT undone, and compensate the next one."""
    DROP = "drop"
    """Note in the journal that no reminder was sent; the gate stays open."""


class Cell(NamedTuple):
    """A place in the table."""

    stage: Stage
    role: Role
    cause: Cause


# One row for each stage and role, one column for each cause; "-" where the cause cannot be.
_ROWS = """
stage     role      retryable   exhausted  down   permanent  unknown  given   skipped
running   skill     retry       deliver    block  deliver    block    accept  reissue
running   question  -           -          -      deliver    -        -       -
redoing   redo      retry       end        block  end        block    accept  reissue
redoing   question  -           -          -      hold       -        -       -
retrying  skill     retry       hold       hold   hold       hold     hold    hold
retrying  redo      retry       hold       hold   hold       hold     hold    hold
paused    skill     hold        hold       hold   hold       hold     hold    hold
paused    question  -           -          -      deliver    -        -       -
paused    reminder  drop        drop       -      drop       -        -       -
blocked   skill     hold        hold       hold   hold       hold     hold    hold
blocked   redo      hold        hold       hold   hold       hold     hold    hold
probed    skill     probe       probe      probe  release    probe    release release
probed    redo      probe       probe      probe  release    probe    release release
ended     skill     note        note       note   note       note     note    note
ended     redo      note        note       note   note       note     note    note
ended     undo      retry_undo  give_up    -      give_up    give_up  -       -
"""
# A paused task meets a question's timeout in a race only; `questions.closed` holds one that must wait for other
# questions. A reminder is dropped with its gate, and while a gate is open the task is paused.
_HEAD, *_LINES = (line.split() for line in _ROWS.strip().splitlines())
TABLE: Mapping[Cell, Action] = {
    Cell(Stage(stage), Role(role), Cause(cause)): Action(action)
    for stage, role, *actions in _LINES
    for cause, action in zip(_HEAD[2:], actions, strict=True)
    if action != "-"
}


def cell_of(draft: Draft, failed: CommandFailed) -> Cell:
    """The cell of the table that applies to a failure now."""
    pending = draft.pending.get(failed.invocation_id)
    if pending is None:
        return Cell(_stage(draft, None), Role.QUESTION, Cause.PERMANENT)
    return Cell(_stage(draft, pending), _role(pending), _cause(draft, pending, failed))


def _stage(draft: Draft, pending: Pending | None) -> Stage:
    if draft.lifecycle in TERMINAL:
        return Stage.ENDED
    if draft.lifecycle is TaskState.RUNNING and draft.redoing:
        return Stage.REDOING
    return Stage.PROBED if pending is not None and pending.blocked else Stage(draft.lifecycle)


def _role(pending: Pending) -> Role:
    if isinstance(pending.command, Notify):
        return Role.REMINDER
    if pending.invocation_id.endswith(UNDO):
        return Role.UNDO
    return Role.REDO if pending.background else Role.SKILL


def _cause(draft: Draft, pending: Pending, failed: CommandFailed) -> Cause:
    failure, kind, policy = failed.failure, failed.failure.kind, policy_of(draft, pending)
    # A part or a child workflow never runs twice under one id, so an operator has no retry to decide on.
    repeatable = isinstance(pending.command, CallLlm | CallChat | CallTool | CallActivity)
    if repeatable and _workers_failed(draft, pending, failed):
        return Cause.RETRYABLE if _role(pending) is Role.UNDO else Cause.DOWN
    tries_left = kind is FailureKind.TRANSIENT and pending.retries - pending.uncounted < policy.max_retries
    if tries_left or moves_on(draft, pending, failed.failure):
        return Cause.RETRYABLE
    if kind is FailureKind.UNKNOWN and repeatable and policy.on_unknown != "fail":
        # A worker that cannot read the call does not see that a person has said what came of it.
        said = pending.given is not None and failure.type in LEFT and draft.patched(GIVEN_COUNTS)
        return Cause.GIVEN if said else Cause.UNKNOWN
    if pending.given is not None:
        return Cause.GIVEN
    was_last = pending.moved > 0 and failure.type in policy.fallback_on
    plain = RetryPolicy(on_unknown=policy.on_unknown, fallback_on=policy.fallback_on)
    blocks = policy.on_exhausted == "block" or ((was_last or failure.again_s > 0) and policy == plain)
    if (kind is FailureKind.TRANSIENT or was_last) and repeatable and blocks:
        return Cause.DOWN
    if pending.invocation_id in draft.skipped:
        return Cause.SKIPPED
    return Cause.EXHAUSTED if kind is FailureKind.TRANSIENT else Cause.PERMANENT


def moves_on(draft: Draft, pending: Pending, failure: Failure) -> bool:
    """Whether the next of a call's models is asked: at the third transient failure, or if asked for a long wait.

    Of the permanent failures, those that the policy names are not about the request: another model may not have them.
    """
    policy = policy_of(draft, pending)
    if pending.moved >= len(fallbacks_of(pending.command)):
        return False
    if failure.kind is not FailureKind.TRANSIENT:
        return failure.type in policy.fallback_on
    retries = pending.retries - pending.uncounted
    return retries >= min(policy.max_retries, FALLBACK_RETRIES) or (failure.retry_after or 0) > FALLBACK_WAIT_S


def _workers_failed(draft: Draft, pending: Pending, failed: CommandFailed) -> bool:
    """Whether the failure is the workers', and there is time for another one to take the command."""
    kind, again_s, policy = failed.failure.kind, failed.failure.again_s, policy_of(draft, pending)
    if _role(pending) is Role.UNDO:
        return again_s > 0 and pending.retries < policy.max_retries
    if kind is FailureKind.TRANSIENT:
        return False
    if pending.looks < policy.probes_for(again_s):
        return True
    endless = kind is FailureKind.UNKNOWN and policy.on_unknown == "repeat" and again_s > 0 and policy.probe_s > 0
    type = failed.failure.type
    return endless and not (type in LEFT and draft.patched(NO_TOOL_ENDS if type == NO_TOOL else LEFT_ENDS))


def policy_of(draft: Draft, pending: Pending) -> RetryPolicy:
    """The retry policy of a pending command."""
    return UNDO_RETRIES if _role(pending) is Role.UNDO else retry_of(pending.command, draft.skill.options.retry)


# --- the actions


def drop(draft: Draft, failed: CommandFailed) -> None:
    """Drop a failed command, with a note if its effect may have taken place."""
    pending = draft.pending.pop(failed.invocation_id, None)
    if pending is not None and isinstance(pending.command, CallTool) and failed.failure.kind is FailureKind.UNKNOWN:
        draft.notes.append(f"NOT known whether {failed.id} took place: {failed.failure.message}")


def retry(draft: Draft, failed: CommandFailed) -> None:
    """Back off, and move the task to `retrying` if it is running."""
    pending, failure = draft.pending[failed.invocation_id], failed.failure
    policy, wait_s, why, then = policy_of(draft, pending), 0.0, failure.message, ""
    if moves_on(draft, pending, failure):
        draft.change_pending(pending.invocation_id, moved=pending.moved + 1, uncounted=pending.attempt)
        why += f"; asks {fallbacks_of(pending.command)[pending.moved]} instead"
    else:
        number = pending.attempt - (pending.uncounted if pending.moved else 0)
        wait_s = policy.delay(number, pending.invocation_id, failure.retry_after)
        counted = pending.retries - pending.uncounted + 1  # as `_cause` counts them
        then = f"; retry {counted} of {policy.max_retries} in {wait_s:g} s"
    draft.back_off(pending, wait_s, why)
    if pending.invocation_id.endswith(UNDO):
        return
    draft.notes.append(f"{failed.id}: {why}{then}")
    if draft.lifecycle is TaskState.RUNNING:
        draft.move(TaskEvent.TRANSIENT_ERROR)


def hold(draft: Draft, failed: CommandFailed) -> None:
    """Hold a failure until the task runs again, and drop the open questions of a part that failed."""
    if failed.invocation_id in draft.pending:
        draft.change_pending(failed.invocation_id, failure=failed.failure.message, asks=(), answers=(), unresolved=())
    draft.hold(failed)


def block(draft: Draft, failed: CommandFailed) -> None:
    """Block the task until the dependency answers, or an operator decides."""
    draft.change_pending(failed.invocation_id, blocked=True)
    await_probe(draft, failed)
    draft.move(TaskEvent.BLOCK_ON_DEPENDENCY)


def await_probe(draft: Draft, failed: CommandFailed) -> None:
    """Schedule the next probe; or, if it is not known whether the effect took place, wait for an operator."""
    pending, failure = draft.pending[failed.invocation_id], failed.failure
    policy = policy_of(draft, pending)
    probe = max(1, pending.retries - pending.uncounted - policy.max_retries + 1)
    if _workers_failed(draft, pending, failed):
        probe = pending.looks + 1
        draft.change_pending(pending.invocation_id, looks=probe)
        pending = draft.pending[pending.invocation_id]
    elif failure.kind is FailureKind.UNKNOWN:
        waits = {"started": False, "due_at": None, "decided": False, "given": None}
        draft.change_pending(pending.invocation_id, failure=failure.message, **waits)
        draft.notes.append(f"{failed.id}: {failure.message}; a person must decide: `refold resolve`")
        return
    if others := fallbacks_of(pending.command):  # each in turn
        draft.change_pending(pending.invocation_id, moved=(pending.moved + 1) % (len(others) + 1))
    draft.back_off(pending, policy.probe_delay(probe, failure.retry_after), failure.message)
    due_at = draft.backoffs[-1].due_at
    draft.notes.append(f"{failed.id}: {failure.message}; probe {probe} at {due_at:%H:%M:%S}")


def release(draft: Draft) -> None:
    """Unblock the task if none of its commands is blocked."""
    if draft.lifecycle is TaskState.BLOCKED and not any(one.blocked for one in draft.pending.values()):
        draft.move(TaskEvent.DEPENDENCY_RESOLVED)


def accept(draft: Draft, failed: CommandFailed) -> Sequence[Result]:
    """Accept the outcome that an operator stated, as `take_result` does."""
    given = draft.pending[failed.invocation_id].given
    assert given is not None
    draft.notes.append(f"{failed.id}: no receipt says what came of it: {failed.failure.message}")
    return take_result(draft, ToolResult(id=failed.id, invocation_id=failed.invocation_id, value=given.outcome))


def take_result(draft: Draft, result: Result) -> Sequence[Result]:
    """Record a command's result. Returns the results to deliver to the skill, which awaits no background command."""
    pending = draft.pending.pop(result.invocation_id)
    draft.keep_undo(pending, result)
    draft.keep_reply(pending, result)
    if pending.blocked:
        release(draft)
    if pending.background:
        note_redone(draft, result)
        return []
    draft.keep_receipt(result)
    return [result]


# --- what an operator decides


def resolved(draft: Draft, event: DependencyResolved) -> Sequence[Result]:
    """Apply an operator's decision on a blocked command. Returns the results to deliver to the skill."""
    pending = blocked_one(draft.pending, event)
    assert pending is not None
    id = pending.invocation_id
    said = (f" by {event.by}" if event.by else "") + (f": {event.comment}" if event.comment else "")
    if event.retry:
        tries = pending.attempt
        draft.change_pending(
            id, blocked=False, started=False, due_at=None, decided=True, retries=tries, uncounted=tries, looks=0
        )
        draft.notes.append(f"{pending.command.id}: to be performed again, as decided{said}")
    else:
        draft.notes.append(f"{pending.command.id}: outcome given{said}")
        if not isinstance(pending.command, CallTool):
            return take_result(draft, given_outcome(pending, event))
        # The receipt is written before the task continues, so that a later call with the same key finds it.
        draft.pending[id] = with_outcome(pending, event.outcome)
    release(draft)
    return []


def blocked_one(pending: Mapping[str, Pending], event: DependencyResolved) -> Pending | None:
    """The blocked command (there is at most one); None if there is none, or if the operator names another command."""
    blocked = next((one for one in pending.values() if one.blocked), None)
    meant = blocked is not None and event.invocation_id in (None, blocked.invocation_id)
    return blocked if meant else None


def with_outcome(pending: Pending, outcome: JsonValue) -> Pending:
    """A blocked tool call with the outcome that an operator stated, to be sent once more to write the receipt."""
    return Pending(
        invocation_id=pending.invocation_id,
        command=pending.command,
        retries=pending.attempt,
        uncounted=pending.attempt,
        background=pending.background,
        given=Given(outcome=outcome),
    )


def given_outcome(pending: Pending, event: DependencyResolved) -> Result:
    """The outcome that an operator stated, as the result event of the blocked command."""
    id, invocation_id = pending.command.id, pending.invocation_id
    match pending.command:
        case CallLlm():
            return LlmResult(id=id, invocation_id=invocation_id, value=event.outcome)
        case CallChat():
            reply = Reply(text=event.outcome) if isinstance(event.outcome, str) else Reply.model_validate(event.outcome)
            return ChatResult(id=id, invocation_id=invocation_id, reply=reply)
        case CallActivity():
            return ActivityResult(id=id, invocation_id=invocation_id, value=event.outcome)
        case other:
            raise AssertionError(f"a {other.kind} is never blocked")
