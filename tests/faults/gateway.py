"""A gateway as a process: `python -m tests.faults.gateway ADDRESS QUEUE`; says where it is, ends with its parent."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys

import uvicorn

from refold.a2a import Settings, a2a_app
from refold.temporal import connect
from tests.faults.skills import Gated, Stairs

SKILLS = [Gated, Stairs]


async def main(address: str, queue: str) -> None:
    """Serve until stdin closes."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    app = a2a_app(await connect(address=address, task_queue=queue), SKILLS, Settings(url=url))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    sys.stdout.write(
        json.dumps({"pid": os.getpid(), "skills": [skill.__name__ for skill in SKILLS], "url": url}) + "\n"
    )
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
