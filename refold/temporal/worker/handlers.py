"""What a task can be told and asked while it is open: signals, updates and queries, the same for every skill."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from pydantic import JsonValue
from temporalio import workflow
from temporalio.exceptions import ApplicationError

from refold.core.authoring.skill import Skill
from refold.core.commands import CallChat, CallLlm
from refold.core.contracts.audit import Explanation, explain
from refold.core.conversation import Conversation, conversation_of
from refold.core.errors import InputRejected
from refold.core.events import CancelRequested, ChildAsked, DependencyResolved, Event
from refold.core.fold.apply import fold
from refold.core.fold.journal import Entry, receipts
from refold.core.fold.record import TaskRecord, record_of
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import Pending, Receipt, Snapshot
from refold.engine import TaskView, view_of
from refold.temporal.data import signing
from refold.temporal.data.wire import PAGE_ENTRIES, Accepted, Page, TaskStart, Verdict, as_message


class TaskHandlers(ABC):
    """The handlers of a task. None of them waits: what can be taken is taken before the handler returns."""

    skill: ClassVar[Skill]
    _start: TaskStart
    _base: Snapshot
    _now: Snapshot
    _entries: list[Entry]

    @abstractmethod
    def _feed(self, event: Event) -> Entry:
        """Take an event, and do what follows from it."""

    # --- signals: taken, or refused with a log line and a journal entry; the sender hears nothing

    @workflow.signal(name="message", description="Answer the task: text, or an object with text or data, and slot.")
    def _message_signal(self, said: Any) -> None:
        self._feed(as_message(said))

    @workflow.signal(name="cancel", description="Stop the task; a string is the reason.")
    def _cancel_signal(self, reason: Any = "") -> None:
        self._feed(CancelRequested(reason=reason if isinstance(reason, str) else str(reason)))

    @workflow.signal(name="child", description="What a part of this task asks; sent by that part.")
    def _child_signal(self, said: ChildAsked) -> None:
        self._feed(said)

    @workflow.signal(name="decide", description="Decide at a gate: gate, digest, decision, approver, comment.")
    def _decide_signal(self, said: Verdict) -> None:
        # A signal is not checked before it is in history, so nobody vouches for one.
        self._feed(said.taken(vouched=False))

    @workflow.signal(name="dependency_resolved", description="Go on with a blocked command: retry, or its outcome.")
    def _resolved_signal(self, said: DependencyResolved) -> None:
        self._feed(said)

    # --- updates: the same, for callers who want the verdict

    @workflow.update(name="message", description="Answer the task, and hear whether the answer was taken.")
    def _message_update(self, said: JsonValue) -> Accepted:
        message = as_message(said)
        seen = self._now.seen.get(message.delivery_id) if message.delivery_id is not None else None
        return Accepted(seq=seen if seen is not None else self._feed(message).seq)

    @_message_update.validator
    def _check_message(self, said: JsonValue) -> None:
        message = as_message(said)
        if message.delivery_id is not None and message.delivery_id in self._now.seen:
            return  # taken before: the caller hears the same answer again
        self._refuse(message)

    @workflow.update(name="cancel", description="Stop the task, and hear whether it could be stopped.")
    def _cancel_update(self, reason: str = "") -> Accepted:
        return Accepted(seq=self._feed(CancelRequested(reason=reason)).seq)

    @_cancel_update.validator
    def _check_cancel(self, reason: str = "") -> None:
        self._refuse(CancelRequested(reason=reason))

    @workflow.update(name="decide", description="Decide at a gate, and hear whether the decision was taken.")
    def _decide_update(self, said: Verdict) -> Accepted:
        return Accepted(seq=self._feed(said.taken(vouched=said.signature is not None)).seq)

    @_decide_update.validator
    def _check_decide(self, said: Verdict) -> None:
        if said.signature is not None:
            try:
                signing.check(self._now.task_id, said, said.signature)
            except InputRejected as error:
                raise ApplicationError(str(error), type=InputRejected.__name__, non_retryable=True) from None
        self._refuse(said.taken(vouched=said.signature is not None))

    @workflow.update(name="resolve", description="Go on with a blocked command, and hear whether it was blocked.")
    def _resolve_update(self, said: DependencyResolved) -> Accepted:
        return Accepted(seq=self._feed(said).seq)

    @_resolve_update.validator
    def _check_resolve(self, said: DependencyResolved) -> None:
        self._refuse(said)

    def _refuse(self, event: Event) -> None:
        reason = refusal(self.skill, self._now, event, workflow.now())
        if reason:
            raise ApplicationError(reason, type=InputRejected.__name__, non_retryable=True)

    # --- queries: they always answer

    @workflow.query(name="status", description="The task as people see it.")
    def _status(self) -> TaskView:
        return view_of(self._now)

    @workflow.query(name="record", description="All that was said and handed over.")
    def _record(self) -> TaskRecord:
        return record_of(self._now)

    @workflow.query(name="snapshot", description="Everything needed to go on from here.")
    def _snapshot(self) -> Snapshot:
        return self._now

    @workflow.query(name="journal", description="The entries after a number.")
    def _journal(self, after: int = 0, limit: int = PAGE_ENTRIES) -> Page:
        skipped = max(0, after - self._base.seq)
        entries = tuple(self._entries[skipped : skipped + min(limit, PAGE_ENTRIES)])
        now = self._now
        return Page(
            entries=entries,
            base=self._base.seq,
            last=now.seq,
            lifecycle=now.lifecycle,
            status=now.status,
            writes=now.stream and any(_writes(pending) for pending in now.pending.values()),
            earlier=self._start.earlier,
        )

    @workflow.query(name="receipts", description="What came of each command of this run.")
    def _receipts(self) -> list[Receipt]:
        return receipts(self._entries)

    @workflow.query(name="conversation", description="What was said in a thread: its name, the turns from and to.")
    def _conversation(self, thread: str = "main", since: int = 0, upto: int | None = None) -> Conversation:
        return conversation_of(self._now, thread, since, upto)

    @workflow.query(name="explain", description="Who wrote a field of the state that the steps share, and from what.")
    def _explain(self, field: str) -> Explanation:
        return explain(self._entries, field)

    @workflow.query(name="state_at", description="The snapshot after an entry of this run.")
    def _state_at(self, seq: int) -> Snapshot:
        if not self._base.seq <= seq <= self._now.seq:
            raise InputRejected(
                f"this run holds the entries {self._base.seq + 1} to {self._now.seq} of task "
                f"{self._now.task_id!r}, not {seq}"
            )
        return fold(self.skill, self._base, self._entries[: seq - self._base.seq])


def _writes(pending: Pending) -> bool:
    return isinstance(pending.command, CallLlm | CallChat) and pending.started and pending.due_at is None
