"""What effects within workflow tasks gain: `durability="ledger"` beside the regular way, on one server in one run.

Both ways run the same skill, whose tools do nothing, with a worker each in a process of its own. Rounds alternate, and
a ratio is the median of the rounds' ratios. Steps are read-only tools, or tools with a receipt (`at_most_once`). The
ledger is a file on the disk of this folder, or the database that `--ledger` names.

Time a step: wall time from the start of a task to its end, one task at a time, divided by its steps.

At once: wall time of many tasks together, divided by all their steps. Its limit is the one of the throughput, inverted.

History bytes: as the server returns them (protobuf), divided by the steps; what a task has without any step is taken
off, since it is the same on both ways. Results are in history either way, so the gain is smaller the larger they are.

CPU: of the worker and of the server, per step, for the tasks at once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from temporalio.client import Client

from bench.logs import quiet_logs
from bench.processes import Process, cpu_of, running
from bench.report import Report, figure
from refold.core.content import Content
from refold.core.events import UserMessage
from refold.temporal import TemporalEngine
from refold.temporal.data.inputs import input_of
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import ENV, Folder
from refold.temporal.data.wire import TaskStart
from refold.temporal.dev import dev_server

TIME_LIMIT = 0.35
AT_ONCE_LIMIT = 0.40
BYTES_LIMIT = 0.40

ROOT = Path(__file__).parents[1]
WAYS = ("ledger", "history")
KINDS = ("plain", "once")
Pair = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Side:
    """A way, with its worker."""

    engine: TemporalEngine
    worker: Process


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This benchmark's own options."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each part (default: 5)")
    parser.add_argument("--steps", type=int, default=20, help="of a task (default: 20)")
    parser.add_argument("--at-once", type=int, default=100, help="tasks at once (default: 100)")
    parser.add_argument("--only", choices=KINDS, action="append", help="only steps of this kind; repeatable")
    parser.add_argument("--ledger", help="the ledger of both ways; default: a file")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: the figures mean nothing")


def run(options: argparse.Namespace) -> Report:
    """Measure; takes some minutes."""
    quiet_logs()
    if options.quick:
        options.rounds, options.at_once = 1, 4
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as folder:
        (Path(folder) / "values").mkdir()
        os.environ[ENV] = str(Path(folder) / "values")
        os.environ["REFOLD_LEDGER"] = options.ledger or str(Path(folder) / "ledger.db")
        return asyncio.run(_measured(options, Path(folder)))


async def _measured(options: argparse.Namespace, folder: Path) -> Report:
    settings = {"rounds": options.rounds, "steps": options.steps, "at_once": options.at_once}
    report = Report(benchmark="short", settings=settings, beside="regular")
    async with dev_server(db=folder / "state.db") as server, AsyncExitStack() as stack:
        client = await Client.connect(server.address, data_converter=data_converter(Folder(Path(os.environ[ENV]))))
        sides = {}
        for way in WAYS:
            queue = f"{way}-{uuid4().hex[:8]}"
            worker = await stack.enter_async_context(running("bench.short_worker", way, server.address, queue))
            await worker.answer()
            sides[way] = _Side(TemporalEngine(client, queue), worker)
        for kind in options.only or KINDS:
            limited = kind == "plain"
            print(f"measuring {kind} …", file=sys.stderr, flush=True)
            alone = await _alone(options, sides, kind)
            report.figures.append(
                figure(f"time a step, {kind}", f"time.{kind}", "ms", alone, limit=TIME_LIMIT if limited else None)
            )
            together = await _at_once(options, sides, kind, server.pid)
            for (name, unit), pairs in together.items():
                limit = AT_ONCE_LIMIT if limited and name == "at once" else None
                report.figures.append(
                    figure(f"{name}, {kind}", f"{name.replace(' ', '_')}.{kind}", unit, pairs, limit=limit)
                )
        for size in (20, 1_000):
            rounds = [await _bytes(options, sides, size)]
            limit = BYTES_LIMIT if size == 20 else None
            report.figures.append(
                figure(f"history a step, results of {size} B", f"bytes.{size}", "B", rounds, limit=limit)
            )
    return report


async def _done(side: _Side, steps: int, kind: str = "plain", size: int = 20) -> str:
    """Run a task to its end."""
    message = UserMessage(content=Content.from_data({"steps": steps, "kind": kind, "size": size}))
    connection = side.engine.connection
    handle = await connection.client.start_workflow(
        "paces", input_of(TaskStart(message=message)), id=f"paces-{uuid4().hex[:8]}", task_queue=connection.task_queue
    )
    await handle.result()
    return handle.id


async def _alone(options: argparse.Namespace, sides: dict[str, _Side], kind: str) -> list[Pair]:
    rounds = []
    for number in range(options.rounds + 1):
        took = {}
        for way in WAYS:
            began = time.perf_counter()
            for _ in range(3):
                await _done(sides[way], options.steps, kind)
            took[way] = (time.perf_counter() - began) / (3 * options.steps) * 1_000
        if number:  # the first one warms up
            rounds.append((took["ledger"], took["history"]))
    return rounds


async def _at_once(
    options: argparse.Namespace, sides: dict[str, _Side], kind: str, server: int
) -> dict[tuple[str, str], list[Pair]]:
    found: dict[tuple[str, str], list[Pair]] = {
        ("at once", "ms"): [], ("worker CPU", "ms"): [], ("server CPU", "ms"): []
    }  # fmt: skip
    for _ in range(max(1, options.rounds // 2)):
        took: dict[str, tuple[float, ...]] = {}
        for way in WAYS:
            steps = options.at_once * options.steps
            before, cpu, began = await sides[way].worker.ask("cpu"), cpu_of(server), time.perf_counter()
            await asyncio.gather(*(_done(sides[way], options.steps, kind) for _ in range(options.at_once)))
            wall = time.perf_counter() - began
            used = (wall, await sides[way].worker.ask("cpu") - before, cpu_of(server) - cpu)
            took[way] = tuple(one / steps * 1_000 for one in used)
        for pairs, ours, twin in zip(found.values(), took["ledger"], took["history"], strict=True):
            pairs.append((ours, twin))
    return found


async def _bytes(options: argparse.Namespace, sides: dict[str, _Side], size: int) -> Pair:
    found = {}
    for way in WAYS:
        weighed = []
        for steps in (0, options.steps):
            task_id = await _done(sides[way], steps, size=size)
            history = await sides[way].engine.client.get_workflow_handle(task_id).fetch_history()
            weighed.append(sum(event.ByteSize() for event in history.events))
        found[way] = (weighed[1] - weighed[0]) / options.steps
    return found["ledger"], found["history"]
