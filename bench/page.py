"""What the page costs: how fast it opens over many tasks, and what an open page costs while nothing happens.

First the pages are made over 5,000 tasks in memory, so that their own time is measured and not Temporal's. With
`--server` they are then opened over as many tasks of a real `refold dev`, whose gateway, worker and server all take
their time; making the tasks takes some minutes. The idle cost is that of the gateway of a real `refold dev`, with open
event streams of the inbox.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from datetime import timedelta
from statistics import median
from typing import Any

import httpx2

from bench.page_skills import SKILLS
from bench.processes import ROOT, cpu_of
from bench.report import Check, Report
from refold import Content
from refold.core.authoring.define import skill_of
from refold.engine import TaskFilter
from refold.temporal import TemporalEngine, connect
from refold.testing import FakeEngine
from refold.web.page import Access, Pages, page_app

OPEN_LIMIT_MS = 300.0
LONG_LIMIT_MS = 2_000.0
"""Of the pages that fold or look through many entries or tasks."""

IDLE_LIMIT = 0.001
"""Of a core, for each open page."""

BATCH = 20
"""How many tasks are made in one engine."""

ROUNDS = 21
"""How often a page is opened."""

AT_ONCE = 40
"""How many tasks are started together."""

ORIGIN = "http://127.0.0.1"
PATHS = {
    "inbox": "/",
    "list": "/tasks",
    "decisions": "/decisions",
    "task": "/task/long",
    "past": "/at/long?seq=1500",
    "way": "/skills/bench-long?task=long",
}
SERVED = PATHS | {
    "list of one state": "/tasks?lifecycle=done",
    "list of nothing": "/tasks?skill=nobody",
    "list of ids that begin so": "/tasks?text=t49",
    "list of ids that contain it": "/tasks?text=zz&anywhere=yes",
}
LONG = frozenset({"decisions", "past", "way", "list of ids that contain it"})
PROCESSES = ("gateway", "server", "worker")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--tasks", type=int, default=5_000, help="tasks in the list (default 5,000)")
    parser.add_argument("--waiting", type=int, default=200, help="of them at a gate (default 200)")
    parser.add_argument("--entries", type=int, default=3_000, help="entries of the long task (default 3,000)")
    parser.add_argument("--pages", type=int, default=40, help="open pages while nothing happens (default 40)")
    parser.add_argument("--server", action="store_true", help="also over as many tasks on a real server; some minutes")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long (default 60)")


def run(options: argparse.Namespace) -> Report:
    """Run it."""
    settings = {name: getattr(options, name) for name in ("tasks", "waiting", "entries", "pages", "idle", "server")}
    report = Report(benchmark="page", settings=settings)
    report.checks += asyncio.run(_opening(options.tasks, options.waiting, options.entries))
    if options.pages or options.server:
        report.checks += asyncio.run(_over_server(options))
    return report


async def _over_server(options: argparse.Namespace) -> list[Check]:
    checks = []
    async with _dev() as up, httpx2.AsyncClient(base_url=up["page"], timeout=None) as http:
        if options.server:
            engine = await connect(address=up["address"])
            await _made(engine, options.tasks, options.waiting, options.entries)
            for name, path in SERVED.items():
                checks.append(await _served(http, up, name, path))
        if options.pages:
            checks.append(await _idle(http, up["gateway_pid"], options.pages, options.idle))
    return checks


async def _made(engine: TemporalEngine, tasks: int, waiting: int, entries: int) -> None:
    """Many tasks on a server, one of them long; returns when the server lists them all."""
    print(f"making {tasks} tasks on a server …", file=sys.stderr, flush=True)
    room = asyncio.Semaphore(AT_ONCE)

    async def start(number: int) -> None:
        skill = "bench-gate" if number < waiting else "bench-done"
        async with room:
            await engine.start(skill, Content.from_text("x"), task_id=f"t{number}")

    async def say(number: int) -> None:
        async with room:  # signals, as a server takes ten updates of a task at a time
            await engine.client.get_workflow_handle("long").signal("message", f"answer {number}")

    await engine.start("bench-long", Content.from_text("x"), task_id="long")
    async with asyncio.TaskGroup() as all_of_them:
        for number in range(entries - 1):
            all_of_them.create_task(say(number))
        for number in range(tasks - 1):
            all_of_them.create_task(start(number))
    while not await _listed(engine, tasks, waiting):  # noqa: ASYNC110 - the server's list lags, and rings for nobody
        await asyncio.sleep(0.5)


async def _listed(engine: TemporalEngine, tasks: int, waiting: int) -> bool:
    counts = await asyncio.gather(engine.count(TaskFilter()), engine.count(TaskFilter(waits=True)))
    return counts[0] >= tasks and counts[1] >= waiting


async def _served(http: httpx2.AsyncClient, up: dict[str, Any], name: str, path: str) -> Check:
    """What a page takes over a server: of CPU in each process, and from the first byte asked to the last one answered.

    The CPU is judged, since whatever else the machine does makes the waiting longer.
    """
    took, size = [], 0
    await http.get(path.removeprefix("/"))
    before = {one: cpu_of(up[f"{one}_pid"]) for one in PROCESSES}
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = await http.get(path.removeprefix("/"))
        took.append((time.perf_counter() - began) * 1000)
        size = len(answer.raise_for_status().content)
    spent = {one: (cpu_of(up[f"{one}_pid"]) - before[one]) * 1000 / ROUNDS for one in PROCESSES}
    whole, limit = sum(spent.values()), LONG_LIMIT_MS if name in LONG else OPEN_LIMIT_MS
    each = ", ".join(f"{one} {ms:.0f}" for one, ms in spent.items())
    found = f"{whole:.0f} ms of CPU ({each}); limit {limit:.0f} ms; "
    found += f"answered after {min(took):.0f} ms at best, {median(took):.0f} ms in the middle; {size // 1024} KB"
    return Check(name=f"{name} opens soon over a server", key=f"served_{name}", passed=whole <= limit, found=found)


async def _opening(tasks: int, waiting: int, entries: int) -> list[Check]:
    print(f"making {tasks} tasks …", file=sys.stderr, flush=True)
    engine = await _many(tasks, waiting, entries)
    app = page_app(engine, Access(loopback="ada"), Pages(skills=SKILLS))
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    checks = []
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as http:
        for name, path in PATHS.items():
            checks.append(await _timed(http, name, path))
    return checks


async def _many(tasks: int, waiting: int, entries: int) -> FakeEngine:
    """An engine with so many tasks, one of them long.

    A `FakeEngine` looks through all its tasks after each step, so the tasks are made in small engines.
    """
    skills = [skill_of(one) for one in SKILLS]
    whole = FakeEngine(skills)
    for begin in range(0, tasks - 1, BATCH):
        some = FakeEngine(skills, now=whole.clock.now + timedelta(milliseconds=begin))
        for number in range(begin, min(begin + BATCH, tasks - 1)):
            skill = "bench-gate" if number < waiting else "bench-done"
            await some.start(skill, Content.from_text("x"), task_id=f"t{number}")
        whole._tasks.update(some._tasks)
    long = FakeEngine(skills)
    await long.start("bench-long", Content.from_text("x"), task_id="long")
    for number in range(entries - 1):
        await long.send("long", Content.from_text(f"answer {number}"))
    whole._tasks.update(long._tasks)
    return whole


async def _timed(http: httpx2.AsyncClient, name: str, path: str) -> Check:
    took, size = [], 0  # of CPU, so that what else the machine does is not measured
    for _ in range(ROUNDS):
        began = time.process_time()
        answer = await http.get(path)
        took.append((time.process_time() - began) * 1000)
        size = len(answer.raise_for_status().content)
    middle, worst = median(took), max(took)
    found = f"{middle:.0f} ms, at most {worst:.0f} ms, {size // 1024} KB; limit {OPEN_LIMIT_MS:.0f} ms"
    return Check(name=f"{name} opens soon", key=f"open_{name}", passed=middle <= OPEN_LIMIT_MS, found=found)


@contextlib.asynccontextmanager
async def _dev() -> AsyncIterator[dict[str, Any]]:
    command = [sys.executable, "-m", "refold.cli", "dev", "bench.page_skills", "--json", "--a2a-port", "0"]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


async def _idle(http: httpx2.AsyncClient, gateway: int, pages: int, seconds: float) -> Check:
    print(f"measuring {pages} open pages for {seconds:g} s …", file=sys.stderr, flush=True)
    before = await _spent(gateway, seconds)
    streams = [asyncio.create_task(_listen(http, "live")) for _ in range(pages)]
    await asyncio.sleep(20)  # until the list is asked as seldom as it will be
    spent = await _spent(gateway, seconds)
    for stream in streams:
        stream.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    each, one = (spent - before) / pages, spent - before
    found = f"{each:.4%} of a core for each of {pages} pages, {one:.3%} for all; limit {IDLE_LIMIT:.1%} each"
    return Check(name="an open page costs little", key="idle", passed=each < IDLE_LIMIT, found=found)


async def _listen(http: httpx2.AsyncClient, path: str) -> None:
    async with http.stream("GET", path) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def _spent(pid: int, seconds: float) -> float:
    """The share of a core that a process uses."""
    began = cpu_of(pid)
    await asyncio.sleep(seconds)
    return (cpu_of(pid) - began) / seconds
