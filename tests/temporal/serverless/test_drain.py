"""When a worker that drains its task queue stops."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Worker

from refold.temporal import Drained
from refold.temporal.serverless import drain


class OutOfReach:
    """A server that answers nothing at first, and then says that its queue is empty.

    Attributes:
        away: How many more questions it does not answer.
        left: How much its queue holds after that; one less with each question.
    """

    def __init__(self, away: int = 0, left: int = 0) -> None:
        self.away = away
        self.left = left
        self.namespace = "default"
        self.workflow_service = self

    async def describe_task_queue(self, _: Any, **__: Any) -> Any:
        self.away -= 1
        if self.away >= 0:
            raise RPCError("it restarts", RPCStatusCode.UNAVAILABLE, b"")
        self.left = max(self.left - 1, 0)
        return SimpleNamespace(stats=SimpleNamespace(approximate_backlog_count=self.left))

    async def count_workflows(self, _: str) -> Any:
        return SimpleNamespace(count=2)


async def drained(server: OutOfReach) -> list[Any]:
    """What a worker says until it ends."""
    stopped = asyncio.Event()

    async def shutdown() -> None:
        stopped.set()

    async def polls(_: Worker) -> None:
        await stopped.wait()

    worker = SimpleNamespace(client=server, task_queue="refold", shutdown=shutdown)
    with capture_logs() as lines:
        await Drained(quiet_s=0.1).run_worker(cast("Worker", worker), polls)
    return lines


async def test_a_queue_that_nobody_can_look_into_is_not_empty() -> None:
    """
    While its server is away a worker stays, and says so once.
    """
    server = OutOfReach(away=3)

    lines = await drained(server)

    assert server.away < 0
    assert [line["event"] for line in lines] == ["backlog_unknown", "queue_empty"]
    assert (lines[1]["left"], lines[1]["open_tasks"]) == (0, 2)


async def test_a_queue_that_grows_shorter_does_not_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Also without an effect: each of a thousand tasks may only ask a person.
    """
    monkeypatch.setattr(drain, "STUCK_S", 2.0)
    server = OutOfReach(left=80)  # two questions, of either kind of work, in each 0.1 s

    [line] = await drained(server)

    assert (line["event"], server.left) == ("queue_empty", 0)


async def test_a_worker_that_is_canceled_ends_before_its_plugins_do() -> None:
    """
    As at the deadline of a Lambda call: what is around it, such as the ledger, is closed after the effects' grace.
    """
    polls, ended = asyncio.Event(), list[str]()

    async def graceful(_: Worker) -> None:
        try:
            polls.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # the grace
            ended.append("worker")

    async def around() -> None:
        try:
            await Drained().run_worker(cast("Worker", SimpleNamespace(client=None, task_queue="refold")), graceful)
        finally:
            ended.append("plugins around it")

    running = asyncio.ensure_future(around())
    await polls.wait()
    running.cancel()
    await asyncio.wait([running])

    assert (ended, running.cancelled()) == (["worker", "plugins around it"], True)


@pytest.mark.parametrize(("quiet_s", "effects"), [(0.0, None), (2.0, 0)])
def test_settings_below_the_least_are_refused(quiet_s: float, effects: int | None) -> None:
    """
    With what was given and what may be.
    """
    with pytest.raises(ValueError, match=rf"Drained\(quiet_s={quiet_s}, effects={effects}\): quiet_s is 0.1 or more"):
        Drained(quiet_s, effects)
