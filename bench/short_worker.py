"""A worker of one of both ways, in a process of its own: `python -m bench.short_worker WAY ADDRESS QUEUE`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from temporalio.client import Client
from temporalio.worker import PollerBehaviorAutoscaling

from bench import short_skills
from bench.logs import quiet_logs
from bench.processes import answering
from refold.temporal import RefoldPlugin, make_worker


async def serve(way: str, address: str, queue: str) -> None:
    """Work until stdin ends."""
    plugin = RefoldPlugin([short_skills], short_skills.TOOLS, durability=way)
    client = await Client.connect(address, plugins=[plugin])
    pollers: dict[str, Any] = {
        f"{kind}_task_poller_behavior": PollerBehaviorAutoscaling() for kind in ("workflow", "activity")
    }
    async with make_worker(client, plugin, task_queue=queue, **pollers):
        await answering()


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(serve(*sys.argv[1:4]))
    os._exit(0)
