"""Delivers a task's updates to a webhook: one small workflow per webhook, which outlives the task.

Rule 1: delivery is at least once, in order. An update is posted until the receiver accepts it; then the next one.
Rule 2: the workflow runs one activity, which watches the task and heartbeats its progress. After a lost process the
        next attempt continues from there, so the history is as long for a thousand updates as for one.
Rule 3: the workflow holds the webhook, and the activity queries it before each post. So a change applies from the next
        post on, no post begins after a removal, and the receiver's secrets are in one place. A post that has to connect
        queries it once more before anything is sent. Whether a refusal ends the delivery, the workflow decides: it
        knows whether the webhook that was refused is still the one to deliver to.
Rule 4: after a day without an accepted post the delivery is given up: the workflow fails with the reason. A process
        that has just come to it tries for an hour, since none may have run on that day.

No worker with skills is needed: the gateways deliver, on a task queue that all of them share.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from urllib.parse import quote

from temporalio import activity, workflow
from temporalio.client import Client, RPCTimeoutOrCancelledError, WorkflowQueryFailedError
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError

from refold.core.errors import InputRejected
from refold.core.values import Value, lean
from refold.effects.webhooks.post import Poster
from refold.engine import EngineError, TaskNotFound
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count
from refold.temporal.client.connection import UPDATE_PATIENCE
from refold.temporal.client.errors import cancelable
from refold.temporal.webhooks.names import WORKFLOW
from refold.temporal.worker.profile import DEFAULT
from refold.webhooks import START, Feed, Update, Webhook

ACTIVITY = "refold.deliver"

LONGEST = timedelta(days=3_650)
"""The time limit of the delivery activity: a task may wait for years. Heartbeats detect a lost process."""

GIVEN_UP_AFTER = timedelta(days=1)
"""How long a receiver may accept nothing before the delivery is given up."""

TRIED_S = 3_600.0
"""For how long, in seconds, a gateway that has taken a delivery over tries, even if the day is over: in an outage
nobody tried, and the receiver may need a while, too."""

FIRST_WAIT_S = 1.0
GROWTH = 1.3
"""The factor by which each pause between retries grows: a pause is about a third of the outage so far."""

LONGEST_WAIT_S = 300.0
LOOK_AGAIN_S = 10.0
"""The longest time, in seconds, until a delivery that pauses before a retry notices a change of its webhook."""

FIRST_PATIENCE_S = 60.0
"""How long an attempt of a delivery looks for a task that does not exist yet, in seconds; then the delivery ends."""

HEARTBEATS = 3
"""A delivery's heartbeat timeout, in heartbeat timeouts of the profile. Longer than an effect's, since there may be
thousands of deliveries, mostly idle."""

HEARTBEAT_S = DEFAULT.heartbeat.total_seconds() * HEARTBEATS

MOST_EVENTS = 4_000
"""The length of a webhook's history, in events, beyond which the webhook accepts no more changes."""

DELIVERED, REMOVED, GONE, NO_TASK = "delivered", "removed", "gone", "no task"
_TAKEN, _REWORDED = "taken", "reworded"

log = logger("refold.webhooks")


class Delivery(Value):
    """The argument of a delivery workflow; holds no secrets.

    Attributes:
        task_id: The task.
        id: The webhook's id.
        after: The cursor after which updates are delivered; see `refold.webhooks.Feed`.
        heartbeat_s: The heartbeat timeout of the delivery activity, in seconds.
    """

    task_id: str
    id: str
    after: str | None = lean()
    heartbeat_s: float = lean(HEARTBEAT_S)


class DeliveryProgress(Value):
    """The progress of a delivery, as heartbeats carry it.

    Attributes:
        cursor: The cursor of the last accepted update; None before the first.
        failing_since: When the next update was first refused; None if it was not.
    """

    cursor: str | None = lean()
    failing_since: datetime | None = lean()


@workflow.defn(name=WORKFLOW, sandboxed=False)
class WebhookDelivery:
    """Holds one webhook of one task, and runs its delivery until the task has ended."""

    def __init__(self) -> None:
        self._webhook: Webhook | None = None
        self._told = False
        self._without = REMOVED
        self._given_up = ""

    @workflow.run
    async def run(self, delivery: Delivery) -> str:
        """Run the delivery. Returns how it ended: delivered, removed, gone (the receiver's 410), or no such task."""
        await workflow.wait_condition(lambda: self._told)
        delivering = workflow.start_activity(
            ACTIVITY,
            delivery,
            activity_id="deliver",
            result_type=str,
            start_to_close_timeout=LONGEST,
            heartbeat_timeout=timedelta(seconds=delivery.heartbeat_s),
            retry_policy=RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=10)),
            summary=f"updates of {delivery.task_id}",
        )
        # A removal takes precedence: one activation may bring both the outcome and the removal.
        await workflow.wait_condition(lambda: delivering.done() or self._webhook is None or bool(self._given_up))
        if self._webhook is None:
            delivering.cancel()
            return self._without
        if self._given_up:
            delivering.cancel()
            raise ApplicationError(self._given_up, type="WebhookGivenUp")
        try:
            outcome: str = await delivering
        except ActivityError as error:
            raise ApplicationError(str(error.cause), type="WebhookGivenUp") from None
        if outcome == GONE:  # in histories from before `end`
            self._webhook = None
        return outcome

    @workflow.update
    def change(self, webhook: Webhook | None) -> bool:
        """Set the webhook, or remove it by None. Returns whether this is the first change of this run."""
        first, self._told = not self._told, True
        self._webhook, self._without, self._given_up = webhook, REMOVED, ""
        return first

    @change.validator
    def _may_change(self, webhook: Webhook | None) -> None:
        if webhook is not None and workflow.info().get_current_history_length() > MOST_EVENTS:
            raise ApplicationError(
                "this webhook was changed too often; delete it and create another", type=InputRejected.__name__
            )

    @workflow.update
    def end(self, refused: str, why: str) -> bool:
        """End the delivery, for the activity; not if the webhook has changed meanwhile. Returns whether it ends.

        Args:
            refused: The digest of the webhook whose receiver refused an update.
            why: Why the delivery is given up; empty where the receiver wants no more updates.
        """
        if self._webhook is None or digest(self._webhook) != refused:
            return False
        if why:
            self._given_up = why
        else:
            self._webhook, self._without = None, GONE
        return True

    @workflow.query
    def webhook(self) -> Webhook | None:
        """The current webhook; None after its removal."""
        return self._webhook


def digest(webhook: Webhook) -> str:
    """Tells a webhook from another one, without its secrets."""
    return sha256(webhook.model_dump_json().encode()).hexdigest()


class Courier:
    """The delivery activity: watches tasks and posts their updates."""

    def __init__(self, client: Client, feed: Feed, poster: Poster) -> None:
        self._client = client
        self._feed = feed
        self._poster = poster

    @activity.defn(name=ACTIVITY)
    async def deliver(self, delivery: Delivery) -> str:
        """Post every update of a task, in order. Returns how the delivery ended, as the workflow's result."""
        round = _Round(delivery, self._client, self._feed, self._poster)
        beating = asyncio.create_task(round.beat())
        try:
            outcome = await round.go()
        except asyncio.CancelledError:
            why = activity.cancellation_details()
            if why is None or not why.not_found:
                raise
            outcome = REMOVED  # the workflow has ended meanwhile: a heartbeat was told
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        if outcome == REMOVED:
            # The workflow has ended, so the server would refuse a completion. Where a change came just before its end,
            # it goes on, and so does this activity once its heartbeats are missed.
            activity.raise_complete_async()
        return outcome


class _Round:
    """One attempt of the activity, which continues from the last attempt's progress."""

    def __init__(self, delivery: Delivery, client: Client, feed: Feed, poster: Poster) -> None:
        info = activity.info()
        assert info.workflow_id is not None
        self.delivery = delivery
        self.progress = DeliveryProgress(cursor=delivery.after)
        if info.heartbeat_details:
            self.progress = DeliveryProgress.model_validate(info.heartbeat_details[0])
        # Not by when the server scheduled the activity: its clock may be another, and its queue may have stood still.
        self._begun = time.monotonic()
        self._beat_s = (info.heartbeat_timeout or timedelta(seconds=30)).total_seconds() / 3
        # By run id: a later run of the workflow holds another webhook.
        self._workflow = client.get_workflow_handle(info.workflow_id, run_id=info.workflow_run_id)
        self._feed = feed
        self._poster = poster

    async def beat(self) -> None:
        """Heartbeat the progress at regular intervals."""
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
                if started or time.monotonic() - self._begun > FIRST_PATIENCE_S:
                    return NO_TASK
            except (EngineError, RPCError, RPCTimeoutOrCancelledError, WorkflowQueryFailedError) as error:
                log.debug("webhook_waits", task_id=self.delivery.task_id, error=type(error).__name__)
            wait_s = FIRST_WAIT_S if self.progress.cursor != came_to else min(wait_s * 2, LOOK_AGAIN_S)
            await asyncio.sleep(wait_s)

    async def _follow(self) -> str | None:
        """Post updates until the task ends. Returns None if the feed must be read again, in the webhook's new shape."""
        webhook = await self._current()
        if webhook is None:
            return REMOVED
        updates = self._feed(self.delivery.task_id, webhook.shape, self.progress.cursor)
        async with contextlib.aclosing(updates):
            async for update in updates:
                outcome = await self._post(update, webhook)
                if outcome != _TAKEN:
                    return None if outcome == _REWORDED else outcome
                self._came_to(DeliveryProgress(cursor=update.cursor))
        return DELIVERED

    async def _post(self, update: Update, begun_with: Webhook) -> str:
        """Post one update until the receiver accepts it. Any other return value says how the delivery ends."""
        id = f"{quote(self.delivery.task_id, safe='')}/{update.id}"
        wait_s, tried = FIRST_WAIT_S, begun_with
        while True:
            webhook = await self._current()
            if webhook is None:
                return REMOVED
            if webhook.shape != begun_with.shape:
                return _REWORDED
            if webhook != tried:  # a changed webhook gets a new day of retries
                wait_s, tried = FIRST_WAIT_S, webhook
                self._came_to(DeliveryProgress(cursor=self.progress.cursor))
            answer = await self._poster.post(webhook, id=id, body=update.body, wanted=partial(self._is, webhook))
            if answer.kind == "unsent":
                continue
            if answer.kind == "taken":
                count(metrics.WEBHOOKS, "accepted")
                return _TAKEN
            if answer.kind == "gone":
                ends = await self._ends(webhook, "")
            else:
                count(metrics.WEBHOOKS, "refused")
                why = self._failed(answer.why)
                ends = bool(why) and await self._ends(webhook, why)
            if ends:
                return REMOVED
            await self._pause(max(wait_s * random.uniform(0.9, 1.1), answer.wait_s or 0), webhook)
            wait_s = min(wait_s * GROWTH, LONGEST_WAIT_S)

    async def _ends(self, webhook: Webhook, why: str) -> bool:
        """Whether the workflow ends the delivery after a refusal; see `WebhookDelivery.end`."""
        with cancelable():
            ends = await self._workflow.execute_update(
                WebhookDelivery.end, args=[digest(webhook), why], rpc_timeout=UPDATE_PATIENCE
            )
        if ends and why:
            log.warning("webhook_given_up", task_id=self.delivery.task_id, webhook=self.delivery.id, why=why)
            count(metrics.WEBHOOKS, "given_up")
        return ends

    def _failed(self, why: str) -> str:
        """Note a refusal. Returns why the delivery is to be given up; empty before a day is over."""
        now = datetime.now(UTC)
        since = self.progress.failing_since
        if since is None:
            log.info("webhook_refused", task_id=self.delivery.task_id, webhook=self.delivery.id, why=why)
            self._came_to(DeliveryProgress(cursor=self.progress.cursor, failing_since=now))
        elif now - since > GIVEN_UP_AFTER and time.monotonic() - self._begun >= TRIED_S:
            return f"the receiver has taken nothing since {since:%Y-%m-%d %H:%M} UTC: {why}"
        return ""

    def _came_to(self, progress: DeliveryProgress) -> None:
        self.progress = progress
        activity.heartbeat(progress)

    async def _pause(self, seconds: float, webhook: Webhook) -> None:
        """Pause before a retry; return early if the webhook changes meanwhile."""
        while seconds > LOOK_AGAIN_S:
            await asyncio.sleep(LOOK_AGAIN_S)
            seconds -= LOOK_AGAIN_S
            if await self._current() != webhook:
                return
        await asyncio.sleep(seconds)

    async def _is(self, webhook: Webhook) -> bool:
        return await self._current() == webhook

    async def _current(self) -> Webhook | None:
        return await self._workflow.query(WebhookDelivery.webhook, rpc_timeout=UPDATE_PATIENCE)
