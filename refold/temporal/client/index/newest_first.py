"""Pages of tasks, newest first, though the server cannot sort: reads one window of time after another, back in time.

Rule 1: the server only counts and filters; this module sorts the tasks of a window.
Rule 2: a window holds at most a few pages, unless more tasks than that share one moment.
Rule 3: where the last window lay is kept, so that the next look mostly needs no search for it.
Rule 4: the server may compare times by the millisecond (SQLite does) but returns microseconds, so a query asks for a
        little more than its window, and this module drops the surplus.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from refold.temporal.data.search_attributes import quoted

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
"""The least difference between two times."""

SLACK = timedelta(milliseconds=1)
"""The error of the server's comparison of times."""

FIRST_SPAN = timedelta(minutes=10)
GROWTH = 8
ROOM = 4
"""The most tasks in a window, as a multiple of the tasks needed."""

MORE = 400
"""The most tasks in a window that are not needed."""

FEW = 200
"""The number of tasks that a window may always hold, since reading them is quicker than finding a smaller window."""

BATCH, FEWEST = 100, 10
"""How many tasks at the most, and at the least, are looked up by their ids at once."""

SPARE = 10
"""How many more tasks than are needed the kept window holds, as runs that a reset replaced are dropped."""

KEPT = 200
"""Of how many filters the last window is kept."""

Within = Callable[[datetime, datetime | None], str]
"""A filter for the tasks whose time is at or after the first, and before the second; None has no end."""

TimeOf = Callable[[WorkflowExecution], datetime]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The span of time in which the last listing found a filter's newest tasks.

    Attributes:
        low: Where the window began.
        span: From `low` to the newest task; the next page begins with a window as wide.
    """

    low: datetime
    span: timedelta


class Windows:
    """The last window of each filter; the filters that nobody asked for longest are forgotten."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Window] = OrderedDict()

    def of(self, query: str) -> Window | None:
        """The last window of a filter; None if none is kept."""
        if query in self._kept:
            self._kept.move_to_end(query)
        return self._kept.get(query)

    def keep(self, query: str, window: Window) -> None:
        """Keep a window of a filter instead of the last one."""
        self._kept[query] = window
        self._kept.move_to_end(query)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)


class NewestFirst:
    """The tasks that match a filter, by a time of theirs, the newest first; of the same time, by id.

    Args:
        client: Where they are.
        query: The filter.
        within: Narrows it to a window of time.
        time_of: The time that `within` goes by.
        windows: The last windows, which the search begins with; None begins without.
        begins: What their ids begin with. Asked here too, since some servers do not tell upper case from lower there.
    """

    def __init__(
        self,
        client: Client,
        query: str,
        within: Within,
        time_of: TimeOf,
        windows: Windows | None = None,
        *,
        begins: str = "",
    ) -> None:
        self.client, self.query, self.within, self.time_of, self.begins = client, query, within, time_of, begins
        self.windows = Windows() if windows is None else windows

    async def page(
        self, limit: int, *, since: datetime = EPOCH, after: tuple[datetime, str] | None = None
    ) -> list[WorkflowExecution]:
        """The next `limit` tasks, or all that are left.

        Args:
            limit: At least 1.
            since: The oldest time that counts.
            after: Time and id of the task that the page before ended with.
        """
        found: list[WorkflowExecution] = []
        high = None if after is None else after[0] + MOMENT
        async for rows in self._windows(limit, since, high):
            mine = [row for row in rows if row.id.startswith(self.begins)]
            rest = [row for row in mine if after is None or self._place(row) > (EPOCH - after[0], after[1])]
            size = min(BATCH, max(limit, FEWEST))  # mostly none is dropped, so that no more are needed
            for start in range(0, len(rest), size):
                found += await self._newest_runs(rest[start : start + size])
                if len(found) >= limit:
                    return found[:limit]
        return found

    def _place(self, row: WorkflowExecution) -> tuple[timedelta, str]:
        return EPOCH - self.time_of(row), row.id

    async def _windows(
        self, needed: int, floor: datetime, high: datetime | None
    ) -> AsyncIterator[list[WorkflowExecution]]:
        """What is in one window after another, in order, back to `floor`."""
        newest = high is None
        while high is None or high > floor:
            low, rows = await self._next(needed, floor, high)
            if newest and rows and (low > floor or len(rows) > needed + SPARE):
                oldest = self.time_of(rows[: needed + SPARE][-1])
                self.windows.keep(self.query, Window(low=oldest, span=self.time_of(rows[0]) - oldest))
            yield rows
            if low <= floor:
                return
            high = low

    async def _next(
        self, needed: int, floor: datetime, high: datetime | None
    ) -> tuple[datetime, list[WorkflowExecution]]:
        """The start of the next window, and the tasks in it, in order."""
        known = self.windows.of(self.query)
        if high is None and known is not None and known.low > floor:
            # Tasks have only come since, so that the last window is as good as it was until they are too many.
            most = _most(needed)
            rows = await self._rows(known.low, None, limit=most + 1)
            if len(rows) <= most:
                return known.low, self._sorted(rows, known.low, None)
        low = await self._low(needed, floor, high)
        return low, self._sorted(await self._rows(low, high), low, high)

    async def _rows(self, low: datetime, high: datetime | None, limit: int | None = None) -> list[WorkflowExecution]:
        query = self._within(max(EPOCH, low - SLACK), None if high is None else high + SLACK)
        return [row async for row in self.client.list_workflows(query, limit=limit)]

    def _within(self, low: datetime, high: datetime | None) -> str:
        """The filter for a window; without a time where the window is all of it, as the server finds that sooner."""
        return self.query if low <= EPOCH and high is None else f"{self.query} AND {self.within(low, high)}"

    def _sorted(
        self, rows: Sequence[WorkflowExecution], low: datetime, high: datetime | None
    ) -> list[WorkflowExecution]:
        held = [row for row in rows if low <= self.time_of(row) and (high is None or self.time_of(row) < high)]
        return sorted(held, key=self._place)

    async def _low(self, needed: int, floor: datetime, high: datetime | None) -> datetime:
        """The start of a window that holds at least the tasks needed and not many more."""
        most = _most(needed)
        if await self._count(floor, high) <= most:
            return floor
        end = high or max(datetime.now(UTC), floor + MOMENT)
        few, many = end, floor  # a window from `few` on holds too few tasks, one from `many` on too many
        known = None if high is None else self.windows.of(self.query)
        span = FIRST_SPAN if known is None else max(known.span, MOMENT)
        while few - many > MOMENT:
            # In growing steps first, since the tasks are mostly recent; then by bisection.
            if span and (low := end - span) > many:
                span *= GROWTH
            else:
                low, span = many + (few - many) / 2, timedelta()
            held = await self._count(low, high)
            if held < needed:
                few = low
            elif held > most:
                many = low
            else:
                return low
        return many

    async def _count(self, low: datetime, high: datetime | None) -> int:
        return (await self.client.count_workflows(self._within(low, high))).count

    async def _newest_runs(self, rows: Sequence[WorkflowExecution]) -> list[WorkflowExecution]:
        """Drop runs that a reset replaced: a newer run of the same id holds the task."""
        ended = {row.id for row in rows if row.status is not WorkflowExecutionStatus.RUNNING}
        if not ended:
            return list(rows)
        ids = ", ".join(quoted(id) for id in sorted(ended))
        latest: dict[str, WorkflowExecution] = {}
        async for run in self.client.list_workflows(f"WorkflowId IN ({ids}) AND ExecutionStatus != 'ContinuedAsNew'"):
            if run.id not in latest or run.start_time > latest[run.id].start_time:
                latest[run.id] = run
        return [row for row in rows if row.id not in ended or latest.get(row.id, row).run_id == row.run_id]


def _most(needed: int) -> int:
    return max(min(needed * ROOM, needed + MORE), FEW)
