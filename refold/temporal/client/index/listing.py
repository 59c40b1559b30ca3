"""Listing, finding and counting tasks by what the server's index knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from functools import partial

from temporalio.client import WorkflowExecutionStatus

from refold.engine import CodecError, Listed, Place, StorageError, TaskFilter, TaskNotFound, TaskView
from refold.formats import NewerFormat
from refold.temporal.client import views
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import refusals
from refold.temporal.client.index import search
from refold.temporal.client.index.newest_first import EPOCH, NewestFirst

AT_ONCE = 10
"""How many tasks are looked at together."""


async def list_views(connection: Connection, wanted: TaskFilter, limit: int) -> AsyncIterator[TaskView]:
    """The tasks that were started last, each as its worker sees it."""
    query = search.tasks(wanted)
    by_start = NewestFirst(connection.client, query, partial(search.within, "StartTime"), lambda row: row.start_time)
    with refusals("list tasks"):
        newest = await by_start.page(limit)
    ids = list(dict.fromkeys(row.id for row in newest))  # one that goes on in a new run just now may be there twice
    for start in range(0, len(ids), AT_ONCE):
        for view in await asyncio.gather(*(_listed(connection, id) for id in ids[start : start + AT_ONCE])):
            if view is not None:
                yield view


async def _listed(connection: Connection, task_id: str) -> TaskView | None:
    try:
        description = await connection.describe(task_id)  # the run in the list may have been continued since
        terminated = description.status is WorkflowExecutionStatus.TERMINATED
        if terminated and await views.start_was_refused(connection, description):
            return None  # a server may take minutes to delete it
        try:
            return await views.view_of(connection, description)
        except (StorageError, CodecError, NewerFormat) as error:
            return views.unanswered(description, str(error))  # it must not hide the others
    except TaskNotFound:
        return None  # it went between the list and the look


async def find(connection: Connection, wanted: TaskFilter, *, after: Place | None, limit: int) -> Sequence[Listed]:
    """See `Engine.find`."""
    query = search.tasks(wanted)
    begins = wanted.begins or ""
    by_status = NewestFirst(
        connection.client, query, search.status_within, search.status_at, connection.windows, begins=begins
    )
    with refusals("list tasks"):
        found = await by_status.page(
            limit, since=_since(wanted), after=None if after is None else (after.at, after.task_id)
        )
    return [search.as_listed(one) for one in found]


async def count(connection: Connection, wanted: TaskFilter) -> int:
    """See `Engine.count`."""
    query = search.tasks(wanted)
    if wanted.since is not None:
        since = _since(wanted)
        # By the millisecond, for that is how some servers compare.
        since = since.replace(microsecond=since.microsecond // 1000 * 1000)
        query += f" AND {search.status_within(since, None)}"
    with refusals("count tasks"):
        return (await connection.client.count_workflows(query)).count


def _since(wanted: TaskFilter) -> datetime:
    return EPOCH if wanted.since is None else max(wanted.since, EPOCH)
