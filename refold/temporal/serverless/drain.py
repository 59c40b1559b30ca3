"""A worker that ends when its task queue is empty: nothing runs here, and the server has nothing to give.

A task that waits for a person, a timer or a callback is not in the queue: the next worker goes on with it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
    Plugin,
    ReplayerConfig,
    Worker,
    WorkerConfig,
)

from refold.engine.arguments import takes
from refold.seen.logs import logger
from refold.temporal.data.search_attributes import quoted

QUIET_S = 2.0
"""How long, in seconds, the worker must be idle and the queue empty before the worker ends. A task's next step comes
within milliseconds, unless its history is long."""

STUCK_S = 60.0
"""How long, in seconds, a worker waits while the queue is not empty and the server gives it nothing, or while the
server does not say what is in the queue."""

LOOK_S = 0.1
LEAST_QUIET_S = 0.1

KINDS = (TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY)

log = logger(__name__)


class Drained(Plugin, Interceptor):
    """Stops its worker once the task queue is empty; a plugin of one worker.

    Args:
        quiet_s: See `QUIET_S`.
        effects: Stop it after so many effects, too; None is no limit. Effects under way by then have the worker's grace
            to finish.

    Raises:
        ValueError: `quiet_s` is less than 0.1, or `effects` less than 1.
    """

    @takes(ValueError)
    def __init__(self, quiet_s: float = QUIET_S, effects: int | None = None) -> None:
        if not quiet_s >= LEAST_QUIET_S or (effects is not None and effects < 1):
            raise ValueError(
                f"Drained(quiet_s={quiet_s!r}, effects={effects!r}): quiet_s is {LEAST_QUIET_S} or more; effects is 1 "
                "or more, or None for no limit"
            )
        self.quiet_s = quiet_s
        self.effects = effects
        self.running = self.done = 0
        self.away = False  # the server did not answer when it was last asked
        self.enough = asyncio.Event()
        self.done_at = time.monotonic()

    def anew(self) -> Drained:
        """The same for another worker."""
        return Drained(self.quiet_s, self.effects)

    def name(self) -> str:
        """See the SDK."""
        return "refold.drain"

    def configure_worker(self, config: WorkerConfig) -> WorkerConfig:
        """See the SDK. Counts the effects that run."""
        config["interceptors"] = [*config.get("interceptors", ()), self]
        return config

    def configure_replayer(self, config: ReplayerConfig) -> ReplayerConfig:
        """See the SDK."""
        return config

    def run_replayer(self, replayer: Any, histories: Any, next: Any) -> Any:
        """See the SDK."""
        return next(replayer, histories)

    async def run_worker(self, worker: Worker, next: Callable[[Worker], Awaitable[None]]) -> None:
        """See the SDK. Shuts the worker down when the queue is empty; then it leaves as any other.

        The worker itself is awaited: canceled, as at the deadline of a Lambda call, it gives its effects their grace.
        """
        stopping = asyncio.ensure_future(self._stop_when_empty(worker))
        try:
            await next(worker)
        finally:
            stopping.cancel()

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See the SDK."""
        return _Counting(next, self)

    def ended(self) -> None:
        """An effect has ended. The worker stops at once if it was the last one: the next would begin within moments."""
        self.running -= 1
        self.done += 1
        self.done_at = time.monotonic()
        if self.done == self.effects:
            self.enough.set()

    async def _stop_when_empty(self, worker: Worker) -> None:
        try:
            await self._empty(worker)
        except Exception:
            log.exception("drain_failed")  # it ends too soon rather than never
        await worker.shutdown()

    async def _empty(self, worker: Worker) -> None:
        """Comes back once the queue is empty, or enough is done."""
        self.done_at = taken_at = time.monotonic()
        before = 0
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.enough.wait(), LOOK_S)
                return
            idle_s = time.monotonic() - self.done_at
            if self.running or idle_s < self.quiet_s:
                continue
            left = await self._left(worker)
            if left is not None:
                if left < before:  # a worker took some: not each asks for an effect
                    taken_at = time.monotonic()
                before = left
            if left == 0 or time.monotonic() - max(self.done_at, taken_at) > STUCK_S:
                still = await open_tasks(worker.client, worker.task_queue)
                log.info("queue_empty" if left == 0 else "queue_stands_still", left=left, open_tasks=still)
                return

    async def _left(self, worker: Worker) -> int | None:
        try:
            left = await backlog(worker.client, worker.task_queue)
        except RPCError as error:
            if not self.away:
                log.warning("backlog_unknown", task_queue=worker.task_queue, error=error.message)
            self.away = True
            return None
        self.away = False
        return left


class _Counting(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, drained: Drained) -> None:
        super().__init__(next)
        self.drained = drained

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        self.drained.running += 1
        try:
            return await super().execute_activity(input)
        finally:
            self.drained.ended()


async def backlog(client: Client, task_queue: str) -> int:
    """How much the server has to give to workers of a task queue, about.

    Raises:
        RPCError: The server refuses, or does not answer.
    """
    left = 0
    for kind in KINDS:
        request = DescribeTaskQueueRequest(
            namespace=client.namespace, task_queue=TaskQueue(name=task_queue), task_queue_type=kind, report_stats=True
        )
        answer = await client.workflow_service.describe_task_queue(request, retry=True)
        left += answer.stats.approximate_backlog_count
    return left


async def open_tasks(client: Client, task_queue: str) -> int | None:
    """How many tasks of a task queue are open; None if the server does not tell. May lag by moments."""
    try:
        query = f"TaskQueue = {quoted(task_queue)} AND ExecutionStatus = 'Running'"
        return (await client.count_workflows(query)).count
    except RPCError:
        return None
