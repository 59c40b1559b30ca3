"""What runs tasks, as everything outside sees it: the `Engine` protocol, and the values it answers with."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, JsonValue
from pydantic_core import to_json

from refold.core.commands import AskUser
from refold.core.content import Artifact, Content, Message, Part
from refold.core.contracts.audit import Explanation
from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry
from refold.core.fold.record import TaskRecord
from refold.core.fold.snapshot import Fork, Pending, Snapshot
from refold.core.lifecycle import Status, TaskState
from refold.core.schema import fields_of, type_name
from refold.core.values import Value, lean
from refold.core.waits import Wait


class _View(BaseModel):
    model_config = ConfigDict(frozen=True)


class MessageView(_View):
    """A message, as text; data as its JSON."""

    role: Literal["user", "agent"]
    text: str


class ArtifactView(_View):
    """An artifact by its text, data or address; by its parts where it has several, or a file.

    Attributes:
        parts: All parts, where one of the others cannot say it; empty otherwise.
    """

    name: str
    text: str | None = lean()
    data: JsonValue = lean()
    url: str | None = lean()
    parts: tuple[Part, ...] = lean(())

    def as_artifact(self) -> Artifact:
        """The artifact that this is the view of."""
        return Artifact(name=self.name, parts=self.parts or (Part(text=self.text, data=self.data, url=self.url),))


class PendingView(_View):
    """A command that has not come back.

    Attributes:
        command: Kind and subject, for people: `llm research`, `tool charge_card`.
        attempt: Which try this is; 1 is the first.
        failure: Why the last try failed.
        due_at: When the next try, or the sleep's end, is due; None while it is out.
        blocked: It waits for its dependency, or for an operator.
    """

    invocation_id: str
    command: str
    attempt: int
    blocked: bool = lean(False)
    failure: str | None = lean()
    due_at: datetime | None = lean()


class WaitView(_View):
    """An open question.

    Attributes:
        slot: The name to answer it by.
        message: What is asked.
        gate: The wait's own id.
        expects: The name of the type that the reply must fit.
        fields: Its fields, a `?` after those that may be left out; empty where it is no object.
        gate_kind: Why a person must decide, at a gate; None for a question.
        digest: What the gate shows, as a hash: a decision names it.
        show: What is decided on.
        editable: What of it whoever grants may change, or add.
        approvers: Who may decide; empty lets anybody.
        needed: How many grants it takes.
        granted_by: Who has granted it so far.
        timeout_at: When the task fails for want of a decision.
        asked_by: The part that asks, where it is not the task itself.
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


class ForkView(_View):
    """Where a task branched off.

    Attributes:
        task_id: The task that it branched off from.
        seq: The entry of it that it goes on from.
        live: Its effects take place.
    """

    task_id: str
    seq: int
    live: bool = lean(False)


class OffspringView(_View):
    """A task that goes on from another one.

    Attributes:
        task_id: Its id.
        how: It goes on for a task that failed, or branches off.
        seq: The entry of the other one that it goes on from.
    """

    task_id: str
    how: Literal["recovered", "forked"]
    seq: int


class TaskView(_View):
    """A task as people and programs see it; what `refold show --json` prints.

    Attributes:
        task_id: The task's id.
        skill: The skill's id.
        status: In A2A's words.
        lifecycle: Where it is in its life.
        reason: Why it failed; empty otherwise.
        messages: What was said, oldest first.
        artifacts: What was handed over.
        pending: Commands that have not come back, oldest first.
        waiting_for: Open questions, oldest first.
        seq: The newest journal entry's number.
        updated_at: When that entry was taken.
        progress: One line on what is going on.
        refused: How many events were refused so far.
        late: Who granted it too late; `refold recover` goes on from there.
        recovered_from: The task that this one goes on for.
        forked_from: Where it branched off from another task.
        offspring: The tasks that go on from it, where somebody has asked for them; see `Engine.offspring`.
        note: Why parts of this are missing, where they are: no worker answered, for example.
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
    seq: int = 0
    updated_at: datetime | None = None
    progress: str = ""
    refused: int = 0
    late: str | None = None
    recovered_from: str | None = None
    forked_from: ForkView | None = None
    offspring: tuple[OffspringView, ...] = ()
    note: str = ""


class Tokens(Value):
    """Model text that is still being written. Transient: the journaled result takes its place.

    Attributes:
        invocation_id: The model call.
        attempt: Its try; a new try starts the text again.
        offset: Where `text` begins in the whole text of this try, in characters.
        text: What is new; of a tool call, its arguments as JSON text.
        call: Which of the answer's tool calls it belongs to, from 0; None where it is said to the user.
        tool: The tool's name, where it belongs to a tool call.
    """

    kind: Literal["tokens"] = "tokens"
    invocation_id: str
    attempt: int
    offset: int
    text: str
    call: int | None = lean()
    tool: str = lean("")


class TaskFilter(Value):
    """Which tasks are meant; a field that is None takes any.

    Parts of other tasks, and what was started by Temporal's own tools, are of no owner and no context here.

    Attributes:
        skill: Of this skill.
        lifecycle: In this state of their life.
        status: With this status, in A2A's words.
        owner: Of this owner; empty takes those that nobody owns.
        context: Of this conversation; a task that belongs to none is one of its own, by its id.
        since: Whose status changed then, or later.
    """

    skill: str | None = None
    lifecycle: TaskState | None = None
    status: Status | None = None
    owner: str | None = None
    context: str | None = None
    since: datetime | None = None


class Place(Value):
    """A place in the order of `Engine.find`: just after this task."""

    at: datetime
    task_id: str


class Listed(_View):
    """A task as it is listed, without asking its worker; may be behind by moments.

    Attributes:
        task_id: The task's id.
        skill: The skill's id.
        status: In A2A's words.
        lifecycle: Where it is in its life.
        status_at: When the status last changed.
    """

    task_id: str
    skill: str
    status: Status
    lifecycle: TaskState
    status_at: datetime

    @property
    def place(self) -> Place:
        """Where it is in the order."""
        return Place(at=self.status_at, task_id=self.task_id)


class Engine(Protocol):
    """Starts tasks and talks to them. Safe to share between coroutines.

    Every method raises `NotConnected` where no server answers, and `TaskNotFound` for a task that does not exist.
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
    ) -> TaskView:
        """Start a task and say how it stands; `submitted` where no worker took it within a few seconds.

        Args:
            skill: The skill's id.
            content: The first message.
            task_id: The task's id, never used before; None makes one up.
            stream: Somebody will want to see the model's tokens as they come.
            owner: Whose task it is; a gate may ask for a second person.
            started_by: Who starts it, where that is not its owner; neither is a second person.
            context: The conversation that it belongs to, with other tasks.
            message_id: The sender's own id of the first message.
            delivery_id: The sender's id of this delivery.
            previous: The task whose conversations with models this one goes on with; one of the same owner.

        Raises:
            InputRejected: The skill cannot start from this content, or the task before has another owner.
            TaskExists: The id was used before.
            UnknownSkill: No worker serves such a skill.
            PayloadTooLarge: The content is too large, and storage for large values is off.
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
        early: bool = False,
    ) -> TaskView:
        """Answer a task that waits.

        Args:
            slot: Which question this answers; None where only one is open.
            delivery_id: The same id twice is taken once.
            message_id: The sender's own id of the message.
            sender: Who says it.
            early: Where nothing waits for it yet, the task keeps it for the next question that it answers.

        Raises:
            InputRejected: The task waits for nothing, for something else, or has ended; it is unchanged.
            NoWorker: Nobody is there to take the answer.
        """
        ...

    async def cancel(self, task_id: str, *, reason: str = "") -> TaskView:
        """Stop a task.

        Raises:
            InputRejected: It has ended already.
            NoWorker: Nobody is there to stop it.
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
            gate: Its id or its name; None where only one is open.
            approved: Grant or deny.
            approver: Who decides.
            digest: What they were shown; None takes what the gate shows now.
            comment: Why.
            vouched_by: Who vouches for the approver; needs `REFOLD_APPROVAL_KEY`, here and where the workers run.
            changes: What is to be different from what the gate shows, where it lets that be edited: earlier grants are
                void, and this one is for the changed thing.

        Raises:
            InputRejected: No such gate is open, it shows something else, or this person may not decide.
            NoWorker: Nobody is there to take the decision.
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
        """Say how it goes on with a blocked command: perform it again, or take this as its outcome.

        Raises:
            InputRejected: No such command is blocked.
            NoWorker: Nobody is there to hear it.
        """
        ...

    async def recover(self, task_id: str, *, new_id: str | None = None, by: str | None = None) -> TaskView:
        """Start a task that goes on from where this one failed.

        Args:
            new_id: The new task's id; None adds a number to the old one's.
            by: Who wants it; no second person any more.

        Raises:
            InputRejected: The task has not failed, or would fail again before it could go on; or another one that was
                recovered from it is open or done, whose effects a second one would make again.
        """
        ...

    async def fork(
        self, task_id: str, *, at: int, live: bool = False, new_id: str | None = None, by: str | None = None
    ) -> TaskView:
        """Start a task that branches off from an entry of this one, open or ended. This one stays as it is.

        Args:
            at: The entry's number.
            live: Effects take place, under ids and keys of their own. Otherwise none does: each command fails at once,
                for good, as `DryRun`.
            new_id: The new task's id; None adds `.f` and a number to this one's.
            by: Who wants it.

        Raises:
            InputRejected: There is no such entry, or the task had ended by then.
            TaskExists: The new id was used before.
            NoWorker: The task is open, and nobody is there to ask for its journal.
        """
        ...

    async def offspring(self, task_id: str) -> tuple[OffspringView, ...]:
        """The tasks that go on from this one, by `recover` and by `fork`, oldest first."""
        ...

    async def look(self, task_id: str) -> TaskView:
        """How a task stands. Never waits for long: where no worker answers, the view's `note` says so."""
        ...

    async def record(self, task_id: str) -> TaskRecord:
        """All that was said and handed over in a task, whole.

        Never waits for long: where no worker answers it is as far as the server knows, and `note` says so.
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
        """Tasks as they are, the newest first."""
        ...

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """One page of tasks: the latest change of status first, then by id.

        A task that changes meanwhile moves to the front, and so may be missed by whoever turns the pages.

        Args:
            wanted: Which tasks.
            after: Where the page before ended; None begins with the first.
            limit: The most that the page holds, at least 1. One that holds fewer is the last.
        """
        ...

    async def count(self, wanted: TaskFilter) -> int:
        """How many tasks there are; may be behind by moments."""
        ...

    async def ping(self) -> None:
        """Whether the server answers: raises `NotConnected` where it does not, soon."""
        ...

    def journal(self, task_id: str, *, after: int = 0) -> AsyncGenerator[Entry]:
        """The entries after number `after`, as far as they exist now, in order, over all of the task's runs."""
        ...

    def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[Entry | Tokens]:
        """Entries after number `after`, and model text, as they come.

        Args:
            after: 0 begins with the first entry.
            follow: Stay over pauses; otherwise the first pause with nothing new ends it. The task's end always does.
                Who leaves before closes it (`contextlib.aclosing`).
        """
        ...

    async def explain(self, task_id: str, field: str, *, upto: int | None = None) -> Explanation:
        """Who wrote a field of the state that the task's steps share, when, and from what.

        Args:
            field: The field.
            upto: The entry to look back from; None is the newest.

        Raises:
            InputRejected: Nobody has written it, or the skill has no contract.
        """
        ...

    async def at(self, task_id: str, seq: int) -> Snapshot:
        """The task as it was after entry `seq`.

        Raises:
            InputRejected: There is no such entry.
        """
        ...


def recovered_before(task_id: str, other: str, status: Status) -> InputRejected:
    """Why a task does not recover for which another one goes on."""
    return InputRejected(
        f"task {task_id!r} was recovered before: {other!r} goes on for it ({status}), and a second one would make "
        "the same effects again; should that one fail, recover it"
    )


def view_of(snapshot: Snapshot, note: str = "") -> TaskView:
    """A snapshot as people see it."""
    return TaskView(
        task_id=snapshot.task_id,
        skill=snapshot.skill,
        status=snapshot.status,
        lifecycle=snapshot.lifecycle,
        reason=snapshot.reason,
        messages=tuple(_message(message) for message in snapshot.messages),
        artifacts=tuple(_artifact(artifact) for artifact in snapshot.artifacts),
        pending=tuple(_pending(pending) for pending in snapshot.pending.values()),
        waiting_for=(
            *(_wait(wait) for wait in snapshot.waits),
            *(_wait(wait, wait.asked_by) for pending in snapshot.pending.values() for wait in pending.asks),
        ),
        seq=snapshot.seq,
        updated_at=snapshot.at,
        progress=snapshot.progress,
        refused=snapshot.refused,
        late=None if snapshot.late is None else snapshot.late.approver,
        recovered_from=snapshot.recovered_from,
        forked_from=_fork(snapshot.fork),
        note=note,
    )


def _fork(fork: Fork | None) -> ForkView | None:
    return None if fork is None else ForkView(task_id=fork.task_id, seq=fork.seq, live=fork.live)


def _message(message: Message) -> MessageView:
    return MessageView(role=message.role, text=_text(message.content))


def _text(content: Content) -> str:
    """A content in words: its text, else its data as JSON, else what files it holds."""
    if content.text:
        return content.text
    if content.has_data:
        return to_json(content.data).decode()
    return ", ".join(part.filename or part.url or "a file" for part in content.parts if part.text is None)


def _artifact(artifact: Artifact) -> ArtifactView:
    only = artifact.parts[0] if len(artifact.parts) == 1 else Part(text="")
    simple = len(artifact.parts) == 1 and only.raw is None and only.media_type is None and only.filename is None
    if simple:
        return ArtifactView(name=artifact.name, text=only.text, data=only.data, url=only.url)
    return ArtifactView(name=artifact.name, text=artifact.text or None, parts=artifact.parts)


def _pending(pending: Pending) -> PendingView:
    command = pending.command
    return PendingView(
        invocation_id=pending.invocation_id,
        command=f"{command.kind} {command.subject}",
        attempt=pending.attempt,
        failure=pending.failure or None,
        due_at=pending.due_at,
        blocked=pending.blocked,
    )


def _wait(wait: Wait, part: str | None = None) -> WaitView:
    ask = wait.ask
    said = {"slot": wait.slot, "message": ask.message.text, "gate": wait.gate, "asked_by": part}
    if isinstance(ask, AskUser):
        if ask.expect is None:
            return WaitView(**said)
        return WaitView(**said, expects=type_name(ask.expect), fields=fields_of(ask.expect))
    return WaitView(
        **said,
        gate_kind=ask.policy.kind.value,
        digest=ask.digest,
        show=ask.show,
        editable=ask.editable,
        approvers=ask.policy.approvers,
        needed=ask.policy.needed,
        granted_by=tuple(grant.approver for grant in wait.grants),
        timeout_at=wait.timeout_at,
    )
