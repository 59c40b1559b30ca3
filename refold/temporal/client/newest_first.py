"""Pages of tasks, newest first, an order that the server does not sort by: windows of time, back until a page is full.

Rule 1: the server is asked to count and to filter, nothing else. What is in a window is sorted here.
Rule 2: a window holds a few pages at most, unless so many tasks share one moment.
Rule 3: the server may compare times by the millisecond (SQLite does) and gives them back by the microsecond, so it is
        asked for a little more than a window, and what is in it is settled here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta

from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus

from refold.temporal.client.search import quoted

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOMENT = timedelta(microseconds=1)
"""What two times differ by at least."""

SLACK = timedelta(milliseconds=1)
"""How much the server's comparison may be off."""

FIRST_SPAN = timedelta(minutes=10)
GROWTH = 8
ROOM = 4
"""How many times more than is needed a window may hold."""

FEW = 200
"""What a window may hold in any case: to read them is quicker than to find a smaller one."""

BATCH = 100

Within = Callable[[datetime, datetime | None], str]
"""A filter for the tasks whose time is at or after the first, and before the second; None has no end."""

TimeOf = Callable[[WorkflowExecution], datetime]


class NewestFirst:
    """The tasks that match a filter, by a time of theirs, the newest first; of the same time, by id.

    Args:
        client: Where they are.
        query: The filter.
        within: Narrows it to a window of time.
        time_of: The time that `within` goes by.
    """

    def __init__(self, client: Client, query: str, within: Within, time_of: TimeOf) -> None:
        self.client, self.query, self.within, self.time_of = client, query, within, time_of

    async def page(
        self, limit: int, *, since: datetime = EPOCH, after: tuple[datetime, str] | None = None
    ) -> list[WorkflowExecution]:
        """The next tasks, `limit` of them or all there are.

        Args:
            limit: At least 1.
            since: The oldest time that counts.
            after: Time and id of the task that the page before ended with.
        """
        found: list[WorkflowExecution] = []
        high = None if after is None else after[0] + MOMENT
        async for rows in self._windows(limit, since, high):
            rest = [row for row in rows if after is None or self._place(row) > (EPOCH - after[0], after[1])]
            for start in range(0, len(rest), BATCH):
                found += await self._newest_runs(rest[start : start + BATCH])
                if len(found) >= limit:
                    return found[:limit]
        return found

    def _place(self, row: WorkflowExecution) -> tuple[timedelta, str]:
        return EPOCH - self.time_of(row), row.id

    async def _windows(
        self, needed: int, floor: datetime, high: datetime | None
    ) -> AsyncIterator[list[WorkflowExecution]]:
        """What is in one window after another, in order, back to `floor`."""
        while high is None or high > floor:
            low = await self._low(needed, floor, high)
            yield await self._window(low, high)
            if low <= floor:
                return
            high = low

    async def _window(self, low: datetime, high: datetime | None) -> list[WorkflowExecution]:
        query = f"{self.query} AND {self.within(low - SLACK, None if high is None else high + SLACK)}"
        rows = [row async for row in self.client.list_workflows(query)]
        held = [row for row in rows if low <= self.time_of(row) and (high is None or self.time_of(row) < high)]
        return sorted(held, key=self._place)

    async def _low(self, needed: int, floor: datetime, high: datetime | None) -> datetime:
        """Where a window begins that holds what is needed and not much more."""
        most = max(needed * ROOM, FEW)
        if await self._count(floor, high) <= most:
            return floor
        end = high or max(datetime.now(UTC), floor + MOMENT)
        few, many = end, floor  # a window from `few` on holds too few tasks, one from `many` on too many
        span = FIRST_SPAN
        while few - many > MOMENT:
            # In growing steps at first: what is wanted is mostly near. Then by halves.
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
        return (await self.client.count_workflows(f"{self.query} AND {self.within(low, high)}")).count

    async def _newest_runs(self, rows: Sequence[WorkflowExecution]) -> list[WorkflowExecution]:
        """Without runs that a reset left behind: their task is in another one, under the same id."""
        ended = {row.id for row in rows if row.status is not WorkflowExecutionStatus.RUNNING}
        if not ended:
            return list(rows)
        ids = ", ".join(quoted(id) for id in sorted(ended))
        latest: dict[str, WorkflowExecution] = {}
        async for run in self.client.list_workflows(f"WorkflowId IN ({ids}) AND ExecutionStatus != 'ContinuedAsNew'"):
            if run.id not in latest or run.start_time > latest[run.id].start_time:
                latest[run.id] = run
        return [row for row in rows if row.id not in ended or latest.get(row.id, row).run_id == row.run_id]
