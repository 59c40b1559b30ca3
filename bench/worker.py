"""A worker in a process of its own, which reports its use: `python -m bench.worker SIDE ADDRESS QUEUE`.

With REFOLD_METRICS, refold's side shows its metrics there: so the benchmark tells what they cost.
"""

from __future__ import annotations

import asyncio
import os
import sys
from importlib import import_module

from temporalio.client import Client
from temporalio.worker import Worker

from bench import sides
from bench.logs import quiet_logs
from bench.processes import answering
from refold.temporal import measure


async def serve(side: str, address: str, queue: str) -> None:
    """Work until stdin ends."""
    if side == sides.REFOLD:
        measure(None)
        import_module("refold.effects.models.chat")  # else it is loaded some time later, amid what is measured
    client = await Client.connect(address, plugins=[sides.plugin(side)])
    async with Worker(client, task_queue=queue):
        await answering()


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(serve(*sys.argv[1:4]))
    # Exit without Python's own shutdown: the SDK's threads may still use the interpreter, and abort when it is gone.
    os._exit(0)
