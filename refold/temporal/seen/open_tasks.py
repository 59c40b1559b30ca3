"""What the server says of open tasks and task queues, as gauges: also while no worker is there to say anything.

One process asks, `refold metrics`, at a bounded pace: a look takes a few queries for each state, however many tasks
there are, and the pause after it is twenty times as long as it took, but two minutes at the most.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import PollerInfo, TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client, WorkflowExecution
from temporalio.service import RPCError

from refold.core.lifecycle import TaskState
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import level
from refold.temporal.client.fleet.polling import POLLING_S
from refold.temporal.client.index.search import IN_LISTS, UNTAKEN, until
from refold.temporal.data.search_attributes import SKILL, STATE, STATE_AT, STATUS_AT, quoted, state_since

EVERY_S = 15.0
"""The pause between two looks, in seconds; longer where a look takes long."""

SHARE = 20
"""The pause is at least this many times as long as the look before it, up to `MOST_PAUSE_S`."""

MOST_PAUSE_S = 120.0
"""The longest pause between two looks, in seconds: `RefoldOpenTasksUnknown` fires after five minutes without one."""

LISTED = 100
"""How many tasks of a state are listed. If there are more, they are counted instead."""

AGES = tuple(
    timedelta(seconds=seconds)
    for seconds in (30 * 86400, 7 * 86400, 86400, 4 * 3600, 2 * 3600, 3600, 1800, 600, 300, 120, 30)
)
"""Where more tasks are in a state than are listed: the ages at which the oldest is looked for, greatest first. The
thresholds of the alerts about the oldest task are among them."""

PATIENCE = timedelta(seconds=10)
"""How long the server may take for one answer."""

OPEN = f"{IN_LISTS} AND ExecutionStatus = 'Running'"

QUEUE_KINDS = {
    "workflow": TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW,
    "activity": TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
}

log = logger("refold.seen")


def in_state(state: str) -> str:
    """A filter for the open tasks in one of `metrics.OPEN_STATES`."""
    if state == "untaken":
        return f"{OPEN} AND {UNTAKEN}"
    found = f"{OPEN} AND {STATE.name} = {quoted(state)}"
    return f"{found} AND NOT {UNTAKEN}" if state == TaskState.RUNNING else found


def since_before(moment: datetime, state: str) -> str:
    """A filter for tasks that came to one of `metrics.OPEN_STATES` before a moment; see `_since`."""
    if state == "untaken":
        return until("ExecutionTime", moment)
    shown = f"{until(STATUS_AT.name, moment)} AND ({STATE_AT.name} IS NULL OR {until(STATE_AT.name, moment)})"
    return f"(({shown}) OR ({STATUS_AT.name} IS NULL AND {until('StartTime', moment)}))"


def least_pause_s(took_s: float, before_s: float) -> float:
    """The shortest pause after a look: `SHARE` times the faster of the last two looks, up to `MOST_PAUSE_S`.

    So a single slow look, such as during a restart of the server, lengthens no pause.
    """
    return min(MOST_PAUSE_S, SHARE * min(took_s, before_s))


class OpenTasks:
    """Asks the server for open tasks and task queues, and sets the gauges.

    Args:
        client: Connected.
        queues: The task queues to look at.
        every_s: The pause between two looks, in seconds.

    Attributes:
        looked: Set after the first look, also if the server did not answer.
    """

    def __init__(self, client: Client, queues: Sequence[str], *, every_s: float = EVERY_S) -> None:
        self._client = client
        self._queues = tuple(dict.fromkeys(queues))
        self._every_s = every_s
        self._skills: set[str] = set()
        self._server_ahead_s = float("-inf")
        self.looked = asyncio.Event()

    async def run(self) -> None:
        """Look again and again, until canceled. While the server does not answer, the gauges stay as they were, and
        `refold_open_tasks_asked_at_seconds` says since when."""
        away, before_s = False, 0.0
        while True:
            began = time.monotonic()
            try:
                await self.look()
                away = False
            except RPCError as error:
                if not away:
                    log.warning("open_tasks_unknown", error=error.message)
                away = True
            self.looked.set()
            took_s = time.monotonic() - began
            await asyncio.sleep(max(self._every_s, least_pause_s(took_s, before_s)))
            before_s = took_s

    async def look(self) -> None:
        """Ask once for everything.

        Raises:
            RPCError: The server refuses, or does not answer.
        """
        for queue in self._queues:
            for kind in QUEUE_KINDS:
                await self._queue(queue, kind)
        for state in metrics.OPEN_STATES:
            await self._state(state)
        level(metrics.ASKED_AT, time.time())

    async def _state(self, state: str) -> None:
        now, wanted = datetime.now(UTC), in_state(state)
        found = await self._listed(wanted)
        counts = self._by_skill(found)
        if len(found) > LISTED:
            found = await self._oldest(state, now) or found
            self._by_skill(found)  # the old ones may have other skills
            counts = await self._counted(wanted)
        told = {skill: counts[skill] for skill in self._skills}
        for skill, number in {**told, metrics.OTHER: counts.total() - sum(told.values())}.items():
            level(metrics.OPEN_TASKS, number, skill, state)
        oldest = min((_since(one, state) for one in found), default=now)
        level(metrics.OLDEST_TASK, max(0.0, (now - oldest).total_seconds()), state)

    def _by_skill(self, found: Sequence[WorkflowExecution]) -> Counter[str]:
        """How many tasks there are of each skill. The first skills that are found are told apart from now on."""
        counts = Counter(map(_skill, found))
        for skill in counts:
            if skill != metrics.OTHER and len(self._skills) < metrics.SKILL.most:
                self._skills.add(skill)
        return counts

    async def _listed(self, wanted: str) -> list[WorkflowExecution]:
        """The newest tasks, one more than `LISTED` if there are more."""
        found = self._client.list_workflows(wanted, page_size=LISTED + 1, limit=LISTED + 1, rpc_timeout=PATIENCE)
        return [one async for one in found]

    async def _oldest(self, state: str, now: datetime) -> list[WorkflowExecution]:
        for age in AGES:
            if found := await self._listed(f"{in_state(state)} AND {since_before(now - age, state)}"):
                return found
        return []

    async def _counted(self, wanted: str) -> Counter[str]:
        counts = Counter[str]()
        for skill in self._skills:
            counts[skill] = await self._count(f"{wanted} AND {SKILL.name} = {quoted(skill)}")
        counts[metrics.OTHER] += max(0, await self._count(wanted) - counts.total())
        return counts

    async def _count(self, wanted: str) -> int:
        return (await self._client.count_workflows(wanted, rpc_timeout=PATIENCE)).count

    async def _queue(self, queue: str, kind: str) -> None:
        request = DescribeTaskQueueRequest(
            namespace=self._client.namespace,
            task_queue=TaskQueue(name=queue),
            task_queue_type=QUEUE_KINDS[kind],
            report_stats=True,
        )
        said = await self._client.workflow_service.describe_task_queue(request, retry=False, timeout=PATIENCE)
        level(metrics.QUEUE_POLLERS, self._polling(said.pollers), queue, kind)
        level(metrics.QUEUE_BACKLOG, max(0, said.stats.approximate_backlog_count), queue, kind)
        level(metrics.QUEUE_AGE, max(0.0, said.stats.approximate_backlog_age.ToNanoseconds() / 1e9), queue, kind)

    def _polling(self, pollers: Iterable[PollerInfo]) -> int:
        """How many of the workers poll now.

        The server does not tell its time, and this machine's clock may be ahead. The newest poll of any queue tells the
        server's time, and the monotonic clock what has passed since. Until a worker polls, it is the time of the last
        poll before the first look: workers that were gone by then count for up to `POLLING_S` more.
        """
        polled = [one.last_access_time.ToNanoseconds() / 1e9 for one in pollers]
        here = time.monotonic()
        self._server_ahead_s = max(self._server_ahead_s, *(at - here for at in polled), float("-inf"))
        return sum(at >= here + self._server_ahead_s - POLLING_S for at in polled)


def _skill(execution: WorkflowExecution) -> str:
    return execution.typed_search_attributes.get(SKILL) or metrics.OTHER


def _since(execution: WorkflowExecution, state: str) -> datetime:
    """When a task came to its state. An untaken one has waited since its run was to begin: the task itself may have
    been running for days, and goes on in a new run that no worker has taken yet."""
    if state == "untaken":
        return execution.execution_time or execution.start_time
    return state_since(execution.typed_search_attributes) or execution.start_time
