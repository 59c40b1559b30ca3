"""Whether a task can take an event, and why not: one answer for validators and for the fold."""

from __future__ import annotations

from pydantic import JsonValue

from refold.core.commands import (
    AskUser,
    CallActivity,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Command,
    Sleep,
)
from refold.core.content import Content
from refold.core.events import (
    ActivityResult,
    BackoffOver,
    CancelRequested,
    ChildAsked,
    CommandFailed,
    Event,
    LlmResult,
    SkillResult,
    TimerFired,
    ToolResult,
    UserMessage,
    WorkflowResult,
)
from refold.core.lifecycle import TaskState
from refold.core.schema import Schema, misfit
from refold.core.skill import Skill, unfit_start
from refold.core.snapshot import Snapshot
from refold.core.waits import Wait

_RESULT_OF: dict[type[Command], type[Event]] = {
    CallLlm: LlmResult,
    CallTool: ToolResult,
    CallSkill: SkillResult,
    CallActivity: ActivityResult,
    CallWorkflow: WorkflowResult,
    Sleep: TimerFired,
}

_Outcome = (LlmResult, ToolResult, SkillResult, ActivityResult, WorkflowResult, TimerFired, CommandFailed)


def refusal(skill: Skill, snapshot: Snapshot, event: Event) -> str:
    """Why the task cannot take this event now; empty if it can. Changes nothing."""
    if snapshot.ended:
        return f"task {snapshot.task_id!r} has ended ({snapshot.status}); start a new one"
    match event:
        case UserMessage():
            return _message(skill, snapshot, event)
        case CancelRequested():
            return ""
        case BackoffOver(invocation_id=id, retry=retry):
            pending = snapshot.pending.get(id)
            if pending is None or pending.due_at is None or isinstance(pending.command, Sleep):
                return f"{id} is not waiting to be tried again"
            return "" if retry == pending.attempt else f"{id} waits for retry {pending.attempt}, not {retry}"
        case ChildAsked(invocation_id=id):
            pending = snapshot.pending.get(id)
            part = pending is not None and pending.started and isinstance(pending.command, CallSkill)
            return "" if part else f"{id} is no part of task {snapshot.task_id!r} that is running"
        case _:
            return _outcome(snapshot, event)


def open_wait(snapshot: Snapshot, message: UserMessage) -> Wait:
    """The wait that a message answers, once `refusal` has found nothing against it."""
    return next(wait for wait in snapshot.open_waits if _answers(message, wait))


def _answers(message: UserMessage, wait: Wait) -> bool:
    return message.gate in (None, wait.gate) and message.slot in (None, wait.slot, wait.gate)


def _message(skill: Skill, snapshot: Snapshot, message: UserMessage) -> str:
    taken = snapshot.seen.get(message.delivery_id) if message.delivery_id is not None else None
    if taken is not None:
        return f"delivery {message.delivery_id!r} was taken before, as entry {taken}"
    if snapshot.lifecycle is TaskState.PLANNED:
        return unfit_start(skill, message.content)
    waits = snapshot.open_waits
    if not waits:
        return f"the task waits for no message now; it is {snapshot.lifecycle}"
    slots = ", ".join(repr(wait.slot) for wait in waits)
    met = [wait for wait in waits if _answers(message, wait)]
    if not met:
        return f"nothing waits for an answer to {message.slot or message.gate!r}; open: {slots}"
    if len(met) > 1 and message.slot is None:
        return f"several questions are open ({slots}); say which one this answers"
    if len(met) > 1:
        gates = ", ".join(wait.gate for wait in met)
        return f"several questions are named {message.slot!r}; say which one this answers by its gate: {gates}"
    return _unfit_reply(met[0].ask, message.content)


def _unfit_reply(ask: AskUser, content: Content) -> str:
    if ask.expect is None:
        return ""
    expected = type_name(ask.expect)
    found = misfit(ask.expect, reply_value(content))
    return f"the reply to {ask.slot!r} must fit {expected}: {found}" if found else ""


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
