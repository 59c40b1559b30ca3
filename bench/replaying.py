"""Replays recorded histories in a process of its own: `python -m bench.replaying FOLDER ROUNDS`.

FOLDER holds one file of histories for each subject, as `bench.overhead` writes them. Every round replays each
subject's histories once, in turn, in the sandbox and outside it, and prints one line of JSON:
`{"reducer/sandboxed": [cpu_s, wall_s], …}`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from bench import sides
from bench.logs import quiet_logs
from bench.sides import SUBJECTS, Subject


async def replay(subject: Subject, histories: list[WorkflowHistory], *, sandboxed: bool) -> tuple[float, float]:
    """Replay all histories once; the CPU and the wall time that took, in seconds."""

    async def given() -> AsyncIterator[WorkflowHistory]:
        for history in histories:
            yield history

    replayer = Replayer(workflows=[], plugins=[sides.plugin(subject.side, sandboxed=sandboxed)])
    gc.collect()
    async with replayer.workflow_replay_iterator(given()) as results:  # makes the worker, which is not measured
        cpu, wall = time.process_time(), time.perf_counter()
        async for result in results:
            if result.replay_failure is not None:
                raise result.replay_failure
        return time.process_time() - cpu, time.perf_counter() - wall


async def rounds(folder: Path, number: int) -> None:
    """Print one line for each round."""
    histories = {
        subject.name: [
            WorkflowHistory.from_json(id, one)
            for id, one in json.loads((folder / f"{subject.workflow}.json").read_text())
        ]
        for subject in SUBJECTS
    }
    for _ in range(number):
        found: dict[str, tuple[float, float]] = {}
        for sandboxed in (True, False):
            for subject in SUBJECTS:
                where = "sandboxed" if sandboxed else "unsandboxed"
                found[f"{subject.name}/{where}"] = await replay(subject, histories[subject.name], sandboxed=sandboxed)
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    quiet_logs()
    asyncio.run(rounds(Path(sys.argv[1]), int(sys.argv[2])))
    # Exit without Python's own shutdown: the SDK's threads may still use the interpreter, and abort when it is gone.
    os._exit(0)
