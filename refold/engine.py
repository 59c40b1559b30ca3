"""What runs tasks, as its callers see it: the `Engine` protocol, the values it returns, and the errors it raises.

EngineError               what runs the tasks cannot do as asked
├── TaskNotFound          no task has this id
├── TaskExists            a task with this id was started before
├── UnknownSkill          nobody serves a skill of this name
├── ScheduleNotFound      no schedule has this id
├── NotConnected          no server answers at the address
├── NoWorker              the server answers, but no worker does
│   └── CodeChanged       its worker's code differs from what was recorded
├── OutcomeUnknown        nobody knows whether an effect took place
├── CodecError            a codec is refused, or a value cannot be read without one
└── StorageError          a large value cannot be kept or read
    └── PayloadTooLarge   too large for Temporal, and storage for large values is off
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeAlias

from pydantic import JsonValue

from refold.core.content import Artifact, Content, Part
from refold.core.errors import RefoldError
from refold.core.events import Early
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import Status, TaskState
from refold.core.values import Deferred, Value, lean, shortened
from refold.core.waits import Unresolved
from refold.cost import Cost
from refold.record import Explanation, TaskRecord


class EngineError(RefoldError):
    """What runs the tasks cannot do what was asked; the message says what to do."""


class TaskNotFound(EngineError):
    """No task has this id."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(f"no task {task_id!r}; `refold list` shows the tasks of this server")


class TaskExists(EngineError):
    """A task with this id was started before; ids are never used twice."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(
            f"task {task_id!r} exists already; `refold show {task_id}` shows it, another id starts a new one"
        )


class UnknownSkill(EngineError):
    """Nobody serves a skill of this name."""

    def __init__(self, skill: str, known: Sequence[str]) -> None:
        self.skill = skill
        self.known = tuple(known)
        listed = ", ".join(sorted(known)) or "none"
        super().__init__(f"no skill {skill!r}; the skills known here: {listed}")


class ScheduleNotFound(EngineError):
    """No schedule has this id."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"no schedule {shortened(id, 200)!r}; `refold schedule list` shows the schedules")


class NotConnected(EngineError):
    """No server answers at the address that was tried."""


class NoWorker(EngineError):
    """The server answers, but no worker that serves the task does."""


class CodeChanged(NoWorker):
    """The task's worker has code that differs from what was recorded of it, so the task takes nothing."""


class OutcomeUnknown(EngineError):
    """An effect was started, and nobody knows whether it took place.

    Attributes:
        key: Its idempotency key.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(
            f"effect {key!r} was started before, and nobody knows whether it took place: give a `probe` that finds "
            "out, or find out yourself and set its checkpoint"
        )


class CodecError(EngineError):
    """A codec cannot be used, or a value cannot be read without one."""


class StorageError(EngineError):
    """A large value cannot be kept in, or read from, the storage for large values."""


class PayloadTooLarge(StorageError):
    """A value is larger than Temporal takes, and storage for large values is off."""


class MessageView(Deferred):
    """A message, as text; data as its JSON."""

    role: Literal["user", "agent"]
    text: str


class ArtifactView(Deferred):
    """An artifact by its text, data or address; by its parts if it has several, or a file.

    Attributes:
        parts: All parts, if no single other field can express them; empty otherwise.
    """

    name: str
    text: str | None = lean()
    data: JsonValue = lean()
    url: str | None = lean()
    parts: tuple[Part, ...] = lean(())

    def as_artifact(self) -> Artifact:
        """The artifact of this view."""
        return Artifact(name=self.name, parts=self.parts or (Part(text=self.text, data=self.data, url=self.url),))


class PendingView(Deferred):
    """A command without a result yet.

    Attributes:
        command: Kind and subject, for people: `llm research`, `tool charge_card`.
        attempt: The number of the current attempt; 1 is the first.
        failure: Why the last attempt failed.
        due_at: When the next attempt, or the end of the sleep, is due; None while an attempt is running.
        blocked: It waits for its dependency, or for an operator.
        queue: The task queue of its own that it is sent to; None for the task's.
        held: It is not sent out before the task goes on: people decide first, or a blocked command is resolved.
        until: When a part times out, if it has a timeout and has begun.
    """

    invocation_id: str
    command: str
    attempt: int
    blocked: bool = lean(False)
    failure: str | None = lean()
    due_at: datetime | None = lean()
    queue: str | None = lean()
    held: bool = lean(False)
    until: datetime | None = lean()


class WaitView(Deferred):
    """An open question.

    Attributes:
        slot: The name of the question; an answer may give it.
        message: The question.
        gate: The id of the question or gate.
        expects: The name of the type that the reply must fit.
        fields: Its fields, a `?` after optional ones; empty if it is no object.
        gate_kind: Why a person must decide, at a gate; None for a question.
        digest: The hash of what the gate shows; a decision names it.
        show: The data to decide on.
        editable: The fields of it that the approver may change, or add.
        approvers: Who may decide; if empty, anyone.
        needed: How many grants are required.
        granted_by: Who has granted it so far.
        timeout_at: When the task fails without a decision; when a callback's address expires.
        asked_by: The child task that asks; None if the task itself does.
        callback: Only a call to an address answers it: the hash of what the address holds. None takes a message.
        since: Since when it waits for the call; None where it does not.
    """

    slot: str
    message: str
    gate: str
    expects: str | None = lean()
    fields: tuple[str, ...] = lean(())
    gate_kind: str | None = lean()
    digest: str | None = lean()
    show: JsonValue = lean()
    editable: tuple[str, ...] = lean(())
    approvers: tuple[str, ...] = lean(())
    needed: int | None = lean()
    granted_by: tuple[str, ...] = lean(())
    timeout_at: datetime | None = lean()
    asked_by: str | None = lean()
    callback: str | None = lean()
    since: datetime | None = lean()


class ForkView(Deferred):
    """The origin of a forked task.

    Attributes:
        task_id: The task from which it was forked.
        seq: The entry of that task after which it continues.
        live: Its effects are performed.
    """

    task_id: str
    seq: int
    live: bool = lean(False)


class OffspringView(Deferred):
    """A task that was recovered or forked from another one.

    Attributes:
        task_id: Its id.
        how: Recovered or forked.
        seq: The entry of the other task after which it continues.
    """

    task_id: str
    how: Literal["recovered", "forked"]
    seq: int


class TaskView(Deferred):
    """A task as people and programs see it; what `refold show --json` prints.

    Attributes:
        task_id: The task's id.
        skill: The skill's id.
        status: In A2A's words.
        lifecycle: Its lifecycle state.
        reason: Why it failed; empty otherwise.
        messages: Oldest first.
        artifacts: In the order in which they were added.
        pending: Commands without a result yet, oldest first.
        waiting_for: Open questions, oldest first.
        unresolved: Blocked commands that only an operator can resolve, of this task and its parts.
        seq: The newest journal entry's number.
        updated_at: The time of that entry.
        progress: The skill's progress line.
        refused: How many events were refused so far.
        late: The approver of a late grant; `refold recover` continues with it.
        recovered_from: The failed task that this task recovers.
        forked_from: Where it was forked from another task.
        offspring: The tasks recovered or forked from it, if the caller asked for them; see `Engine.offspring`.
        note: Why parts of this are missing, if they are: no worker answered, for example.
        differs: Which entry and field the skill's code says otherwise than was recorded, in short: the task takes
            nothing until the code is put back. This view is as it was recorded, and `note` says what to do.
        sealing: What must end before the task goes on in a new run, as it was asked to: `tool book`; empty if it was
            not asked. No other command starts until then.
        cost: What its own model calls cost, without those of its parts, if the caller asked for it.
        schedule: The schedule that started it, if the caller asked for it.
    """

    task_id: str
    skill: str
    status: Status
    lifecycle: TaskState
    reason: str = ""
    messages: tuple[MessageView, ...] = ()
    artifacts: tuple[ArtifactView, ...] = ()
    pending: tuple[PendingView, ...] = ()
    waiting_for: tuple[WaitView, ...] = ()
    unresolved: tuple[Unresolved, ...] = lean(())
    seq: int = 0
    updated_at: datetime | None = None
    progress: str = ""
    refused: int = 0
    late: str | None = None
    recovered_from: str | None = None
    forked_from: ForkView | None = None
    offspring: tuple[OffspringView, ...] = ()
    note: str = ""
    differs: str = lean("")
    sealing: tuple[str, ...] = lean(())
    cost: Cost | None = lean()
    schedule: str | None = lean()


class Build(Value):
    """A stretch of a task's journal whose entries can be verified, and the build that wrote it.

    Attributes:
        seq: The number of its last entry; it begins after the last entry of the stretch before.
        build_id: The worker's build, as Temporal records it; empty where nobody knows.
    """

    seq: int
    build_id: str = lean("")


class Tokens(Value):
    """Model text that is still being written. Transient: the journaled result replaces it.

    Attributes:
        invocation_id: The model call.
        attempt: Its attempt; a new attempt starts the text again.
        offset: Where `text` begins in the whole text of this attempt, in characters.
        text: The new text; of a tool call, its arguments as JSON text.
        call: The index of the tool call in the reply, from 0; None for text to the user.
        tool: The tool's name, for a tool call.
    """

    kind: Literal["tokens"] = "tokens"
    invocation_id: str
    attempt: int
    offset: int
    text: str
    call: int | None = lean()
    tool: str = lean("")


class Progress(Value):
    """What a running tool reports of its progress. Transient: the next report replaces it, and so does the result.

    Attributes:
        invocation_id: The tool call.
        tool: The tool's name.
        attempt: Its attempt; a new attempt begins anew.
        number: Counts the attempt's reports that were sent, from 1; a watcher may miss some.
        said: What was reported: a text, or other JSON, of at most 4 KB.
    """

    kind: Literal["progress"] = "progress"
    invocation_id: str
    tool: str
    attempt: int
    number: int
    said: JsonValue


ON_BUSY: Mapping[str, Early] = {"refuse": False, "queue": True, "interrupt": "interrupt"}
"""What becomes of a message to a task at work, by the names that settings and options have for it."""

News: TypeAlias = Entry | Tokens | Progress
"""What a watcher of a task gets; only entries stay."""


class TaskFilter(Value):
    """Selects tasks; a field that is None accepts any.

    Child tasks, and tasks started by Temporal's own tools, have no owner and no context here.

    Attributes:
        skill: Of this skill.
        lifecycle: In this lifecycle state.
        status: With this status, in A2A's words.
        owner: Of this owner; empty selects tasks without an owner.
        context: Of this conversation; a task that belongs to none is one of its own, by its id.
        begins: Whose id begins with this text. Servers that do not tell upper case from lower there count more.
        since: Whose status changed at this time, or later.
        moved_since: Whose status or lifecycle state changed at this time, or later; see `Listed.moved_at`.
        waits: True selects tasks that wait for people: at a question, at a gate, or blocked.
    """

    skill: str | None = None
    lifecycle: TaskState | None = None
    status: Status | None = None
    owner: str | None = None
    context: str | None = None
    begins: str | None = None
    since: datetime | None = None
    moved_since: datetime | None = None
    waits: bool = False


class Decision(Value):
    """One of several decisions that a person makes together; see `Engine.decide_together`.

    Attributes:
        gate: The gate's id or name; None if only one is open.
        approved: Grant or deny.
        digest: The digest of what the approver was shown; None takes what the gate shows now.
        comment: Why.
        changes: Edits of fields that the gate declares editable, as in `Engine.decide`.
        said_at: The approver's own time of the decision, for information only; None is when it is sent.
    """

    gate: str | None = lean()
    approved: bool
    digest: str | None = lean()
    comment: str = lean("")
    changes: dict[str, JsonValue] = lean(factory=dict)
    said_at: datetime | None = lean()


class Place(Value):
    """A place in the order of `Engine.find`: just after this task."""

    at: datetime
    task_id: str


class Listed(Deferred):
    """A task as it is listed, without querying its worker; may lag by moments.

    Attributes:
        task_id: The task's id.
        skill: The skill's id.
        status: In A2A's words.
        lifecycle: Its lifecycle state.
        status_at: When the status last changed.
        moved_at: When the status or the lifecycle state last changed, as far as the index knows.
        over: Its journal is complete: the workflow has closed, so that nothing is compensated and no grant comes late.
    """

    task_id: str
    skill: str
    status: Status
    lifecycle: TaskState
    status_at: datetime
    moved_at: datetime
    over: bool

    @property
    def place(self) -> Place:
        """Its place in the order."""
        return Place(at=self.status_at, task_id=self.task_id)


class ScheduleView(Deferred):
    """A schedule as people and programs see it.

    Attributes:
        id: Its id. The ids of its tasks begin with it.
        skill: The skill of the tasks.
        times: When it is due: `cron 0 7 * * 1-5 (Europe/Berlin)`, `every 2h`.
        overlap: What becomes of a start that is due while an earlier task is open; empty in a list.
        paused: It starts nothing until it is resumed.
        note: What was said when it was created, paused or resumed.
        next: When it is due next, the nearest first; empty if never.
        owner: Of its tasks.
        input: The first message of its tasks, as text.
        started: How many tasks it has started; None in a list, as the next two.
        skipped: How many starts were left out because a task was open.
        missed: How many starts were left out because the server was down for longer than the time to catch up in.
        running: The open tasks that its overlap looks at, none where the overlap is `allow`; empty in a list, as
            `owner`, `input` and `task_queue`.
        last: The task that it started last.
        task_queue: Where its tasks go.
        unchecked: Why nobody has checked that a worker has the skill and takes the input; only after `create`.
        unread: Why its input cannot be read here, such as a key that is missing.
    """

    id: str
    skill: str
    times: str
    overlap: str = lean("")
    paused: bool = False
    note: str = ""
    next: tuple[datetime, ...] = ()
    owner: str | None = lean()
    input: str = lean("")
    started: int | None = lean()
    skipped: int | None = lean()
    missed: int | None = lean()
    running: tuple[str, ...] = lean(())
    last: str | None = None
    task_queue: str = lean("")
    unchecked: str = lean("")
    unread: str = lean("")


class Engine(Protocol):
    """Starts tasks and talks to them. Safe to share between coroutines.

    Every method raises `NotConnected` if no server answers, and `TaskNotFound` for a task that does not exist.
    """

    async def start(
        self,
        skill: str,
        content: Content,
        *,
        task_id: str | None = None,
        stream: bool = False,
        owner: str | None = None,
        context: str | None = None,
        message_id: str | None = None,
        delivery_id: str | None = None,
        previous: str | None = None,
        started_by: str | None = None,
        hold: bool = False,
        start_delay: timedelta | None = None,
        batch: bool = False,
    ) -> TaskView:
        """Start a task and return its status; `submitted` if no worker took the task within a few seconds.

        Args:
            skill: The skill's id.
            content: The first message.
            task_id: The task's id, never used before; None generates one.
            stream: Stream the model's tokens to watchers.
            owner: The task's owner; a gate may exclude the owner from deciding.
            started_by: Who starts it, if that is not its owner; a gate may exclude both.
            context: The conversation that it belongs to, with other tasks.
            message_id: The sender's own id of the first message.
            delivery_id: The sender's id of this delivery.
            previous: The task whose conversations with models the new task continues; both have the same owner.
            hold: The task stays planned, and does nothing, until `release`.
            start_delay: The task stays planned for so long, or until `release`; more than 0, at most 10 years.
            batch: Nobody waits for the task: where workers are busy, the work of other tasks goes first.

        Raises:
            InputRejected: The skill cannot start from this content, the previous task has another owner, or the delay
                is out of bounds, or is given with `hold`.
            TaskExists: The id was used before.
            UnknownSkill: No worker serves such a skill.
            PayloadTooLarge: The content is too large, and storage for large values is off.
            NotConnected: The server does not answer. The task may have started, and the error names it; a second start
                under its id starts no second task.
        """
        ...

    async def send(
        self,
        task_id: str,
        content: Content,
        *,
        slot: str | None = None,
        delivery_id: str | None = None,
        message_id: str | None = None,
        sender: str | None = None,
        early: Early = False,
    ) -> TaskView:
        """Answer a task that waits.

        Args:
            slot: The name of the question; or its id (`WaitView.gate`), so that no later one of this name takes the
                answer. None if only one is open.
            delivery_id: The task accepts one message with this id, so that a send can be repeated.
            message_id: The sender's own id of the message.
            sender: Who sends it.
            early: If no question is open, the task holds the message for the next question that it answers; with
                `"interrupt"` it interrupts a step with `on_interrupt`, if that comes first.

        Raises:
            InputRejected: The task waits for nothing, for something else, or has ended; it is unchanged.
            NoWorker: No worker is running to accept the answer.
        """
        ...

    async def release(self, task_id: str, *, by: str | None = None) -> TaskView:
        """Begin a task that was started with `hold` or `start_delay`.

        Args:
            by: Who releases it, for the log.

        Raises:
            InputRejected: It has begun, or has ended.
            NoWorker: No worker is running to begin it.
        """
        ...

    async def cancel(self, task_id: str, *, reason: str = "") -> TaskView:
        """Cancel a task.

        Raises:
            InputRejected: It has ended already.
            NoWorker: No worker has canceled it yet; the message says why.
        """
        ...

    async def decide(
        self,
        task_id: str,
        gate: str | None = None,
        *,
        approved: bool,
        approver: str,
        digest: str | None = None,
        comment: str = "",
        vouched_by: str | None = None,
        changes: Mapping[str, JsonValue] | None = None,
    ) -> TaskView:
        """Decide at a gate.

        Args:
            gate: Its id or its name; None if only one is open.
            approved: Grant or deny.
            approver: Who decides.
            digest: The digest of what the approver was shown; None takes what the gate shows now.
            comment: Why.
            vouched_by: Who vouches for the approver; needs `REFOLD_APPROVAL_KEY`, here and where the workers run.
            changes: Edits of fields that the gate declares editable: earlier grants become void, and this grant is for
                the edited data.

        Raises:
            InputRejected: No such gate is open, it shows something else, or this person may not decide.
            NoWorker: No worker is running to accept the decision.
        """
        ...

    async def decide_together(
        self, task_id: str, decisions: Sequence[Decision], *, approver: str, vouched_by: str | None = None
    ) -> TaskView:
        """Decide at several gates of a task: the task takes all decisions, in their order and nothing between, or none.

        A decision after which the task ends, or goes on although other gates are open, may only come last.

        Args:
            decisions: At least one, at different gates; gates of parts are decided at one part at a time.
            approver: Who decides.
            vouched_by: As in `decide`, for each of them.

        Raises:
            InputRejected: The task does not take all of them; the message says which one it refuses, and why.
            NoWorker: No worker is running to accept them.
        """
        ...

    async def resolve(
        self,
        task_id: str,
        *,
        retry: bool = False,
        outcome: JsonValue = None,
        invocation_id: str | None = None,
        by: str | None = None,
        comment: str = "",
    ) -> TaskView:
        """Continue a blocked command: perform it again, or record this outcome.

        Raises:
            InputRejected: No such command is blocked.
            NoWorker: No worker is running to accept it.
        """
        ...

    async def recover(self, task_id: str, *, by: str | None = None, task_queue: str | None = None) -> TaskView:
        """Start a task that continues from where this one failed.

        Its id is `{task_id}.r1`; `.r2` if that one failed too, and so on. So no task is recovered twice at once.

        Args:
            by: Who recovers it; a gate with `second_person` excludes them.
            task_queue: The workers that serve the new task; None takes those of this one.

        Raises:
            InputRejected: The task has not failed, or would fail again before it could continue; or another task that
                was recovered from it, or from a task that it is a part of, is open or done, whose effects a second one
                would repeat.
            TaskExists: Somebody else recovers the task at this moment.
        """
        ...

    async def fork(
        self,
        task_id: str,
        *,
        at: int,
        live: bool = False,
        new_id: str | None = None,
        by: str | None = None,
        task_queue: str | None = None,
    ) -> TaskView:
        """Start a task that branches off from an entry of this one, open or ended. This one does not change.

        Args:
            at: The entry's number.
            live: Perform effects, under ids and keys of their own. Otherwise each command fails at once as `DryRun`,
                and is not retried.
            new_id: The new task's id; None adds `.f` and a number to this one's.
            by: Who forks it.
            task_queue: The workers that serve the new task; None takes those of this one.

        Raises:
            InputRejected: There is no such entry, or the task had ended by then.
            TaskExists: The new id was used before.
            NoWorker: The task is open, and no worker is running to read its journal.
        """
        ...

    async def offspring(self, task_id: str) -> tuple[OffspringView, ...]:
        """The tasks recovered or forked from this one, oldest first."""
        ...

    async def look(self, task_id: str) -> TaskView:
        """The present state of a task. Never waits for long: if no worker answers, the view's `note` says so."""
        ...

    async def record(self, task_id: str) -> TaskRecord:
        """All messages and artifacts of a task, whole.

        Never waits for long: if no worker answers, the record has what the server knows, and `note` says so.
        """
        ...

    def list(
        self,
        *,
        skill: str | None = None,
        lifecycle: TaskState | None = None,
        owner: str | None = None,
        limit: int = 100,
    ) -> AsyncIterator[TaskView]:
        """Tasks, the newest first."""
        ...

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """One page of tasks: the latest change of status first, then by id.

        A task that changes meanwhile moves to the front, so a caller that reads pages may miss it.

        Args:
            wanted: Which tasks.
            after: Where the page before ended; None begins with the first.
            limit: Maximum size of the page, at least 1. A page that is smaller is the last.
        """
        ...

    async def count(self, wanted: TaskFilter) -> int:
        """How many tasks there are; may lag by moments."""
        ...

    async def ping(self) -> None:
        """Check that tasks can be reached and large values stored.

        Raises:
            EngineError: The server does not answer; a `StorageError` if the storage cannot be used.
        """
        ...

    async def builds(self, task_id: str) -> Sequence[Build]:
        """Which builds wrote a task's journal, oldest first: one for each digest that was recorded.

        Entries after the last one are not verified yet; without any, the task began under a release without digests,
        or what was recorded is gone.
        """
        ...

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """The entries after number `after` that exist now, in order, over all runs of the task."""
        ...

    def past(self, task_id: str) -> AsyncGenerator[Snapshot | Entry]:
        """What the task's state is computed from: for each run the task before its first entry, then the entries.

        Raises:
            NoWorker: The task is open, and no worker is running to read its journal.
        """
        ...

    def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[News]:
        """Entries after number `after`, model text, and what tools report of their progress, as they come.

        Args:
            after: 0 begins with the first entry.
            follow: Continue at pauses; otherwise the first pause with nothing new ends it, and so does a
                command that only an operator can resolve. The task's end always does.
                A caller that leaves before must close it (`contextlib.aclosing`).
        """
        ...

    async def explain(self, task_id: str, field: str, *, upto: int | None = None) -> Explanation:
        """Which step wrote a field of the task's shared state, when, and from which fields.

        Args:
            field: The field.
            upto: The entry to look back from; None is the newest.

        Raises:
            InputRejected: No step has written it, or the skill has no contract.
        """
        ...

    async def at(self, task_id: str, seq: int) -> Snapshot:
        """The task as it was after entry `seq`.

        Raises:
            InputRejected: There is no such entry.
        """
        ...
