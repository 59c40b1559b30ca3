"""What a task can be told and asked while it is open: signals, updates and queries, the same for every skill."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from refold.conversation import Conversation, conversation_of
from refold.core.authoring.skill import Skill
from refold.core.commands import CallChat, CallLlm, CallSkill, CallTool
from refold.core.errors import InputRejected
from refold.core.events import CancelRequested, ChildAsked, DependencyResolved, Event, Unreadable, UserMessage
from refold.core.fold.apply import fold
from refold.core.fold.journal import Entry
from refold.core.fold.questions import FITS_STEP
from refold.core.fold.snapshot import Pending, Receipt, Snapshot
from refold.core.fold.wanted import finished
from refold.core.gates import DecisionMade
from refold.core.values import REFUSAL_CHARS, shortened
from refold.divergence import Difference, opened_as, shown_as
from refold.engine import TaskView
from refold.engine.refusals import HAS_BEGUN
from refold.engine.together import RefusedEvents, refused, too_many
from refold.engine.view import not_begun, view_of, with_first
from refold.record import Explanation, TaskRecord, explain, receipts, record_of
from refold.seen.entries import why_refused
from refold.temporal.data import signing
from refold.temporal.data.inputs import (
    Absent,
    Added,
    AnotherRelease,
    Got,
    message_from,
    reason_from,
    size_of,
    value_from,
)
from refold.temporal.data.payloads import Stored
from refold.temporal.data.wire import (
    CANCEL_REASON,
    NOT_HELD,
    PAGE_ENTRIES,
    REFUSED_LATE,
    TRY_ANEW,
    Accepted,
    Page,
    PartEnded,
    Sealed,
    Segment,
    SignedDecision,
    Stopped,
    TaskStart,
)
from refold.temporal.worker.task.absences import Absences, got
from refold.temporal.worker.task.display import count_refused, note_refused, note_released, said_by
from refold.temporal.worker.task.parts import Reports

LARGEST_REFUSED = 2_000_000
"""The largest input of an update, in bytes, that is refused before it is in history."""

SIGNALS = "message, cancel, release, decide, dependency_resolved"
"""The signals that anybody may send a task, as the refusal of any other signal lists them."""

NAMES_RELEASE = "refold.names_release"
"""The patch with which that refusal lists `release`: recorded entries of earlier releases lack it."""

CHECKPOINT_ENTRIES = 500
"""A run keeps the snapshot after so many entries, and so on, so that no query and no recovery folds a whole run."""


class TaskHandlers(ABC):
    """The handlers of a task. No handler waits: the task takes or refuses an event before the handler returns."""

    skill: ClassVar[Skill]
    _start: TaskStart
    _base: Snapshot
    _now: Snapshot
    _entries: list[Entry]
    _checkpoints: list[Snapshot]
    _reports: Reports
    _absences: Absences
    _cancellation: CancelRequested
    _first: Event | None
    """What the task begins with; None once it has begun."""
    _sealing: bool = False  # somebody asked the task to go on in a new run
    _difference: Difference | None = None
    _unbegun: Difference | None = None
    _judged: int = 0
    _recorded: Callable[[Sequence[Entry]], Sequence[Entry]] | None = None

    @abstractmethod
    def _take_events(self, *events: Event) -> Entry:
        """Pass events to the fold, with nothing in between, then start and cancel effects; returns the last entry."""

    @abstractmethod
    def _deliver(self, event: Event) -> None:
        """Call `_take_events` as soon as the task takes outside events, which may be now."""

    @abstractmethod
    async def _until_stretch_over(self) -> bool:
        """Wait until the task takes outside events. Returns False if it takes them now."""

    @abstractmethod
    def _part_ended(self, ended: PartEnded) -> None:
        """Take a part's outcome, unless the task has it already."""

    @abstractmethod
    def _start_now(self) -> Entry:
        """Begin the task with its first event."""

    @abstractmethod
    def _begins_at(self) -> datetime | None:
        """When a delayed task begins; None for others."""

    @abstractmethod
    def _seal(self) -> None:
        """Go on in a new run at the next quiet moment, which may be now."""

    @abstractmethod
    def _seal_waits(self) -> tuple[str, ...]:
        """What must end before the task goes on in a new run, in words."""

    @abstractmethod
    def _why_not_continued(self) -> str:
        """Why the task cannot go on in a new run; empty if it can."""

    # --- signals: taken, or refused with a log line and a journal entry; the sender gets no answer

    @workflow.signal(name="message", description="Answer the task: text, or an object with text or data, and slot.")
    def _message_signal(self, *inputs: Any) -> None:
        self._take_signal("message", message_from, inputs)

    @workflow.signal(name="cancel", description="Stop the task; a string is the reason, a second one says who asks.")
    def _cancel_signal(self, *inputs: Any) -> None:
        self._deliver(_cancel(self._absences.judged(inputs, from_outside=True)))

    @workflow.signal(name="release", description="Begin a task that was started with a hold or a delay.")
    def _release_signal(self, *inputs: Any) -> None:
        if self._first is None:
            self._deliver(Unreadable(sent_as="signal 'release'", why=HAS_BEGUN))
        else:
            self._start_now()

    @workflow.signal(name=CANCEL_REASON, description="Why a cancellation follows, and whose; sent by refold's client.")
    def _cancel_reason_signal(self, *inputs: Any) -> None:
        self._cancellation = _cancel(self._absences.judged(inputs, from_outside=True))

    @workflow.signal(name=TRY_ANEW, description="Nothing; sent by refold's client.")  # noqa: B027 - is not overridden
    def _try_anew_signal(self, *inputs: Any) -> None:
        """Only its event in the history matters."""

    @workflow.signal(name="child", description="What a part of this task asks; sent by that part.")
    def _child_signal(self, *inputs: Any) -> None:
        self._take_signal("child", partial(value_from, ChildAsked), inputs, of_part=True)

    @workflow.signal(name="part_ended", description="How a part of this task ended; sent by that part.")
    def _part_ended_signal(self, *inputs: Any) -> None:
        try:
            ended = value_from(PartEnded, self._absences.judged(inputs, from_outside=not self._has_parts()))
        except InputRejected as error:
            self._leave_newer(error, inputs)
            self._deliver(Unreadable(sent_as="signal 'part_ended'", why=str(error)))
        else:
            self._part_ended(ended)

    @workflow.signal(
        name="report_end", description="From now on, send the outcome as a signal; sent by the whole task."
    )
    def _report_end_signal(self, *inputs: Any) -> None:
        self._reports.reports_end = True
        self._reports.ends_last = bool(inputs)  # earlier releases sent none

    @workflow.signal(name="decide", description="Decide at a gate: gate, digest, decision, approver, comment.")
    def _decide_signal(self, *inputs: Any) -> None:
        # No signature is checked before a signal is in history, so a signal never counts as signed.
        self._take_signal("decide", lambda said: value_from(SignedDecision, said).taken(vouched=False), inputs)

    @workflow.signal(name="dependency_resolved", description="Go on with a blocked command: retry, or its outcome.")
    def _resolved_signal(self, *inputs: Any) -> None:
        self._take_signal("dependency_resolved", partial(value_from, DependencyResolved), inputs)

    @workflow.signal(dynamic=True, description="Any other signal is refused, with an entry in the journal.")
    def _other_signal(self, name: str, inputs: Sequence[RawValue]) -> None:
        known = SIGNALS if workflow.patched(NAMES_RELEASE) else SIGNALS.replace("release, ", "")
        why = f"a task takes no such signal; it takes {known}"
        self._deliver(Unreadable(sent_as=f"signal {shortened(name, 100)!r}", why=why))

    def _take_signal(
        self, name: str, read: Callable[[Sequence[Any]], Event], inputs: Sequence[Any], *, of_part: bool = False
    ) -> None:
        inputs = self._absences.judged(inputs, from_outside=not (of_part and self._has_parts()))
        try:
            event = read(inputs)
        except InputRejected as error:
            if of_part:
                self._leave_newer(error, inputs)
            event = Unreadable(sent_as=f"signal {name!r}", why=str(error))
        self._deliver(event)

    def _leave_newer(self, error: InputRejected, inputs: Sequence[Any]) -> None:
        """Leave what an open part of a newer release sent to workers of that release: refused, it would be lost.

        Not in a replay: an earlier release has refused it.

        Raises:
            AnotherRelease: Another worker has to go on with the task.
        """
        if isinstance(error, Added) and not workflow.unsafe.is_replaying() and self._is_of_part(inputs):
            raise AnotherRelease(f"a part that another release of refold runs sent this: {error}") from error

    def _is_of_part(self, inputs: Sequence[Any]) -> bool:
        """Whether what a signal brought names an open part; from anybody else it is refused, whatever its fields."""
        said = inputs[0].value if isinstance(inputs[0], Got) else inputs[0]
        ids = (id for id, pending in self._now.pending.items() if isinstance(pending.command, CallSkill))
        return said.get("invocation_id") in [*ids]

    def _has_parts(self) -> bool:
        """Whether a part is open, so that what a part sends may have come from one."""
        return any(isinstance(pending.command, CallSkill) for pending in self._now.pending.values())

    # --- updates: the same, for callers who want the verdict

    @workflow.update(name="message", description="Answer the task, and hear whether the answer was taken.")
    async def _message_update(self, *inputs: Any) -> Accepted:
        return await self._accept(_message, inputs)

    @_message_update.validator
    def _check_message(self, *inputs: Any) -> None:
        self._check("message", _message, inputs)

    @workflow.update(name="cancel", description="Stop the task, and hear whether it could be stopped.")
    async def _cancel_update(self, *inputs: Any) -> Accepted:
        return await self._accept(_cancels, inputs)

    @_cancel_update.validator
    def _check_cancel(self, *inputs: Any) -> None:
        self._check("cancel", _cancels, inputs)

    @workflow.update(name="decide", description="Decide at a gate, or by several inputs at several: all or none.")
    async def _decide_update(self, *inputs: Any) -> Accepted:
        return await self._accept(_decisions, inputs)

    @_decide_update.validator
    def _check_decide(self, *inputs: Any) -> None:
        self._check("decide", self._signed_decisions, inputs)

    @workflow.update(name="resolve", description="Go on with a blocked command, and hear whether it was blocked.")
    async def _resolve_update(self, *inputs: Any) -> Accepted:
        return await self._accept(_resolution, inputs)

    @_resolve_update.validator
    def _check_resolve(self, *inputs: Any) -> None:
        self._check("resolve", _resolution, inputs)

    @workflow.update(name="release", description="Begin a task that was started with a hold or a delay.")
    def _release_update(self, *inputs: Any) -> Accepted:
        if self._first is None:
            raise InputRejected(f"task {self._now.task_id!r}: {HAS_BEGUN}")
        return Accepted(seq=self._start_now().seq)

    @_release_update.validator
    def _check_release(self, *inputs: Any) -> None:
        by = said_by(_readable(inputs)[0]) if inputs else None
        if self._first is None:
            raise self._refused("release", f"task {self._now.task_id!r}: {HAS_BEGUN}", by, "state")
        note_released(self._now, by=by)

    @workflow.update(name="seal", description="Go on in a new run, from the task as it is, at the next quiet moment.")
    def _seal_update(self, *inputs: Any) -> Sealed:
        self._seal()
        return Sealed(seq=self._now.seq, waits=self._seal_waits())

    @_seal_update.validator
    def _check_seal(self, *inputs: Any) -> None:
        task = f"task {self._now.task_id!r}"
        if finished(self._now):
            raise InputRejected(f"{task} has ended ({self._now.status}); there is nothing to seal")
        if self._sealing:
            waits = ", ".join(self._seal_waits()) or "its next workflow task"
            raise InputRejected(f"{task} is being sealed already; the seal waits for: {waits}")
        if why := self._why_not_continued():
            raise InputRejected(f"{task} cannot go on in a new run: {why}")

    def _signed_decisions(self, inputs: Sequence[Any]) -> Sequence[Event]:
        # Here and not in the handler, which a replay calls, too: the key may have changed by then.
        for said in _signed(inputs):
            if said.signature is not None:
                signing.check(self._now.task_id, said, said.signature)
        return _decisions(inputs)

    def _check(self, name: str, read: Callable[[Sequence[Any]], Sequence[Event]], inputs: Sequence[Any]) -> None:
        event: Event | None = None
        absent = next((one.why for one in inputs if isinstance(one, Absent)), "")
        inputs = _readable(inputs)
        # A rejection carries the request to the server. Where it would be too large, `_accept` refuses later; but an
        # input that cannot be got is rejected here, since a task waits for each input that it has accepted.
        if size_of(inputs) > LARGEST_REFUSED and not absent:
            return
        try:
            events = read(inputs)
            event, why = too_many(events) or self._refusal(events) or (None, absent)
        except InputRejected as error:
            why = str(error)
        if why:
            # Refused before it is in history, so that no stranger can fill a task's journal; only logged and counted.
            kind = why_refused(self._now, event)
            raise self._refused(name, why, said_by(inputs[0]) if inputs else None, kind)

    def _refused(self, name: str, why: str, by: str | None, kind: str) -> InputRejected:
        note_refused(self._now, f"update {name}", shortened(why, REFUSAL_CHARS), by=by)
        count_refused(self._now, f"update {name}", kind)
        return InputRejected(why)

    async def _accept(self, read: Callable[[Sequence[Any]], Sequence[Event]], inputs: Sequence[Any]) -> Accepted:
        inputs = got(inputs)
        events = read(inputs)
        # While this waited the task may have changed since `_check`.
        if await self._until_stretch_over():
            self._refuse_late(events)
        if (seen := self._taken_as(events[0])) is not None:
            return Accepted(seq=seen)
        if size_of(inputs) > LARGEST_REFUSED:
            if isinstance(events[0], DecisionMade):  # whose signature was not checked
                raise InputRejected(
                    f"the decision has {size_of(inputs):,} bytes; at most {LARGEST_REFUSED:,} are taken: shorten it"
                )
            self._refuse_late(events)
        return Accepted(seq=self._take_events(*events).seq)

    def _refuse_late(self, events: Sequence[Event]) -> None:
        if (found := self._refusal(events, self._patched_late)) is not None:
            raise ApplicationError(found.why, type=REFUSED_LATE, non_retryable=True)

    def _patched_late(self, patch: str) -> bool:
        """The answer that the fold will get, since a replay comes here, too; the validators are not called again."""
        if patch == FITS_STEP:
            return True  # never asked here, so that histories with such a refusal have no marker
        if (known := self._now.patches.get(patch)) is not None:
            return known
        if not (answer := workflow.patched(patch)):
            self._now = self._now.changed({"patches": {**self._now.patches, patch: False}})  # for the validators
        return answer

    def _taken_as(self, event: Event) -> int | None:
        """The entry that took the same delivery before, so that its sender gets the same answer; None if none did."""
        if not isinstance(event, UserMessage) or event.delivery_id is None or event.called_back:
            return None  # the second call to an address is refused
        return self._now.seen.get(event.delivery_id)

    def _refusal(self, events: Sequence[Event], patched: Callable[[str], bool] | None = None) -> RefusedEvents | None:
        if self._first is not None and not isinstance(events[0], CancelRequested):
            return RefusedEvents(events[0], f"task {self._now.task_id!r}: {self._not_begun()}")
        if self._taken_as(events[0]) is not None:
            return None
        return refused(self.skill, self._now, events, workflow.now(), patched)

    def _not_begun(self) -> str:
        return not_begun(self._now.task_id, self._begins_at())

    # --- queries: they always answer, and with what was recorded where today's code says something else

    @property
    def base(self) -> int:
        """The number of the last entry before this run."""
        return self._base.seq

    @property
    def entries(self) -> Sequence[Entry]:
        """This run's entries, in order, as today's code writes them."""
        return self._entries

    def differ(self, difference: Difference, recorded: Callable[[Sequence[Entry]], Sequence[Entry]]) -> None:
        """Answer queries with what was recorded (`refold.temporal.recorded`)."""
        self._difference, self._recorded = difference, recorded

    @property
    def unfit(self) -> Difference | None:
        """Why the code cannot go on from the snapshot that this run began with; None if nothing speaks against it."""
        return self._difference if self._difference is not None and self._difference.why else None

    @property
    def unbegun(self) -> Difference | None:
        """Why the code refuses to recover or fork the other task; None if it does not."""
        return self._unbegun

    def go_on_as_recorded(self) -> None:
        """Judge the next event by what was recorded. Called on a replay only; what is under way stays as it is."""
        for entry in self._recorded(self._entries[self._judged :]) if self._recorded is not None else ():
            self._now = opened_as(self._now, entry)
        self._judged = len(self._entries)

    def stopped(self) -> Stopped:
        """What the task shows while it accepts no event."""
        journal = Segment(base=self._base, entries=tuple(self._shown()))
        return Stopped(
            snapshot=Stored[Snapshot](value=self._as_shown(self._now)),
            journal=Stored[Segment](value=journal),
            earlier=self._start.earlier,
            differs=self._differs,
            found="" if self._difference is None else self._difference.found,
        )

    @property
    def _differs(self) -> str:
        return "" if self._difference is None else str(self._difference)

    def _shown(self, upto: int | None = None) -> Sequence[Entry]:
        """This run's entries as people see them, up to entry `upto`."""
        entries = self._entries if upto is None else self._entries[: upto - self._base.seq]
        return entries if self._recorded is None else self._recorded(entries)

    def _as_shown(self, now: Snapshot) -> Snapshot:
        """A snapshot of this run as people see it."""
        if self._recorded is None or self._difference is None:
            return now
        if self._difference.why or now.seq < self._difference.seq:
            return now  # every entry so far is as it was recorded
        return shown_as(now, self._base, self._entries[: now.seq - self._base.seq], self._shown(now.seq))

    @workflow.query(name="status", description="The task as people see it.")
    def _status(self) -> TaskView:
        note = self._differs or ("" if self._first is None else self._not_begun())
        view = view_of(with_first(self._as_shown(self._now), self._first), note)
        if self._difference is not None:
            view = view.model_copy(update={"differs": self._difference.found})
        return view.model_copy(update={"sealing": self._seal_waits()}) if self._sealing else view

    @workflow.query(name="record", description="All that was said and handed over.")
    def _record(self) -> TaskRecord:
        record = record_of(with_first(self._as_shown(self._now), self._first))
        return record.changed({"differs": self._differs}) if self._differs else record

    @workflow.query(name="snapshot", description="Everything needed to go on from here.")
    def _snapshot(self) -> Snapshot:
        return self._as_shown(self._now)

    @workflow.query(name="journal", description="The entries after a number.")
    def _journal(self, after: int = 0, limit: int = PAGE_ENTRIES) -> Page:
        skipped = max(0, after - self._base.seq)
        shown = self._shown() if self._recorded is not None else self._entries
        now = self._now
        return Page(
            entries=tuple(shown[skipped : skipped + min(limit, PAGE_ENTRIES)]),
            base=self._base.seq,
            last=now.seq,
            lifecycle=now.lifecycle,
            status=now.status,
            writes=now.stream and any(_runs(pending, CallLlm, CallChat) for pending in now.pending.values()),
            works=any(_runs(pending, CallTool) for pending in now.pending.values()),
            unresolved=bool(now.unresolved) or (self._first is not None and self._begins_at() is None),
            earlier=self._start.earlier,
            differs=self._differs,
        )

    @workflow.query(name="receipts", description="What came of each command of this run.")
    def _receipts(self) -> list[Receipt]:
        return receipts(self._shown())

    @workflow.query(name="conversation", description="What was said in a thread: its name, the turns from and to.")
    def _conversation(self, thread: str = "main", since: int = 0, upto: int | None = None) -> Conversation:
        return conversation_of(self._as_shown(self._now), thread, since, upto)

    @workflow.query(name="explain", description="Who wrote a field of the state that the steps share, and from what.")
    def _explain(self, field: str) -> Explanation:
        if self._recorded is not None:
            raise InputRejected(f"only the code that recorded it can say. {self._differs}")
        return explain(self._entries, field)

    @workflow.query(name="state_at", description="The snapshot after an entry of this run.")
    def _state_at(self, seq: int) -> Snapshot:
        if not self._base.seq <= seq <= self._now.seq:
            raise InputRejected(
                f"{NOT_HELD} {self._base.seq + 1} to {self._now.seq} of task {self._now.task_id!r}, not {seq}"
            )
        near = next((one for one in reversed(self._checkpoints) if one.seq <= seq), self._base)
        entries = self._entries[near.seq - self._base.seq : seq - self._base.seq]
        if self._recorded is None:
            return fold(self.skill, near, entries)
        for recorded in self._recorded(entries):
            near = opened_as(fold(self.skill, near, [recorded]), recorded)
        return self._as_shown(near)


def _runs(pending: Pending, *kinds: type) -> bool:
    return isinstance(pending.command, kinds) and pending.started and pending.due_at is None


def _readable(inputs: Sequence[Any]) -> list[Any]:
    """The inputs of an update, for its validator; one that cannot be got stays as it is, and is refused."""
    return [one.value if isinstance(one, Got) else one for one in inputs]


def _cancel(inputs: Sequence[Any]) -> CancelRequested:
    reason, by = reason_from(inputs), inputs[1] if len(inputs) > 1 else None
    return CancelRequested(
        reason=shortened(reason, REFUSAL_CHARS), by=shortened(by, REFUSAL_CHARS) if isinstance(by, str) else None
    )


# --- what updates bring, as events: one each, except for decisions


def _message(inputs: Sequence[Any]) -> Sequence[Event]:
    return (message_from(inputs),)


def _cancels(inputs: Sequence[Any]) -> Sequence[Event]:
    return (_cancel(inputs),)


def _resolution(inputs: Sequence[Any]) -> Sequence[Event]:
    return (value_from(DependencyResolved, inputs),)


def _decisions(inputs: Sequence[Any]) -> Sequence[Event]:
    return [said.taken(vouched=said.signature is not None) for said in _signed(inputs)]


def _signed(inputs: Sequence[Any]) -> Sequence[SignedDecision]:
    return [value_from(SignedDecision, (one,)) for one in inputs] or [value_from(SignedDecision, inputs)]
