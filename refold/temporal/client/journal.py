"""A task's journal over all its runs: the open run's from its worker, that of earlier and ended runs from storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowExecutionDescription,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry, no_entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import Status, TaskState, derive_status
from refold.engine import Build, EngineError, NoWorker, RunGone, StorageError, TaskNotFound
from refold.engine.refusals import no_journal
from refold.lineage.recover import lacks, may_lack
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import (
    is_missing,
    server_away,
    server_refused,
    timed_out,
    under_way,
    why_unanswered,
)
from refold.temporal.client.index import search
from refold.temporal.client.views import result_of, why_ended
from refold.temporal.data.marks import marks_of
from refold.temporal.data.payloads import PartsCodec, Stored, load
from refold.temporal.data.storage import ValueCorrupt, ValueMissing
from refold.temporal.data.wire import PAGE_ENTRIES, WRONGLY_ASKED, EarlierRun, Page, Segment, TaskResult

T = TypeVar("T")

AFTER_ALL = 2**31
"""A number after every entry."""

FOLDED_ENTRIES = 1_000
"""The most entries that a task folds when it starts from another one, within the SDK's 2 seconds; more only where the
other one ended in a run before its last, and that run has more."""

QUERY_PATIENCE = timedelta(seconds=10)
"""How long a worker may take to read a run's history again, which a question about an ended run needs."""


@dataclass(frozen=True, slots=True)
class Newest:
    """How a task stands.

    Attributes:
        entries: Some of its journal's entries, in order; not always up to the newest.
        last: The newest entry's number.
        lifecycle: Where it is in its life.
        status: In A2A's words.
        writes: A model is at work, and its text can be seen meanwhile.
        works: A tool is at work, and may report its progress.
        over: Its workflow has closed.
        unresolved: The task is held, or a command waits for an operator, here or in a part.
    """

    entries: tuple[Entry, ...]
    last: int
    lifecycle: TaskState
    status: Status
    writes: bool
    over: bool
    unresolved: bool = False
    works: bool = False


class JournalReader:
    """Reads one task's journal."""

    def __init__(self, connection: Connection, task_id: str) -> None:
        self.connection = connection
        self.task_id = task_id

    async def entries(self, after: int) -> AsyncGenerator[Entry]:
        """The entries after number `after`, over all runs; ended tasks and earlier runs need no worker."""
        while (page := await self.open_page(after)) is not None:
            async for entry in self._of(page, after):
                yield entry
                after = entry.seq
            if after >= page.last or not page.entries:
                return
        async for entry in self._of_ended(after):
            yield entry

    async def past(self) -> AsyncGenerator[Snapshot | Entry]:
        """See `Engine.past`; a run at a time."""
        for run in await self._runs():
            segment = await self._segment(run)
            yield segment.base
            for entry in segment.entries:
                yield entry

    async def newest(self, after: int, *, limit: int) -> Newest:
        """How the task stands, and some of the entries after number `after`: those at hand, `limit` at the most."""
        page = await self.open_page(after, limit)
        if page is not None:
            standing = (page.lifecycle, page.status)
            return Newest(
                page.entries, page.last, *standing, writes=page.writes, over=False, unresolved=page.unresolved,
                works=page.works,
            )  # fmt: skip
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description)
        if result is not None:
            task = result.task
            return Newest((), task.seq, task.lifecycle, task.status, writes=False, over=True)
        # Temporal ended it from outside, so that it left no result but its history.
        page = await self.page(description.run_id, after)
        lifecycle, ending = search.as_shown(description)
        return Newest(page.entries, page.last, lifecycle, derive_status(lifecycle, ending), writes=False, over=True)

    async def _of_ended(self, after: int) -> AsyncIterator[Entry]:
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description)
        if result is not None:
            async for entry in self._stretches((*result.earlier, _last_run(description, result)), after):
                yield entry
            return
        while True:  # Temporal ended it from outside: only its history is left
            page = await self.page(description.run_id, after)
            async for entry in self._of(page, after):
                yield entry
                after = entry.seq
            if after >= page.last or not page.entries:
                return

    async def _of(self, page: Page, after: int) -> AsyncIterator[Entry]:
        async for entry in self._stretches(page.earlier, after):
            yield entry
            after = entry.seq
        for entry in page.entries:
            if entry.seq > after:
                yield entry

    async def _stretches(self, runs: tuple[EarlierRun, ...], after: int) -> AsyncIterator[Entry]:
        for run in runs:
            if run.last <= after:
                continue
            for entry in await self._stretch(run, after):
                if entry.seq > after:
                    yield entry
            after = run.last

    async def _stretch(self, run: EarlierRun, after: int) -> list[Entry]:
        if run.journal is not None:
            return list((await self._stored(run, run.journal)).entries)
        found: list[Entry] = []
        while True:
            page = await self.page(run.run_id, after)
            found.extend(page.entries)
            if not page.entries or page.entries[-1].seq >= page.last:
                return found
            after = page.entries[-1].seq

    async def builds(self) -> tuple[Build, ...]:
        """See `Engine.builds`. Runs that the server keeps no more, or does not show, are left out."""
        found = []
        for run in await self._runs():
            handle = self.connection.client.get_workflow_handle(self.task_id, run_id=run.run_id)
            try:
                events = [event async for event in handle.fetch_history_events()]
            except RPCError as error:
                if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED):
                    raise server_refused(error, f"read the history of task {self.task_id!r}") from None
                continue
            found += await marks_of(events, self.connection.client.data_converter, words=False)
        return tuple(Build(seq=mark.seq, build_id=mark.build_id) for mark in found)

    async def end(self) -> Segment:
        """The end of an ended task's journal, and the task before it: what recovery folds, in one activation.

        It reaches back to the run in which the task ended, and further for what recovery lacks, as far as it stays
        short; for what it only may lack, as far as earlier runs can be read.

        Raises:
            EngineError: The task left no journal.
        """
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description)
        if result is None:
            why = await why_ended(self.connection, description)
            raise EngineError(no_journal(self.task_id, why))
        found: Segment | None = None
        for run in reversed((*result.earlier, _last_run(description, result))):
            try:
                segment = await self._segment(run)
            except (EngineError, InputRejected):
                if found is None or lacks(found.entries):
                    raise
                break
            found = segment if found is None else Segment(base=segment.base, entries=(*segment.entries, *found.entries))
            if not lacks(found.entries) and not may_lack(found.base):
                break
            if len(found.entries) >= FOLDED_ENTRIES and any(entry.ends for entry in found.entries):
                break
        assert found is not None
        if len(found.entries) > FOLDED_ENTRIES and result.mark is not None:
            saved_as = ("snapshot", result.format)
            mark = await load(result.mark, self.connection.client.data_converter, saved_as=saved_as)
            found = Segment(base=mark, entries=tuple(entry for entry in found.entries if entry.seq > mark.seq))
        return found

    async def upto(self, seq: int) -> Segment:
        """Entry `seq`, and the task some entries before it, with the entries in between: what a fork folds.

        Raises:
            InputRejected: There is no such entry.
        """
        runs = await self._runs()
        held = next((run for run in runs if seq <= run.last), runs[0])
        segment = await self._segment(held)
        if not segment.base.seq < seq <= held.last:
            raise InputRejected(no_entry(self.task_id, seq, segment.base.seq + 1, runs[-1].last))
        entries = tuple(entry for entry in segment.entries if entry.seq <= seq)
        if len(entries) > FOLDED_ENTRIES and not any(entry.ends for entry in entries):
            base = await self.at(seq - 1)
            if base.state is None:
                raise InputRejected(
                    f"the state of task {self.task_id!r} before entry {seq} is not known: its worker's code differs "
                    "from what was recorded; fork it at an earlier entry, or put that code back"
                )
            return Segment(base=base, entries=entries[-1:])
        return Segment(base=segment.base, entries=entries)

    async def _runs(self) -> tuple[EarlierRun, ...]:
        """All runs of the task, oldest first; those of an ended task need no worker."""
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description) if description.status in search.CLOSED else None
        if result is not None:
            return (*result.earlier, _last_run(description, result))
        page = await self.page(description.run_id, AFTER_ALL)
        return (*page.earlier, EarlierRun(run_id=description.run_id, last=page.last))

    async def _segment(self, run: EarlierRun) -> Segment:
        if run.journal is not None:
            return await self._stored(run, run.journal)
        base = await self._ask(run.run_id, "state_at", ((await self.page(run.run_id, AFTER_ALL)).base,), Snapshot)
        return Segment(base=base, entries=tuple(await self._stretch(run, base.seq)))

    async def _stored(self, run: EarlierRun, journal: Stored[Segment]) -> Segment:
        try:
            return await load(journal, self.connection.client.data_converter)
        except StorageError as error:
            codec = self.connection.client.data_converter.payload_codec
            there = isinstance(codec, PartsCodec) and codec.storage.ready()
            kind = RunGone if there and isinstance(error, ValueMissing | ValueCorrupt) else EngineError
            raise kind(f"entries up to {run.last} of task {self.task_id!r} cannot be read: {error}") from error

    async def page(self, run_id: str | None, after: int) -> Page:
        """A page of one run's journal, from its worker."""
        return await self._ask(run_id, "journal", (after,), Page)

    async def open_page(self, after: int, limit: int | None = None) -> Page | None:
        """A page of the open run's journal; None where the task has ended. One question: the server knows which.

        Raises:
            TaskNotFound: There is no such task.
        """
        try:
            return await self._ask(None, "journal", (after, limit or PAGE_ENTRIES), Page, if_open=True)
        except WorkflowQueryRejectedError:
            return None

    async def at(self, seq: int) -> Snapshot:
        """The snapshot after entry `seq`, from a worker with the skill's code.

        Raises:
            InputRejected: The task has no such entry; one that goes on from another task begins with a later one.
        """
        runs = await self._runs()
        held = next((run for run in runs if 0 <= seq <= run.last), None)
        why: InputRejected | None = None
        if held is not None:
            try:
                return await self._at(held, seq)
            except InputRejected as error:
                why = error
        base = (await self.page(runs[0].run_id, AFTER_ALL)).base
        if why is None or seq < base:
            why = InputRejected(no_entry(self.task_id, seq, base + 1, runs[-1].last))
        raise why

    async def latest(self) -> Snapshot:
        """The snapshot after the last entry, also of a task that left no result; from a worker as in `at`."""
        *_, last = await self._runs()
        return await self._at(last, last.last)

    async def _at(self, run: EarlierRun, seq: int) -> Snapshot:
        return await self._ask(run.run_id, "state_at", (seq,), Snapshot)

    async def _ask(
        self,
        run_id: str | None,
        query: str,
        arguments: tuple[object, ...],
        kind: type[T],
        *,
        if_open: bool = False,
        late: bool = False,
    ) -> T:
        # `late`: a worker had the task's workflow task, so that nobody could answer. Once it has ended, or is lost,
        # there is as much time for an answer as ever.
        patience = max(QUERY_PATIENCE, self.connection.patience)
        try:
            return await self.connection.query(
                self.task_id, query, arguments, kind=kind, run_id=run_id, patience=patience, if_open=if_open
            )
        except (WorkflowQueryFailedError, RPCTimeoutOrCancelledError, RPCError) as error:
            if isinstance(error, WorkflowQueryFailedError) and any(one in error.message for one in WRONGLY_ASKED):
                raise InputRejected(error.message) from None
            if isinstance(error, RPCError) and is_missing(error):
                if run_id is None:
                    raise TaskNotFound(self.task_id) from None
                raise RunGone(
                    f"run {run_id} of task {self.task_id!r} is gone: the server keeps runs for its retention time only"
                ) from None
            if isinstance(error, RPCError) and server_away(error):
                raise server_refused(error, f"reach task {self.task_id!r}") from None
            description = await self.connection.describe(self.task_id)
            has_worker = under_way(description)
            if timed_out(error) and (has_worker or late):
                return await self._ask(run_id, query, arguments, kind, if_open=if_open, late=has_worker)
            why = await why_unanswered(self.connection.client, error, description)
            raise NoWorker(f"task {self.task_id!r} cannot be asked: {why}") from None


def _last_run(description: WorkflowExecutionDescription, result: TaskResult) -> EarlierRun:
    return EarlierRun(run_id=description.run_id, last=result.task.seq, journal=result.journal)
