"""A task driven by hand, event by event: for claims about the fold itself, which no engine should stand before."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any

from refold import Content, Failure, FailureKind, Status, TaskState, UserMessage, skill_of
from refold.core.authoring.skill import Live
from refold.core.chat import Reply
from refold.core.commands import (
    AskApproval,
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Effect,
    Notify,
    Sleep,
)
from refold.core.events import (
    ActivityResult,
    BackoffOver,
    CancelRequested,
    ChatResult,
    CommandFailed,
    DependencyResolved,
    Event,
    LlmResult,
    Notified,
    SkillOutcome,
    SkillResult,
    TimerFired,
    ToolResult,
    WorkflowResult,
)
from refold.core.fold.apply import advance, fold, planned
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Pending, Snapshot
from refold.core.fold.wanted import Alarm, Perform, wanted
from refold.core.gates import DecisionMade
from refold.lineage.fork import fork
from refold.lineage.recover import recover

START = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    """So many seconds after the task was planned."""
    return START + timedelta(seconds=second)


def message(text: str = "go", **more: Any) -> UserMessage:
    return UserMessage(content=Content.from_text(text), **more)


def busy(retry_after: float | None = None) -> Failure:
    """A failure that asks to try later."""
    return Failure(kind=FailureKind.TRANSIENT, type="http_503", message="busy", retry_after=retry_after)


def unknown() -> Failure:
    """A failure after which nobody knows whether the effect took place."""
    return Failure(kind=FailureKind.UNKNOWN, type="outcome_unknown", message="the response was lost")


def refused() -> Failure:
    """A failure that will not go away."""
    return Failure(kind=FailureKind.PERMANENT, type="http_403", message="forbidden")


class ByHand:
    """A task and its journal. Each event comes one second after the one before, unless it says when.

    Args:
        author: The skill.
        cut: Begin a new run before every event: the snapshot goes through JSON, without what each run asks itself, and
            the live step is forgotten.
        patched: Answers `ctx.patched`.
        owner: Whose task it is.
        started_by: Who started it.
    """

    def __init__(
        self,
        author: Any,
        *,
        cut: bool = False,
        patched: Callable[[str], bool] | None = None,
        owner: str | None = None,
        started_by: tuple[str, ...] = (),
    ) -> None:
        self.skill = skill_of(author)
        self.task = self.base = planned(self.skill, "T", START, owner=owner, started_by=started_by)
        self.journal: list[Entry] = []
        self.earlier = 0  # how many of the entries are of earlier runs
        self.cut, self.patched = cut, patched
        self.live = Live()

    def feed(self, event: Event, *, second: float | None = None) -> Entry:
        """Take an event."""
        if self.cut:
            begins = self.task.changed({"patches": self.task.kept_patches})
            self.task = Snapshot.model_validate_json(begins.model_dump_json())
            self.live, self.earlier = Live(), len(self.journal)
        when = at(self.task.seq + 1 if second is None else second)
        self.task, entry = advance(self.skill, self.task, event, when, live=self.live, patched=self.patched)
        self.journal.append(entry)
        return entry

    # --- what happens to it

    def say(self, text: str = "go", **more: Any) -> Entry:
        """The user says something."""
        return self.feed(message(text, **more))

    def give(self, id: str, value: Any = None, *, second: float | None = None) -> Entry:
        """The command of this id comes back with a value."""
        return self.feed(result(self.pending(id), value), second=second)

    def fail(self, id: str, failure: Failure | None = None) -> Entry:
        """The command of this id fails, for good unless another failure is given."""
        command = self.pending(id)
        return self.feed(CommandFailed(id=id, invocation_id=command.invocation_id, failure=failure or refused()))

    def ring(self, id: str) -> Entry:
        """The alarm that is set for the command of this id rings, when it is due."""
        alarm = self.alarm(id)
        return self.feed(alarm.event, second=(alarm.due_at - START).total_seconds())

    def decide(
        self,
        slot: str,
        approved: bool = True,
        *,
        by: str = "Ann",
        vouched: str | None = "key",
        digest: str | None = None,
        gate: str | None = None,
        comment: str = "",
        changes: Mapping[str, Any] = MappingProxyType({}),
        second: float | None = None,
    ) -> Entry:
        """Somebody decides at the gate of this name, on what it shows unless another digest is given."""
        wait = next((one for one in self.task.waits if one.slot == slot), None)
        shown = "" if wait is None or not isinstance(wait.ask, AskApproval) else wait.ask.digest
        decision = DecisionMade(
            gate=gate or (wait.gate if wait is not None else slot),
            digest=shown if digest is None else digest,
            decision="approved" if approved else "denied",
            approver=by,
            asserted_by=vouched,
            comment=comment,
            changes=dict(changes),
        )
        return self.feed(decision, second=second)

    def resolve(self, **fields: Any) -> Entry:
        """An operator says how it goes on with what is blocked; a given outcome comes back from its receipt."""
        entry = self.feed(DependencyResolved(**fields))
        for one in wanted(self.task).values():
            if isinstance(one, Perform) and one.given is not None:
                self.feed(result(self.task.pending[one.invocation_id], one.given.outcome))
        return entry

    def clock(self, key: str) -> Entry:
        """The alarm whose key ends so rings, when it is due."""
        alarm = next(one for name, one in wanted(self.task).items() if name.endswith(key))
        assert isinstance(alarm, Alarm)
        return self.feed(alarm.event, second=(alarm.due_at - START).total_seconds())

    def gate(self, slot: str) -> str:
        """The id of the gate of this name."""
        return next(one.gate for one in self.task.waits if one.slot == slot)

    def recovered(
        self,
        task_id: str = "T2",
        author: Any = None,
        *,
        by: str | None = None,
        in_turn: bool = True,
        patched: Callable[[str], bool] = lambda _: True,
        second: float | None = None,
    ) -> "ByHand":
        """A new task that goes on from where this one failed, with today's code if another one is given.

        Without `in_turn`, or if `patched` says no, it is one that an earlier release began.
        """
        skill = self.skill if author is None else skill_of(author)
        when = self.task.at if second is None else at(second)
        snapshot, first = recover(
            skill, self.base, self.journal, task_id, when, by=by, in_turn=in_turn, patched=patched
        )
        new = ByHand(skill, cut=self.cut)
        new.task = new.base = snapshot
        new.feed(first, second=second)
        return new

    def forked(
        self,
        seq: int,
        task_id: str = "F",
        *,
        live: bool = False,
        author: Any = None,
        by: str | None = None,
        patched: Callable[[str], bool] = lambda _: True,
    ) -> "ByHand":
        """A task that branches off at this entry, with today's code if another one is given.

        If `patched` says no, it is one that an earlier release began.
        """
        skill = self.skill if author is None else skill_of(author)
        snapshot, first = fork(
            skill, self.base, self.journal, task_id, self.task.at, seq=seq, live=live, by=by, patched=patched
        )
        new = ByHand(skill, cut=self.cut)
        new.task = new.base = snapshot
        new.feed(first)
        return new

    def cancel(self, reason: str = "") -> Entry:
        return self.feed(CancelRequested(reason=reason))

    # --- how it stands

    def pending(self, id: str) -> Pending:
        return next(one for one in self.task.pending.values() if one.command.id == id)

    def asked(self, id: str) -> CallLlm:
        """The model call of this id."""
        command = self.pending(id).command
        assert isinstance(command, CallLlm)
        return command

    def alarm(self, id: str) -> Alarm:
        return next(
            one
            for one in wanted(self.task).values()
            if isinstance(one, Alarm)
            and isinstance(one.event, TimerFired | BackoffOver)
            and one.event.invocation_id == self.pending(id).invocation_id
        )

    @property
    def out(self) -> list[str]:
        """The ids of the commands that should be performed now."""
        return [one.command.id for one in wanted(self.task).values() if isinstance(one, Perform)]

    @property
    def alarms(self) -> list[float]:
        """When alarms ring, in seconds since the start."""
        return [(one.due_at - START).total_seconds() for one in wanted(self.task).values() if isinstance(one, Alarm)]

    @property
    def state(self) -> TaskState:
        return self.task.lifecycle

    @property
    def status(self) -> Status:
        return self.task.status

    @property
    def reason(self) -> str:
        return self.task.reason

    @property
    def said(self) -> list[str]:
        """What the skill said."""
        return [one.text for one in self.task.messages if one.role == "agent"]

    @property
    def waiting(self) -> list[str]:
        return [wait.slot for wait in self.task.waits]

    @property
    def moves(self) -> list[str]:
        """All moves of its life, as events."""
        return [str(move.event) for entry in self.journal for move in entry.moves]

    def folded(self) -> Snapshot:
        """What the journal alone says of the task; of the answers that each run asks itself, those of the last run."""
        found = fold(self.skill, self.base, self.journal)
        if not self.earlier:
            return found
        known = found.kept_patches
        for entry in self.journal[self.earlier :]:
            known |= entry.patches
        return found.changed({"patches": known})


def result(pending: Pending, value: Any = None) -> Event:
    """The event with which a command comes back."""
    command: Effect = pending.command
    id, invocation_id = command.id, pending.invocation_id
    match command:
        case CallLlm():
            return LlmResult(id=id, invocation_id=invocation_id, value=value)
        case CallChat():
            reply = value if isinstance(value, Reply) else Reply(text=str(value))
            return ChatResult(id=id, invocation_id=invocation_id, reply=reply)
        case CallTool():
            return ToolResult(id=id, invocation_id=invocation_id, value=value)
        case CallSkill():
            outcome = SkillOutcome(task_id=invocation_id, text=str(value))
            return SkillResult(id=id, invocation_id=invocation_id, outcome=outcome)
        case CallActivity():
            return ActivityResult(id=id, invocation_id=invocation_id, value=value)
        case CallWorkflow():
            return WorkflowResult(id=id, invocation_id=invocation_id, value=value)
        case Sleep():
            return TimerFired(id=id, invocation_id=invocation_id)
        case Notify():
            return Notified(id=id, invocation_id=invocation_id)
