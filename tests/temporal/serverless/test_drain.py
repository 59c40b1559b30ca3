"""When a worker that drains its task queue stops."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from structlog.testing import capture_logs
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from refold.temporal import Drained


class OutOfReach:
    """A server that answers nothing at first, and then says that its queue is empty.

    Attributes:
        away: How many more questions it does not answer.
    """

    def __init__(self, away: int) -> None:
        self.away = away
        self.namespace = "default"
        self.workflow_service = self

    async def describe_task_queue(self, _: Any, **__: Any) -> Any:
        self.away -= 1
        if self.away >= 0:
            raise RPCError("it restarts", RPCStatusCode.UNAVAILABLE, b"")
        return SimpleNamespace(stats=SimpleNamespace(approximate_backlog_count=0))

    async def count_workflows(self, _: str) -> Any:
        return SimpleNamespace(count=2)


async def test_a_queue_that_nobody_can_look_into_is_not_empty() -> None:
    """
    While its server is away a worker stays, and says so once.
    """
    server, stopped = OutOfReach(away=3), asyncio.Event()

    async def shutdown() -> None:
        stopped.set()

    async def polls(_: Worker) -> None:
        await stopped.wait()

    worker = SimpleNamespace(client=server, task_queue="refold", shutdown=shutdown)
    with capture_logs() as lines:
        await Drained(quiet_s=0.1).run_worker(cast("Worker", worker), polls)

    assert server.away < 0
    assert [line["event"] for line in lines] == ["backlog_unknown", "queue_empty"]
    assert (lines[1]["left"], lines[1]["open_tasks"]) == (0, 2)
