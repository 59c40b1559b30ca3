"""Where commands become effects: which activities and timers should be running for a task, derived from its snapshot.

An adapter (Temporal's, or the fake engine) compares them with what is running, starts what is missing and cancels what
is not listed any more. Start, retry, cancel, resume and recovery all work this way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pydantic_core import to_json

from refold.core.chat import EMPTY, Prior
from refold.core.commands import CallChat, CallTool, Effect, Sleep, fallbacks_of
from refold.core.events import (
    BackoffOver,
    CommandFailed,
    Event,
    GateTimedOut,
    GraceOver,
    ReminderDue,
    TimerFired,
    UserMessage,
)
from refold.core.fold.questions import TIMEOUT
from refold.core.fold.snapshot import Fork, Given, Pending, Snapshot
from refold.core.lifecycle import TaskState
from refold.core.retry_policy import Failure, FailureKind
from refold.core.waits import Wait

UNTIL = "~until"
"""How the key of a part's timeout ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perform:
    """Perform a command, then call `advance` with its outcome.

    Attributes:
        command: The command; a chat always has its frame here, although the journal stores a frame once.
        decided: An operator allowed this attempt, although an earlier attempt's outcome may be unknown.
        given: The outcome that an operator stated: the effect is not performed, only its receipt is written.
        prior: The conversation before a chat; None for other commands.
    """

    invocation_id: str
    command: Effect
    attempt: int
    decided: bool = False
    given: Given | None = None
    prior: Prior | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Call `advance` with `event` at `due_at`, or at once if that time is past."""

    due_at: datetime
    event: Event
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SendAnswer:
    """Send an answer to a part of the task. The part takes it once, however often it is sent; no outcome follows."""

    task_id: str
    message: UserMessage


Want = Perform | Alarm | SendAnswer


class Remembered(NamedTuple):
    """What one open command wanted.

    Attributes:
        pending: The command, as it was.
        wants: What it wanted then, by key.
    """

    pending: Pending
    wants: tuple[tuple[str, Want], ...]


Known = dict[str, Remembered]
"""What a caller keeps between two looks at a task with many open commands: what each wanted, by invocation id."""


def wanted(snapshot: Snapshot, known: Known | None = None) -> dict[str, Want]:
    """The effects and alarms that should be running for a task, oldest command first.

    Each has a key that is the same in later snapshots for as long as that attempt or alarm should run.

    Args:
        snapshot: The task.
        known: What an earlier look at the same task left here, for this one to use; None uses nothing.
    """
    wants: dict[str, Want] = {}
    if snapshot.grace is not None:
        too_late = GraceOver(gate=snapshot.grace.gate)
        wants[f"{snapshot.grace.gate}~grace"] = Alarm(due_at=snapshot.grace.until, event=too_late, summary="grace over")
    for wait in snapshot.waits:
        wants |= _alarms(wait)
    settled = {event.invocation_id for event in snapshot.held if isinstance(event, CommandFailed)}
    known = Known() if known is None else known
    for id, pending in snapshot.pending.items():
        kept = known.get(id)
        if kept is None or kept.pending is not pending:
            kept = Remembered(pending, tuple(_of_command(snapshot, id, pending)))
            if snapshot.fork is None and not isinstance(pending.command, CallChat):  # these depend on more of the task
                known[id] = kept
        if id not in settled:
            wants.update(kept.wants)
    for id in known.keys() - snapshot.pending.keys():
        del known[id]
    return wants


def _of_command(snapshot: Snapshot, id: str, pending: Pending) -> Iterator[tuple[str, Want]]:
    command = pending.command
    if isinstance(command, Sleep):
        if pending.due_at is not None:
            fired = TimerFired(id=command.id, invocation_id=id)
            yield id, Alarm(due_at=pending.due_at, event=fired, summary=f"sleep {command.id}")
    elif pending.due_at is not None:
        over = BackoffOver(invocation_id=id, retry=pending.attempt)
        summary = f"retry {pending.attempt} of {command.id}: {pending.failure}"
        yield f"{id}~{pending.attempt}", Alarm(due_at=pending.due_at, event=over, summary=summary)
    elif pending.started:
        yield f"{id}#{pending.attempt}", _performed(snapshot, pending)
        if pending.until is not None:
            late = CommandFailed(id=command.id, invocation_id=id, failure=TIMED_OUT)
            yield id + UNTIL, Alarm(due_at=pending.until, event=late, summary=f"timeout of {command.id}")
    for answer in pending.answers:
        yield f"{id}<{answer.gate}", SendAnswer(task_id=id, message=answer)


def _performed(snapshot: Snapshot, pending: Pending) -> Want:
    id, command, fork, prior = pending.invocation_id, pending.command, snapshot.fork, None
    if fork is not None and not fork.live:
        summary = f"dry run: {command.kind} {command.subject}"
        return Alarm(due_at=snapshot.at, event=dry_run(id, command), summary=summary)
    if fork is not None:
        command = scoped(fork, command)
    other = {"model": fallbacks_of(command)[pending.moved - 1]} if pending.moved else {}
    if isinstance(command, CallChat):
        prior = Prior(thread=snapshot.threads.get(command.thread, EMPTY), framed=command.frame is None and not other)
        frame = command.frame or prior.thread.frame
        command = command.model_copy(update={"frame": frame.changed(other) if other else frame})
    elif other:
        command = command.model_copy(update=other)
    return Perform(
        invocation_id=id,
        command=command,
        attempt=pending.attempt,
        decided=pending.decided,
        given=pending.given,
        prior=prior,
    )


def _alarms(wait: Wait) -> dict[str, Want]:
    alarms = (("remind", wait.reminder_at, ReminderDue), ("timeout", wait.timeout_at, GateTimedOut))
    return {
        f"{wait.gate}~{what}": Alarm(due_at=due_at, event=event(gate=wait.gate), summary=f"{what} of {wait.slot}")
        for what, due_at, event in alarms
        if due_at is not None
    }


def finished(snapshot: Snapshot) -> bool:
    """Whether the task has ended and nothing more is wanted for it, compensation included."""
    return snapshot.lifecycle in (TaskState.DONE, TaskState.FAILED) and not wanted(snapshot)


# --- forks

DRY_RUN = "DryRun"
"""The `type` of the failure with which each effect of a dry fork fails."""

SHOWN_CHARS = 300
TIMED_OUT = Failure(kind=FailureKind.PERMANENT, type=TIMEOUT, message="it took longer than its timeout allows")


def dry_run(invocation_id: str, command: Effect) -> CommandFailed:
    """The failure of a command in a dry fork, where effects are not performed."""
    asked = command.model_dump(mode="json", exclude={"kind", "id", "retry", "undo"})
    shown = to_json(asked).decode()
    shown = shown if len(shown) <= SHOWN_CHARS else f"{shown[: SHOWN_CHARS - 1]}…"
    message = f"dry run: {command.kind} {command.subject!r} was not performed; asked for: {shown}"
    failure = Failure(kind=FailureKind.PERMANENT, type=DRY_RUN, message=message)
    return CommandFailed(id=command.id, invocation_id=invocation_id, failure=failure)


def scoped(fork: Fork, command: Effect) -> Effect:
    """A command as a live fork sends it: with business keys that differ from those of the other task."""
    if not isinstance(command, CallTool):
        return command
    undoes = command.undoes
    if undoes is not None and undoes.key is not None:
        undoes = undoes.model_copy(update={"key": f"{undoes.key}@{fork.scope}"})
    key = None if command.key is None else f"{command.key}@{fork.scope}"
    return command.model_copy(update={"key": key, "undoes": undoes})
