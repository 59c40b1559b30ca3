"""Sets, lists and removes webhooks. The workflow that delivers to a webhook stores it; see `delivery.workflow_id`."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from types import TracebackType
from typing import Self
from urllib.parse import unquote

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WithStartWorkflowOperation,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from refold.core.errors import InputRejected
from refold.effects.webhooks.post import Poster
from refold.engine import EngineError, NoWorker
from refold.engine.arguments import defining, takes
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count
from refold.temporal.client.connection import UPDATE_PATIENCE
from refold.temporal.client.engine import TemporalEngine
from refold.temporal.client.errors import cancelable, server_refused
from refold.temporal.client.updates import ABORTED
from refold.temporal.seen.runtime import follow
from refold.temporal.webhooks.delivery import GONE, HEARTBEATS, REMOVED, Courier, Delivery, WebhookDelivery
from refold.temporal.webhooks.names import WORKFLOW, workflow_id
from refold.temporal.worker.heartbeats import LossyHeartbeats
from refold.temporal.worker.profile import DEFAULT, Profile
from refold.webhooks import Feed, Webhook

MOST_OF_A_TASK = 64
"""The most webhooks of one task."""

LONGEST_ID = 1_000
"""The most characters of a workflow's id, which has those of the task and the webhook in it, percent-encoded."""

AT_ONCE = 10_000
"""The most deliveries that one process runs at once."""

KEPT_IN_MEMORY = 500
"""The most delivery workflows cached in one process; others are replayed when needed, which is quick."""

STICKY = timedelta(seconds=1)
"""How long a workflow task waits for the process that has the workflow cached. Another process replays it quickly."""

READ_AT_ONCE = 100
"""The most webhooks of a task that are read at once."""

LISTED_WITHIN_S = 2.0
"""How long the creation of a webhook waits for the server's index to list it, in seconds."""

AGAIN_S = 5.0
"""The pause before a failed worker is restarted, in seconds."""

TRIES = 5
"""The most attempts at a change while the webhook's workflow is ending."""

ENDING_S = 0.2
"""The pause between such attempts, in seconds."""

_UNANSWERED = frozenset({RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})

log = logger("refold.webhooks")


@takes(defining("TemporalWebhooks", "webhooks"))
class TemporalWebhooks:
    """See `refold.webhooks.Webhooks`. Delivers inside its `async with` block; several processes may share the work."""

    def __init__(
        self,
        engine: TemporalEngine,
        feed: Feed,
        poster: Poster | None = None,
        *,
        loopback: bool = False,
        recovery: Profile = DEFAULT,
        task_queue: str | None = None,
    ) -> None:
        """Deliver nothing yet.

        Args:
            engine: The engine of the tasks.
            feed: Produces the updates of a task.
            poster: Posts updates; closed with this object. None takes `Poster.from_env`.
            loopback: Allow receivers on this host too; only if `poster` is None.
            recovery: The timeouts after which another process takes over the deliveries of a lost one.
            task_queue: The task queue of all processes that deliver for the same tasks; None adds `-webhooks` to the
                engine's.

        Raises:
            DefinitionError: An argument is not what it should be, or a setting cannot be read.
        """
        self.task_queue = task_queue or f"{engine.task_queue}-webhooks"
        self._client = engine.client
        self._heartbeat_s = recovery.heartbeat.total_seconds() * HEARTBEATS
        self._poster = poster or Poster.from_env(loopback=loopback)
        self._courier = Courier(self._client, feed, self._poster)
        self._worker: Worker | None = None
        self._delivering: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        follow(self._client)
        count(metrics.WEBHOOKS, "given_up", by=0)
        self._delivering = asyncio.create_task(self._deliver())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._delivering is not None
        if self._worker is not None and self._worker.is_running:
            await self._worker.shutdown()
        self._delivering.cancel()
        await asyncio.gather(self._delivering, return_exceptions=True)
        await self._poster.aclose()

    async def _deliver(self) -> None:
        """Run the delivery worker; restart it after a failure."""
        while True:
            self._worker = worker = Worker(
                self._client,
                task_queue=self.task_queue,
                workflows=[WebhookDelivery],
                activities=[self._courier.deliver],
                interceptors=[LossyHeartbeats(self._client.data_converter)],
                workflow_runner=UnsandboxedWorkflowRunner(),
                max_concurrent_activities=AT_ONCE,
                max_cached_workflows=KEPT_IN_MEMORY,
                sticky_queue_schedule_to_start_timeout=STICKY,
                max_heartbeat_throttle_interval=timedelta(milliseconds=100),
            )
            try:
                await worker.run()
                return
            except (RPCError, RuntimeError) as failure:  # RuntimeError is how the SDK says that it cannot poll
                log.error("webhooks_stand_still", error=str(failure), task_queue=self.task_queue)
            self._worker = None
            await asyncio.sleep(AGAIN_S)

    async def check(self, task_id: str, webhook: Webhook) -> None:
        """See `Webhooks.check`."""
        await self._poster.check(webhook)
        if (length := len(workflow_id(task_id, webhook.id))) > LONGEST_ID:
            raise InputRejected(
                f"the webhook's id is too long: percent-encoded and with the task's id, it takes {length:,} characters "
                f"of at most {LONGEST_ID:,}; give a shorter one, or one of letters and digits"
            )
        if await self._too_many(task_id, webhook.id):
            raise InputRejected(f"task {task_id!r} has {MOST_OF_A_TASK} webhooks, and takes no more; delete one first")

    async def put(self, task_id: str, webhook: Webhook, *, after: str | None = None) -> None:
        """See `Webhooks.put`."""
        await self.check(task_id, webhook)
        delivery = Delivery(task_id=task_id, id=webhook.id, after=after, heartbeat_s=self._heartbeat_s)
        first = await self._change(delivery, webhook)
        if first and after is None:
            await self._until_listed(task_id, webhook.id)

    async def get(self, task_id: str, id: str) -> Webhook | None:
        """See `Webhooks.get`."""
        handle = self._client.get_workflow_handle(workflow_id(task_id, id))
        try:
            return await handle.query(WebhookDelivery.webhook, rpc_timeout=UPDATE_PATIENCE)
        except RPCTimeoutOrCancelledError:
            raise self._nobody() from None
        except WorkflowQueryFailedError as error:
            raise EngineError(f"a webhook of task {task_id!r} cannot be read: {error.message}") from None
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise self._failed(error, f"read a webhook of task {task_id!r}") from None

    async def known(self, task_id: str, id: str) -> bool:
        """See `Webhooks.known`."""
        try:
            await self._client.get_workflow_handle(workflow_id(task_id, id)).describe()
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return False
            raise self._failed(error, f"read a webhook of task {task_id!r}") from None
        return True

    async def of_task(self, task_id: str) -> list[Webhook]:
        """See `Webhooks.of_task`."""
        # The server's index lags a little, so the default webhook id (the task's id) is always included.
        ids = sorted({*await self._listed(task_id), task_id})
        turns = asyncio.Semaphore(READ_AT_ONCE)
        found = await asyncio.gather(*(self._kept(task_id, id, turns) for id in ids))
        return [webhook for webhook in found if webhook is not None]

    async def _kept(self, task_id: str, id: str, turns: asyncio.Semaphore) -> Webhook | None:
        """As `get`, with one call and no query for a removed webhook: a task may have had thousands, and a gateway
        replays the webhook's workflow for each query.
        """
        last = GetWorkflowExecutionHistoryReverseRequest(
            namespace=self._client.namespace,
            execution=WorkflowExecution(workflow_id=workflow_id(task_id, id)),
            maximum_page_size=1,
        )
        async with turns:
            try:
                told = await self._client.workflow_service.get_workflow_execution_history_reverse(last, retry=True)
                # No other event has these attributes.
                done = told.history.events[0].workflow_execution_completed_event_attributes.result.payloads
                if done and (await self._client.data_converter.decode(done, [str]))[0] in (REMOVED, GONE):
                    return None
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    return None
                raise self._failed(error, f"read a webhook of task {task_id!r}") from None
            return await self.get(task_id, id)

    async def remove(self, task_id: str, id: str) -> None:
        """See `Webhooks.remove`."""
        if await self.get(task_id, id) is not None:
            await self._change(Delivery(task_id=task_id, id=id), None)

    async def _change(self, delivery: Delivery, webhook: Webhook | None) -> bool:
        """Update the webhook's workflow, started if none is open: a removal is recorded by a run too."""
        tries = TRIES
        while True:
            try:
                return await self._tell(delivery, webhook)
            except (WorkflowUpdateFailedError, RPCError) as error:
                refused = error.cause if isinstance(error, WorkflowUpdateFailedError) else None
                if isinstance(refused, ApplicationError) and refused.type == InputRejected.__name__:
                    raise InputRejected(refused.message) from None
                if isinstance(error, RPCError) and not _was_ending(error):
                    raise self._failed(error, f"keep a webhook of task {delivery.task_id!r}") from None
                tries -= 1  # the workflow ended during the update; the next attempt starts another run
                if not tries:
                    raise EngineError(f"a webhook of task {delivery.task_id!r} cannot be changed: {error}") from None
                await asyncio.sleep(ENDING_S)
            except RPCTimeoutOrCancelledError:
                raise self._nobody() from None

    async def _tell(self, delivery: Delivery, webhook: Webhook | None) -> bool:
        begin = WithStartWorkflowOperation(
            WebhookDelivery.run,
            delivery,
            id=workflow_id(delivery.task_id, delivery.id),
            task_queue=self.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
            static_summary=f"webhook of {delivery.task_id}",
        )
        try:
            with cancelable():
                return await self._client.execute_update_with_start_workflow(
                    WebhookDelivery.change, webhook, start_workflow_operation=begin, rpc_timeout=UPDATE_PATIENCE
                )
        except (RPCError, RPCTimeoutOrCancelledError, asyncio.CancelledError):
            with contextlib.suppress(Exception):
                await begin.workflow_handle()  # the same error, which asyncio logs if nobody reads it
            raise

    def _failed(self, error: RPCError, what: str) -> EngineError:
        return self._nobody() if error.status in _UNANSWERED else server_refused(error, what)

    def _nobody(self) -> NoWorker:
        return NoWorker(
            f"nobody delivers webhooks: no gateway answers on task queue {self.task_queue!r}; `refold serve` starts one"
        )

    async def _too_many(self, task_id: str, id: str) -> bool:
        listed = await self._listed(task_id)
        if id in listed or len(listed) < MOST_OF_A_TASK:
            return False
        return len(await self.of_task(task_id)) >= MOST_OF_A_TASK  # without removed webhooks

    async def _listed(self, task_id: str) -> set[str]:
        """The ids of a task's webhooks, removed ones included."""
        prefix = workflow_id(task_id, "")
        # The prefix is percent-encoded, so it contains no quote.
        query = f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{prefix}'"
        try:
            found = {execution.id async for execution in self._client.list_workflows(query)}
        except RPCError as error:
            raise server_refused(error, f"list the webhooks of task {task_id!r}") from None
        return {unquote(id.removeprefix(prefix)) for id in found if id.startswith(prefix)}

    async def _until_listed(self, task_id: str, id: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTED_WITHIN_S):
                while id not in await self._listed(task_id):  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(0.02)


def _was_ending(error: RPCError) -> bool:
    """Whether the webhook's workflow has taken no change because it was about to end, or had just ended."""
    return error.status is RPCStatusCode.NOT_FOUND or ABORTED.search(error.message) is not None
