"""Why a task refuses an event: an answer that does not fit, a late decision, an outcome of no pending command."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from pydantic import JsonValue

from refold.core.authoring.skill import Skill, unfit_start
from refold.core.chat import Reply
from refold.core.codec import misfit
from refold.core.commands import AskUser, CallChat, CallLlm, CallSkill, Command, Sleep
from refold.core.events import (
    RESULT_TYPES,
    BackoffOver,
    CancelRequested,
    ChildAsked,
    CommandFailed,
    DependencyResolved,
    Event,
    Forked,
    GateTimedOut,
    GraceOver,
    Recovered,
    ReminderDue,
    ToolResult,
    Unreadable,
    UserMessage,
)
from refold.core.fold.gates import decider_refusal, decision_refusal
from refold.core.fold.questions import CALL_BETWEEN, answers, unfit_reply
from refold.core.fold.snapshot import EARLY_LIMIT, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TaskState
from refold.core.schema import type_name
from refold.core.values import REFUSAL_CHARS, shortened, unreadable

FULL = f"{EARLY_LIMIT} messages wait already until the task asks for them"
"""Why a task refuses one more early message; it has room again once it has asked for some of them."""

CALLS_APART = "refold.calls_apart"
"""The patch with which early calls to callbacks' addresses have room of their own, beside other early messages."""

_Outcome = (*RESULT_TYPES, CommandFailed)


def taken_before(delivery_id: str) -> str:
    """How the reason begins for which a task refuses a delivery that it took before; the entry's number follows."""
    return f"delivery {delivery_id!r} was taken before"


def refusal(
    skill: Skill, snapshot: Snapshot, event: Event, at: datetime, patched: Callable[[str], bool] | None = None
) -> str:
    """Why the task cannot take this event at this time; empty if it can. Changes nothing.

    Args:
        skill: The task's skill.
        snapshot: The task.
        event: The event.
        at: When it comes.
        patched: Answers a patch of refold's own, asked only where it matters: False for an event that an earlier
            release took. None answers as the fold would: what the task was answered before, otherwise True.
    """
    patched = patched or (lambda patch: snapshot.patches.get(patch, True))
    return shortened(_refusal(skill, snapshot, event, at, patched), REFUSAL_CHARS)


def _refusal(skill: Skill, snapshot: Snapshot, event: Event, at: datetime, patched: Callable[[str], bool]) -> str:
    if isinstance(event, Unreadable):
        return f"{event.sent_as}: {event.why}"
    brings_result = isinstance(event, RESULT_TYPES)
    if not brings_result and (why := unreadable(event)):
        return f"what was sent {why}"
    if snapshot.ended:
        return _after_end(snapshot, event)
    if brings_result:
        return _outcome(snapshot, event)
    match event:
        case UserMessage():
            return _message(skill, snapshot, event, at, patched)
        case CancelRequested():
            return ""
        case BackoffOver(invocation_id=id, retry=retry):
            return _next_try(snapshot, id, retry)
        case DecisionMade():
            return decision_refusal(snapshot, event, at)
        case ReminderDue(gate=gate):
            reminds = any(wait.gate == gate and wait.reminder_at is not None for wait in snapshot.waits)
            return "" if reminds else f"nobody is to be reminded of gate {gate} any more"
        case GateTimedOut(gate=gate):
            ends = any(wait.gate == gate and wait.timeout_at is not None for wait in snapshot.waits)
            return "" if ends else f"gate {gate} is not open, or waits for ever"
        case GraceOver(gate=gate):
            return f"gate {gate} has not timed out"
        case DependencyResolved():
            return _resolution(snapshot, event)
        case Recovered(task_id=id):
            made_for = snapshot.lifecycle is TaskState.PLANNED and snapshot.recovered_from == id
            return "" if made_for else f"the task is not made to go on for {id!r}"
        case Forked(task_id=id, seq=seq):
            fork = snapshot.fork
            branched = fork is not None and (fork.task_id, fork.seq) == (id, seq)
            made_for = snapshot.lifecycle is TaskState.PLANNED and branched
            return "" if made_for else f"the task is not made to branch off from entry {seq} of {id!r}"
        case ChildAsked(invocation_id=id):
            pending = snapshot.pending.get(id)
            part = pending is not None and pending.started and isinstance(pending.command, CallSkill)
            return "" if part else f"{id} is no part of task {snapshot.task_id!r} that is running"
        case _:
            return _outcome(snapshot, event)


def _after_end(snapshot: Snapshot, event: Event) -> str:
    """Why an ended task refuses an event; it takes a late grant in the grace time, and outcomes of running commands."""
    grace = snapshot.grace
    match event:
        case GraceOver(gate=gate) if grace is not None and grace.gate == gate:
            return ""
        case DecisionMade() if snapshot.late is not None and snapshot.late.gate == event.gate:
            return f"a late grant was recorded before, by {snapshot.late.approver}"
        case DecisionMade() if grace is not None and grace.gate == event.gate and event.approved:
            if event.approver in grace.granted:
                return f"{event.approver} has decided before; {grace.policy.needed} different people must"
            if event.changes:
                return "a late grant is for what was shown; it can change nothing any more"
            return decider_refusal(snapshot, grace, event)
        case ToolResult() | CommandFailed():
            return _outcome(snapshot, event)
        case BackoffOver(invocation_id=id, retry=retry):
            return _next_try(snapshot, id, retry)
        case DecisionMade():
            return (
                f"task {snapshot.task_id!r} has ended ({snapshot.status}: {snapshot.reason}); nothing is decided there"
            )
        case _:
            return f"task {snapshot.task_id!r} has ended ({snapshot.status}); start a new one"


def _next_try(snapshot: Snapshot, id: str, retry: int) -> str:
    pending = snapshot.pending.get(id)
    if pending is None or pending.due_at is None or isinstance(pending.command, Sleep):
        return f"{id} is not waiting to be tried again"
    return "" if retry == pending.attempt else f"{id} waits for retry {pending.attempt}, not {retry}"


def _resolution(snapshot: Snapshot, event: DependencyResolved) -> str:
    blocked = next((pending for pending in snapshot.pending.values() if pending.blocked), None)
    if blocked is None:
        parts = ", ".join(f"{one.invocation_id} of task {one.task_id!r}" for one in snapshot.unresolved)
        own = f"no command of the task is blocked; it is {snapshot.lifecycle}"
        return f"{own}; resolve the blocked command of its part: {parts}" if parts else own
    if event.invocation_id not in (None, blocked.invocation_id):
        return f"command {event.invocation_id} is not blocked; blocked: {blocked.invocation_id}"
    if event.retry:
        return "" if event.outcome is None else "say either retry or the outcome, not both"
    return _unfit_outcome(blocked.command, event.outcome)


def _unfit_outcome(command: Command, outcome: JsonValue) -> str:
    if isinstance(command, CallChat):
        found = "" if isinstance(outcome, str) else misfit(Reply, outcome)
        return f"the outcome of {command.id!r} must be a text, or a Reply as data: {found}" if found else ""
    if not isinstance(command, CallLlm):
        return ""
    if command.expect is None:
        return "" if isinstance(outcome, str) else f"the outcome of {command.id!r} must be a text"
    found = misfit(command.expect, outcome)
    return f"the outcome of {command.id!r} must fit {type_name(command.expect)}: {found}" if found else ""


def _message(
    skill: Skill, snapshot: Snapshot, message: UserMessage, at: datetime, patched: Callable[[str], bool]
) -> str:
    if message.delivery_id is not None and (taken := snapshot.seen.get(message.delivery_id)) is not None:
        return f"{taken_before(message.delivery_id)}, as entry {taken}"
    if snapshot.lifecycle is TaskState.PLANNED:
        if snapshot.budget is not None and not skill.options.is_agent:
            return f"skill {snapshot.skill!r} takes no budget: only agents count what they spend; call it without one"
        return unfit_start(skill, message.content)
    waits = tuple(wait for wait in snapshot.open_waits if isinstance(wait.ask, AskUser))
    gated = len(waits) < len(snapshot.open_waits)
    called = [wait for wait in waits if isinstance(wait.ask, AskUser) and wait.ask.callback is not None]
    if message.called_back:
        waits, gated = tuple(wait for wait in called if answers(message, wait)), False
    elif called:
        waits = tuple(wait for wait in waits if wait not in called)
        if not waits and not gated and not message.early:
            return f"{called[0].slot!r} waits for a call to its own address, not for a message"
    if not waits and gated:
        slots = ", ".join(repr(wait.slot) for wait in snapshot.open_waits)
        return f"a gate is passed by a decision, not by a message; open: {slots}"
    if not waits and message.early:
        return _no_room(snapshot, message, patched)
    if not waits:
        return f"the task waits for no message now; it is {snapshot.lifecycle}"
    in_time = tuple(wait for wait in waits if not wait.late(at))
    if not in_time and not (message.called_back and patched(CALL_BETWEEN)):
        return f"question {waits[0].slot!r} timed out at {waits[0].timeout_at:%Y-%m-%d %H:%M:%S}"
    waits = in_time or waits
    slots = ", ".join(repr(wait.slot) for wait in waits)
    meant = [wait for wait in waits if answers(message, wait)]
    if not meant:
        return f"nothing waits for an answer to {message.slot or message.gate!r}; open: {slots}"
    if len(meant) > 1 and message.slot is None:
        return f"several questions are open ({slots}); say which one this answers"
    if len(meant) > 1:
        gates = ", ".join(wait.gate for wait in meant)
        return f"several questions are named {message.slot!r}; say which one this answers by its gate: {gates}"
    return unfit_reply(skill, snapshot.state, meant[0], message.content, patched)


def _no_room(snapshot: Snapshot, message: UserMessage, patched: Callable[[str], bool]) -> str:
    if len(snapshot.early) < EARLY_LIMIT:
        return ""
    alike = sum(one.called_back == message.called_back for one in snapshot.early)
    return "" if alike < EARLY_LIMIT and patched(CALLS_APART) else FULL


def _outcome(snapshot: Snapshot, event: Event) -> str:
    assert isinstance(event, _Outcome)
    pending = snapshot.pending.get(event.invocation_id)
    if pending is None:
        return f"no command {event.invocation_id} waits for an outcome"
    if any(getattr(held, "invocation_id", None) == event.invocation_id for held in snapshot.held):
        return f"command {event.invocation_id} has its outcome already"
    if not pending.started:
        return f"command {event.invocation_id} is not out"
    if pending.command.id != event.id:
        return f"command {event.invocation_id} is {pending.command.id!r}, not {event.id!r}"
    if isinstance(event, CommandFailed):
        return "a sleep cannot fail" if isinstance(pending.command, Sleep) else ""
    if event.answers is not type(pending.command):
        return f"command {event.invocation_id} is a {pending.command.kind}, which {event.kind} does not answer"
    return ""
