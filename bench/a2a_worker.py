"""The worker behind refold's gateway, in a process of its own: `python -m bench.a2a_worker ADDRESS QUEUE`."""

from __future__ import annotations

import asyncio
import os
import sys

from temporalio.client import Client

from bench import a2a_skills
from bench.logs import quiet_logs
from bench.processes import answering
from refold.temporal import RefoldPlugin, make_worker


async def serve(address: str, queue: str) -> None:
    """Work until stdin ends."""
    plugin = RefoldPlugin([a2a_skills])
    client = await Client.connect(address, plugins=[plugin])
    async with make_worker(client, plugin, task_queue=queue):
        await answering()


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(serve(*sys.argv[1:3]))
    os._exit(0)
