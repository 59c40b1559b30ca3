"""The values that an engine takes and returns: a task as it is seen and listed, decisions, filters, news."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Literal, TypeAlias

from pydantic import AwareDatetime, JsonValue

from refold.core.content import Artifact, Part
from refold.core.events import Early
from refold.core.fold.journal import Entry
from refold.core.lifecycle import Status, TaskState
from refold.core.values import Deferred, Value, lean
from refold.core.waits import Unresolved
from refold.cost import Cost


class MessageView(Deferred):
    """A message, as text; data as its JSON.

    Attributes:
        data: The data that came beside a text; None without a text.
    """

    role: Literal["user", "agent"]
    text: str
    data: JsonValue = lean()


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
        excluded: Who may not, since a second person decides: the task's owner, and those who started it.
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
    excluded: tuple[str, ...] = lean(())
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
        note: Why parts of this are missing, as when no worker answered, or why nothing comes from the task.
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
        attempt: Its attempt, by a number that grows; a new attempt starts the text again.
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
        attempt: Its attempt, by a number that grows; a new attempt begins anew.
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
        since: Whose status changed at this time, or later. Like `moved_since`, it has a time zone.
        moved_since: Whose status or lifecycle state changed at this time, or later; see `Listed.moved_at`.
        waits: True selects tasks that wait for people: at a question, at a gate, or blocked.
    """

    skill: str | None = None
    lifecycle: TaskState | None = None
    status: Status | None = None
    owner: str | None = None
    context: str | None = None
    begins: str | None = None
    since: AwareDatetime | None = None
    moved_since: AwareDatetime | None = None
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

    at: AwareDatetime
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
        started: How many tasks it has started; None in a list, as the next three.
        skipped: How many starts were left out because a task was open.
        missed: How many starts were left out because the server was down for longer than the time to catch up in.
        waiting: How many starts wait until an open task has ended.
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
    waiting: int | None = lean()
    running: tuple[str, ...] = lean(())
    last: str | None = None
    task_queue: str = lean("")
    unchecked: str = lean("")
    unread: str = lean("")
