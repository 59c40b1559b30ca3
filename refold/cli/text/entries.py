"""Journal entries and model text as people read them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date

from pydantic import JsonValue
from rich.text import Text

from refold.cli.text.output import Output, clean, snippet
from refold.cli.text.reasoning import reasoning_in
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
from refold.engine import News, Progress, Tokens

INDENT = "    "


class Story:
    """Prints what happens to a task, line by line, to people or to programs."""

    def __init__(self, out: Output) -> None:
        self.out = out
        self._day: date | None = None
        self._writing: tuple[str, int, int | None] | None = None
        self._shown: dict[tuple[str, int, int | None], int] = {}

    def tell(self, news: News) -> None:
        """Print one entry, one piece of model text, or one report of a tool."""
        if self.out.json:
            self.out.value(news)
        elif isinstance(news, Tokens):
            self._write(news)
        elif isinstance(news, Progress):
            self._writing = None
            self.out.say(f"{INDENT}{clean(news.invocation_id)} {clean(news.tool)}: {snippet(_shown(news.said))}")
        else:
            self._writing = None
            day = news.at.astimezone().date()
            if self._day is not None and day != self._day:
                self.out.say(day.isoformat())
            self._day = day
            self.out.say(*entry_lines(news, reasoning=self.out.reasoning))

    def _write(self, tokens: Tokens) -> None:
        key = (tokens.invocation_id, tokens.attempt, tokens.call)
        if key != self._writing:
            self.out.end_line()
            doing = f"asks for {clean(tokens.tool)}" if tokens.tool else "writes"
            self.out.stream(f"{INDENT}{tokens.invocation_id} {doing}: ")
            self._writing = key
        # A watcher that came late misses the beginning of the text; one that reconnects gets parts of it twice.
        seen = self._shown.get(key, 0)
        gap = "…" if tokens.offset > seen else ""
        self.out.stream(gap + clean(tokens.text[max(0, seen - tokens.offset) :]))
        self._shown[key] = max(seen, tokens.offset + len(tokens.text))


def entry_lines(entry: Entry, *, reasoning: bool = False) -> Iterator[str | Text]:
    """`#5 12:00:03  critique answered: …`, followed by the entry's effects, a line each; on request with reasoning."""
    head = f"#{entry.seq} {entry.at.astimezone():%H:%M:%S}  {event_text(entry.event)}"
    if entry.refused:
        yield Text(head, "dim")
        yield Text(f"{INDENT}refused: {snippet(entry.refused)}", "dim")
        return
    yield Text(head)
    if reasoning and isinstance(entry.event, ChatResult):
        yield from (f"{INDENT}reasons: {snippet(said, 2000)}" for said in reasoning_in(entry.event.reply))
    if entry.held:
        yield f"{INDENT}held until the task goes on"
    if entry.note:
        yield f"{INDENT}{snippet(entry.note)}"
    if entry.progress:
        yield f"{INDENT}progress: {snippet(entry.progress)}"
    yield from (f"{INDENT}says: {snippet(_text(message))}" for message in entry.messages)
    yield from (f"{INDENT}hands over: {clean(artifact.name)}" for artifact in entry.artifacts)
    yield from (f"{INDENT}{_step(event)}" for event in entry.audit)
    asks = [f"{one.command.kind} {one.command.subject}" for one in entry.commands]
    if asks:
        yield f"{INDENT}asks: {clean(', '.join(asks))}"
    if entry.moves:
        states = [entry.moves[0].from_state, *(move.to_state for move in entry.moves)]
        yield Text(f"{INDENT}{' → '.join(states)}", "bold")


def event_text(event: Event) -> str:
    """An event, in a line."""
    match event:
        case UserMessage(content=content, sender=sender):
            return f"{clean(sender) if sender else 'user'}: {snippet(_text(content))}"
        case LlmResult() | ToolResult() | ActivityResult() | WorkflowResult():
            return f"{clean(event.id)} answered: {snippet(_shown(event.value))}"
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
            how = "perform it again" if retry else f"its outcome is {snippet(_shown(outcome))}"
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
    said = [f"its provider called {call.name}({_shown(call.args)})" for call in reply.provider_calls]
    said += [reply.text] if reply.text else []
    said += [_shown(reply.value)] if reply.value is not None else []
    said += [f"{call.name}({_shown(call.args)})" for call in reply.tool_calls]
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
    said = [content.text] if content.text else [_shown(content.data)] if content.has_data else []
    files = [part for part in content.parts if part.text is None and part.data is None]
    return " ".join([*said, *(f"[{part.filename or part.url or 'a file'}]" for part in files)])


def _shown(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
