"""A task's journal over all its runs: the open run's from its worker, that of earlier and ended runs from storage."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import EngineError, InputRejected, NoWorker, StorageError, TaskNotFound
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.core.lifecycle import Status, TaskState, derive_status
from refold.temporal.client import search
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import NOT_FITTING, explained, server_away, server_refused, why_unanswered
from refold.temporal.client.views import result_of
from refold.temporal.data.payloads import load
from refold.temporal.data.wire import PAGE_ENTRIES, EarlierRun, Page, Segment

T = TypeVar("T")

AFTER_ALL = 2**31
"""A number after every entry."""

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
        over: Its workflow has closed.
    """

    entries: tuple[Entry, ...]
    last: int
    lifecycle: TaskState
    status: Status
    writes: bool
    over: bool


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

    async def newest(self, after: int, *, limit: int) -> Newest:
        """How the task stands, and some of the entries after number `after`: those at hand, `limit` at the most."""
        page = await self.open_page(after, limit)
        if page is not None:
            standing = (page.lifecycle, page.status)
            return Newest(page.entries, page.last, *standing, writes=page.writes, over=False)
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description)
        if result is not None:
            task = result.task
            return Newest((), task.seq, task.lifecycle, task.status, writes=False, over=True)
        # Ended over its head: its history is all that is left.
        page = await self.page(description.run_id, after)
        lifecycle, ending = search.as_shown(description)
        return Newest(page.entries, page.last, lifecycle, derive_status(lifecycle, ending), writes=False, over=True)

    async def _of_ended(self, after: int) -> AsyncIterator[Entry]:
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description)
        if result is not None:
            last = EarlierRun(run_id=description.run_id, last=result.task.seq, journal=result.journal)
            async for entry in self._stretches((*result.earlier, last), after):
                yield entry
            return
        while True:  # ended over its head: only its history is left
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
            try:
                return list((await load(run.journal, self.connection.client.data_converter)).entries)
            except StorageError as error:
                raise EngineError(
                    f"entries up to {run.last} of task {self.task_id!r} cannot be read: {error}"
                ) from error
        found: list[Entry] = []
        while True:
            page = await self.page(run.run_id, after)
            found.extend(page.entries)
            if not page.entries or page.entries[-1].seq >= page.last:
                return found
            after = page.entries[-1].seq

    async def whole(self) -> Segment:
        """The whole journal of a task, and the task before its first entry."""
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description)
        runs = result.earlier if result is not None else ()
        first = runs[0].journal if runs else None if result is None else result.journal
        if first is None:
            raise EngineError(f"the journal of task {self.task_id!r} is not kept; it cannot be recovered")
        base = (await load(first, self.connection.client.data_converter)).base
        return Segment(base=base, entries=tuple([entry async for entry in self.entries(0)]))

    async def upto(self, seq: int) -> Segment:
        """The run that holds entry `seq`: the task before its first entry, and its entries up to that one.

        Runs that are over need no worker.

        Raises:
            InputRejected: There is no such entry.
        """
        description = await self.connection.describe(self.task_id)
        result = await result_of(self.connection, description) if description.status in search.CLOSED else None
        if result is not None:
            last = EarlierRun(run_id=description.run_id, last=result.task.seq, journal=result.journal)
            runs: tuple[EarlierRun, ...] = (*result.earlier, last)
        else:
            page = await self.page(description.run_id, AFTER_ALL)
            runs = (*page.earlier, EarlierRun(run_id=description.run_id, last=page.last))
        held = next((run for run in runs if seq <= run.last), runs[0])
        base = await self._base(held)
        if not base.seq < seq <= held.last:
            raise InputRejected(f"task {self.task_id!r} has the entries {base.seq + 1} to {runs[-1].last}, not {seq}")
        entries = [entry async for entry in self.entries(base.seq) if entry.seq <= seq]
        return Segment(base=base, entries=tuple(entries))

    async def _base(self, run: EarlierRun) -> Snapshot:
        """The task before the first entry of a run."""
        if run.journal is not None:
            return (await load(run.journal, self.connection.client.data_converter)).base
        return await self.at((await self.page(run.run_id, AFTER_ALL)).base)

    async def page(self, run_id: str | None, after: int) -> Page:
        """A page of one run's journal, from its worker."""
        return await self._ask(run_id, "journal", (after,), Page)

    async def open_page(self, after: int, limit: int | None = None) -> Page | None:
        """A page of the open run's journal; None where the task has ended. One question: the server knows which.

        Raises:
            TaskNotFound: There is no such task.
        """
        while True:
            try:
                return await self._ask(None, "journal", (after, limit or PAGE_ENTRIES), Page, if_open=True)
            except WorkflowQueryRejectedError as rejected:
                if rejected.status is not WorkflowExecutionStatus.CONTINUED_AS_NEW:  # it went on while we asked
                    return None

    async def at(self, seq: int) -> Snapshot:
        """The snapshot after entry `seq`, from a worker with the skill's code."""
        description = await self.connection.describe(self.task_id)
        run_id, last = await self._run_holding(description.run_id, seq)
        if not 0 <= seq <= last:
            raise InputRejected(f"task {self.task_id!r} has the entries 1 to {last}, not {seq}")
        return await self._ask(run_id, "state_at", (seq,), Snapshot)

    async def _run_holding(self, run_id: str, seq: int) -> tuple[str, int]:
        page: Page = await self._ask(run_id, "journal", (AFTER_ALL,), Page)
        for run in page.earlier:
            if seq <= run.last:
                return run.run_id, page.last
        return run_id, page.last

    async def _ask(
        self, run_id: str | None, query: str, arguments: tuple[object, ...], kind: type[T], *, if_open: bool = False
    ) -> T:
        patience = max(QUERY_PATIENCE, self.connection.patience)
        try:
            return await self.connection.query(
                self.task_id, query, arguments, kind=kind, run_id=run_id, patience=patience, if_open=if_open
            )
        except WorkflowQueryFailedError as error:
            raise InputRejected(explained(error.message) if NOT_FITTING in error.message else error.message) from None
        except (RPCTimeoutOrCancelledError, RPCError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                if run_id is None:
                    raise TaskNotFound(self.task_id) from None
                raise EngineError(
                    f"run {run_id} of task {self.task_id!r} is gone: the server keeps runs for its retention time only"
                ) from None
            if isinstance(error, RPCError) and server_away(error):
                raise server_refused(error, f"reach task {self.task_id!r}") from None
            raise NoWorker(why_unanswered(error, self.connection.task_queue)) from None
