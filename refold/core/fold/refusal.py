"""Whether a task can take an event, and why not: one answer for validators and for the fold."""

from __future__ import annotations

from pydantic import JsonValue

from refold.core.authoring.skill import Skill, unfit_start
from refold.core.chat import Reply
from refold.core.commands import (
    AskUser,
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Command,
    Notify,
    Sleep,
)
from refold.core.content import Content
from refold.core.events import (
    RESULT_TYPES,
    ActivityResult,
    BackoffOver,
    CancelRequested,
    ChatResult,
    ChildAsked,
    CommandFailed,
    DependencyResolved,
    Event,
    Forked,
    GateTimedOut,
    GraceOver,
    LlmResult,
    Notified,
    Recovered,
    ReminderDue,
    SkillResult,
    TimerFired,
    ToolResult,
    UserMessage,
    WorkflowResult,
)
from refold.core.fold.deciders import decider_refusal, decision_refusal
from refold.core.fold.snapshot import EARLY_LIMIT, Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TaskState
from refold.core.schema import Schema, fields_of, misfit, misfit_of
from refold.core.waits import Wait

_RESULT_OF: dict[type[Command], type[Event]] = {
    CallLlm: LlmResult,
    CallChat: ChatResult,
    CallTool: ToolResult,
    CallSkill: SkillResult,
    CallActivity: ActivityResult,
    CallWorkflow: WorkflowResult,
    Sleep: TimerFired,
    Notify: Notified,
}

_Outcome = (*RESULT_TYPES, CommandFailed)


def refusal(skill: Skill, snapshot: Snapshot, event: Event) -> str:
    """Why the task cannot take this event now; empty if it can. Changes nothing."""
    if snapshot.ended:
        return _after_end(snapshot, event)
    match event:
        case UserMessage():
            return _message(skill, snapshot, event)
        case CancelRequested():
            return ""
        case BackoffOver(invocation_id=id, retry=retry):
            return _next_try(snapshot, id, retry)
        case DecisionMade():
            return decision_refusal(snapshot, event)
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
    """What an ended task still takes: a late grant in the time for it, and the outcomes of undoing."""
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
            return decider_refusal(snapshot, grace.policy, grace.digest, event)
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
    blocked = [pending for pending in snapshot.pending.values() if pending.blocked]
    if not blocked:
        return f"no command of the task is blocked; it is {snapshot.lifecycle}"
    ids = ", ".join(pending.invocation_id for pending in blocked)
    if event.invocation_id is None and len(blocked) > 1:
        return f"several commands are blocked; say which one is meant: {ids}"
    named = [pending for pending in blocked if event.invocation_id in (None, pending.invocation_id)]
    if not named:
        return f"command {event.invocation_id} is not blocked; blocked: {ids}"
    if event.retry:
        return "" if event.outcome is None else "say either retry or the outcome, not both"
    return _unfit_outcome(named[0].command, event.outcome)


def _unfit_outcome(command: Command, outcome: JsonValue) -> str:
    if isinstance(command, CallChat):
        found = "" if isinstance(outcome, str) else misfit_of(Reply, outcome)
        return f"the outcome of {command.id!r} must be a text, or a Reply as data: {found}" if found else ""
    if not isinstance(command, CallLlm):
        return ""
    if command.expect is None:
        return "" if isinstance(outcome, str) else f"the outcome of {command.id!r} must be a text"
    found = misfit(command.expect, outcome)
    return f"the outcome of {command.id!r} must fit {type_name(command.expect)}: {found}" if found else ""


def open_wait(snapshot: Snapshot, message: UserMessage) -> Wait:
    """The wait that a message answers, once `refusal` has found nothing against it."""
    asked = (wait for wait in snapshot.open_waits if isinstance(wait.ask, AskUser))
    return next(wait for wait in asked if answers(message, wait))


def answers(message: UserMessage, wait: Wait) -> bool:
    """Whether a message may be meant for a question: it names it, or names none."""
    return message.gate in (None, wait.gate) and message.slot in (None, wait.slot, wait.gate)


def _message(skill: Skill, snapshot: Snapshot, message: UserMessage) -> str:
    taken = snapshot.seen.get(message.delivery_id) if message.delivery_id is not None else None
    if taken is not None:
        return f"delivery {message.delivery_id!r} was taken before, as entry {taken}"
    if snapshot.lifecycle is TaskState.PLANNED:
        return unfit_start(skill, message.content)
    waits = tuple(wait for wait in snapshot.open_waits if isinstance(wait.ask, AskUser))
    if not waits and snapshot.open_waits:
        slots = ", ".join(repr(wait.slot) for wait in snapshot.open_waits)
        return f"a gate is passed by a decision, not by a message; open: {slots}"
    if not waits and message.early:
        full = len(snapshot.early) >= EARLY_LIMIT
        return f"{EARLY_LIMIT} messages wait already until the task asks for them" if full else ""
    if not waits:
        return f"the task waits for no message now; it is {snapshot.lifecycle}"
    slots = ", ".join(repr(wait.slot) for wait in waits)
    met = [wait for wait in waits if answers(message, wait)]
    if not met:
        return f"nothing waits for an answer to {message.slot or message.gate!r}; open: {slots}"
    if len(met) > 1 and message.slot is None:
        return f"several questions are open ({slots}); say which one this answers"
    if len(met) > 1:
        gates = ", ".join(wait.gate for wait in met)
        return f"several questions are named {message.slot!r}; say which one this answers by its gate: {gates}"
    ask = met[0].ask
    return unfit_reply(ask, message.content) if isinstance(ask, AskUser) else ""


def unfit_reply(ask: AskUser, content: Content) -> str:
    """Why a reply does not fit its question; empty if it does."""
    if ask.expect is None:
        return ""
    found = misfit(ask.expect, reply_value(content))
    if not found:
        return ""
    fields = () if content.has_data else fields_of(ask.expect)
    way_out = f"; send data with the fields {', '.join(fields)}" if fields else ""
    return f"the reply to {ask.slot!r} must fit {type_name(ask.expect)}: {found}{way_out}"


def reply_value(content: Content) -> JsonValue:
    """What of a reply is checked and decoded: its data, or its text where it has none."""
    return content.data if content.has_data else content.text


def type_name(schema: Schema) -> str:
    """A type's name for people."""
    if isinstance(schema, str):
        return schema.rpartition(":")[2]
    return str(schema.get("title", "its JSON schema"))


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
    if not isinstance(event, _RESULT_OF[type(pending.command)]):
        return f"command {event.invocation_id} is a {pending.command.kind}, which {event.kind} does not answer"
    return ""
