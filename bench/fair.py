"""How long a small owner's tasks take beside another owner's burst, on a server with and without fairness.

One worker with the usual 100 slots performs effects that take as long as a model's reply, so work waits for a slot. The
ten tasks of the small owner are started once alone, and once when all tasks of the burst have been started. Time is
wall time from the first of their starts to the last of their ends; the ratio is that beside the burst to that alone,
the median of the rounds. Each round has a server and a worker of its own, and ends when the ten have.

Without fairness: the same on a server whose `matching.enableFairness` is off, as an older one is. A burst as a batch:
the same, but that nobody waits for the burst's tasks (`batch=True`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from temporalio.client import Client

from bench import fair_skills
from bench.logs import quiet_logs
from bench.processes import cpu, cpu_of
from bench.report import Check, Report, figure
from refold.core.content import Content
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import ENV
from refold.temporal.dev import dev_server

LIMIT = 2.0
FEW = 10
ONE_PARTITION = {"matching.numTaskqueueWritePartitions": "1"}
"""Turns hold within a partition of the task queue: one, as docs/operate.md advises for few workers."""

OFF = {"matching.enableFairness": "false"}
QUEUE = "fair"

Pair = tuple[float, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This benchmark's own options."""
    parser.add_argument("--rounds", type=int, default=3, help="rounds with fairness (default: 3)")
    parser.add_argument("--burst", type=int, default=1_000, help="tasks of the other owner (default: 1000)")
    parser.add_argument("--steps", type=int, default=3, help="effects of a task (default: 3)")
    parser.add_argument("--effect", type=float, default=2.0, help="seconds that an effect takes (default: 2)")
    parser.add_argument("--slots", type=int, default=100, help="effects of the worker at once (default: 100)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: the figures mean nothing")


def run(options: argparse.Namespace) -> Report:
    """Measure; takes some minutes."""
    quiet_logs()
    if options.quick:
        options.rounds, options.burst, options.steps, options.effect, options.slots = 1, 20, 1, 0.1, 4
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as folder:
        os.environ[ENV] = folder
        return asyncio.run(_measured(options))


async def _measured(options: argparse.Namespace) -> Report:
    settings = {name: getattr(options, name) for name in ("rounds", "burst", "steps", "effect", "slots")}
    report = Report(benchmark="fair", settings=settings, beside="alone")
    ways: Sequence[tuple[str, int, dict[str, str], bool, float | None]] = (
        ("fair", options.rounds, {}, False, LIMIT),
        ("burst as a batch", 1, {}, True, LIMIT),
        ("without", 1, OFF, False, None),
    )
    for name, rounds, server, batch, limit in ways:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        found = [await _round(options, server, batch=batch) for _ in range(rounds)]
        pairs = [one for one, _ in found]
        report.figures.append(figure(f"{FEW} tasks, {name}", name.replace(" ", "_"), "s", pairs, limit=limit))
        used = "; ".join(said for _, said in found)
        report.checks.append(Check(name=f"CPU while beside, {name}", key=f"cpu.{name}", passed=True, found=used))
    return report


async def _round(options: argparse.Namespace, settings: dict[str, str], *, batch: bool) -> tuple[Pair, str]:
    """How long the few take beside the burst and alone; and the CPU seconds that were used meanwhile."""
    async with dev_server(settings={**ONE_PARTITION, **settings}) as server:
        plugin = RefoldPlugin([fair_skills], fair_skills.TOOLS)
        engine = TemporalEngine(await Client.connect(server.address, plugins=[plugin]), QUEUE)
        slots: dict[str, Any] = {"max_concurrent_activities": options.slots}
        async with make_worker(
            engine.client, plugin, task_queue=QUEUE, graceful_shutdown_timeout=timedelta(0), **slots
        ):
            await _ended(engine, await _started(options, engine, "warm", FEW))
            began = time.perf_counter()
            await _ended(engine, await _started(options, engine, "bob", FEW))
            alone = time.perf_counter() - began
            await _started(options, engine, "ada", options.burst, batch=batch)
            began, here, there = time.perf_counter(), cpu(), cpu_of(server.pid)
            await _ended(engine, await _started(options, engine, "bob", FEW))
            beside = time.perf_counter() - began
            said = f"{cpu() - here:.0f} s here, {cpu_of(server.pid) - there:.0f} s in the server"
    return (beside, alone), said


async def _started(
    options: argparse.Namespace, engine: TemporalEngine, owner: str, count: int, *, batch: bool = False
) -> list[str]:
    content = Content.from_data({"steps": options.steps, "effect_s": options.effect})
    views = await asyncio.gather(*(engine.start("works", content, owner=owner, batch=batch) for _ in range(count)))
    return [view.task_id for view in views]


async def _ended(engine: TemporalEngine, task_ids: Sequence[str]) -> None:
    await asyncio.gather(*(engine.client.get_workflow_handle(task_id).result() for task_id in task_ids))
