"""Journal entries in words: what happened, and what followed from it."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import JsonValue

from refold.core.chat import Reply
from refold.core.content import Content
from refold.core.contracts.audit import StateTransitionEvent
from refold.core.events import (
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
    Unreadable,
    UserMessage,
    WorkflowResult,
)
from refold.core.fold.journal import Entry
from refold.core.gates import DecisionMade
from refold.words.text import clean, snippet


def consequences(entry: Entry) -> Iterator[str]:
    """What followed from an entry, a line each; without the moves of the lifecycle, see `moves_text`."""
    if entry.refused:
        yield f"refused: {snippet(entry.refused)}"
        return
    if entry.held:
        yield "held until the task goes on"
    if entry.note:
        yield snippet(entry.note)
    if entry.progress:
        yield f"progress: {snippet(entry.progress)}"
    yield from (f"says: {snippet(_text(message))}" for message in entry.messages)
    yield from (f"hands over: {clean(artifact.name)}" for artifact in entry.artifacts)
    yield from (_step(event) for event in entry.audit)
    asks = [f"{one.command.kind} {one.command.subject}" for one in entry.commands]
    if asks:
        yield f"asks: {clean(', '.join(asks))}"


def moves_text(entry: Entry) -> str:
    """The states that the task went through, as `running → paused`; empty if it stayed where it was."""
    if not entry.moves or entry.refused:
        return ""
    return " → ".join([entry.moves[0].from_state, *(move.to_state for move in entry.moves)])


def event_text(event: Event) -> str:
    """An event, in a line."""
    match event:
        case UserMessage(content=content, sender=sender):
            return f"{clean(sender) if sender else 'user'}: {snippet(_text(content))}"
        case LlmResult() | ToolResult() | ActivityResult() | WorkflowResult():
            return f"{clean(event.id)} answered: {snippet(shown_value(event.value))}"
        case ChatResult(id=id, reply=reply):
            return f"{clean(id)} replied: {snippet(_replied(reply))}"
        case SkillResult(id=id, outcome=outcome):
            return f"{clean(id)} answered: {snippet(outcome.text)}"
        case TimerFired(id=id):
            return f"{clean(id)} is over"
        case CommandFailed(id=id, failure=failure):
            return f"{clean(id)} failed ({failure.kind}): {snippet(failure.message)}"
        case BackoffOver(invocation_id=id, retry=retry):
            return f"{clean(id)} is tried again, attempt {retry + 1}"
        case ChildAsked():
            return _for_people(event)
        case DecisionMade(slot=slot, gate=gate, decision=decision, approver=approver, comment=comment):
            said = f": {snippet(comment)}" if comment else ""
            return f"{clean(slot or gate)} {decision} by {clean(approver)}{said}"
        case ReminderDue(gate=gate):
            return f"reminder is due for {clean(gate)}"
        case Notified(id=id):
            return f"{clean(id)}: done"
        case GateTimedOut(gate=gate):
            return f"nobody decided at {clean(gate)} in time"
        case GraceOver(gate=gate):
            return f"too late for a grant at {clean(gate)} from now on"
        case DependencyResolved(retry=retry, outcome=outcome, by=by):
            how = "perform it again" if retry else f"its outcome is {snippet(shown_value(outcome))}"
            return f"{clean(by) if by else 'an operator'} says: {how}"
        case Recovered(task_id=id):
            return f"goes on for {clean(id)}"
        case Forked(task_id=id, seq=seq, live=live):
            return f"branches off from entry {seq} of {clean(id)}{'' if live else ', dry: nothing takes place'}"
        case CancelRequested(reason=reason, by=by):
            return f"cancel requested{f' by {clean(by)}' if by else ''}{f': {snippet(reason)}' if reason else ''}"
        case Unreadable(sent_as=sent_as):
            return f"{clean(sent_as)} that the task cannot take"


def _for_people(event: ChildAsked) -> str:
    part = clean(event.invocation_id)
    if event.unresolved:
        blocked = "; ".join(f"{one.command}: {one.failure}" for one in event.unresolved)
        return f"{part} is blocked until an operator resolves it: {snippet(blocked)}"
    asks = "; ".join(f"{wait.slot}: {wait.ask.message.text}" for wait in event.waits)
    return f"{part} asks: {snippet(asks)}" if asks else f"{part} waits for nobody any more"


def _replied(reply: Reply) -> str:
    said = [f"its provider called {call.name}({shown_value(call.args)})" for call in reply.provider_calls]
    said += [reply.text] if reply.text else []
    said += [shown_value(reply.value)] if reply.value is not None else []
    said += [f"{call.name}({shown_value(call.args)})" for call in reply.tool_calls]
    return "; ".join([*said, *(f"made {one.filename}" for one in reply.files)])


def _step(event: StateTransitionEvent) -> str:
    """`think: thinking → acting, writes thought`; for a failed step, why it failed."""
    if event.err is not None:
        return clean(f"{event.stage} failed in {event.from_state}: {event.err.type}")
    moved = " → ".join(dict.fromkeys(filter(None, [event.from_state, event.to_state])))
    wrote = ", ".join(name for name in (*event.patch, *event.owned))
    free = ", makes any move" if event.free else ""
    return clean(f"{event.stage}: {moved}{f', writes {wrote}' if wrote else ''}{free}")


def _text(content: Content) -> str:
    said = [content.text] if content.text else []
    said += [shown_value(content.data)] if content.has_data else []
    files = [part for part in content.parts if part.text is None and part.data is None]
    return " ".join([*said, *(f"[{part.filename or part.url or 'a file'}]" for part in files)])


def shown_value(value: JsonValue) -> str:
    """A value in one text: text as it is, else JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
