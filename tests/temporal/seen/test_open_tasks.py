"""When `refold metrics` has looked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from refold.temporal.seen.open_tasks import OpenTasks


async def test_it_has_looked_once_the_server_was_asked() -> None:
    """
    Not before; and also where the server did not answer, so that nobody waits for one that is away.
    """
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    async def describe(*_: Any, **__: Any) -> Any:
        asked.set()
        return await answer

    client: Any = SimpleNamespace(
        namespace="default", workflow_service=SimpleNamespace(describe_task_queue=describe)
    )  # of the SDK
    look = OpenTasks(client, ["q"])
    looking = asyncio.create_task(look.run())
    await asked.wait()

    assert not look.looked.is_set()
    answer.set_exception(RPCError("away", RPCStatusCode.UNAVAILABLE, b""))
    async with asyncio.timeout(60):
        await look.looked.wait()
    looking.cancel()
