"""What a task's journal entry counts. Called once for each entry, by the worker that takes it."""

from __future__ import annotations

from datetime import datetime

from refold.core.chat import Usage, paid_in_vain
from refold.core.commands import AskApproval, CallChat, CallLlm
from refold.core.events import (
    ChatResult,
    CommandFailed,
    DependencyResolved,
    Event,
    Forked,
    GateTimedOut,
    LlmResult,
    Recovered,
    ToolResult,
    Unreadable,
    UserMessage,
)
from refold.core.fold.journal import Entry
from refold.core.fold.questions import answers
from refold.core.fold.snapshot import UNDO, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Ending
from refold.core.retry_policy import ANOTHER_RELEASE, LEFT, Failure, FailureKind
from refold.core.waits import Wait
from refold.seen import metrics
from refold.seen.meters import count, observe

HIGH_RETRY = 3
"""The retry from which on a command counts as one that is retried again and again. Source: S3.73."""

MICRO = 1_000_000


def entered(before: Snapshot, entry: Entry, after: Snapshot, since: datetime) -> None:
    """Count an entry.

    Args:
        before: The task before the entry.
        entry: The entry.
        after: The task after it.
        since: When the task came to the state that it had before the entry.
    """
    if entry.refused:
        refused(before, entry.event.kind, why_refused(before, entry.event))
        return
    _moves(before, entry, after, since)
    if after.pending is not before.pending:
        _blocked(before, entry, after)
        _retries(entry, after)
    if after.waits is not before.waits:
        _waits(before, entry, after)
    _event(before, entry, after)
    _compensated(entry, after)


def refused(task: Snapshot, trigger: str, reason: str) -> None:
    """Count an event or update that a task refused.

    Args:
        task: The task.
        trigger: The kind of the event, or the update.
        reason: One of `metrics.REFUSED_FOR`.
    """
    count(metrics.REFUSALS, task.skill, trigger, reason)
    if reason == "state":
        count(metrics.INVALID_MOVES, task.skill)


def why_refused(task: Snapshot, event: Event | None) -> str:
    """Which of `metrics.REFUSED_FOR` a refusal is.

    Args:
        task: The task that refuses.
        event: What it refuses; None if what was sent could not be read as an event.
    """
    if event is None or isinstance(event, Unreadable):
        return "unreadable"
    if isinstance(event, UserMessage) and event.delivery_id is not None and event.delivery_id in task.seen:
        return "duplicate"
    if task.ended:
        return "state"
    match event:
        case UserMessage():
            first = not task.seq and not task.open_waits
            meant = [wait for wait in task.open_waits if _is_for(event, wait)]
            return "unfit" if first or meant or event.early else "state"
        case DecisionMade():
            gate = next((wait for wait in task.waits if wait.gate == event.gate), None)
            if gate is None or not isinstance(gate.ask, AskApproval):
                return "state"
            if event.digest != gate.ask.digest:
                return "stale"
            return "unfit" if event.changes else "not_allowed"
        case DependencyResolved():
            return "unfit" if any(one.blocked for one in task.pending.values()) else "state"
        case _:
            return "state"


def _is_for(message: UserMessage, wait: Wait) -> bool:
    if isinstance(wait.ask, AskApproval):
        return False
    return answers(message, wait)


def _moves(before: Snapshot, entry: Entry, after: Snapshot, since: datetime) -> None:
    for move in entry.moves:
        count(metrics.TRANSITIONS, after.skill, move.from_state.value, move.to_state.value, move.event.value)
        observe(metrics.STATE_SECONDS, (entry.at - since).total_seconds(), after.skill, move.from_state.value)
        since = entry.at
    if before.ending is not None or after.ending is None:
        return
    if after.ending is Ending.CANCELED:
        was, event = before.lifecycle.value, Ending.CANCELED.value
        count(metrics.TRANSITIONS, after.skill, was, after.lifecycle.value, event)
        observe(metrics.STATE_SECONDS, (entry.at - since).total_seconds(), after.skill, was)
    count(metrics.TASKS_ENDED, after.skill, after.ending.value)


def _blocked(before: Snapshot, entry: Entry, after: Snapshot) -> None:
    for id, pending in after.pending.items():
        if not pending.blocked:
            continue
        was = before.pending.get(id)
        if was is None or not was.blocked:
            count(metrics.BLOCKED, after.skill, blocked_by(entry.event))
        if not pending.started and pending.due_at is None and (was is None or not was.blocked or was.started):
            count(metrics.NEEDS_PERSON, after.skill)


def blocked_by(event: Event) -> str:
    """What blocks a command: one of `metrics.BLOCKED_BY`."""
    if not isinstance(event, CommandFailed):
        return "dependency"
    found = family(event.failure.type)
    if found in metrics.BLOCKED_BY:
        return found
    return "outcome_unknown" if event.failure.kind is FailureKind.UNKNOWN else "dependency"


def family(type: str) -> str:
    """The family of a failure's type, which is any exception's name: one of `metrics.FAMILIES`, or `other`."""
    if type in metrics.FAMILIES:
        return type
    if type.startswith(("http_4", "http_5")):
        return f"{type[:6]}xx"
    if type in LEFT:
        return ANOTHER_RELEASE
    name = type.lower()
    if "timeout" in name:
        return "timeout"
    return "connection" if "connect" in name or name in ("network", "dns") else metrics.OTHER


def _retries(entry: Entry, after: Snapshot) -> None:
    for backoff in entry.backoffs:
        pending = after.pending.get(backoff.invocation_id)
        if pending is None or pending.blocked:
            continue
        failure = entry.event.failure.type if isinstance(entry.event, CommandFailed) else ""
        count(metrics.RETRIES, after.skill, pending.command.kind, family(failure))
        if backoff.retry >= HIGH_RETRY:
            count(metrics.HIGH_RETRIES, after.skill)


def _waits(before: Snapshot, entry: Entry, after: Snapshot) -> None:
    known, still = {wait.gate for wait in before.waits}, {wait.gate for wait in after.waits}
    for wait in after.waits:
        if wait.gate not in known:
            kind = wait.ask.policy.kind.value if isinstance(wait.ask, AskApproval) else "question"
            count(metrics.WAITS_OPENED, after.skill, kind)
    for wait in before.waits:
        if wait.gate not in still:
            seconds = (entry.at - wait.since).total_seconds()
            observe(metrics.WAIT_SECONDS, seconds, _closed_by(entry.event, wait))


def _closed_by(event: Event, wait: Wait) -> str:
    match event:
        case DecisionMade(gate=gate) if gate == wait.gate:
            return event.decision
        case GateTimedOut(gate=gate) if gate == wait.gate:
            return "timeout"
        case UserMessage() if not isinstance(wait.ask, AskApproval):
            return "answered"
        case _:
            return "withdrawn"


def _event(before: Snapshot, entry: Entry, after: Snapshot) -> None:
    match entry.event:
        case Recovered():
            count(metrics.CONTINUED, after.skill, "recovery")
        case Forked():
            count(metrics.CONTINUED, after.skill, "fork")
        case LlmResult(usage=usage, model=model) if usage is not None:
            _used(after.skill, model, usage)
        case ChatResult(reply=reply) if reply.model:  # a reply from a cache has none, and cost nothing
            _used(after.skill, reply.model, reply.usage)
        case CommandFailed(invocation_id=id, failure=Failure(details=details)):
            asked, paid = before.pending.get(id), paid_in_vain(details)
            if paid and asked is not None and isinstance(asked.command, CallLlm | CallChat):
                _used(after.skill, paid[1], paid[0])
        case _:
            pass


def _used(skill: str, model: str, usage: Usage) -> None:
    count(metrics.TOKENS, skill, model, "input", by=usage.input_tokens)
    count(metrics.TOKENS, skill, model, "output", by=usage.output_tokens)
    if usage.cached_tokens:
        count(metrics.TOKENS, skill, model, "input_cached", by=usage.cached_tokens)
    if usage.reasoning_tokens:
        count(metrics.TOKENS, skill, model, "output_reasoning", by=usage.reasoning_tokens)
    if usage.usd is not None:
        count(metrics.COST, skill, model, by=round(usage.usd * MICRO))


def _compensated(entry: Entry, after: Snapshot) -> None:
    if not after.ended:
        return
    if isinstance(entry.event, ToolResult) and entry.event.invocation_id.endswith(UNDO):
        count(metrics.COMPENSATIONS, after.skill, "done")
    # The notes are for people; docs/operate.md says that these are what to look for.
    count(metrics.COMPENSATIONS, after.skill, "not_done", by=entry.note.count("NOT undone"))
    count(metrics.COMPENSATIONS, after.skill, "unknown", by=entry.note.count("NOT known whether"))
