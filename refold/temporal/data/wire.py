"""What travels between client and workflow: the argument a task starts with, and what it leaves behind."""

from __future__ import annotations

from typing import Any

from pydantic import JsonValue, field_serializer, model_validator

from refold.core.chat import Previous
from refold.core.commands import PartBudget
from refold.core.events import CancelRequested, SkillOutcome, UserMessage
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import DecisionMade
from refold.core.lifecycle import Status, TaskState
from refold.core.retry_policy import Failure
from refold.core.values import Deferred, Name, Value, lean
from refold.engine import TaskView
from refold.formats import FORMAT, loaded, numbered, read
from refold.temporal.data.payloads import Stored

LLM_ACTIVITY = "refold.llm"
CHAT_ACTIVITY = "refold.chat"
"""Model calls: a client reads the text that they are writing from their heartbeats."""

LEDGER_ACTIVITY = "refold.ledger"
"""Says which ledger holds the outcomes of effects that are performed within workflow tasks."""

STRETCH_END = "refold.stretch_end"
"""Its end tells a task that no more of these effects are under way."""

TOOL_ACTIVITIES = "tool."
"""What the names of tools' activities begin with: a client reads from their heartbeats what they report."""

NOTIFY_ACTIVITY = "refold.notify"
"""Notifies people of a gate that waits for them."""

RESULT_MEMO = "refold-result"
"""The memo that a canceled task leaves its result in: Temporal keeps none for a canceled workflow."""

START = f"start/{FORMAT}"
"""What the argument of a task that refold started holds under the key `refold`: its format (`refold.formats`)."""

CANCEL_REASON = "cancel_reason"
"""The signal that brings the reason of a cancellation that follows, encrypted, and who asks for it: Temporal's own
request is never encrypted, and names nobody."""

TRY_ANEW = "try_anew"
"""The signal that brings nothing: after it, the server keeps why a workflow task fails whose first attempt was lost."""

REFUSED_LATE = "RefusedLate"
"""The type of the failure of an update that a task has accepted and then refused: the server keeps it for the update's
id, though the task may take the same by now."""

CODE_DIFFERS = "CodeDiffers"
"""The type of the failure that workflow tasks and updates fail with where the code differs from what was recorded."""

NOT_HELD = "this run holds the entries"
"""How a worker begins its refusal of a question about an entry of another run."""

UNREADABLE_QUESTION = "what was asked cannot be read"
"""How a worker begins its refusal of a question that was asked with a key or a stored value that it lacks."""

WRONGLY_ASKED = (NOT_HELD, UNREADABLE_QUESTION)
"""Failures of a question that are those of whoever asks; any other is the worker's."""

PAGE_ENTRIES = 500
"""The most entries that one page of a journal holds."""


class Segment(Value):
    """One run's stretch of a journal, and where it began: enough to fold every snapshot in between again.

    Attributes:
        format: Of the snapshot and the entries (`refold.formats`).
        base: The task before the first entry.
        entries: In order, without gaps.
    """

    format: int = numbered()
    base: Snapshot
    entries: tuple[Entry, ...]

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, data: Any) -> Any:
        return loaded(data, "segment")


class EarlierRun(Value):
    """A run of a task that went on in a new one.

    Attributes:
        run_id: Temporal's id of the run.
        last: The number of its last entry.
        journal: Its stretch of the journal.
    """

    run_id: str
    last: int
    journal: Stored[Segment] | None = lean()


class SignedDecision(DecisionMade):
    """A decision as it is sent: with a signature, where somebody vouches for it.

    Attributes:
        signature: Of `asserted_by`; see `refold.temporal.data.signing`.
    """

    signature: Name | None = lean()

    def taken(self, *, vouched: bool) -> DecisionMade:
        """The decision that the task takes; nobody vouches for one whose signature was not checked."""
        fields = {name: getattr(self, name) for name in DecisionMade.model_fields}
        return DecisionMade(**{**fields, "asserted_by": self.asserted_by if vouched else None, "slot": None})


class Branch(Value):
    """Where a task branches off from another one.

    Attributes:
        journal: The other one's run that holds the entry, up to that entry.
        seq: The entry.
        live: Effects take place.
        by: Who wants it.
    """

    journal: Segment
    seq: int
    live: bool = lean(False)
    by: str | None = lean()


class EarlierPart(Value):
    """How far a part of a failed task came, from where the part of the recovering task continues.

    Attributes:
        journal: Its journal, if it failed or was canceled.
        in_turn: As in `TaskStart`.
        outcome: Its outcome, if it completed.
        parts: Its own parts, by invocation id.
    """

    journal: Segment | None = lean()
    in_turn: bool = lean(False)
    outcome: SkillOutcome | None = lean()
    parts: dict[str, EarlierPart] = lean(factory=dict)


class PartEnded(Value):
    """The outcome of a part, as the part sends it to its task where that continued in a new run meanwhile.

    Attributes:
        invocation_id: The part's id.
        outcome: Its outcome, if it completed.
        failure: Why it did not complete.
    """

    invocation_id: Name
    outcome: SkillOutcome | None = lean()
    failure: Failure | None = lean()


class TaskStart(Value):
    """The argument of a task's workflow.

    Who starts one with Temporal's own tools gives the first message alone (see `refold.temporal.data.inputs`):
    `temporal workflow start --type hello --task-queue refold --input '"Ada"'`.

    Attributes:
        refold: Tells this argument from data that a task is started with, and its format (`refold.formats`). Workers
            that do not know the format leave the task to others.
        message: The first message; None where the task has begun, and goes on from `snapshot`.
        stream: Somebody wants to see the model's tokens as they come.
        parent: The task that this one is a part of.
        budget: What that task lets it spend.
        snapshot: Where an earlier run left off.
        chain: The digest of the journal up to there, in hex; empty where an earlier release wrote it.
        earlier: Those runs, oldest first.
        owner: Whose task it is.
        started_by: Who started it.
        context: The conversation that it belongs to.
        previous: The task whose conversations it goes on with.
        recover: The journal of a failed task that this one goes on for.
        in_turn: This one performs compensated effects again one after the other; earlier releases did so all at once.
        by: Who wants it.
        parts: How far that one's parts came, by invocation id.
        left: The task's parts that an earlier run of it started, by invocation id: each sends its outcome as a signal.
        reports_end: The task is such a part.
        ends_last: It reports nothing beside its outcome, which it sends once all that it reported before is delivered.
        fork: The entry of another task that this one branches off from.
        events_per_run: Go on in a new run from this many history events on; None leaves it to the server.
        hold: The task begins when somebody releases it.
        start_delay_s: The task begins so many seconds after it was started, unless somebody releases it before.
        cancellation: What an earlier run was told of a cancellation that has not come yet.
    """

    refold: str = START
    message: UserMessage | None = lean()
    stream: bool = lean(False)
    parent: str | None = lean()
    budget: PartBudget | None = lean()
    snapshot: Snapshot | None = lean()
    chain: str = lean("")
    earlier: tuple[EarlierRun, ...] = lean(())
    owner: Name | None = lean()
    started_by: tuple[Name, ...] = lean(())
    context: Name | None = lean()
    previous: Previous | None = lean()
    recover: Segment | None = lean()
    in_turn: bool = lean(False)
    by: str | None = lean()
    parts: dict[str, EarlierPart] = lean(factory=dict)
    left: tuple[str, ...] = lean(())
    reports_end: bool = lean(False)
    ends_last: bool = lean(False)
    fork: Branch | None = lean()
    events_per_run: int | None = lean()
    hold: bool = lean(False)
    start_delay_s: float | None = lean()
    cancellation: CancelRequested | None = lean()

    @property
    def later(self) -> bool:
        """Whether the task stays planned for a while."""
        return self.hold or self.start_delay_s is not None


class TaskResult(Deferred):
    """What a task leaves behind when it ends: readable in the Temporal UI, its journal beside it.

    Attributes:
        format: In which it was saved (`refold.formats`); a stored `mark` has the same one.
        task: The task as people see it.
        journal: The last run's stretch of the journal.
        earlier: The runs before it, oldest first.
        mark: The task at most some hundred entries before it ended, where its last run has many: recovery folds the
            journal from there.
    """

    format: int = numbered()
    task: TaskView
    journal: Stored[Segment]
    earlier: tuple[EarlierRun, ...] = lean(())
    mark: Stored[Snapshot] | None = lean()

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, data: Any) -> Any:
        return read("result", data)

    @property
    def outcome(self) -> SkillOutcome:
        """The task's outcome, as the task that it is a part of receives it."""
        said = [message.text for message in self.task.messages if message.role == "agent"]
        artifacts = tuple(view.as_artifact() for view in self.task.artifacts)
        return SkillOutcome(task_id=self.task.task_id, text=said[-1] if said else "", artifacts=artifacts)

    @field_serializer("task")
    def _without_defaults(self, task: TaskView) -> dict[str, Any]:
        return task.model_dump(mode="json", exclude_defaults=True)


class Page(Value):
    """A stretch of the open run's journal.

    Attributes:
        entries: In order, without gaps.
        base: The number of the last entry before this run.
        last: The newest entry's number.
        lifecycle: Where the task is in its life.
        status: In A2A's words.
        writes: A model is at work, and its text can be seen meanwhile.
        works: A tool is at work, and may report its progress meanwhile.
        unresolved: The task is held, or a command waits for an operator, here or in a part.
        earlier: The runs before this one, oldest first.
        differs: What the code says otherwise than was recorded, and what to do; the entries are as they were recorded.
    """

    entries: tuple[Entry, ...]
    base: int
    last: int
    lifecycle: TaskState
    status: Status
    writes: bool = lean(False)
    works: bool = lean(False)
    unresolved: bool = lean(False)
    earlier: tuple[EarlierRun, ...] = lean(())
    differs: str = lean("")


class Stopped(Value):
    """What a task shows while it accepts no event, because its code differs from what was recorded.

    Attributes:
        format: In which it was saved (`refold.formats`); a stored `snapshot` has the same one.
        snapshot: The task as it was recorded.
        journal: This run's stretch of the journal, as it was recorded.
        earlier: The runs before this one, oldest first.
        differs: What differs, and what to do.
        found: What differs, in short.
    """

    format: int = numbered()
    snapshot: Stored[Snapshot]
    journal: Stored[Segment]
    earlier: tuple[EarlierRun, ...] = lean(())
    differs: str
    found: str = lean("")

    @model_validator(mode="before")
    @classmethod
    def _of_today(cls, data: Any) -> Any:
        return read("stopped", data)


class Accepted(Value):
    """The answer to an update that was accepted.

    Attributes:
        seq: The number of its journal entry.
        said: What the entries since the last mark said, where no command could carry it (`refold.temporal.recorded`).
    """

    seq: int
    said: list[JsonValue] = lean(factory=list)


class Sealed(Value):
    """The answer to a request to seal.

    Attributes:
        seq: The newest entry's number.
        waits: What must end before the task goes on in a new run: `tool book`; empty if it goes on at once.
        said: See `Accepted`.
    """

    seq: int
    waits: tuple[str, ...] = lean(())
    said: list[JsonValue] = lean(factory=list)
