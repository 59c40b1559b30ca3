"""The process of an engine: `python -m bench.peers.process MODULE VARIANT`, in the engine's environment.

It starts tasks and performs their steps, so that each engine's client is counted alike. Each line on stdin is a
question as JSON, each line on stdout its answer; the end of stdin ends the process.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
import resource
import sys
import time
from typing import Any


async def _answer(side: Any, question: dict[str, Any]) -> dict[str, float]:
    tasks, steps = question["tasks"], question["steps"]
    if question["ask"] == "kept":
        return {"bytes": sum([await side.kept(task) for task in tasks])}
    cpu, began = _cpu(), time.perf_counter()
    if question["ask"] == "at_once":
        await asyncio.gather(*(side.perform(task, steps) for task in tasks))
    else:
        for task in tasks:
            await side.perform(task, steps)
    return {"wall_s": time.perf_counter() - began, "cpu_s": _cpu() - cpu}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _main(module: str, variant: str) -> None:
    engine = importlib.import_module(module)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with engine.serving(variant) as side:
        print(json.dumps("ready"), flush=True)
        while question := (await lines.readline()).decode().strip():
            print(json.dumps(await _answer(side, json.loads(question))), flush=True)
        # Not after a clean shutdown, which no figure is about, and which some engines take seconds for.
        os._exit(0)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(_main(*sys.argv[1:3]))
