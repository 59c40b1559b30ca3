"""Lists a caller's tasks by page, the latest change of status first.

A list always answers: a page ends before it becomes too large, and a task that cannot be shown whole is shown short.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from a2a.types import ListTasksRequest, ListTasksResponse, Task
from a2a.types import TaskState as A2AState
from a2a.utils.constants import DEFAULT_LIST_TASKS_PAGE_SIZE
from a2a.utils.errors import InvalidParamsError
from a2a.utils.task import (
    ListTasksCursor,
    apply_history_length,
    decode_list_tasks_cursor,
    encode_list_tasks_cursor,
)

from refold.a2a.caller import owns
from refold.a2a.convert import STATE, context_of, short_task_of, task_of
from refold.engine import Engine, EngineError, Listed, NotConnected, Place, TaskFilter, TaskNotFound
from refold.record import TaskRecord

FIRST_READ = 10
"""How many tasks of a page are read at once before it is known how large they are; then twice as many each time."""

PAGE_BYTES = 3 * 1024 * 1024
"""The most that the tasks of a page take. A message over gRPC has at most 4 MiB, for most clients."""

TOO_LARGE = "this task is too large for a list; get it by its id"
NOT_SHOWN = "this task cannot be shown whole; whoever runs the agent finds the reason in the log"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_NS = 2**63
LATEST = datetime.max.replace(tzinfo=UTC)
STATUS = {state: status for status, state in STATE.items()}

logger = logging.getLogger("refold.a2a")


class Listing:
    """Lists tasks for callers."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    async def page(self, request: ListTasksRequest, caller: str | None, *, tenant: str = "") -> ListTasksResponse:
        """One page of the caller's tasks. The request's history length and page size are checked already.

        Under a tenant, which names a skill, the list contains that skill's tasks only. The server's index, which may
        lag by moments, selects the tasks of a page; each task's status is read from the task itself, and a task that no
        longer fits the filter is left out.

        Raises:
            InvalidParamsError: The status, time or page token is malformed.
        """
        wanted = _filter(request, caller, request.tenant or tenant)
        size = request.page_size or DEFAULT_LIST_TASKS_PAGE_SIZE
        # One more than the page size, to learn whether there is another page.
        found, total = await asyncio.gather(
            self.engine.find(wanted, after=_place(request.page_token), limit=size + 1), self.engine.count(wanted)
        )
        shown: list[tuple[TaskRecord, Task]] = []
        read, left, ahead = 0, PAGE_BYTES, FIRST_READ
        while left >= 0 and read < min(size, len(found)):
            for record in await self._read(found[read : min(read + ahead, size)]):
                if record is not None and _still(record, wanted, caller):
                    task = _shown(record, request)
                    left -= task.ByteSize()
                    if left < 0 and shown:
                        break  # the next page begins with this task
                    shown.append((record, task))
                read += 1
            ahead *= 2
        shown.sort(key=lambda one: (EPOCH - one[0].status_at, one[0].task_id))
        return ListTasksResponse(
            tasks=[task for _, task in shown],
            next_page_token=_token(found[read - 1].place) if len(found) > read else "",
            page_size=size,
            total_size=total,
        )

    async def _read(self, found: Sequence[Listed]) -> list[TaskRecord | None]:
        """The tasks, in this order; None for one that is gone, or cannot be read."""

        async def one(listed: Listed) -> TaskRecord | None:
            try:
                return await self.engine.record(listed.task_id)
            except TaskNotFound:
                return None  # deleted meanwhile
            except NotConnected:
                raise
            except EngineError as error:
                # One task that cannot be read must not hide the others.
                logger.error("task %s is left out of a list: %s", listed.task_id, error)
                return None

        return await asyncio.gather(*map(one, found))


def check_status(request: ListTasksRequest, written: object) -> None:
    """Check the status that a caller wrote: the SDK would ignore an unknown one and list everything.

    Args:
        request: As the SDK parsed it.
        written: The status as the caller wrote it; None if it wrote none.

    Raises:
        InvalidParamsError: There is no such status.
    """
    none = ("", 0, A2AState.Name(A2AState.TASK_STATE_UNSPECIFIED))
    if written is not None and request.status == A2AState.TASK_STATE_UNSPECIFIED and written not in none:
        raise _no_status(repr(written))


def _no_status(written: str) -> InvalidParamsError:
    states = ", ".join(A2AState.Name(state) for state in STATUS)
    return InvalidParamsError(f"there is no status {written}; there are {states}")


def _filter(request: ListTasksRequest, caller: str | None, tenant: str) -> TaskFilter:
    status = STATUS.get(request.status)
    if status is None and request.status != A2AState.TASK_STATE_UNSPECIFIED:
        raise _no_status(str(request.status))
    return TaskFilter(
        skill=tenant or None,
        owner=caller or "",
        context=request.context_id or None,
        status=status,
        since=_since(request) if request.HasField("status_timestamp_after") else None,
    )


def _since(request: ListTasksRequest) -> datetime:
    after = request.status_timestamp_after
    try:
        at = after.ToDatetime(UTC)
    except ValueError:
        raise InvalidParamsError("statusTimestampAfter is no time between the years 1 and 9999") from None
    # Times are stored to the microsecond, so the next microsecond comes after a stored time.
    return at + timedelta(microseconds=1) if after.nanos % 1000 and at < LATEST else at


def _place(token: str) -> Place | None:
    if not token:
        return None
    cursor = decode_list_tasks_cursor(token) if token.isascii() else None
    if cursor is None or cursor.timestamp_ns is None or not 0 <= cursor.timestamp_ns < LATEST_NS:
        raise InvalidParamsError("pageToken was not issued by this agent")
    return Place(at=EPOCH + timedelta(microseconds=cursor.timestamp_ns // 1000), task_id=cursor.task_id)


def _token(place: Place) -> str:
    micros = (place.at - EPOCH) // timedelta(microseconds=1)
    return encode_list_tasks_cursor(ListTasksCursor(timestamp_ns=micros * 1000, task_id=place.task_id))


def _still(record: TaskRecord, wanted: TaskFilter, caller: str | None) -> bool:
    """Whether a task fits the filter, by its own record. This checks the owner once more."""
    return (
        owns(caller, record)
        and wanted.status in (None, record.status)
        and wanted.context in (None, context_of(record))
        and (wanted.since is None or record.status_at >= wanted.since)
    )


def _shown(record: TaskRecord, request: ListTasksRequest) -> Task:
    """A task in a list: without history unless a length is asked for, and short if it cannot be shown whole."""
    try:
        task = task_of(record)
    except Exception:
        logger.exception("task %s cannot be shown", record.task_id)
        return short_task_of(record, NOT_SHOWN)
    if not request.include_artifacts:
        task.ClearField("artifacts")
    if not request.HasField("history_length"):
        task.ClearField("history")
    task = apply_history_length(task, request)
    return task if task.ByteSize() <= PAGE_BYTES else short_task_of(record, TOO_LARGE)
