"""What a task and its parts tell each other: what waits for people in a part, and how the part ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from temporalio import workflow
from temporalio.exceptions import ApplicationError

from refold.core.events import ChildAsked
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import finished
from refold.core.waits import Unresolved, Wait
from refold.engine.refusals import NOT_NEEDED
from refold.temporal.data.wire import PartEnded, TaskStart
from refold.temporal.worker.task.signals import signal

Held: TypeAlias = Callable[[Callable[[], object]], None]


class Reports:
    """What this task reports to the task that it is a part of; a task that is no part reports nothing.

    One signal at a time, since two could overtake each other: the next one leaves once this one is delivered.

    Args:
        start: What this run began with.
        base: The task as this run began.
        reconcile: Called once a report was delivered.
        held: Calls a function, now or once the task takes events from outside.

    Attributes:
        reports_end: Whether the outcome is sent as a signal: the other task goes on in a new run, to which the server
            does not report the end of a child.
        ends_last: Whether the outcome is sent after the other reports. Earlier releases sent it beside them.
    """

    def __init__(self, start: TaskStart, base: Snapshot, reconcile: Callable[[], None], held: Held) -> None:
        self.reports_end = start.reports_end
        self.ends_last = start.ends_last
        self._reconcile, self._held = reconcile, held
        self._is_part = start.parent is not None
        self._reported = ((), ()) if start.snapshot is None else _for_people(base)
        self._unfit: dict[str, str] = {}  # answers of the other task, since the last report
        self._under_way: asyncio.Future[None] | None = None
        self._ended = False

    @property
    def is_under_way(self) -> bool:
        """Whether a report has not been delivered yet."""
        return self._under_way is not None

    @property
    def end_is_due(self) -> bool:
        """Whether the outcome is to be reported, and was not."""
        return workflow.info().parent is not None and self.reports_end and not self._ended

    def refused(self, answers: Mapping[str, str]) -> None:
        """Note answers of the other task that do not fit, and why, for the next report."""
        self._unfit |= answers

    def report_waits(self, task: Snapshot) -> None:
        """Report what waits for people in this task, if that has changed since the last report."""
        if self.ends_last and finished(task):
            return  # its outcome says that it waits for nobody
        parent = workflow.info().parent
        if parent is None or not self._is_part or self._under_way:
            return
        if _for_people(task) == self._reported and not self._unfit:
            return
        waits, unresolved = self._reported = _for_people(task)
        asked = ChildAsked(invocation_id=task.task_id, waits=waits, unresolved=unresolved, refused=self._unfit)
        self._unfit = {}
        self._under_way = asyncio.ensure_future(signal(parent.workflow_id, "child", asked, needed=_is_needed))
        self._under_way.add_done_callback(self._delivered)

    def _delivered(self, report: asyncio.Future[None]) -> None:
        if not report.cancelled():
            report.exception()  # a task that is gone needs to know nothing
            self._held(self._next)

    def _next(self) -> None:
        self._under_way = None
        self._reconcile()

    async def report_end(self, ended: PartEnded) -> None:
        """Report the outcome."""
        parent = workflow.info().parent
        assert parent is not None
        if self.ends_last and self._under_way is not None:
            await asyncio.wait([self._under_way])
        with contextlib.suppress(ApplicationError):  # as in `_delivered`
            await signal(parent.workflow_id, "part_ended", ended, needed=_is_needed)
        self._ended = True


class ReportingParts:
    """The parts that were asked to report their outcome, which reaches the task's next run as a signal.

    Args:
        left: The parts that an earlier run asked.
        reconcile: Called once a part has the request.
        held: See `Reports`.
    """

    def __init__(self, left: Iterable[str], reconcile: Callable[[], None], held: Held) -> None:
        self._has_request = dict.fromkeys(left, True)  # False while the request is under way
        self._started: set[str] = set()  # in this run
        self._reconcile, self._held = reconcile, held

    def __iter__(self) -> Iterator[str]:
        return iter(self._has_request)

    def has_request(self, id: str) -> bool:
        """Whether a part was sent the signal `report_end`, so that it sends its outcome as a signal."""
        return self._has_request.get(id, False)

    def started(self, id: str) -> None:
        """Note that the server has started a part."""
        self._started.add(id)

    def ask(self, ids: Iterable[str]) -> None:
        """Ask parts, unless they were asked."""
        for id in ids:
            if id not in self._has_request:
                self._has_request[id] = False
                asking = asyncio.ensure_future(self._ask(id))
                asking.add_done_callback(partial(self._request_ended, id))

    async def _ask(self, id: str) -> None:
        early = id not in self._started
        try:
            await signal(id, "report_end", True)
        except ApplicationError:
            if not early:
                raise
            await workflow.wait_condition(lambda: id in self._started)  # the signal overtook the start
            await signal(id, "report_end", True)

    def _request_ended(self, id: str, asking: asyncio.Future[None]) -> None:
        if not asking.cancelled():
            delivered = asking.exception() is None
            self._held(lambda: self._record(id, delivered=delivered))

    def _record(self, id: str, *, delivered: bool) -> None:
        if delivered:
            self._has_request[id] = True
            self._reconcile()
        else:
            del self._has_request[id]  # the part has ended: its outcome is on its way


def _is_needed() -> bool:
    """Whether the task that this one is a part of has not canceled it. One that has may wait for it to close, in a run
    that takes no more signals."""
    return not (workflow.cancellation_reason() or "").endswith(NOT_NEEDED)


def _for_people(task: Snapshot) -> tuple[tuple[Wait, ...], tuple[Unresolved, ...]]:
    return task.open_waits, task.unresolved
