"""The snapshot of a task: everything that the fold needs to continue the task; A2A's status is derived here.

A snapshot is a value: the fold makes new ones and never changes an old one. It holds the skill's state as plain JSON
data, so that no skill can change a snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from itertools import chain

from pydantic import ConfigDict, Field, JsonValue

from refold.core.chat import Thread
from refold.core.commands import CALLED, AskApproval, CallTool, Effect, PartBudget
from refold.core.content import Artifact, Message
from refold.core.events import Event, UserMessage
from refold.core.gates import DecisionMade, Grace
from refold.core.lifecycle import Ending, Status, TaskState, derive_status
from refold.core.values import Value, lean
from refold.core.waits import Unresolved, Wait

SEEN_LIMIT = 100
"""How many delivery ids a snapshot stores, to refuse a message that is delivered twice."""

CALLS_LIMIT = 1_000
"""How many older delivery ids of calls to callbacks' addresses it stores, too: an address may be valid for weeks."""

ANSWERED = f"{CALLED}#"
"""How a key in `Snapshot.seen` begins that holds the digest of a callback's address, and no delivery id: no task's id
begins with `#`. With a field of its own in its place, a worker of an earlier release would refuse the snapshot."""

EARLY_LIMIT = 100
"""How many early messages a snapshot stores: messages that came before the skill asked for one. As many calls to
callbacks' addresses have room beside them."""

OPENED = "~opened"
"""The end of the invocation id of the notification that a gate opened: `T/1.1~opened`."""

UNDO = "~undo"
"""The end of the invocation id of a command that compensates another one: `T/1.1~undo`."""

OWN_PATCHES = "refold."
"""How the ids of refold's own patches begin; see `Entry.patches`. Each run asks them again."""

STEP_PATCHES = "refold.step."
"""How the ids of refold's own patches begin that are asked while a step's coroutine runs.

A new run keeps the answers: it drives the step again, which must take the same path as before.
"""


class ReceiptStatus(StrEnum):
    """How a command ended."""

    OK = "ok"
    ERROR = "error"
    CANCELED = "canceled"


class Receipt(Value):
    """The recorded outcome of one command: its value, or its failure as data."""

    invocation_id: str
    status: ReceiptStatus
    outcome: JsonValue = lean()


class Given(Value):
    """The outcome of an effect as an operator states it: the effect took place, with this result."""

    outcome: JsonValue = lean()


class Pending(Value):
    """A command without an outcome yet.

    Attributes:
        invocation_id: The command's id, the same in all attempts and after recovery.
        command: The command.
        retries: Attempts after the first one, so far.
        started: The command is sent out; False while the lifecycle does not let it start, and between attempts.
        due_at: When the next attempt, or the end of a sleep, is due; None while an attempt runs.
        failure: Why the last attempt failed, for people; empty if none did.
        uncounted: Attempts not counted against `max_retries`, because an operator resolved the command after them.
            Saved as `forgiven`, its name in older histories.
        blocked: The task is blocked on this command: on its dependency, or on an operator.
        decided: An operator allowed the next attempt, although the effect may have taken place before.
        given: The outcome that an operator stated; the command is sent once more, only to write the receipt.
        looks: How often the command was sent again because its workers failed (`Failure.again_s`), since an operator
            last decided.
        moved: How many of the call's models it has moved on from.
        background: No step awaits this command. Used for compensation, for repeating a compensated effect after
            recovery, and for reminders. Saved as `aside`, its name in older histories.
        parked: It failed in the task that this one recovers, where others went on beside it; its id may be theirs, too.
        until: When the part times out, if the command is one (`CallSkill`) with a timeout.
        asks: If the command is a part (`CallSkill`): the part's open questions that have no answer yet.
        answers: If the command is a part: answers sent to the part that the part has not confirmed yet.
        unresolved: If the command is a part: the part's commands that only an operator can resolve.
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
    looks: int = lean(0)
    moved: int = lean(0)
    background: bool = lean(False, alias="aside")
    parked: bool = lean(False)
    until: datetime | None = lean()
    asks: tuple[Wait, ...] = lean(())
    answers: tuple[UserMessage, ...] = lean(())
    unresolved: tuple[Unresolved, ...] = lean(())

    @property
    def attempt(self) -> int:
        """The number of the current or next attempt; 1 is the first."""
        return self.retries + 1


class Compensable(Value):
    """An effect that took place, and is compensated if the task does not complete.

    Attributes:
        invocation_id: The id of the effect's command.
        command: The effect's command.
        undo: The command that compensates the effect.
    """

    invocation_id: str
    command: CallTool
    undo: CallTool


class Fork(Value):
    """Where a task branched off from another one.

    Attributes:
        task_id: The other task.
        seq: The other task's entry after which this task continues.
        live: Effects take place; otherwise each fails as `DryRun`.
        scope: The fork's id, appended to its business keys, so that they differ from the other task's.
    """

    task_id: str
    seq: int
    live: bool = lean(False)
    scope: str


class PastEvent(Value):
    """An event that a task took, with the answers of `ctx.patched` at that time: all that `fold` needs of an entry."""

    seq: int
    at: datetime
    event: Event
    patches: dict[str, bool] = lean(factory=dict)


class Redo(Value):
    """What a recovered task stores until its compensated effects are performed again; see `fold/redo.py`.

    Attributes:
        base: The failed task before the first event of `past`.
        past: The events that the failed task took, without the event that ended it.
        skipped: Ids of commands whose final failure `fold` skips.
        parks: As for `fold`.
        outcomes: The new outcomes so far, by the effect's place (see `lineage/ids.py`).
        in_turn: The effects are performed again one after the other. Tasks of earlier releases perform all at once.
        lost: Ids of the calls of races that ended meanwhile: of those that lost, and of those that won. None if no race
            of questions was open, and in tasks of earlier releases, where all questions of a race close before the
            effects are performed again.
    """

    base: Snapshot
    past: tuple[PastEvent, ...]
    skipped: tuple[str, ...] = lean(())
    parks: bool = lean(False)
    outcomes: dict[str, JsonValue] = lean(factory=dict)
    in_turn: bool = lean(False)
    lost: tuple[str, ...] | None = lean()


class Snapshot(Value):
    """A task, as of one journal entry.

    Attributes:
        task_id: The task's id; the prefix of the ids that the task makes.
        skill: The skill's id.
        seq: The newest entry's number; 0 before the first.
        at: When that entry was taken; never earlier than the entry before.
        lifecycle: The lifecycle state.
        ending: How the task ended; None while it is open.
        reason: Why the task failed; empty otherwise.
        state: The skill's state, as JSON; None before the first event.
        pending: Commands without an outcome, oldest first, by invocation id.
        waits: The task's own open questions and gates, oldest first.
        held: Events not delivered to the skill yet, because the task is not running; oldest first.
        early: Messages that came before the skill asked for one; oldest first.
        receipts: Outcomes that the skill's current step can still read, by invocation id.
        threads: Conversations with models, by name.
        previous: The earlier task that `threads` were taken over from; None if they began in this task.
        messages: Messages of the user and the skill, oldest first.
        artifacts: The skill's artifacts; one per name.
        progress: The skill's progress, in one line.
        refused: How many events were refused so far.
        seen: The number of the entry that took each delivery, by delivery id, oldest first. And that of the entry with
            which each callback's address answered its question, by `ANSWERED` and the digest of the address.
        patches: The answers of `ctx.patched`, by patch id; those of refold's own patches are of this run alone.
        skill_version: The version of the skill that wrote `state`.
        stream: A client asked for the model's tokens as the model produces them.
        parent: The task that this task is a part of.
        budget: What the task may spend, as a part of that task.
        owner: The task's owner, as named by whoever started the task.
        started_by: Who started, recovered or forked the task, as far as they gave a name.
        context: The id of the A2A conversation that the task belongs to, with other tasks.
        known_as: The task id that the skill sees, if the task was recovered or forked: that of the first task.
        status_at: When `status` last changed; None if it never did.
        grace: After a gate's timeout, until when a late grant is recorded.
        late: The late grant.
        done: Effects that are compensated if the task does not complete, oldest first.
        undone: Invocation ids of compensated effects.
        unraised: When the task ended: commands whose failures the skill's current `await` had received and not
            raised, since an `await` raises only one failure. Recovery sends these commands again, too.
        recovered_from: The failed task that this task continues.
        redo: The failed task's past, while compensated effects are being performed again; None otherwise.
        fork: Where the task was forked from another; None if it was not.
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
    budget: PartBudget | None = lean()
    owner: str | None = lean()
    started_by: tuple[str, ...] = lean(())
    context: str | None = lean()
    known_as: str = lean("")
    status_at: datetime | None = lean()
    grace: Grace | None = lean()
    late: DecisionMade | None = lean()
    done: tuple[Compensable, ...] = lean(())
    undone: tuple[str, ...] = lean(())
    unraised: tuple[str, ...] = lean(())
    recovered_from: str | None = lean()
    redo: Redo | None = lean()
    fork: Fork | None = lean()

    @property
    def kept_patches(self) -> dict[str, bool]:
        """The answers that a new run keeps: those to the skill, and those within steps. It asks refold's others again.

        Workers of an earlier release do otherwise, and see by the markers of a run that they may not replay it.
        """
        return {
            id: yes for id, yes in self.patches.items() if id.startswith(STEP_PATCHES) or not id.startswith(OWN_PATCHES)
        }

    @property
    def status(self) -> Status:
        """The A2A status. A task waits for input if one of its parts does."""
        asked = self.open_waits
        waiting = self.lifecycle is TaskState.PAUSED or len(asked) > len(self.waits)
        if self.ended or not waiting:
            return derive_status(self.lifecycle, self.ending)
        signs_in = bool(asked) and all(isinstance(one.ask, AskApproval) and one.ask.policy.sign_in for one in asked)
        return Status.AUTH_REQUIRED if signs_in else Status.INPUT_REQUIRED

    @property
    def open_waits(self) -> tuple[Wait, ...]:
        """All questions that this task takes answers to: its own, then those of its parts."""
        of_parts = [one.asks for one in self.pending.values() if one.asks]
        return (*self.waits, *chain.from_iterable(of_parts)) if of_parts else self.waits

    @property
    def unresolved(self) -> tuple[Unresolved, ...]:
        """All commands that only an operator can resolve: those of the task, and those of its parts."""
        found: list[Unresolved] = []
        for id, one in self.pending.items():
            found += one.unresolved
            # Only an operator can resolve it; any other blocked command is probed at `due_at`.
            if one.blocked and not one.started and one.due_at is None:
                command = f"{one.command.kind} {one.command.subject}"
                found.append(Unresolved(task_id=self.task_id, invocation_id=id, command=command, failure=one.failure))
        return tuple(found)

    @property
    def has_begun(self) -> bool:
        """Whether there is a state, which a held or delayed task does not have yet."""
        return self.lifecycle is not TaskState.PLANNED or self.state is not None

    @property
    def ended(self) -> bool:
        """Whether the task has ended. It still takes late grants and the outcomes of compensation."""
        return self.ending is not None
