"""Runs a skill by a script of messages and results, without a server.

story = play(ResearchLoop, "tides", reply("research", "A draft."), reply("critique", {"decision": "Approved"}))
assert story.status == "completed"
assert story.artifacts == {"final.txt": "A draft."}
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, JsonValue

from refold.callbacks.address import slot_of
from refold.core.authoring.define import skill_of
from refold.core.authoring.skill import Live, Skill
from refold.core.commands import AskApproval, AskUser, Callback, Command, Notify
from refold.core.content import Content
from refold.core.events import (
    EVENT,
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
    TimerFired,
    Unreadable,
    UserMessage,
    admitted,
)
from refold.core.fold.apply import advance, planned
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, finished, wanted
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Status, TaskState
from refold.core.waits import Wait
from refold.engine import MessageView, TaskView
from refold.engine.arguments import Count, takes
from refold.engine.view import view_of
from refold.testing.answers import Answers, ScriptError, outcome
from refold.testing.bugs import tell
from refold.testing.callbacks import is_callback, made
from refold.testing.turns import (
    Cancels,
    Decides,
    Fails,
    Fires,
    Passes,
    Refuses,
    Replies,
    Resolves,
    Turn,
    User,
    user,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
"""The start time of every script that names none."""

EVENT_LIMIT = 500
"""How many events a test may cause that says nothing else; more counts as a loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """The result of a script.

    Attributes:
        skill: The compiled skill.
        entries: The journal, oldest first.
        snapshots: The task after each entry; the first one is the task before any.
    """

    skill: Skill
    entries: tuple[Entry, ...]
    snapshots: tuple[Snapshot, ...]

    @property
    def snapshot(self) -> Snapshot:
        """The task at the end of the script."""
        return self.snapshots[-1]

    @property
    def view(self) -> TaskView:
        """The task as people see it."""
        return view_of(self.snapshot)

    @property
    def status(self) -> Status:
        """The status in A2A's words: `"completed"`, `"input-required"`, …"""
        return self.snapshot.status

    @property
    def reason(self) -> str:
        """Why the task failed; empty otherwise."""
        return self.snapshot.reason

    @property
    def messages(self) -> tuple[MessageView, ...]:
        """The messages of user and skill, oldest first."""
        return self.view.messages

    @property
    def said(self) -> tuple[str, ...]:
        """The skill's messages, oldest first."""
        return tuple(message.text for message in self.messages if message.role == "agent")

    @property
    def artifacts(self) -> dict[str, JsonValue]:
        """The artifacts by name: text, data or address of each."""
        return {
            one.name: next((value for value in (one.text, one.data, one.url) if value is not None), None)
            for one in self.view.artifacts
        }

    @property
    def waiting_for(self) -> tuple[str, ...]:
        """The slots of the open questions, oldest first."""
        return tuple(wait.slot for wait in self.snapshot.open_waits)

    @property
    def asked(self) -> tuple[Command, ...]:
        """Every command that the skill issued, in order."""
        return tuple(issued.command for entry in self.entries for issued in entry.commands)

    @property
    def lifecycle(self) -> tuple[TaskState, ...]:
        """The states that the task went through, the first included."""
        return (TaskState.PLANNED, *(move.to_state for entry in self.entries for move in entry.moves))

    def journal(self) -> str:
        """The journal as JSON, one entry a line: equal for equal behaviour, byte for byte."""
        return "\n".join(entry.model_dump_json() for entry in self.entries)

    def __str__(self) -> str:
        return "\n".join(map(_line, self.entries))


@takes(ScriptError)
def play(
    skill: Any,
    *script: str | Content | Turn | Event | Iterable[str | Content | Turn | Event],
    answers: Mapping[str, Any] | None = None,
    tools: Iterable[Callable[..., Any]] = (),
    task_id: str = "T",
    at: datetime = START,
    owner: str | None = None,
    cut: bool = False,
    unfinished: bool = False,
    limit: Count = EVENT_LIMIT,
) -> Played:
    """Run a skill by a script, and return the result.

    Each turn of the script is applied as soon as the task accepts it. Before that, and at the end of the script,
    commands with an answer in `answers` or `tools` are answered, oldest first. If there are any of these, sleeps and
    retries come due by themselves when nothing else can proceed. Otherwise the clock stands still: gates wait for
    `approve`, `deny` and `passes`, and a part's timeout for `fires` and `passes`. A reminder counts as sent.

    Args:
        skill: A skill's class, a table, or a compiled skill.
        script: The turns, in order; a plain string is a message of the user. The first one starts the task.
        answers: Stand-ins for models, tools and other skills, by the command's id, by the name of what it calls, or by
            its kind: a value (a string for a text), a list of several in order, a `transient(...)` or `permanent(...)`
            failure, an exception, or a function that gets the command.
        tools: Functions that are called with a tool command's arguments, by their name.
        task_id: The task's id.
        at: The start time; aware.
        owner: The task's owner.
        cut: Serialise the task to JSON and discard running steps before each event, as a restart does.
        unfinished: The script may leave the task in the middle; otherwise it must end at a question or at the task's
            end.
        limit: How many events the script may cause; more counts as a loop.

    Raises:
        ScriptError: The script answers a question that is not open, sends what is refused, or ends too early or too
            late.
    """
    turns = [turn for item in script for turn in _turns(item)]
    base = planned(skill_of(skill), task_id, at, owner=owner)
    player = _Player(skill_of(skill), Answers(answers, tools), base, cut, limit)
    for number, turn in enumerate(turns, 1):
        player.take(turn, f"turn {number}, {_call(turn)}")
    player.finish(unfinished)
    return player.played()


def _turns(item: Any) -> list[Turn | Event]:
    if isinstance(item, str | Content):
        return [user(item)]
    if isinstance(item, Turn) or hasattr(item, "kind"):
        return [item]
    if isinstance(item, Iterable) and not isinstance(item, Mapping | BaseModel):
        return [turn for one in item for turn in _turns(one)]
    raise ScriptError(
        f"a script has texts, `Content`, turns such as `approve(...)`, and events; not {item!r}. Data is sent as "
        "`user(...)`"
    )


def _call(turn: Turn | Event) -> str:
    return f"{type(turn).__name__}(...)" if hasattr(turn, "kind") else str(turn)


class _Player:
    def __init__(self, skill: Skill, answers: Answers, base: Snapshot, cut: bool, limit: int) -> None:
        self.skill, self.answers, self.now, self.cut, self.limit = skill, answers, base.at, cut, limit
        self.addressed: dict[str, str] = {}  # slots of calls to addresses, by the address's digest
        self.live = Live()
        self.snapshots = [base]
        self.entries: list[Entry] = []

    @property
    def task(self) -> Snapshot:
        return self.snapshots[-1]

    def played(self) -> Played:
        return Played(skill=self.skill, entries=tuple(self.entries), snapshots=tuple(self.snapshots))

    # --- the script

    def take(self, turn: Turn | Event, name: str) -> None:
        while not self.ready(turn):
            if not self.go_on(ring=True):
                raise ScriptError(f"{name}: {self.why_not(turn)}{self.story()}")
        match turn:
            case Replies(id=id, value=value):
                waiting = self.perform(id)
                value = value(waiting.command) if callable(value) and not isinstance(value, type) else value
                self.feed(outcome(waiting.command, waiting.invocation_id, value), name)
            case Fails(id=id, failure=failure):
                waiting = self.perform(id)
                self.feed(outcome(waiting.command, waiting.invocation_id, failure), name)
            case Fires(id=id):
                self.ring(self.alarms(id)[0])
            case Passes(seconds=seconds):
                self.pass_time(seconds)
            case User() | Cancels() | Decides() | Resolves():
                self.feed(self.sent(turn), name)
            case Refuses():
                self.refuse(turn, name)
            case event:
                self.feed(event, name)

    def finish(self, unfinished: bool) -> None:
        if unfinished:
            return
        while not finished(self.task) and self.go_on(ring=not self.task.open_waits):
            pass
        if not self.task.ended and not self.task.open_waits:
            raise ScriptError(f"the script ends too early: {self.awaited()}{self.story()}")
        if left := self.answers.left_over():
            raise ScriptError(
                f"the task is {self.task.status}, with answers left over: {', '.join(left)}{self.story()}"
            )

    def ready(self, turn: Turn | Event) -> bool:
        match turn:
            case User():
                return self.task.lifecycle is TaskState.PLANNED or bool(self.task.open_waits)
            case Replies(id=id) | Fails(id=id):
                return self.out(id) is not None or bool(self.backoffs(id))
            case Fires(id=id):
                return bool(self.alarms(id))
            case Decides(slot=slot):
                return self.gate(slot) is not None
            case Resolves():
                return self.task.lifecycle is TaskState.BLOCKED
            case _:
                return True

    def why_not(self, turn: Turn | Event) -> str:
        match turn:
            case Replies(id=id) | Fails(id=id) if self.alarms(id):
                return f"{id!r} is a timer; write fires({id!r})"
            case Replies(id=id) | Fails(id=id) if any(one.command.id == id for one in self.task.pending.values()):
                return f"{id!r} is asked for, but is not out; {self.awaited()}"
            case User():
                return f"the task waits for no message; {self.awaited()}"
            case Fires(id=id):
                return f"no timer {id!r} is set; {self.awaited()}"
            case Decides(slot=slot):
                return f"no gate {slot!r} is open; {self.awaited()}"
            case Resolves():
                return f"nothing is blocked; {self.awaited()}"
            case Replies(id=id) | Fails(id=id):
                return f"{id!r} was not asked for, or is answered; {self.awaited()}"
            case _:
                return self.awaited()

    def awaited(self) -> str:
        if self.task.ended:
            return f"the task has ended ({self.task.status}{': ' if self.task.reason else ''}{self.task.reason})"
        parts = []
        for want in wanted(self.task).values():
            match want:
                case Perform(command=command):
                    more = ", whose answers are used up" if self.answers.used_up(command) else ""
                    parts.append(f"{command.kind} {command.id!r} is out{more}")
                case SendAnswer(task_id=part):
                    parts.append(f"an answer is on its way to {part!r}")
                case Alarm(due_at=due_at):
                    left = (due_at - self.now).total_seconds()
                    parts.append(f"{want.summary!r} is due in {left:g} s: fires({self.id_of(want)!r})")
        for wait in self.task.open_waits:
            gate = isinstance(wait.ask, AskApproval)
            parts.append(
                f"gate {wait.slot!r} is open: approve({wait.slot!r})" if gate else f"the user is asked {wait.slot!r}"
            )
        blocked = [one for one in self.task.pending.values() if one.blocked]
        parts += [f"{one.command.id!r} is blocked ({one.failure}): resolve({one.command.id!r}, ...)" for one in blocked]
        if self.task.lifecycle is TaskState.PLANNED:
            parts = ["the first message starts the task"]
        return "; ".join(parts) or "nothing goes on"

    def story(self) -> str:
        return "".join(f"\n  {_line(entry)}" for entry in self.entries[-20:])

    # --- what is open

    def out(self, id: str) -> Perform | None:
        return next((one for one in self.performs() if one.command.id == id), None)

    def perform(self, id: str) -> Perform:
        """The open command with this id; if it waits for a retry, it is retried first."""
        if self.out(id) is None:
            self.ring(self.backoffs(id)[0])
        found = self.out(id)
        if found is None:
            raise ScriptError(f"{id!r} was not tried again: {self.awaited()}{self.story()}")
        return found

    def performs(self) -> list[Perform]:
        return [one for one in wanted(self.task).values() if isinstance(one, Perform)]

    def alarms(self, id: str | None = None) -> list[Alarm]:
        found = [one for one in wanted(self.task).values() if isinstance(one, Alarm)]
        return sorted((one for one in found if id in (None, self.id_of(one))), key=lambda alarm: alarm.due_at)

    def backoffs(self, id: str) -> list[Alarm]:
        return [one for one in self.alarms(id) if isinstance(one.event, BackoffOver)]

    def id_of(self, alarm: Alarm) -> str:
        match alarm.event:
            case BackoffOver(invocation_id=id) | TimerFired(invocation_id=id):
                return self.task.pending[id].command.id
            case CommandFailed(id=id):  # a part's timeout
                return id
            case ReminderDue(gate=gate) | GateTimedOut(gate=gate) | GraceOver(gate=gate):
                return next(wait.slot for wait in self.past_waits() if wait.gate == gate)
            case other:
                raise AssertionError(f"no alarm brings {other.kind}")

    def past_waits(self) -> list[Wait]:
        """All questions and gates of the task's whole life, newest first."""
        return [wait for snapshot in reversed(self.snapshots) for wait in reversed(snapshot.waits)]

    def gate(self, slot: str) -> Wait | None:
        """The gate of this name that is open, or was until its timeout."""
        grace = self.task.grace.gate if self.task.grace is not None else None
        found = next((wait for wait in self.past_waits() if wait.slot == slot), None)
        is_open = found is not None and (found.gate == grace or found in self.task.waits)
        return found if is_open else None

    # --- events

    def go_on(self, *, ring: bool) -> bool:
        """Let one thing happen that the script need not list; False if there is none."""
        for one in self.performs():
            if self.answers.know(one.command):
                answer = self.answers.give(one.command)
                answer = _run_alone(answer) if inspect.iscoroutine(answer) else answer
                self.feed(outcome(one.command, one.invocation_id, answer), f"the answer to {one.command.id!r}")
                return True
            if is_callback(one.command):
                callback = made(one.command, self.task.task_id, one.invocation_id, self.now)
                if isinstance(callback, Callback):
                    self.addressed[callback.digest] = slot_of(callback)
                self.feed(outcome(one.command, one.invocation_id, callback), f"the address of {one.command.id!r}")
                return True
        alarms = [one for one in self.alarms() if not isinstance(one.event, ReminderDue | GateTimedOut | CommandFailed)]
        if ring and self.answers and alarms:
            self.ring(alarms[0])
            return True
        return False

    def ring(self, alarm: Alarm) -> None:
        self.now = max(self.now, alarm.due_at)
        self.feed(alarm.event, f"the timer of {self.id_of(alarm)!r}")
        for one in self.performs():
            if isinstance(one.command, Notify) and not self.answers.know(one.command):
                self.feed(outcome(one.command, one.invocation_id, None), "the reminder")

    def pass_time(self, seconds: float) -> None:
        until = self.now + timedelta(seconds=seconds)
        while (alarms := self.alarms()) and alarms[0].due_at <= until:
            self.ring(alarms[0])
        self.now = until

    def refuse(self, turn: Refuses, name: str) -> None:
        entry = self.advance(self.sent(turn.turn))
        if not entry.refused:
            raise ScriptError(f"{name}: it was taken{self.story()}")
        if turn.because not in entry.refused:
            raise ScriptError(f"{name}: it was refused, but because {entry.refused!r}, not {turn.because!r}")

    def slot_of(self, turn: User) -> str | None:
        """The slot of a message: the address, where it answers the question of a callback."""
        asks = [wait.ask for wait in self.task.waits if wait.slot == turn.slot]
        digests = [ask.callback.digest for ask in asks if isinstance(ask, AskUser) and ask.callback is not None]
        return self.addressed.get(digests[0], turn.slot) if digests else turn.slot

    def sent(self, turn: User | Cancels | Decides | Resolves) -> Event:
        """A message or decision of a person."""
        match turn:
            case User():
                return UserMessage(content=turn.content, slot=self.slot_of(turn), delivery_id=turn.delivery_id)
            case Cancels(reason=reason):
                return CancelRequested(reason=reason)
            case Decides(slot=slot, digest=digest):
                wait = next((wait for wait in self.past_waits() if wait.slot == slot), None)
                shown = wait.ask.digest if wait is not None and isinstance(wait.ask, AskApproval) else ""
                return DecisionMade(
                    gate=slot if wait is None else wait.gate,
                    digest=shown if digest is None else digest,
                    decision="approved" if turn.approved else "denied",
                    approver=turn.by,
                    asserted_by=turn.vouched_by,
                    comment=turn.comment,
                    changes=dict(turn.changes or {}),
                    said_at=self.now,
                )
            case Resolves(id=id):
                ids = [one.invocation_id for one in self.task.pending.values() if one.command.id == id]
                named = id if id is None or not ids else ids[0]
                return DependencyResolved(
                    invocation_id=named, retry=turn.retry, outcome=turn.outcome, by=turn.by, comment=turn.comment
                )

    def feed(self, event: Event, name: str) -> None:
        entry = self.advance(event)
        if entry.refused:
            raise ScriptError(f"{name}, was refused: {entry.refused}{self.story()}")
        for one in self.performs():
            if one.given is not None:  # nothing more happens once its receipt is written
                self.feed(outcome(one.command, one.invocation_id, one.given.outcome), "the outcome that was given")
                return

    def advance(self, event: Event) -> Entry:
        if len(self.entries) >= self.limit:
            raise ScriptError(
                f"{self.limit} events, and no end: {self.awaited()}; if it is no loop, give play(limit=) a larger "
                f"number{self.story()}"
            )
        before = self.task
        if self.cut:
            before, self.live = Snapshot.model_validate_json(before.model_dump_json()), Live()
            event = EVENT.validate_json(EVENT.dump_json(admitted(event)))  # as the fold writes it
        after, entry = advance(self.skill, before, event, self.now, live=self.live)
        tell(self.live, after)
        self.snapshots.append(after)
        self.entries.append(entry)
        return entry


def _line(entry: Entry) -> str:
    """One entry, for people: `3 llm_result 'critique' -> ask 'guidance' | running, paused`."""
    match entry.event:
        case UserMessage(content=content):
            what = repr(content.data if content.has_data else content.text)
        case CommandFailed(id=id, failure=failure):
            what = f"{id!r}: {failure.message}"
        case BackoffOver(invocation_id=id) | ChildAsked(invocation_id=id) | CancelRequested(reason=id):
            what = id
        case ReminderDue(gate=id) | GateTimedOut(gate=id) | GraceOver(gate=id):
            what = id
        case Recovered(task_id=id) | Forked(task_id=id) | Unreadable(sent_as=id):
            what = id
        case DecisionMade(decision=decision, approver=approver, gate=gate):
            what = f"{decision} by {approver} at {gate}"
        case DependencyResolved(retry=retry, outcome=came):
            what = "to be performed again" if retry else repr(came)
        case event:
            what = repr(event.id)
    asked = "".join(f" -> {issued.command.kind} {issued.command.id!r}" for issued in entry.commands)
    moves = f" | {', '.join(move.to_state for move in entry.moves)}" if entry.moves else ""
    more = [f"refused: {entry.refused}"] if entry.refused else []
    more += ["held"] if entry.held else []
    more += [entry.note] if entry.note else []
    return f"{entry.seq} {entry.event.kind} {what}{asked}{moves}{''.join(f' ({one})' for one in more)}"


def _run_alone(answer: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine, on an event loop of its own; in a thread, so that a test may be async itself."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(asyncio.run, answer).result()
