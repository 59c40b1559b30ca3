"""Everything needed to go on with a task from here.

A snapshot is a value: the fold makes new ones and never changes an old one. The skill's state is in it as plain JSON
data, so that no skill can reach back into it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field, JsonValue

from refold.core.chat import Thread
from refold.core.commands import AskApproval, CallTool, Effect, Sleep
from refold.core.content import Artifact, Message
from refold.core.events import Event, UserMessage
from refold.core.gates import DecisionMade, Grace
from refold.core.lifecycle import Ending, Status, TaskState, derive_status
from refold.core.values import Value, lean
from refold.core.waits import Wait

SEEN_LIMIT = 100
"""How many delivery ids a task remembers, newest last."""

EARLY_LIMIT = 100
"""How many messages a task keeps that nobody has asked for yet."""

UNDO = "~undo"
"""The end of the invocation id of a command that compensates another one: `T/1.1~undo`."""


class ReceiptStatus(StrEnum):
    """How a command came back."""

    OK = "ok"
    ERROR = "error"
    CANCELED = "canceled"


class Receipt(Value):
    """The recorded outcome of one command: its value, or its failure as data."""

    invocation_id: str
    status: ReceiptStatus
    outcome: JsonValue = lean()


class Given(Value):
    """An outcome that a person gives: the effect took place, and this is what it came to."""

    outcome: JsonValue = lean()


class Pending(Value):
    """A command that has not come back.

    Attributes:
        invocation_id: The command's own id, kept over retries and recovery.
        command: What was asked for.
        retries: Attempts after the first one, so far.
        started: It has been sent out; False while it waits for the task to go on.
        due_at: When its next attempt, or its sleep's end, is due; None while it is out.
        failure: Why the last attempt failed, for people; empty if none did.
        uncounted: Attempts that do not count against `max_retries`, because an operator resolved the command after
            them. Saved as `forgiven`, as older histories hold it.
        blocked: It waits for its dependency, or for an operator.
        decided: An operator said that it may be performed again.
        given: An operator said what it came to. It is sent out once more, for the receipt alone.
        background: No step awaits it. Used for compensation, for performing a compensated effect again after recovery,
            and for reminders. Saved as `aside`, as older histories hold it.
        asks: The open questions of the task that it is, and that nobody has answered here.
        answers: Answers that this task has not taken yet.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    invocation_id: str
    command: Effect
    retries: int = lean(0)
    started: bool = lean(False)
    due_at: datetime | None = lean()
    failure: str = lean("")
    uncounted: int = lean(0, alias="forgiven")
    blocked: bool = lean(False)
    decided: bool = lean(False)
    given: Given | None = lean()
    background: bool = lean(False, alias="aside")
    asks: tuple[Wait, ...] = lean(())
    answers: tuple[UserMessage, ...] = lean(())

    @property
    def attempt(self) -> int:
        """Which attempt this is; 1 is the first."""
        return self.retries + 1

    @property
    def backs_off(self) -> bool:
        """Whether it waits before a retry."""
        return self.due_at is not None and not self.blocked and not isinstance(self.command, Sleep)


class Done(Value):
    """An effect that is undone if the task does not complete.

    Attributes:
        invocation_id: The effect's command.
        command: The command itself.
        undo: The command that undoes it.
    """

    invocation_id: str
    command: CallTool
    undo: CallTool


def status_of(
    lifecycle: TaskState, ending: Ending | None, waits: tuple[Wait, ...], asked_by_parts: tuple[Wait, ...]
) -> Status:
    """The status that the outside sees.

    Args:
        lifecycle: Where the task is in its life.
        ending: How it ended; None while it is open.
        waits: The task's own open questions.
        asked_by_parts: Those of its parts.
    """
    if ending is not None or not (asked_by_parts or lifecycle is TaskState.PAUSED):
        return derive_status(lifecycle, ending)
    asks = [wait.ask for wait in (*waits, *asked_by_parts)]
    signs_in = bool(asks) and all(isinstance(ask, AskApproval) and ask.policy.sign_in for ask in asks)
    return Status.AUTH_REQUIRED if signs_in else Status.INPUT_REQUIRED


def asked_by(parts: Mapping[str, Pending]) -> tuple[Wait, ...]:
    """The open questions of a task's parts."""
    asked: tuple[Wait, ...] = ()
    for pending in parts.values():
        if pending.asks:
            asked += pending.asks
    return asked


class Fork(Value):
    """Where a task branched off from another one.

    Attributes:
        task_id: The other one.
        seq: The entry of it that this task goes on from.
        live: Effects take place; otherwise each fails as `DryRun`.
        scope: The branch's own id, which sets its business keys apart from those of the other task.
    """

    task_id: str
    seq: int
    live: bool = lean(False)
    scope: str


class Taken(Value):
    """An event that a task took, and what `ctx.patched` answered then: all that folding it again needs."""

    seq: int
    at: datetime
    event: Event
    patches: dict[str, bool] = lean(factory=dict)


class Redo(Value):
    """What a recovered task needs so that its skill can go on with the new outcomes of compensated effects.

    Attributes:
        base: The failed task before the first of the events.
        past: What the failed task took, but for what killed it.
        skipped: Commands whose final failure is left out.
        ids: The new ids of commands that the failed task had open, by the old ones.
        outcomes: The new outcomes so far, by the id that the effect had in the failed task.
    """

    base: Snapshot
    past: tuple[Taken, ...]
    skipped: tuple[str, ...] = lean(())
    ids: dict[str, str] = lean(factory=dict)
    outcomes: dict[str, JsonValue] = lean(factory=dict)


class Snapshot(Value):
    """A task, as of one journal entry.

    Attributes:
        task_id: The task's id; the prefix of its invocation ids.
        skill: The skill's id.
        seq: The newest entry's number; 0 before the first.
        at: When that entry was taken; never goes back.
        lifecycle: Where the task is in its life.
        ending: How it ended; None while it is open.
        reason: Why it failed; empty otherwise.
        state: The skill's state, as JSON; None before the first event.
        pending: Commands that have not come back, oldest first, by invocation id.
        waits: Open questions, oldest first.
        held: Events that wait for the task to run again, in the order they came.
        early: Messages that nobody has asked for yet, in the order they came.
        receipts: Outcomes that the skill may still look back at, by invocation id.
        threads: Conversations with models, by name.
        previous: The task whose conversations those were before; None where they began here.
        messages: What was said, oldest first.
        artifacts: What was handed over; one per name.
        progress: One line on what is going on.
        refused: How many events were refused so far.
        seen: Delivery ids and the entries that took them, oldest first.
        patches: What `ctx.patched` answered, by patch id.
        skill_version: The version of the skill that wrote `state`.
        stream: Somebody wants to see the model's tokens as they come.
        parent: The task that this one is a part of.
        owner: Whose task it is, as far as whoever started it says.
        started_by: Who started it, recovered it or branched it off, as far as they say.
        context: The conversation that it belongs to, with other tasks.
        known_as: The id that its skill sees, where it is another task's, which this one was recovered or forked from.
        status_at: When `status` last changed; None where it never did.
        grace: The time for a late grant, after a gate's timeout.
        late: The grant that came in that time.
        done: Effects that are undone if the task does not complete, oldest first.
        undone: Those that were, by invocation id.
        unraised: When the task ended: commands whose failures the skill's current `await` held, which raises only one
            failure, when all have come back. Recovery asks for them again, too.
        recovered_from: The task that this one goes on for.
        redo: Its past, while compensated effects are being performed again; None otherwise.
        fork: Where it branched off; None where it did not.
    """

    task_id: str
    skill: str
    seq: int = 0
    at: datetime
    lifecycle: TaskState = TaskState.PLANNED
    ending: Ending | None = lean()
    reason: str = lean("")
    state: JsonValue = lean()
    pending: Mapping[str, Pending] = Field(default_factory=dict)
    waits: tuple[Wait, ...] = ()
    held: tuple[Event, ...] = lean(())
    early: tuple[UserMessage, ...] = lean(())
    receipts: Mapping[str, Receipt] = lean(factory=dict)
    threads: Mapping[str, Thread] = lean(factory=dict)
    previous: str | None = lean()
    messages: tuple[Message, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    progress: str = lean("")
    refused: int = lean(0)
    seen: Mapping[str, int] = lean(factory=dict)
    patches: Mapping[str, bool] = lean(factory=dict)
    skill_version: int = lean(1)
    stream: bool = lean(False)
    parent: str | None = lean()
    owner: str | None = lean()
    started_by: tuple[str, ...] = lean(())
    context: str | None = lean()
    known_as: str = lean("")
    status_at: datetime | None = lean()
    grace: Grace | None = lean()
    late: DecisionMade | None = lean()
    done: tuple[Done, ...] = lean(())
    undone: tuple[str, ...] = lean(())
    unraised: tuple[str, ...] = lean(())
    recovered_from: str | None = lean()
    redo: Redo | None = lean()
    fork: Fork | None = lean()

    @property
    def status(self) -> Status:
        """The status that the outside sees. A task waits for input where one of its parts does."""
        return status_of(self.lifecycle, self.ending, self.waits, self._asked_by_parts)

    @property
    def open_waits(self) -> tuple[Wait, ...]:
        """All questions that can be answered here: the task's own, then those of its parts."""
        return (*self.waits, *self._asked_by_parts)

    @property
    def _asked_by_parts(self) -> tuple[Wait, ...]:
        return asked_by(self.pending)

    @property
    def ended(self) -> bool:
        """No event is taken any more."""
        return self.ending is not None

    def changed(self, fields: dict[str, Any]) -> Snapshot:
        """A copy with other fields, unchecked: the fold's own, whose values are right by construction."""
        values = dict(self.__dict__)
        values.update(fields)
        return Snapshot.trusted(**values)


Redo.model_rebuild()
