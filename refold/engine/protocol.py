"""`Engine`: what runs tasks, as its callers see it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from pydantic import JsonValue

from refold.core.content import Content
from refold.core.events import Early
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import TaskState
from refold.engine.values import Build, Decision, Listed, News, OffspringView, Place, TaskFilter, TaskView
from refold.record import Explanation, TaskRecord


class Engine(Protocol):
    """Starts tasks and talks to them. Safe to share between coroutines.

    Every method raises `NotConnected` if no server answers, `TaskNotFound` for a task that does not exist, and
    `InputRejected` for an argument of another type.
    From a method that sends something, `NotConnected` leaves open whether the task has taken it; `Taken` says it has.
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
            start_delay: The task stays planned for so long, or until `release`; more than 0, at most 10 years. Content
                that the skill cannot start from fails the task when it begins.
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
            delivery_id: The task accepts one message with this id, so that a send can be repeated; at most 1,000 bytes.
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

    async def cancel(self, task_id: str, *, reason: str = "", by: str | None = None) -> TaskView:
        """Cancel a task.

        Args:
            task_id: The task.
            reason: Why, for the journal.
            by: Who cancels it, for the journal.

        Raises:
            InputRejected: It has ended already, or ended in another way before it took the request.
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
        """Decide at a gate. Where it is a part's, the task that was named is returned once it knows of the decision.

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
        """Tasks, the newest first.

        Raises:
            InputRejected: There is no such lifecycle state, or the limit is not at least 1.
        """
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

        A caller that leaves before its end must close it (`contextlib.aclosing`).

        Args:
            after: 0 begins with the first entry.
            follow: Continue at pauses; otherwise the first pause with nothing new ends it, and so does a
                command that only an operator can resolve. The task's end always does.
        """
        ...

    async def explain(self, task_id: str, field: str, *, upto: int | None = None) -> Explanation:
        """Which step wrote a field of the task's shared state, when, and from which fields.

        Args:
            field: The field.
            upto: The entry to look back from; None is the newest.

        Raises:
            InputRejected: No step has written it, the skill has no contract, or there is no such entry.
        """
        ...

    async def at(self, task_id: str, seq: int) -> Snapshot:
        """The task as it was after entry `seq`.

        Raises:
            InputRejected: There is no such entry.
        """
        ...
