"""A task's past, wherever it is: the open run's in its worker, that of earlier runs and ended tasks in storage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

from temporalio.client import RPCTimeoutOrCancelledError, WorkflowExecutionStatus, WorkflowQueryFailedError
from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import EngineError, InputRejected, NoWorker, StorageError
from refold.core.journal import Entry
from refold.core.snapshot import Snapshot
from refold.temporal import search
from refold.temporal.payloads import load
from refold.temporal.stuck import NOT_FITTING, in_words
from refold.temporal.wire import EarlierRun, Page, Segment

if TYPE_CHECKING:
    from refold.temporal.client import TemporalEngine


T = TypeVar("T")

QUERY_PATIENCE = timedelta(seconds=10)
"""How long a worker may take to read a run's history again, which a question about an ended run needs."""


class History:
    """Reads one task's past."""

    def __init__(self, engine: TemporalEngine, task_id: str) -> None:
        self.engine = engine
        self.task_id = task_id

    async def entries(self, after: int) -> AsyncIterator[Entry]:
        """The entries after number `after`, over all runs; ended tasks and earlier runs need no worker."""
        description = await self.engine._describe(self.task_id)
        if description.status is not WorkflowExecutionStatus.RUNNING:
            result = await self.engine.result(description)
            if result is None:
                page = await self.page(description.run_id, after)  # ended over its head: only its history is left
                async for entry in self._paged(page, description.run_id, after):
                    yield entry
                return
            last = EarlierRun(run_id=description.run_id, last=result.task.seq, journal=result.journal)
            async for entry in self._stretches((*result.earlier, last), after):
                yield entry
            return
        page = await self.page(description.run_id, after)
        async for entry in self._paged(page, description.run_id, after):
            yield entry

    async def _paged(self, page: Page, run_id: str | None, after: int) -> AsyncIterator[Entry]:
        async for entry in self._stretches(page.earlier, after):
            yield entry
            after = entry.seq
        while True:
            for entry in page.entries:
                if entry.seq > after:
                    yield entry
                    after = entry.seq
            if after >= page.last or not page.entries:
                return
            page = await self.page(run_id, after)

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
                return list((await load(run.journal, self.engine.client.data_converter)).entries)
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
        description = await self.engine._describe(self.task_id)
        result = await self.engine.result(description)
        runs = result.earlier if result is not None else ()
        first = runs[0].journal if runs else None if result is None else result.journal
        if first is None:
            raise EngineError(f"the journal of task {self.task_id!r} is not kept; it cannot be recovered")
        base = (await load(first, self.engine.client.data_converter)).base
        return Segment(base=base, entries=tuple([entry async for entry in self.entries(0)]))

    async def page(self, run_id: str | None, after: int) -> Page:
        """A page of one run's journal, from its worker."""
        return await self._ask(run_id, "journal", after, Page)

    async def at(self, seq: int) -> Snapshot:
        """The snapshot after entry `seq`, from a worker with the skill's code."""
        description = await self.engine._describe(self.task_id)
        run_id, last = await self._run_holding(description.run_id, seq)
        if not 0 <= seq <= last:
            raise InputRejected(f"task {self.task_id!r} has the entries 1 to {last}, not {seq}")
        return await self._ask(run_id, "state_at", seq, Snapshot)

    async def _run_holding(self, run_id: str, seq: int) -> tuple[str, int]:
        page: Page = await self._ask(run_id, "journal", 2**31, Page)
        for run in page.earlier:
            if seq <= run.last:
                return run.run_id, page.last
        return run_id, page.last

    async def _ask(self, run_id: str | None, query: str, argument: object, kind: type[T]) -> T:
        from_run = self.engine.client.get_workflow_handle(self.task_id, run_id=run_id)
        try:
            answer: T = await from_run.query(
                query, argument, result_type=kind, rpc_timeout=max(QUERY_PATIENCE, self.engine.patience)
            )
        except WorkflowQueryFailedError as error:
            raise InputRejected(in_words(error.message) if NOT_FITTING in error.message else error.message) from None
        except (RPCTimeoutOrCancelledError, RPCError) as error:
            if isinstance(error, RPCError) and error.status is RPCStatusCode.NOT_FOUND:
                raise EngineError(
                    f"run {run_id} of task {self.task_id!r} is gone: the server keeps runs for its retention time only"
                ) from None
            if isinstance(error, RPCError) and error.status is RPCStatusCode.UNAVAILABLE:
                raise search.server_refused(error, f"reach task {self.task_id!r}") from None
            raise NoWorker(search.why_unanswered(error, self.engine.task_queue)) from None
        return answer
