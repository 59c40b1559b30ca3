"""A recorded run, folded again by the code at hand: people and the world say what they said, as far as they are asked.

Rule 1: nothing is performed here. A call is answered by the recorded call that it equals, by a model that is asked
  anew, by a tool that only reads, or by the failure `NotRecorded`.
Rule 2: a recorded event is delivered as soon as the task takes it, the earliest first, at its recorded time. So the
  same code makes the same journal.
Rule 3: time passes only with recorded events, and with sleeps and retries that the record does not have.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from refold.core.authoring.skill import Live, Skill
from refold.core.chat import Reply, Usage, paid_in_vain
from refold.core.commands import AskApproval, CallTool, Command, Notify
from refold.core.errors import InputRejected, shown
from refold.core.events import (
    RESULT_TYPES,
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
    TimerFired,
    UserMessage,
)
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.questions import answers
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import OWN_PATCHES, Snapshot
from refold.core.fold.wanted import Alarm, Perform, wanted
from refold.core.gates import DecisionMade
from refold.core.lifecycle import TaskState
from refold.core.retry_policy import Failure, FailureKind
from refold.evals.recording import MODEL_CALLS, Recording, described
from refold.evals.result import Cost

NOT_RECORDED = "NotRecorded"
"""The type of the failure of a call that nothing answers."""

ENTRIES_BEYOND = 200
"""How many entries more than were recorded a run may have; with more it counts as endless."""

AskModel = Callable[[Perform], Awaitable[Event]]
"""Makes a model call anew, and returns its result or failure."""

CallReader = Callable[[Perform], Awaitable[Event]]
"""Calls a read-only tool, and returns its result or failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How calls are answered.

    Attributes:
        exact: Only a recorded call with equal arguments answers.
        model: Asks models anew; None lets the record answer.
        since: Replies up to this entry of the record stay, also where models are asked anew.
        readers: Tools that may be called where the record has no equal call, by name.
        patched: `ctx.patched` answers True, as in a task that begins now; else as recorded, and False where it was not
            asked, as in the task of the record.
    """

    exact: bool = False
    model: AskModel | None = None
    since: int = 0
    readers: dict[str, CallReader] = field(default_factory=dict)
    patched: bool = False


@dataclass(slots=True)
class Rerun:
    """One run of the code at hand over a recorded task.

    Attributes:
        snapshots: The task before the first event, then after each.
        entries: Its journal.
        unrecorded: Calls that the record had no answer to.
        live: Calls of read-only tools that were made.
        old_paths: The changes to which `ctx.patched` answered False.
        cost: What the model calls cost.
    """

    skill: Skill
    base: Snapshot
    recorded: list[Entry]
    rules: Rules
    entries: list[Entry] = field(default_factory=list)
    unrecorded: list[str] = field(default_factory=list)
    live: list[str] = field(default_factory=list)
    old_paths: list[str] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    recording: Recording = field(init=False)
    now: Snapshot = field(init=False)
    _left: list[Entry] = field(init=False)
    _answers: dict[str, str | None] = field(default_factory=dict)
    _anew: set[str] = field(default_factory=set)
    _cache: Live = field(default_factory=Live)
    _patches: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now = self.base
        self.recording = Recording.of(self.base, self.recorded)
        self._left = [entry for entry in self.recorded if not entry.refused]
        for entry in self.recorded:
            self._patches |= entry.patches

    async def run(self) -> None:
        """Run until nothing is left that can be answered."""
        while len(self.entries) < len(self.recorded) + ENTRIES_BEYOND:
            self._assign()
            if not (await self._recorded_event() or await self._other_call() or self._forced() or self._passed()):
                return

    @property
    def endless(self) -> bool:
        """Whether the run was cut off, because it had many more entries than the record."""
        return len(self.entries) >= len(self.recorded) + ENTRIES_BEYOND

    # --- calls

    def _assign(self) -> None:
        """Find the recorded call for each new call, in the order in which they were asked for."""
        for id, pending in self.now.pending.items():
            if id not in self._answers:
                command = pending.command
                reads = isinstance(command, CallTool) and command.name in self.rules.readers
                exact = not isinstance(command, MODEL_CALLS) and (self.rules.exact or reads)
                self._answers[id] = self.recording.take(id, command, exact=exact)

    def _answered(self, id: str) -> bool:
        """Whether a recorded call answers this one; none does any more once a model was asked anew."""
        return self._answers.get(id) is not None and id not in self._anew

    def _performs(self) -> list[Perform]:
        return [one for one in wanted(self.now).values() if isinstance(one, Perform)]

    def _out(self, recorded_id: str) -> Perform | None:
        """The call that a recorded call answers, if it is out now."""
        id = self.recording.taken.get(recorded_id)
        return next((one for one in self._performs() if one.invocation_id == id), None)

    async def _other_call(self) -> bool:
        """Answer one call that no recorded call answers."""
        for want in self._performs():
            if self._answered(want.invocation_id):
                continue
            command = want.command
            if isinstance(command, Notify):
                self._feed(Notified(id=command.id, invocation_id=want.invocation_id))
            elif isinstance(command, MODEL_CALLS) and self.rules.model is not None:
                await self._ask(want)
            elif isinstance(command, CallTool) and command.name in self.rules.readers:
                self.live.append(described(command))
                self._feed(await self.rules.readers[command.name](want))
            else:
                self.unrecorded.append(described(command))
                self._feed(_not_recorded(command, want.invocation_id))
            return True
        return False

    async def _ask(self, want: Perform) -> None:
        assert self.rules.model is not None
        began = time.monotonic()
        event = await _outcome(self.rules.model(want))
        took, before = time.monotonic() - began, self.cost
        self._anew.add(want.invocation_id)
        self._feed(event)
        asked = before.asked + self.cost.calls - before.calls
        self.cost = self.cost.model_copy(update={"asked": asked, "seconds": before.seconds + took})

    # --- recorded events

    async def _recorded_event(self) -> bool:
        for place, entry in enumerate(self._left):
            if await self._delivered(entry, first=place == 0):
                del self._left[place]
                return True
        return False

    async def _delivered(self, entry: Entry, *, first: bool) -> bool:
        event = entry.event
        if isinstance(event, (*RESULT_TYPES, CommandFailed, BackoffOver)):
            return await self._came_back(event, entry)
        found = self._fitting(event, first=first)
        if found is None or refusal(self.skill, self.now, found, entry.at):
            return False
        self._feed(found, entry.at)
        return True

    async def _came_back(self, event: Event, entry: Entry) -> bool:
        recorded_id = str(getattr(event, "invocation_id", ""))
        id = self.recording.taken.get(recorded_id)
        if id is None:
            return False
        if id in self._anew:
            return True  # the model was asked anew, and its own failures and retries stand in place of these
        if isinstance(event, TimerFired | BackoffOver):
            return self._rang(id, event, entry.at)
        want = self._out(recorded_id)
        if want is None:  # in a dry fork a failure comes as an alarm
            return isinstance(event, CommandFailed) and self._rang(id, event, entry.at)
        if self.rules.model is not None and isinstance(want.command, MODEL_CALLS) and entry.seq > self.rules.since:
            await self._ask(want)
            return True
        self._feed(event.model_copy(update={"id": want.command.id, "invocation_id": id}), entry.at)
        self._count(event, entry)
        return True

    def _rang(self, id: str, event: Event, at: datetime) -> bool:
        for alarm in self._alarms():
            if type(alarm.event) is type(event) and getattr(alarm.event, "invocation_id", None) == id:
                self._feed(alarm.event, max(at, alarm.due_at))
                return True
        return False

    def _fitting(self, event: Event, *, first: bool) -> Event | None:
        """A recorded event with the ids of the run at hand; None if the task does not wait for it now."""
        match event:
            case UserMessage() | Recovered() | Forked() if self.now.lifecycle is TaskState.PLANNED:
                return event
            case UserMessage(gate=gate):
                return self._message(event, gate, first=first)
            case DecisionMade(gate=gate):
                slot = self._slot(gate)
                for wait in self.now.open_waits:
                    if isinstance(wait.ask, AskApproval) and wait.slot == slot:
                        return event.model_copy(update={"gate": wait.gate, "digest": wait.ask.digest})
                grace = self.now.grace
                if grace is None or not first:
                    return None
                return event.model_copy(update={"gate": grace.gate, "digest": grace.digest})
            case ReminderDue(gate=gate) | GateTimedOut(gate=gate) | GraceOver(gate=gate):
                slot, kind = self._slot(gate), type(event)
                names = {wait.gate: wait.slot for wait in self.now.waits}
                fitting = [one.event for one in self._alarms() if type(one.event) is kind]
                return next((one for one in fitting if names.get(getattr(one, "gate", ""), slot) == slot), None)
            case ChildAsked(invocation_id=part):
                id = self.recording.taken.get(part)
                return None if id is None else event.model_copy(update={"invocation_id": id})
            case DependencyResolved(invocation_id=str(given)):
                return event.model_copy(update={"invocation_id": self.recording.taken.get(given, given)})
            case CancelRequested() | DependencyResolved():
                return event if first else None
            case _:
                return None

    def _message(self, event: UserMessage, gate: str | None, *, first: bool) -> UserMessage | None:
        waits = {wait.gate: wait.slot for wait in self.now.open_waits if not isinstance(wait.ask, AskApproval)}
        if event.called_back:  # its address is as recorded, whatever the question is named
            return event if first or any(answers(event, wait) for wait in self.now.open_waits) else None
        if event.early and not waits:
            return event if first else None
        named = event.slot or gate  # a slot may be given as the question's id, too
        slot = None if named is None else self._slot(named)
        fitting = [one for one, name in waits.items() if slot in (None, name, one)]
        return event.model_copy(update={"gate": fitting[0], "slot": waits[fitting[0]]}) if fitting else None

    def _slot(self, gate: str) -> str:
        command = self.recording.commands.get(gate)
        return gate if command is None else command.id

    def _alarms(self) -> list[Alarm]:
        found = [one for one in wanted(self.now).values() if isinstance(one, Alarm)]
        return sorted(found, key=lambda one: one.due_at)

    def _forced(self) -> bool:
        """Deliver the next recorded event that the task takes at any time, where all else waits."""
        for place, entry in enumerate(self._left):
            if isinstance(entry.event, CancelRequested | DependencyResolved) or getattr(entry.event, "early", False):
                found = self._fitting(entry.event, first=True)
                if found is not None and not refusal(self.skill, self.now, found, entry.at):
                    del self._left[place]
                    self._feed(found, entry.at)
                    return True
        return False

    def _passed(self) -> bool:
        """Let a sleep or a retry end that the record does not have; one that it has ends only as recorded."""
        for alarm in self._alarms():
            id = str(getattr(alarm.event, "invocation_id", ""))
            if isinstance(alarm.event, TimerFired | BackoffOver | CommandFailed) and not self._answered(id):
                self._feed(alarm.event, alarm.due_at)
                return True
        return False

    def _feed(self, event: Event, at: datetime | None = None) -> None:
        asked = self.now.pending.get(str(getattr(event, "invocation_id", "")))
        self.now, entry = advance(
            self.skill,
            self.now,
            event,
            self.now.at + timedelta(0) if at is None else at,
            live=self._cache,
            patched=self._patched,
        )
        self.entries.append(entry)
        self.cost = with_usage(self.cost, event, None if asked is None else asked.command)

    def _patched(self, patch: str) -> bool:
        if patch.startswith(OWN_PATCHES):
            return self._patches.get(patch, False)
        answer = self.rules.patched or self._patches.get(patch, False)
        if not answer:
            self.old_paths.append(patch)
        return answer

    # --- cost

    def _count(self, event: Event, entry: Entry) -> None:
        """Add how long a recorded reply took."""
        if isinstance(event, LlmResult | ChatResult):
            took = seconds_of(self.recorded, self.base, event.invocation_id, entry)
            self.cost = self.cost.model_copy(update={"seconds": self.cost.seconds + took})


async def _outcome(made: object) -> Event:
    """What a model's function returned, which a test may have written."""
    event = await made if inspect.isawaitable(made) else made
    if not isinstance(event, LlmResult | ChatResult | CommandFailed):
        raise InputRejected(
            "a function that makes a model call is an `async def`, and returns an LlmResult, a ChatResult or a "
            f"CommandFailed; got {shown(event)}"
        )
    return event


def with_usage(cost: Cost, event: Event, command: Command | None) -> Cost:
    """The cost with a model's reply, also one of no use that was paid for; the cost itself for any other event.

    Args:
        cost: So far.
        event: What came.
        command: The command that it is the outcome of; None if it is not known.
    """
    match event:
        case LlmResult(usage=usage) | ChatResult(reply=Reply(usage=usage)):
            return _with(cost, usage)
        case CommandFailed(failure=Failure(details=details)) if isinstance(command, MODEL_CALLS):
            if paid := paid_in_vain(details):
                return _with(cost, paid[0])
    return cost


def _with(cost: Cost, usage: Usage | None) -> Cost:
    if usage is None:
        return cost.model_copy(update={"calls": cost.calls + 1, "usd": None})
    return cost.model_copy(
        update={
            "calls": cost.calls + 1,
            "input_tokens": cost.input_tokens + usage.input_tokens,
            "output_tokens": cost.output_tokens + usage.output_tokens,
            "usd": None if cost.usd is None or usage.usd is None else cost.usd + usage.usd,
        }
    )


def seconds_of(recorded: list[Entry], base: Snapshot, invocation_id: str, reply: Entry) -> float:
    """How long a recorded command took: from the entry that issued it to the entry with its outcome."""
    for entry in recorded:
        if any(one.invocation_id == invocation_id for one in entry.commands):
            return (reply.at - entry.at).total_seconds()
    return (reply.at - base.at).total_seconds()


def _not_recorded(command: Command, invocation_id: str) -> CommandFailed:
    message = f"the record has no answer to {described(command)}"
    failure = Failure(kind=FailureKind.PERMANENT, type=NOT_RECORDED, message=message)
    return CommandFailed(id=command.id, invocation_id=invocation_id, failure=failure)
