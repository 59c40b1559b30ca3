"""A worker in a process of its own, which says what it has used: `python -m bench.worker SIDE ADDRESS QUEUE`.

Each line on stdin is a question, each line on stdout its answer as JSON; the end of stdin ends it. `cpu` answers the
seconds of CPU this process has used, `memory` the bytes that are resident.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import resource
import sys
from pathlib import Path

from temporalio.client import Client
from temporalio.worker import Worker

from bench import sides
from bench.logs import quiet_logs

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu() -> float:
    """User and system time since this process began, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory() -> float:
    """The resident set, in bytes, without what is free already: neither side is charged for its leftovers."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return float(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES)


QUESTIONS = {"cpu": cpu, "memory": memory}


async def serve(side: str, address: str, queue: str) -> None:
    """Work until stdin ends."""
    client = await Client.connect(address, plugins=[sides.plugin(side)])
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with Worker(client, task_queue=queue):
        print(json.dumps("ready"), flush=True)
        while question := (await lines.readline()).decode().strip():
            print(json.dumps(QUESTIONS[question]()), flush=True)


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(serve(*sys.argv[1:4]))
    # Without Python's own end: the SDK's threads may still want the interpreter, and abort it when it is gone.
    os._exit(0)
