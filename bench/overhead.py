"""What refold costs compared with a hand-written workflow: CPU, replay, memory, history.

`bench/twin.py` is the hand-written workflow, and says what it does and does not do. Both sides run the research loop
against one Temporal server with the same scripted model, which costs next to nothing. Workers and replays run in
processes of their own, in the sandbox as in production; only the use of that process is measured. The model call is a
stub on both sides, so the code around a real one in `refold.effects` is not measured. Rounds alternate (hand-written,
reducer, steps, table, and again), and a ratio is the median of the rounds' ratios.

CPU per step: user and system time of the worker for a batch of tasks, start, one status query, one pause and its answer
included, divided by the model calls; for realistic values (1 KB topic, 2 KB drafts) and for tiny ones.

Replay: CPU time of replaying recorded histories; outside the sandbox as well, without a limit. Wall time is shown
without a limit, since on a shared machine it includes other processes.

Memory per idle task: growth of the resident set of a fresh worker with the number of tasks that wait for an answer.

History bytes: the history as the server returns it (protobuf), divided by the model calls.

History events: by type, compared with the hand-written workflow.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowHistory

from bench import sides
from bench.processes import Process, running
from bench.report import Check, Figure, Report, figure
from bench.script import NOTE, Plan
from bench.sides import BY_HAND, STYLES, SUBJECTS, Subject
from refold.temporal.data.storage import ENV
from refold.temporal.dev import dev_server

CPU_LIMIT = 1.10
REPLAY_LIMIT = 1.20
MEMORY_LIMIT = 1.20
BYTES_LIMIT = 1.15

# As in the demo: the shipped loop, and drafts as long as the scripted model's.
SHORT = Plan(name="short", cycles=3, pause=2, topic_chars=40, draft_chars=96)
TINY = Plan(name="tiny", cycles=10, pause=5, topic_chars=40, draft_chars=60)
REAL = Plan(name="realistic", cycles=8, pause=4, topic_chars=1_000, draft_chars=2_000)
WAITING = Plan(name="waiting", cycles=3, pause=1, topic_chars=1_000, draft_chars=2_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of the benchmark.

    Attributes:
        rounds: Of CPU and of replay.
        tasks: In one batch of a round.
        histories: Of each plan, replayed in one round.
        memory_rounds: Of memory; each takes a fresh worker for each subject.
        idle: Waiting tasks whose memory is measured.
        warm: Waiting tasks before the first measurement, which fill caches that are filled once.
    """

    rounds: int
    tasks: int = 4
    histories: int = 5
    memory_rounds: int = 3
    idle: int = 200
    warm: int = 50


QUICK = Size(rounds=1, tasks=1, histories=1, memory_rounds=1, idle=5, warm=1)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This benchmark's own options."""
    parser.add_argument("--rounds", type=int, default=7, help="rounds of CPU and replay (default: 7)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: the figures mean nothing")
    parser.add_argument(
        "--only", choices=["cpu", "replay", "memory", "history"], action="append", help="only this part; repeatable"
    )


def run(options: argparse.Namespace) -> Report:
    """Measure; takes some minutes."""
    logging.basicConfig(level=logging.ERROR)
    size = QUICK if options.quick else Size(rounds=options.rounds)
    parts = options.only or ["history", "cpu", "replay", "memory"]
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as folder:
        values = Path(folder) / "values"
        values.mkdir()
        os.environ[ENV] = str(values)
        return asyncio.run(_measured(Bench(Path(folder), size), parts))


async def _measured(bench: Bench, parts: list[str]) -> Report:
    size = bench.size
    settings = {"rounds": size.rounds, "tasks": size.tasks, "memory_rounds": size.memory_rounds, "idle": size.idle}
    report = Report(benchmark="overhead", settings={**settings, "parts": parts})
    async with dev_server() as server:
        await bench.connect(server.address)
        if "history" in parts:
            figures, checks = await bench.history()
            report.figures += figures
            report.checks += checks
        for part, measure in {"cpu": bench.cpu, "replay": bench.replay, "memory": bench.memory}.items():
            if part in parts:
                print(f"measuring {part} …", file=sys.stderr, flush=True)
                report.figures += await measure()
    return report


class Bench:
    """One run of the benchmark."""

    def __init__(self, folder: Path, size: Size) -> None:
        self.folder = folder
        self.size = size
        self.address = ""
        self.clients: dict[str, Client] = {}
        self._ids = count(1)

    async def connect(self, address: str) -> None:
        """A client for each side, which starts and answers its tasks."""
        self.address = address
        for side in (sides.REFOLD, sides.TWIN):
            self.clients[side] = await Client.connect(address, plugins=[sides.plugin(side)])

    # --- the four parts

    async def history(self) -> tuple[list[Figure], list[Check]]:
        """Compare events and bytes."""
        figures, checks = [], []
        async with self._workers() as queues:
            for plan in (SHORT, TINY, REAL):
                found = {subject.name: await self._recorded(subject, plan, queues) for subject in SUBJECTS}
                twin = found[BY_HAND.name]
                for style in STYLES:
                    ours = found[style.name]
                    key = f"history_bytes.{plan.name}.{style.name}"
                    name = f"history bytes per step, {plan.name}, {style.name}"
                    rounds = [(_bytes(ours) / plan.steps, _bytes(twin) / plan.steps)]
                    figures.append(figure(name, key, "B", rounds, limit=BYTES_LIMIT))
                    if plan is not TINY:
                        checks.append(_no_event_more(plan, style, ours, twin))
        return figures, checks

    async def cpu(self) -> list[Figure]:
        """The worker's CPU time per step."""
        figures = []
        async with self._workers() as queues:
            for plan in (REAL, TINY):
                rounds: dict[str, list[float]] = {subject.name: [] for subject in SUBJECTS}
                for number in range(self.size.rounds + (self.size is not QUICK)):
                    for subject in (BY_HAND, *STYLES):
                        used = await self._batch(subject, plan, queues)
                        if number or self.size is QUICK:  # the first round warms up
                            rounds[subject.name].append(used / (self.size.tasks * plan.steps) * 1_000)
                for style in STYLES:
                    name, key = f"worker CPU per step, {plan.name}, {style.name}", f"cpu.{plan.name}.{style.name}"
                    pairs = list(zip(rounds[style.name], rounds[BY_HAND.name], strict=True))
                    figures.append(figure(name, key, "ms", pairs, limit=CPU_LIMIT))
        return figures

    async def replay(self) -> list[Figure]:
        """The time of a replay."""
        histories: dict[str, list[WorkflowHistory]] = {}
        async with self._workers() as queues:
            for subject in SUBJECTS:
                plans = [plan for plan in (SHORT, TINY, REAL) for _ in range(self.size.histories)]
                histories[subject.name] = [await self._recorded(subject, plan, queues) for plan in plans]
        for subject in SUBJECTS:
            recorded = [(history.workflow_id, json.loads(history.to_json())) for history in histories[subject.name]]
            (self.folder / f"{subject.workflow}.json").write_text(json.dumps(recorded))
        number = self.size.rounds + (self.size is not QUICK)
        async with running("bench.replaying", str(self.folder), str(number)) as process:
            answers: list[dict[str, list[float]]] = [await process.answer() for _ in range(number)]
        rounds = answers[-self.size.rounds :]  # the first one warms up
        figures = []
        for where in ("sandboxed", "unsandboxed"):
            for index, clock in enumerate(("CPU", "wall")):
                for style in STYLES:
                    pairs = [
                        tuple(
                            one[f"{subject.name}/{where}"][index] / len(histories[subject.name]) * 1_000
                            for subject in (style, BY_HAND)
                        )
                        for one in rounds
                    ]
                    limit = REPLAY_LIMIT if where == "sandboxed" and clock == "CPU" else None
                    name = f"replay of a task, {where}, {clock}, {style.name}"
                    key = f"replay.{where}.{clock.lower()}.{style.name}"
                    figures.append(figure(name, key, "ms", [(ours, twin) for ours, twin in pairs], limit=limit))
        return figures

    async def memory(self) -> list[Figure]:
        """The worker's memory per waiting task."""
        rounds: dict[str, list[float]] = {subject.name: [] for subject in SUBJECTS}
        for _ in range(self.size.memory_rounds):
            for subject in (BY_HAND, *STYLES):
                rounds[subject.name].append(await self._idle(subject))
        figures = []
        for style in STYLES:
            pairs = list(zip(rounds[style.name], rounds[BY_HAND.name], strict=True))
            name, key = f"memory per idle task, {style.name}", f"memory.{style.name}"
            figures.append(figure(name, key, "KiB", pairs, limit=MEMORY_LIMIT))
        return figures

    # --- tasks

    async def _batch(self, subject: Subject, plan: Plan, queues: dict[str, _Queue]) -> float:
        worker = queues[subject.side].worker
        before = await worker.ask("cpu")
        await asyncio.gather(*(self._task(subject, plan, queues) for _ in range(self.size.tasks)))
        return await worker.ask("cpu") - before

    async def _recorded(self, subject: Subject, plan: Plan, queues: dict[str, _Queue]) -> WorkflowHistory:
        return await (await self._task(subject, plan, queues)).fetch_history()

    async def _task(self, subject: Subject, plan: Plan, queues: dict[str, _Queue]) -> WorkflowHandle[Any, Any]:
        handle = await self._paused(subject, plan, queues[subject.side].name)
        await handle.query("status")
        await handle.execute_update("message", NOTE)
        await handle.result()
        return handle

    async def _paused(self, subject: Subject, plan: Plan, queue: str) -> WorkflowHandle[Any, Any]:
        # Seven digits, so that ids are of one length and take the same number of bytes.
        id = f"task-{next(self._ids):07}"
        handle = await sides.start(self.clients[subject.side], subject, plan, id, queue)
        asked = 0
        # Read from the history, which costs the worker nothing.
        async for event in handle.fetch_history_events(wait_new_event=True):
            asked += event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED
            if asked == 2 * plan.pause and event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                return handle
        raise RuntimeError(f"{subject.workflow} ended without a pause")

    async def _idle(self, subject: Subject) -> float:
        """KiB per waiting task in a fresh worker."""
        async with self._workers([subject.side]) as queues:
            await self._wait_there(subject, self.size.warm, queues)
            before = await queues[subject.side].worker.ask("memory")
            await self._wait_there(subject, self.size.idle, queues)
            after = await queues[subject.side].worker.ask("memory")
        return max(after - before, 4096.0) / self.size.idle / 1024  # less than a page cannot be measured

    async def _wait_there(self, subject: Subject, number: int, queues: dict[str, _Queue]) -> None:
        # A few at a time: a burst would leave buffers in the worker that belong to no task.
        for done in range(0, number, 5):
            few = range(min(5, number - done))
            await asyncio.gather(*(self._paused(subject, WAITING, queues[subject.side].name) for _ in few))

    # --- processes

    @contextlib.asynccontextmanager
    async def _workers(self, of: list[str] | None = None) -> AsyncIterator[dict[str, _Queue]]:
        """A worker for each side, each on a queue of its own; names of one length."""
        async with contextlib.AsyncExitStack() as stack:
            queues = {}
            for side in of or [sides.REFOLD, sides.TWIN]:
                name = f"queue-{next(self._ids):07}"
                worker = await stack.enter_async_context(running("bench.worker", side, self.address, name))
                await worker.answer()
                queues[side] = _Queue(name=name, worker=worker)
            yield queues


@dataclass(frozen=True, slots=True, kw_only=True)
class _Queue:
    """A task queue and the only worker on it."""

    name: str
    worker: Process


def _bytes(history: WorkflowHistory) -> float:
    return float(sum(event.ByteSize() for event in history.events))


def _no_event_more(plan: Plan, style: Subject, ours: WorkflowHistory, twin: WorkflowHistory) -> Check:
    upsert = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES
    extra = Counter(event.event_type for event in ours.events)
    extra.subtract(Counter(event.event_type for event in twin.events))
    more = {EventType.Name(kind).removeprefix("EVENT_TYPE_"): number for kind, number in extra.items() if number}
    return Check(
        name=f"history events, {plan.name}, {style.name}: none more, the pause's two upserts aside",
        key=f"history_events.{plan.name}.{style.name}",
        passed=all(number <= (2 if kind == upsert else 0) for kind, number in extra.items()),
        found=f"{len(ours.events)} against {len(twin.events)}; {more}",
    )
