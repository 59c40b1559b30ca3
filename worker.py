"""Runs this application's skills and tools until Ctrl-C or SIGTERM: `python worker.py`."""

import asyncio
import sys

from activities import TOOLS
from refold import RefoldError
from refold.temporal import run_worker
from workflows import careful_desk, forty_steps, hello, order_desk, planner, react, refund  # isort: split

from workflows import research_loop, research_loop_steps, research_loop_table

SKILLS = [
    hello, research_loop, research_loop_steps, research_loop_table, refund, forty_steps, react, order_desk, planner,
    careful_desk,
]  # fmt: skip


async def main() -> None:
    await run_worker(SKILLS, TOOLS, ready=lambda worker: print(f"worker ready on {worker.task_queue}", flush=True))


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except RefoldError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:  # a second Ctrl-C, once the worker has begun to leave
        sys.exit(130)
