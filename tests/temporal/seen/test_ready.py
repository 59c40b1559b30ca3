"""A worker is ready while it works, also where it asks for no more of one kind."""

from __future__ import annotations

from uuid import uuid4

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

from refold.engine import EngineError
from refold.seen.health import Check
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from refold.temporal.seen.ready import worker_checks
from tests.waiting import a_moment


@workflow.defn(sandboxed=False)
class Nothing:
    """Does nothing."""

    @workflow.run
    async def run(self) -> None:
        """Ends at once."""


async def why_not(check: Check) -> str:
    """Why a check fails; empty if it does not."""
    try:
        await check()
    except EngineError as error:
        return str(error)
    return ""


async def test_a_worker_that_asks_for_no_activities_is_ready(server: DevServer, values: Folder) -> None:
    """
    Nor does one whose slots for effects are all taken: the SDK takes a slot before it asks. A worker that does not
    ask for workflow tasks is not ready.
    """
    client = await Client.connect(server.address)
    worker = Worker(client, task_queue=f"ready-{uuid4().hex[:8]}", workflows=[Nothing])
    check = worker_checks(worker, values, None, lambda: False)["pollers"]
    before = await why_not(check)
    async with worker:
        while (why := await why_not(check)) == before or "for workflow" in why:
            await a_moment()  # it has just begun to ask

    assert before == "the worker does not poll"
    assert why == ""
