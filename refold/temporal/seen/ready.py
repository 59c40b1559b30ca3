"""What a worker or a gateway needs in order to work, as checks of its `/readyz`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.worker import Worker

from refold.core.errors import DefinitionError
from refold.engine import EngineError
from refold.seen.health import Check, Health, health_server
from refold.temporal.client.connection import Connection
from refold.temporal.client.errors import refusals
from refold.temporal.data.storage import Storage
from refold.temporal.seen.open_tasks import QUEUE_KINDS
from refold.temporal.seen.runtime import HEALTH_ENV, address

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger

PATIENCE = timedelta(seconds=2)
"""How long the server may take to say who polls."""


def worker_checks(
    worker: Worker, storage: Storage, ledger: Ledger | None, stopping: Callable[[], bool]
) -> dict[str, Check]:
    """What a worker needs: the server, its own pollers, storage, and the ledger if its tools have receipts.

    Args:
        worker: The worker.
        storage: For large values.
        ledger: Of receipts; None if no tool needs one.
        stopping: Whether the worker was told to stop: it is not ready from then on.
    """
    client = worker.client

    async def server() -> None:
        await Connection(client, worker.task_queue).ping()

    async def pollers() -> None:
        if stopping():
            raise EngineError("the worker is stopping")
        if not worker.is_running:
            raise EngineError("the worker does not poll")
        identity = worker.config(active_config=True)["identity"] or client.identity
        await _polled(client, worker.task_queue, identity)

    checks: dict[str, Check] = {"server": server, "pollers": pollers, "storage": storage.check}
    if ledger is not None:

        async def receipts() -> None:
            await ledger.run(ledger.look, "")

        checks["ledger"] = receipts
    return checks


async def _polled(client: Client, queue: str, identity: str) -> None:
    """Check that the server has seen this worker ask for workflow tasks. A worker asks for no activities while its
    slots for them are all taken, and the server forgets within five minutes that it did."""
    request = DescribeTaskQueueRequest(
        namespace=client.namespace, task_queue=TaskQueue(name=queue), task_queue_type=QUEUE_KINDS["workflow"]
    )
    with refusals("say who polls"):
        answer = await client.workflow_service.describe_task_queue(request, retry=False, timeout=PATIENCE)
    if not any(poller.identity == identity for poller in answer.pollers):
        raise EngineError(f"the server has not seen this worker ask task queue {queue!r} for workflow tasks")


def check_place(where: str | None) -> tuple[str, int] | None:
    """The host and port for `answering`; None if nothing is to be served.

    Raises:
        DefinitionError: It is no `HOST:PORT`.
    """
    given = (where or os.environ.get(HEALTH_ENV, "")).strip()
    return address(given, "--health" if where else HEALTH_ENV, free=True) if given else None


@asynccontextmanager
async def answering(checks: dict[str, Check], where: str | None) -> AsyncIterator[str]:
    """Answer `/livez` and `/readyz` inside the block, if this process was told where.

    Args:
        checks: What the process needs.
        where: `HOST:PORT`; None takes `REFOLD_HEALTH`, and if that is unset nothing is served.

    Yields:
        The URL, for people; empty if nothing is served.

    Raises:
        DefinitionError: It is no such place, or the port is in use.
    """
    place = check_place(where)
    if place is None:
        yield ""
        return
    host, port = place
    async with AsyncExitStack() as stack:
        try:
            at = await stack.enter_async_context(health_server(Health(checks), host, port))
        except OSError as error:
            why = f"{host}:{port}: {error.strerror or error}"
            raise DefinitionError("--health" if where else HEALTH_ENV, [why], what="setting") from None
        yield f"http://[{at[0]}]:{at[1]}" if ":" in at[0] else f"http://{at[0]}:{at[1]}"
