"""Which workers poll a task queue, and to which versions of a worker deployment the server gives its tasks."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from temporalio.api.deployment.v1 import WorkerDeploymentOptions, WorkerDeploymentVersion
from temporalio.api.enums.v1 import TaskQueueType, WorkerStatus, WorkerVersioningMode
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, ListWorkersRequest
from temporalio.client import Client
from temporalio.service import RPCError

from refold.temporal.client.failed import ASK_PATIENCE
from refold.temporal.data.search_attributes import quoted

POLLING_S = 90
"""A worker polls at least once a minute."""

FORGOTTEN_S = 330
"""The server lists no worker whose last poll is five minutes old; and the answer takes its time."""

WORKFLOWS, ACTIVITIES = TaskQueueType.TASK_QUEUE_TYPE_WORKFLOW, TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY


class Poller(NamedTuple):
    """A worker that polled a task queue in the last minutes.

    Attributes:
        identity: Of the worker.
        build: Its build id; empty if it has none.
        version: `deployment:build`; empty for a worker that is not versioned.
        at: When it last polled, by the server's clock.
    """

    identity: str
    build: str
    version: str
    at: datetime


class Polls(NamedTuple):
    """The workers of a task queue.

    Attributes:
        pollers: Who polled it in the last minutes.
        current: The version that is given the tasks that are pinned to none; empty for workers without a version.
        ramping: The version that is given a share of them; empty if none is.
    """

    pollers: tuple[Poller, ...]
    current: str
    ramping: str

    def ago_s(self, versions: Collection[str] | None = None, *, now: datetime | None = None) -> float:
        """How many seconds ago a worker last polled; infinite if none did.

        Args:
            versions: Of the workers that count; None for all.
            now: The server's time. None takes this machine's, since the server does not tell its own; where that is
                ahead, so that the server would have forgotten all its workers, the newest poll stands for now.
        """
        polled, newest = self.newest(versions), self.newest()
        if polled is None or newest is None:
            return float("inf")
        here = datetime.now(UTC)
        now = now or (newest if here - newest > timedelta(seconds=FORGOTTEN_S) else here)
        return max(0.0, (now - polled).total_seconds())

    def newest(self, versions: Collection[str] | None = None) -> datetime | None:
        """When a worker, of these versions if any are given, last polled, by the server's clock; None if none did."""
        return max((one.at for one in self.pollers if versions is None or one.version in versions), default=None)

    def recent(self) -> list[Poller]:
        """The workers that poll now. The newest poll stands for now: it is by the server's clock, as all of them."""
        newest = self.newest()
        return [one for one in self.pollers if newest and newest - one.at <= timedelta(seconds=POLLING_S)]

    def builds(self) -> set[str]:
        """The builds whose workers poll now."""
        return {one.build for one in self.recent()} - {""}

    def newest_version(self) -> str:
        """The version of the versioned worker that polled last, if it polls now; else empty."""
        newest = max((one for one in self.pollers if one.version), key=lambda one: one.at, default=None)
        return newest.version if newest is not None and self.ago_s({newest.version}) <= POLLING_S else ""


async def polls_of(client: Client, queue: str, kind: TaskQueueType.ValueType = WORKFLOWS) -> Polls:
    """Ask the server which workers poll a task queue.

    Args:
        client: Connected.
        queue: The task queue.
        kind: For workflow tasks, or for activities.

    Raises:
        RPCError: The server does not tell.
    """
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=kind
    )
    answer = await client.workflow_service.describe_task_queue(request, retry=True, timeout=ASK_PATIENCE)
    pollers = tuple(
        Poller(
            one.identity,
            one.worker_version_capabilities.build_id,
            _version(one.deployment_options) if _is_versioned(one.deployment_options) else "",
            one.last_access_time.ToDatetime(tzinfo=UTC),
        )
        for one in answer.pollers
    )
    info = answer.versioning_info
    return Polls(pollers, _version(info.current_deployment_version), _version(info.ramping_deployment_version))


async def without_ended(client: Client, queue: str, polls: Polls) -> Polls:
    """The same without the workers that have told the server that they end: it lists their polls for minutes.

    A worker tells so where its SDK sends heartbeats, as it does unless it is told otherwise. One that has polled since
    is another with the same identity.
    """
    request = ListWorkersRequest(namespace=client.namespace, query=f"TaskQueue = {quoted(queue)}")
    try:
        answer = await client.workflow_service.list_workers(request, retry=False, timeout=ASK_PATIENCE)
    except RPCError:  # an older server, or no permission
        return polls
    told = [one.worker_heartbeat for one in answer.workers_info]
    ended = {
        one.worker_identity: one.heartbeat_time.ToDatetime(tzinfo=UTC) for one in told if one.status == _SHUTTING_DOWN
    }
    begun = {one.worker_identity for one in told if one.status != _SHUTTING_DOWN}
    there = (one for one in polls.pollers if one.identity in begun or one.at > ended.get(one.identity, _NEVER))
    return polls._replace(pollers=tuple(there))


_SHUTTING_DOWN, _NEVER = WorkerStatus.WORKER_STATUS_SHUTTING_DOWN, datetime.min.replace(tzinfo=UTC)


def _is_versioned(options: WorkerDeploymentOptions) -> bool:
    return options.worker_versioning_mode == WorkerVersioningMode.WORKER_VERSIONING_MODE_VERSIONED


def _version(of: WorkerDeploymentVersion | WorkerDeploymentOptions) -> str:
    return f"{of.deployment_name}:{of.build_id}" if of.deployment_name else ""
