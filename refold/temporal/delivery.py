"""Delivering a task's updates to a webhook: one small workflow for each, which outlives the task.

Rule 1: at least once, in order. An update is posted until the receiver takes it; then the next.
Rule 2: the workflow runs one activity, which follows the task and heartbeats how far it came. Whoever takes over from
        a process that died goes on from there. So its history is as long for a thousand updates as for one.
Rule 3: the workflow holds the webhook; the activity asks for it before each post. So a change counts from the next
        post on, nothing is posted after it was removed, and the receiver's secrets stand in one place.
Rule 4: a receiver that takes nothing for a day is given up: the workflow fails, and says so.

It needs no worker with skills: the gateways deliver, on a task queue that all of them share.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, unquote

import structlog
from temporalio import activity, workflow
from temporalio.client import (
    RPCTimeoutOrCancelledError,
    WithStartWorkflowOperation,
    WorkflowQueryFailedError,
    WorkflowUpdateFailedError,
)
from temporalio.common import RetryPolicy, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from refold.core.base import Value, lean
from refold.core.errors import EngineError, InputRejected, NoWorker, TaskNotFound
from refold.effects.webhooks import Poster
from refold.temporal import search
from refold.temporal.client import UPDATE_PATIENCE, TemporalEngine
from refold.temporal.profile import DEFAULT, Profile
from refold.webhooks import START, Feed, Update, Webhook

WORKFLOW = "refold.webhook"
ACTIVITY = "refold.deliver"

GIVEN_UP_AFTER = timedelta(days=1)
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
LOOK_AGAIN_S = 10.0
"""How soon a change of a webhook is noticed by who waits to post to it again."""

FIRST_PATIENCE = timedelta(minutes=1)
"""A webhook may be there before its task; for so long."""

HEARTBEATS = 3
"""A delivery that is silent for so many of the profile's heartbeat timeouts has lost its process: most of the time it
has nothing to say, and there may be thousands."""

HEARTBEAT_S = DEFAULT.heartbeat.total_seconds() * HEARTBEATS

MOST_OF_A_TASK = 64
MOST_EVENTS = 4_000
AT_ONCE = 10_000
KEPT_IN_MEMORY = 500
STICKY = timedelta(seconds=1)
"""A question waits so long for a process that may be dead. Another one has a workflow as short as these in no time."""

LISTED_WITHIN_S = 2.0
AGAIN_S = 5.0

DELIVERED, REMOVED, GONE, NO_TASK = "delivered", "removed", "gone", "no task"
_TAKEN, _REWORDED = "taken", "reworded"

log = structlog.get_logger("refold.webhooks")


class Delivery(Value):
    """What a delivery is of; no secrets.

    Attributes:
        task_id: The task.
        id: The webhook's id.
        after: Where its updates begin; see `refold.webhooks.Feed`.
        heartbeat_s: Whoever delivers and is silent for so long is taken for dead.
    """

    task_id: str
    id: str
    after: str | None = lean()
    heartbeat_s: float = lean(HEARTBEAT_S)


class Progress(Value):
    """How far a delivery came.

    Attributes:
        cursor: The last update that was taken; None before the first.
        failing_since: Since when the next is refused.
    """

    cursor: str | None = lean()
    failing_since: datetime | None = lean()


@workflow.defn(name=WORKFLOW, sandboxed=False)
class WebhookDelivery:
    """Holds one webhook of one task, and has it delivered to until the task is over."""

    @workflow.init
    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self._webhook: Webhook | None = None
        self._told = False

    @workflow.run
    async def run(self, delivery: Delivery) -> str:
        """How it ended: delivered, removed, gone (the receiver said so), or there is no such task."""
        await workflow.wait_condition(lambda: self._told)
        delivering = workflow.start_activity(
            ACTIVITY,
            delivery,
            activity_id="deliver",
            result_type=str,
            start_to_close_timeout=timedelta(days=1),
            heartbeat_timeout=timedelta(seconds=delivery.heartbeat_s),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
            summary=f"updates of {delivery.task_id}",
        )
        # What is done is known before it is removed: one activation may bring both.
        await workflow.wait_condition(lambda: delivering.done() or self._webhook is None)
        if self._webhook is None:
            delivering.cancel()
            return REMOVED
        try:
            outcome: str = await delivering
        except ActivityError as error:
            raise ApplicationError(str(error.cause), type="WebhookGivenUp") from None
        if outcome == GONE:
            self._webhook = None
        return outcome

    @workflow.update
    def change(self, webhook: Webhook | None) -> bool:
        """Set the webhook, or remove it; whether it was never set before."""
        first, self._told = not self._told, True
        self._webhook = webhook
        return first

    @change.validator
    def _may_change(self, webhook: Webhook | None) -> None:
        if webhook is not None and workflow.info().get_current_history_length() > MOST_EVENTS:
            raise ApplicationError(
                "this webhook was changed too often; delete it and create another", type=InputRejected.__name__
            )

    @workflow.query
    def webhook(self) -> Webhook | None:
        """The webhook as it is; None where it was removed."""
        return self._webhook


class TemporalWebhooks:
    """See `refold.webhooks.Webhooks`. Delivers while it is entered; any number of processes share that."""

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
        """Nothing is delivered yet.

        Args:
            engine: Where the tasks are.
            feed: What receivers are told.
            poster: How it is sent, and where to; closed with this. None takes the settings of the environment.
            loopback: Where the settings say where to, this machine is allowed besides.
            recovery: How soon somebody else goes on where this process dies.
            task_queue: Shared by all who deliver for the same tasks; None adds `-webhooks` to the engine's.

        Raises:
            DefinitionError: A setting cannot be read.
        """
        self.task_queue = task_queue or f"{engine.task_queue}-webhooks"
        self._client = engine.client
        self._heartbeat_s = recovery.heartbeat.total_seconds() * HEARTBEATS
        self._poster = poster or Poster.from_env(loopback=loopback)
        self._courier = _Courier(engine, feed, self._poster)
        self._worker: Worker | None = None
        self._delivering: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
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
        """Run a worker; one that the server will not have is followed by another."""
        while True:
            self._worker = worker = Worker(
                self._client,
                task_queue=self.task_queue,
                workflows=[WebhookDelivery],
                activities=[self._courier.deliver],
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

    async def check(self, webhook: Webhook) -> None:
        """See `Webhooks.check`."""
        await self._poster.check(webhook)

    async def put(self, task_id: str, webhook: Webhook, *, after: str | None = None) -> None:
        """See `Webhooks.put`."""
        await self.check(webhook)
        if await self._too_many(task_id, webhook.id):
            raise InputRejected(f"task {task_id!r} has {MOST_OF_A_TASK} webhooks, and takes no more; delete one first")
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
            raise search.server_refused(error, f"read a webhook of task {task_id!r}") from None

    async def of_task(self, task_id: str) -> list[Webhook]:
        """See `Webhooks.of_task`."""
        # The server's list lags a little; the id that a webhook has when nobody chose one is asked for besides.
        ids = sorted({*await self._listed(task_id), task_id})
        found = await asyncio.gather(*(self.get(task_id, id) for id in ids))
        return [webhook for webhook in found if webhook is not None]

    async def remove(self, task_id: str, id: str) -> None:
        """See `Webhooks.remove`."""
        if await self.get(task_id, id) is not None:
            await self._change(Delivery(task_id=task_id, id=id), None)

    async def _change(self, delivery: Delivery, webhook: Webhook | None) -> bool:
        """Tell the workflow, and start one where none is open: a removal, too, is kept by a run of its own."""
        tries = 3
        while True:
            tries -= 1
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
                return await self._client.execute_update_with_start_workflow(
                    WebhookDelivery.change, webhook, start_workflow_operation=begin, rpc_timeout=UPDATE_PATIENCE
                )
            except WorkflowUpdateFailedError as error:
                cause = error.cause
                if isinstance(cause, ApplicationError) and cause.type == InputRejected.__name__:
                    raise InputRejected(cause.message) from None
                if not tries:  # it ended while it was told; the next one starts it again
                    raise EngineError(f"a webhook of task {delivery.task_id!r} cannot be changed: {cause}") from None
            except RPCTimeoutOrCancelledError:
                raise self._nobody() from None
            except RPCError as error:
                if error.status is not RPCStatusCode.NOT_FOUND or not tries:
                    raise search.server_refused(error, f"keep a webhook of task {delivery.task_id!r}") from None

    def _nobody(self) -> NoWorker:
        return NoWorker(
            f"nobody delivers webhooks: no gateway answers on task queue {self.task_queue!r}; `refold serve` starts one"
        )

    async def _too_many(self, task_id: str, id: str) -> bool:
        listed = await self._listed(task_id)
        if id in listed or len(listed) < MOST_OF_A_TASK:
            return False
        return len(await self.of_task(task_id)) >= MOST_OF_A_TASK  # what was removed is listed, too

    async def _listed(self, task_id: str) -> set[str]:
        """The ids of a task's webhooks, and of those that it had."""
        prefix = workflow_id(task_id, "")
        # Percent-encoded, so no quote of anybody's is in it.
        query = f"WorkflowType = '{WORKFLOW}' AND WorkflowId STARTS_WITH '{prefix}'"
        try:
            found = {execution.id async for execution in self._client.list_workflows(query)}
        except RPCError as error:
            raise search.server_refused(error, f"list the webhooks of task {task_id!r}") from None
        return {unquote(id.removeprefix(prefix)) for id in found if id.startswith(prefix)}

    async def _until_listed(self, task_id: str, id: str) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LISTED_WITHIN_S):
                while id not in await self._listed(task_id):  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(0.02)


def workflow_id(task_id: str, id: str) -> str:
    """The id of the workflow that delivers to a webhook of a task."""
    return f"webhook/{quote(task_id, safe='')}/{quote(id, safe='')}"


class _Courier:
    """The activity: follows tasks and posts."""

    def __init__(self, engine: TemporalEngine, feed: Feed, poster: Poster) -> None:
        self._client = engine.client
        self._feed = feed
        self._poster = poster

    @activity.defn(name=ACTIVITY)
    async def deliver(self, delivery: Delivery) -> str:
        """Post every update of a task, in order. How it ended, as the workflow's result.

        Raises:
            ApplicationError: The receiver took nothing for a day.
        """
        round = _Round(delivery, self._client, self._feed, self._poster)
        beating = asyncio.create_task(round.beat())
        try:
            return await round.go()
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


class _Round:
    """One try of the activity, from where the last one came to."""

    def __init__(self, delivery: Delivery, client: Any, feed: Feed, poster: Poster) -> None:
        info = activity.info()
        assert info.workflow_id is not None
        self.delivery = delivery
        self.progress = Progress(cursor=delivery.after)
        if info.heartbeat_details:
            self.progress = Progress.model_validate(info.heartbeat_details[0])
        self._begun = info.scheduled_time
        self._beat_s = (info.heartbeat_timeout or timedelta(seconds=30)).total_seconds() / 3
        # This very run: one that was started since has a webhook of its own.
        self._workflow = client.get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
        self._feed = feed
        self._poster = poster

    async def beat(self) -> None:
        """Say how far it came, again and again."""
        while True:
            activity.heartbeat(self.progress)
            await asyncio.sleep(self._beat_s)

    async def go(self) -> str:
        wait_s = FIRST_WAIT_S
        while True:
            came_to = self.progress.cursor
            try:
                outcome = await self._follow()
                if outcome is not None:
                    return outcome
            except TaskNotFound:
                started = self.progress.cursor not in (None, START)
                if started or datetime.now(UTC) - self._begun > FIRST_PATIENCE:
                    return NO_TASK
            except (EngineError, RPCError, WorkflowQueryFailedError) as error:
                log.info("webhook_waits", task_id=self.delivery.task_id, error=type(error).__name__)
            wait_s = FIRST_WAIT_S if self.progress.cursor != came_to else min(wait_s * 2, LOOK_AGAIN_S)
            await asyncio.sleep(wait_s)

    async def _follow(self) -> str | None:
        """Post what comes until the task ends; None where it is to be read anew, in other words."""
        webhook = await self._current()
        if webhook is None:
            return REMOVED
        updates = self._feed(self.delivery.task_id, webhook.shape, self.progress.cursor)
        async with contextlib.aclosing(updates):
            async for update in updates:
                outcome = await self._post(update, webhook)
                if outcome != _TAKEN:
                    return None if outcome == _REWORDED else outcome
                self._came_to(Progress(cursor=update.cursor))
        return DELIVERED

    async def _post(self, update: Update, begun_with: Webhook) -> str:
        """Post one update until it is taken, or will not be: then it says how the delivery ends."""
        id = f"{quote(self.delivery.task_id, safe='')}/{update.id}"
        wait_s = FIRST_WAIT_S
        while True:
            webhook = await self._current()
            if webhook is None:
                return REMOVED
            if webhook.shape != begun_with.shape:
                return _REWORDED
            answer = await self._poster.post(webhook, id=id, body=update.body)
            if answer.kind == "taken":
                return _TAKEN
            if answer.kind == "gone":
                return GONE
            self._failed(answer.why)
            pause_s = max(wait_s * random.uniform(0.9, 1.1), answer.wait_s or 0)
            if await self._changed_within(pause_s, webhook):
                wait_s = FIRST_WAIT_S
            else:
                wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    def _failed(self, why: str) -> None:
        now = datetime.now(UTC)
        since = self.progress.failing_since
        if since is None:
            log.info("webhook_refused", task_id=self.delivery.task_id, webhook=self.delivery.id, why=why)
            self._came_to(Progress(cursor=self.progress.cursor, failing_since=now))
        elif now - since > GIVEN_UP_AFTER:
            log.warning("webhook_given_up", task_id=self.delivery.task_id, webhook=self.delivery.id, why=why)
            raise ApplicationError(
                f"the receiver has taken nothing since {since:%Y-%m-%d %H:%M} UTC: {why}", non_retryable=True
            )

    def _came_to(self, progress: Progress) -> None:
        self.progress = progress
        activity.heartbeat(progress)

    async def _changed_within(self, seconds: float, webhook: Webhook) -> bool:
        """Wait; less long where the webhook is changed meanwhile."""
        while seconds > LOOK_AGAIN_S:
            await asyncio.sleep(LOOK_AGAIN_S)
            seconds -= LOOK_AGAIN_S
            if await self._current() != webhook:
                return True
        await asyncio.sleep(seconds)
        return False

    async def _current(self) -> Webhook | None:
        found: Webhook | None = await self._workflow.query(WebhookDelivery.webhook, rpc_timeout=UPDATE_PATIENCE)
        return found
