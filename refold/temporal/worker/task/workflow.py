"""A task as a Temporal workflow: one class per skill, one loop for all.

No queue: a handler or a finished effect gives its event to the fold at once, then the workflow starts the effects and
timers that `wanted` added, and cancels those that it dropped. The order of events is that in which the SDK delivers
them, the same on replay.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, ClassVar, TypeGuard

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from refold.core.authoring.skill import Live, Skill
from refold.core.commands import CallSkill
from refold.core.errors import InputRejected, SkillError
from refold.core.events import CancelRequested, CommandFailed, Event, SkillResult, Unreadable, UserMessage
from refold.core.fold.apply import advance
from refold.core.fold.journal import Entry
from refold.core.fold.questions import refused_answers
from refold.core.fold.refusal import refusal
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Known, Perform, SendAnswer, Want, finished, wanted
from refold.core.lifecycle import Ending
from refold.core.lineage.ids import own_id
from refold.core.retry_policy import Failure, FailureKind
from refold.core.values import REFUSAL_CHARS, shortened
from refold.digests import chained
from refold.engine import PayloadTooLarge
from refold.engine.refusals import NOT_NEEDED
from refold.engine.view import view_of
from refold.temporal.data.inputs import AnotherRelease, check_start, start_from
from refold.temporal.data.payloads import Stored
from refold.temporal.data.wire import RESULT_MEMO, EarlierPart, EarlierRun, PartEnded, Segment, TaskResult, TaskStart
from refold.temporal.recorded.handover import announce
from refold.temporal.traced import tell_entry
from refold.temporal.worker.activation.batches import more_comes
from refold.temporal.worker.profile import Profile
from refold.temporal.worker.short.stretch import OVER_PATCH, Stretches
from refold.temporal.worker.short.ways import Ways, may
from refold.temporal.worker.task.absences import Absences, InputAbsent
from refold.temporal.worker.task.beginning import beginning, refused_difference, unstarted
from refold.temporal.worker.task.display import Display
from refold.temporal.worker.task.handlers import CHECKPOINT_ENTRIES, TaskHandlers
from refold.temporal.worker.task.outcomes import CANCELED, failure_of, local_outcome, outcome
from refold.temporal.worker.task.parts import ReportingParts, Reports
from refold.temporal.worker.task.perform import How, LeftOpen, begin
from refold.temporal.worker.task.room import Room


class SkillWorkflow(TaskHandlers):
    """The loop of every task; `workflow_for` makes one subclass per skill.

    Attributes:
        _left_to_others: Why another worker has to go on with the task; raised by `_run`.
        _error: Raised in a callback or in `__init__`, and raised again by `_run`.
        _parts: How far parts of a recovered task came, by the ids that they have in this one.
        _live: The step or state that the fold keeps decoded between two events.
        _wants: What `wanted` keeps between two calls.
        _running: Effects and timers that are wanted and have begun, by the keys of `wanted`.
        _ending: Effects that are not wanted any more, were canceled, and have not ended yet, by invocation id.
        _delay: The timer of a delayed start; None if there is none.
        _wake: Done once `_run` has something to do: the task or its run should end, or there is an error.
        _keep_this_run: The task stays in this run to its end, since a new one would begin with too large a value.
        _constructed: `__init__` is over.
        _may_start_effects: `_run` was called, or an event has come before it.
    """

    type_name: ClassVar[str]
    recovery: ClassVar[Profile | None] = None

    def __init__(self, *inputs: Any) -> None:
        self._first: Event | None = None
        self._left_to_others: AnotherRelease | InputAbsent | None = None
        start = TaskStart()
        info = workflow.info()
        self._absences = Absences()
        # A task that starts a part, or goes on in a new run, writes the input itself.
        goes_on = info.continued_run_id is not None
        by_client = info.parent is None and not goes_on
        try:
            check_start(info.workflow_id, info.cron_schedule)
            given = self._absences.judged(inputs, from_outside=by_client)
            # Not in a replay: an earlier release refused such a start, and the part has ended.
            is_part = info.parent is not None and not workflow.unsafe.is_replaying()
            start = start_from(given, self.skill.options.version, goes_on=goes_on, is_part=is_part)
            self._first = start.message
        except InputRejected as error:
            self._first = Unreadable(sent_as="start", why=str(error))
        except (AnotherRelease, InputAbsent) as error:
            self._left_to_others = error
        self._start = start
        self._error: Exception | None = None
        try:
            self._base, first, self._difference = beginning(self.skill, start)
            self._first = self._first if first is None else first
        except (InputRejected, SkillError) as error:
            # Raised here, the SDK would raise it once more for a query of the same activation, fail the workflow a
            # second time, and so fail the workflow task.
            self._base, self._first, self._error = unstarted(self.skill, start), None, error
            self._unbegun = refused_difference(start, info.workflow_id, error)
        if self._difference is not None:
            self._left_to_others = AnotherRelease(str(self._difference))
        self._now = self._base
        self._parts = {own_id(self._base.task_id, id): part for id, part in start.parts.items()}
        self._entries: list[Entry] = []
        self.digests = [bytes.fromhex(start.chain)]
        self._checkpoints: list[Snapshot] = []
        self._live = Live()
        self._wants: Known = {}
        self._running: dict[str, tuple[Want, asyncio.Future[Any]]] = {}
        self._ending: dict[str, tuple[Want, asyncio.Future[Any]]] = {}
        self._short = Stretches(Ways(self.skill).takes, self._reconcile, self._settled_local, self._stop_with)
        self._reporting = ReportingParts(start.left, self._reconcile, self._short.after_open_stretch)
        self._reports = Reports(start, self._base, self._reconcile, self._short.after_open_stretch)
        self._cancellation = start.cancellation or CancelRequested()
        self._display = Display(self._base, later=start.later)
        self._room = Room(lambda: self._short.after_stretch(self._reconcile))
        self._may_start_effects = False
        self._wake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._delay: asyncio.Future[None] | None = None
        self._keep_this_run = False
        self._constructed = False
        if not isinstance(self._left_to_others, InputAbsent):  # what it takes then is not what was recorded
            announce(self)
        if self._first is not None and self._left_to_others is None and not self._begins_later():
            self._start_now()
        self._constructed = True

    # --- the loop

    async def _run(self) -> TaskResult:
        if self._left_to_others is not None:
            raise self._left_to_others  # fails the workflow task, which the server then gives to another worker
        await self._raise_error()
        self._may_start_effects = True
        if (at := self._begins_at()) is not None and self._first is not None:
            self._delay = asyncio.ensure_future(workflow.sleep(at - workflow.now(), summary="the task's start"))
            self._delay.add_done_callback(self._delay_over)
        canceled = False
        while True:
            self._reconcile()
            try:
                if self._error is None:
                    await self._wake
                if self._has_undelivered():
                    await workflow.wait_condition(lambda: not self._has_undelivered())
                if self._error is not None:
                    break
                if not self._wake.done():
                    continue
                if finished(self._now):
                    await self._report_end()
                    break
                self._go_on()
            except asyncio.CancelledError:
                if canceled or (reason := workflow.cancellation_reason()) is None:
                    raise  # not a second request: the SDK removes the task from its cache, and nothing may wait
                canceled = True
                self._wake = asyncio.get_running_loop().create_future()
                if not self._now.ended:
                    told = self._cancellation
                    why = told.reason or shortened(_without_sdk_words(reason), REFUSAL_CHARS)
                    self._deliver(CancelRequested(reason=why, by=told.by))
        await self._raise_error()
        return await self._end()

    def _has_undelivered(self) -> bool:
        """Whether something that was sent to this run was not taken yet; if the run ended now, it would be lost."""
        return more_comes() or (self._error is None and self._short.waiting > 0)

    async def _raise_error(self) -> None:
        """Raise `_error` if it is set. One of `FAILURES` fails the workflow, and a part reports it; any other error
        fails the workflow task alone."""
        if self._error is None:
            return
        if isinstance(self._error, (ApplicationError, *FAILURES)):
            await self._report_end(failure_of(self._error))
        raise self._error

    # --- hold and delay: the first event is kept until somebody releases the task, or its time has come

    def _begins_later(self) -> bool:
        if self._first is None or not self._start.later:
            return False
        at = self._begins_at()
        if at is not None and at <= workflow.now():
            return False
        # A start that does not fit is refused at once; one that fitted the code of an earlier run, once it begins.
        goes_on = self._start.snapshot is not None
        return goes_on or not refusal(self.skill, self._now, self._first, workflow.now())

    def _begins_at(self) -> datetime | None:
        # By the server's clock, which also decides when a worker gets the task. An update, or a request to cancel,
        # brings it to a worker before that.
        after_s = self._start.start_delay_s
        return None if after_s is None else workflow.info().workflow_start_time + timedelta(seconds=after_s)

    def _start_now(self) -> Entry:
        first, self._first = self._first, None
        assert first is not None
        if self._delay is not None:
            self._delay.cancel()
        entry = self._take_events(first)
        if entry.refused:  # by newer code than the code that held it
            self._fail_start(entry.refused)
        return entry

    def _delay_over(self, delay: asyncio.Future[None]) -> None:
        if self._first is not None and not delay.cancelled():
            self._start_now()

    def _fail_start(self, why: str) -> None:
        self._error = ApplicationError(why, type=InputRejected.__name__, non_retryable=True)
        if not self._wake.done():
            self._wake.set_result(None)

    def _take_one(self, event: Event, at: datetime | None = None) -> Entry:
        unasked: set[str] = set()

        def patched(id: str) -> bool:
            if not (answer := workflow.patched(id)):
                unasked.add(id)  # by the code that took the event first, so its entry has no answer
            return answer

        at = at or workflow.now()
        self._now, entry = advance(self.skill, self._now, event, at, live=self._live, patched=patched)
        if unasked:
            entry = entry.changed({"patches": {id: yes for id, yes in entry.patches.items() if id not in unasked}})
        self._entries.append(entry)
        self._reports.refused(refused_answers(entry, self._now))
        self.digests.append(chained(self.digests[-1], entry))
        if len(self._entries) % CHECKPOINT_ENTRIES == 0:
            self._checkpoints.append(self._now)
        bug, self._live.bug = self._live.bug, ""
        self._display.update(self._now, entry, bug)
        tell_entry(self._now, entry)
        return entry

    def _deliver(self, event: Event) -> None:
        self._short.after_stretch(lambda: self._take_events(event))

    async def _until_stretch_over(self) -> bool:
        return await self._short.until_over()

    def _take_events(self, *events: Event, at: datetime | None = None) -> Entry:
        if self._left_to_others is not None:
            raise self._left_to_others  # the handler was called before `_run`; the task is shown as it was recorded
        if isinstance(events[0], CancelRequested):
            self._first = None
        elif self._first is not None:
            events = (Unreadable(sent_as=events[0].kind, why=self._not_begun()),)
        self._begin_after_snapshot()
        *_, entry = [self._take_one(event, at) for event in events]
        if self._may_start_effects:
            self._reconcile()
        return entry

    def _begin_after_snapshot(self) -> None:
        """Start what the task wants as its run goes on from a snapshot, before the run's first event is taken.

        Temporal may call a handler before `_run`: a worker that loads the run may get the events of two workflow tasks
        at once. A replay gets them one by one, and calls `_run` first. Started here, both send the same commands.
        """
        if self._constructed and not (self._may_start_effects or self._entries or self._left_to_others or self._error):
            self._may_start_effects = True
            self._reconcile()

    def _reconcile(self) -> None:
        """Start what is wanted and is not under way, and stop what is under way and not wanted any more."""
        want = wanted(self._now, self._wants)
        gone = self._running.keys() - want.keys()
        unwanted = [key for key in self._running if key in gone] if gone else []
        self._short.dropped(unwanted)
        for key in unwanted:
            self._stop(*self._running.pop(key))
        draining = self._draining()
        self._room.count_open(
            len(self._ending) + len([one for one, _ in self._running.values() if type(one) is Perform])
        )
        for key, one in want.items():
            if key in self._running:
                continue
            if type(one) is not Perform or (self._room.is_free and not self._is_ending(one)):
                self._begin_if_admitted(key, one, draining)
        self._reports.report_waits(self._now)
        if draining:
            self._reporting.ask([one.invocation_id for one, _ in self._running.values() if _is_part(one)])
        if finished(self._now):
            over = self._short.is_idle and not any(_is_part(one) for one, _ in self._ending.values())
        else:
            over = draining and self._short.is_idle and next(self._blockers_of_new_run(want.values()), None) is None
        if over and not self._wake.done():
            self._wake.set_result(None)
        elif not over and self._wake.done():
            # Something else came before `_run` went on. What it began, such as a report, may not be left behind.
            self._wake = asyncio.get_running_loop().create_future()

    def _stop(self, want: Want, future: asyncio.Future[Any]) -> None:
        future.cancel()
        if isinstance(want, Perform):
            self._ending[want.invocation_id] = (want, future)

    def _stopped(self, done: asyncio.Future[Any]) -> None:
        still = {id: one for id, one in self._ending.items() if one[1] is not done}
        if len(still) < len(self._ending):
            self._ending = still
            self._reconcile()

    def _is_ending(self, want: Perform) -> bool:
        """Whether an attempt with this id was canceled and has not ended; no other can begin before it ends."""
        return want.invocation_id in self._ending

    def _begin_if_admitted(self, key: str, want: Want, draining: bool) -> None:
        """Begin what is wanted, unless it has to wait: for a stretch, for room, or for the next run."""
        short = self._short
        if isinstance(want, Perform) and may(want, self._now) and short.takes(want):
            if short.is_open:
                self._begin(key, want, local=True)
            elif not draining:
                short.ask()
        elif not isinstance(want, Perform) or (not draining and self._room.admit(want)):
            self._begin(key, want)

    def _begin(self, key: str, want: Want, *, local: bool = False) -> None:
        part, short = EarlierPart(), self._short
        if isinstance(want, Perform):
            part = self._parts.get(want.invocation_id, part)
        if isinstance(want, Perform) and want.invocation_id in self._start.left:
            future: asyncio.Future[Any] = LeftOpen(want.invocation_id)
        else:
            recorded = isinstance(want, Perform) and (local or want.invocation_id in short.over)
            how = How(
                part=part,
                wrapped=_asks_owner(self.skill),
                recovery=self.recovery,
                ledger=short.ledger if recorded else None,
                local=local,
                started=self._reporting.started,
            )
            future = begin(want, self._now, how)
        self._running[key] = (want, future)
        if local:
            short.begun(key, future)
        else:
            future.add_done_callback(lambda done: short.after_stretch(lambda: self._settled(key, done)))

    def _settled_local(self, key: str, done: asyncio.Future[Any]) -> None:
        want, future = self._running.get(key, (None, None))
        if want is None or future is not done:
            self._settled(key, done)
            return
        try:
            assert isinstance(want, Perform)
            found = local_outcome(want, done)
            del self._running[key]
            if not found.recorded:
                self._short.close()
            if found.event is None or found.at is None:
                self._go_over(key, want)
                return
            self._short.took(found.at, found.size)
            self._take_events(found.event, at=found.at)
        except Exception as error:  # noqa: BLE001 - as in `_settled`
            self._stop_with(error)

    def _go_over(self, key: str, want: Perform) -> None:
        """Begin the regular activity of an effect that its stretch has begun and that has not ended.

        Also where no other effect would begin, for want of room or since the run is to end: without that activity the
        worker cancels the effect. A run of an earlier release has no marker, and lost such effects.
        """
        self._short.over.add(want.invocation_id)
        self._reconcile()
        if key not in self._running and workflow.patched(OVER_PATCH):
            self._begin(key, want)

    def _settled(self, key: str, done: asyncio.Future[Any]) -> None:
        try:
            want, future = self._running.get(key, (None, None))
            if want is None or future is not done:
                if not done.cancelled():
                    done.exception()  # looked at, so that asyncio does not complain of an error nobody wants
                self._stopped(done)
                return
            if not isinstance(want, SendAnswer):  # a command already sent is not sent again until `wanted` drops it
                del self._running[key]
            event = outcome(want, done)
            if event is not None:
                self._take_events(event)
        except Exception as error:  # noqa: BLE001 - raised again in `_run`
            # An exception raised in a callback would be lost, and the task would wait for ever. `_wake` does not carry
            # it: a request to cancel, in the same activation, has canceled that future.
            self._stop_with(error)

    def _stop_with(self, error: Exception) -> None:
        self._error = self._error or error
        if not self._wake.done():
            self._wake.set_result(None)

    # --- going on in a new run

    def _draining(self) -> bool:
        """Whether this run should end: nothing new is started, and what is out is awaited."""
        info = workflow.info()
        if self._keep_this_run or more_comes():
            return False
        if self._sealing:
            return True
        if self._first is not None or not self._entries:
            return False  # each run takes at least one event, or a chain of runs would make no progress
        if self.skill.options.seal_at_pause and self._is_new_pause():
            return True
        limit = self._start.events_per_run
        return info.is_continue_as_new_suggested() or (limit is not None and info.get_current_history_length() >= limit)

    def _is_new_pause(self) -> bool:
        """Whether this run has asked people something, and nothing is under way or about to begin but parts."""
        asked, before = ({wait.gate for wait in one.open_waits} for one in (self._now, self._base))
        return not asked <= before and not any(
            isinstance(one, Perform) and not _is_part(one) for one in wanted(self._now).values()
        )

    def _blockers_of_new_run(self, wants: Iterable[Want]) -> Iterator[str]:
        """What must end before the task goes on in a new run, in words: a new run cannot receive its outcome."""
        for one, _ in self._running.values():
            if isinstance(one, Perform) and not self._reporting.has_request(one.invocation_id):
                yield f"{one.command.kind} {one.command.subject}"
        for want in wants:
            if isinstance(want, Perform) and self._is_ending(want):
                yield f"{want.command.kind} {want.command.subject}"
        if self._reports.is_under_way:
            yield "its report to the task that it is a part of"

    def _seal(self) -> None:
        self._short.after_open_stretch(self._take_seal)

    def _take_seal(self) -> None:
        self._sealing = True
        if more_comes():  # look again after the last batch, which may bring no entry
            last_batch = asyncio.ensure_future(workflow.wait_condition(lambda: not more_comes()))
            last_batch.add_done_callback(lambda _: self._reconcile())
        elif self._may_start_effects:
            self._reconcile()

    def _seal_waits(self) -> tuple[str, ...]:
        return tuple(self._blockers_of_new_run(wanted(self._now).values()))

    def _part_ended(self, ended: PartEnded) -> None:
        self._short.after_stretch(lambda: self._take_end(ended))

    def _take_end(self, ended: PartEnded) -> None:
        pending = self._now.pending.get(ended.invocation_id)
        if pending is None or not isinstance(pending.command, CallSkill):
            return
        # The part has ended: there is nothing to cancel.
        self._running = {
            key: one
            for key, one in self._running.items()
            if not (isinstance(one[0], Perform) and one[0].invocation_id == ended.invocation_id)
        }
        ids = {"id": pending.command.id, "invocation_id": ended.invocation_id}
        if ended.outcome is not None:
            self._take_events(SkillResult(**ids, outcome=ended.outcome))
        else:
            self._take_events(CommandFailed(**ids, failure=ended.failure or CANCELED))

    async def _report_end(self, failure: Failure | None = None) -> None:
        if not self._reports.end_is_due:
            return
        if failure is None and self._now.ending is Ending.CANCELED:
            failure = CANCELED
        elif failure is None and self._now.ending is not Ending.COMPLETED:
            failure = Failure(kind=FailureKind.PERMANENT, type=self._failed_as(), message=self._now.reason)
        outcome = self._result().outcome if failure is None else None
        await self._reports.report_end(PartEnded(invocation_id=self._now.task_id, outcome=outcome, failure=failure))

    def _go_on(self) -> None:
        """Go on in a new run; or in this one to the task's end, if a new run would begin with too large a value."""
        if self._why_not_continued():
            self._keep_this_run, self._sealing = True, False
            self._wake = asyncio.get_running_loop().create_future()
            return
        versioning = _TO_CURRENT if _is_versioned() else None
        workflow.continue_as_new(self._next_start(), initial_versioning_behavior=versioning)

    def _why_not_continued(self) -> str:
        try:
            # The SDK does the same as the run ends, but loses the error: the task would take events and never end.
            workflow.payload_converter().to_payloads([self._next_start()])
        except PayloadTooLarge as error:
            return str(error)
        return ""

    def _next_start(self) -> TaskStart:
        at = None if self._first is None else self._begins_at()
        return TaskStart(
            message=self._first if isinstance(self._first, UserMessage) else None,
            hold=self._first is not None and self._start.hold,
            start_delay_s=None if at is None else max(0.0, (at - workflow.now()).total_seconds()),
            snapshot=self._now.changed({"patches": self._now.kept_patches}),
            chain=self.digests[-1].hex(),
            stream=self._start.stream,
            parent=self._start.parent,
            owner=self._start.owner,
            context=self._start.context,
            earlier=self._runs_so_far(),
            parts={id: part for id, part in self._parts.items() if id in self._now.pending},
            left=tuple(id for id in self._reporting if id in self._now.pending),
            reports_end=self._reports.reports_end,
            ends_last=self._reports.ends_last,
            events_per_run=self._start.events_per_run,
            cancellation=self._cancellation if self._cancellation != CancelRequested() else None,
        )

    def _runs_so_far(self) -> tuple[EarlierRun, ...]:
        # Without storage for large values a journal would travel along, and grow from run to run: only the newest
        # one does, and the older ones are read from their own runs while the server keeps them.
        kept = tuple(
            run if run.journal is None or run.journal.sha256 else run.model_copy(update={"journal": None})
            for run in self._start.earlier
        )
        run_id = workflow.info().run_id
        return (*kept, EarlierRun(run_id=run_id, last=self._now.seq, journal=self._segment()))

    def _segment(self) -> Stored[Segment]:
        return Stored[Segment](value=Segment(base=self._base, entries=tuple(self._entries)))

    # --- the end

    def _failed_as(self) -> str:
        return "TaskRejected" if self._now.ending is Ending.REJECTED else "TaskFailed"

    def _result(self) -> TaskResult:
        mark = next((Stored[Snapshot](value=one) for one in reversed(self._checkpoints) if not one.ended), None)
        return TaskResult(task=view_of(self._now), journal=self._segment(), earlier=self._start.earlier, mark=mark)

    async def _end(self) -> TaskResult:
        result = self._result()
        match self._now.ending:
            case Ending.COMPLETED:
                return result
            case Ending.CANCELED:
                workflow.upsert_memo({RESULT_MEMO: result})
                await _request_cancel()
                await self._report_end()  # the task may have asked for it meanwhile
                raise asyncio.CancelledError
            case _:
                pass
        raise ApplicationError(self._now.reason, result, type=self._failed_as(), non_retryable=True)


FAILURES = (SkillError, InputRejected, PayloadTooLarge)
"""Exceptions that fail a task's workflow, beside the SDK's own; any other fails the workflow task."""

_TO_CURRENT = workflow.ContinueAsNewVersioningBehavior.AUTO_UPGRADE
"""A new run begins with data alone, so it belongs to the current version of its deployment."""


def _asks_owner(skill: Skill) -> bool:
    """Whether any middleware around the skill's effects needs the task's owner."""
    return any(getattr(one, "asks_owner", True) for one in skill.options.middleware)


def _is_versioned() -> bool:
    """Whether the worker is of a worker deployment."""
    version = workflow.info().get_current_deployment_version()
    return version is not None and bool(version.deployment_name)


def _is_part(want: Want) -> TypeGuard[Perform]:
    # `type() is`, not `isinstance`, which the sandbox slows down: there may be two thousand effects.
    return type(want) is Perform and type(want.command) is CallSkill


def _without_sdk_words(reason: str) -> str:
    """The reason why a task cancels its part, without the SDK's words before it, which name the id of a run.

    Any other reason stays as it is, so that recorded requests are read as they were.
    """
    _, _, said = reason.partition(" with reason: ")
    return said if said.endswith(NOT_NEEDED) else reason


async def _request_cancel() -> None:
    """Request this workflow's own cancellation, unless it was requested: only then may it end as Canceled."""
    info = workflow.info()
    if workflow.cancellation_reason() is None:
        with contextlib.suppress(asyncio.CancelledError):  # raised when the request arrives
            await workflow.get_external_workflow_handle(info.workflow_id, run_id=info.run_id).cancel()
            await asyncio.Future()
