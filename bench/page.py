"""What the page costs: how fast it opens over many tasks, and what an open page costs while nothing happens.

The pages are made over 5,000 tasks in memory, so that their own time is measured and not Temporal's. The idle cost is
that of the gateway of a real `refold dev`, with open event streams of the inbox.
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

from bench.processes import ROOT, cpu_of
from bench.report import Check, Report
from refold import Content, Ctx, Transition, flow_skill, step
from refold.core.authoring.define import skill_of
from refold.testing import FakeEngine
from refold.web.page import Access, Pages, page_app

OPEN_LIMIT_MS = 300.0
IDLE_LIMIT = 0.001
"""Of a core, for each open page."""

BATCH = 20
"""How many tasks are made in one engine."""

ORIGIN = "http://127.0.0.1"


@flow_skill(id="bench-gate")
class Gate:
    """Waits for a person."""

    @step(start=True)
    async def ask(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.approve("pay", "Pay this?", show={"cents": 5, "to": {"name": "Grace", "city": "Rome"}})
        return ctx.complete("paid")


@flow_skill(id="bench-done")
class Done:
    """Is done at once."""

    @step(start=True)
    async def end(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.complete("done")


@flow_skill(id="bench-long")
class Long:
    """Asks again and again."""

    @step(start=True)
    async def talk(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.await_input("more", "And then?")

    @step(resume_from="talk")
    async def heard(self, ctx: Ctx, content: Content) -> Transition:
        return ctx.goto("talk", content=content)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this benchmark."""
    parser.add_argument("--tasks", type=int, default=5_000, help="tasks in the list (default 5,000)")
    parser.add_argument("--waiting", type=int, default=200, help="of them at a gate (default 200)")
    parser.add_argument("--entries", type=int, default=3_000, help="entries of the long task (default 3,000)")
    parser.add_argument("--pages", type=int, default=40, help="open pages while nothing happens (default 40)")
    parser.add_argument("--idle", type=float, default=60.0, metavar="SECONDS", help="how long (default 60)")


def run(options: argparse.Namespace) -> Report:
    """Run it."""
    settings = {name: getattr(options, name) for name in ("tasks", "waiting", "entries", "pages", "idle")}
    report = Report(benchmark="page", settings=settings)
    report.checks += asyncio.run(_opening(options.tasks, options.waiting, options.entries))
    if options.pages:
        print(f"measuring {options.pages} open pages for {options.idle:g} s …", file=sys.stderr, flush=True)
        report.checks += asyncio.run(_idle(options.pages, options.idle))
    return report


async def _opening(tasks: int, waiting: int, entries: int) -> list[Check]:
    print(f"making {tasks} tasks …", file=sys.stderr, flush=True)
    engine = await _many(tasks, waiting, entries)
    app = page_app(engine, Access(loopback="ada"), Pages(skills=[Gate, Done, Long]))
    transport = httpx2.ASGITransport(app=app, client=("127.0.0.1", 1))
    checks = []
    async with httpx2.AsyncClient(transport=transport, base_url=ORIGIN) as http:
        for name, path in (
            ("inbox", "/"),
            ("list", "/tasks"),
            ("task", "/task/long"),
            ("past", "/at/long?seq=1500"),
            ("decisions", "/decisions"),
        ):
            checks.append(await _timed(http, name, path))
    return checks


async def _many(tasks: int, waiting: int, entries: int) -> FakeEngine:
    """An engine with so many tasks, one of them long.

    A `FakeEngine` looks through all its tasks after each step, so the tasks are made in small engines.
    """
    skills = [skill_of(one) for one in (Gate, Done, Long)]
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
    for _ in range(11):
        began = time.process_time()
        answer = await http.get(path)
        took.append((time.process_time() - began) * 1000)
        size = len(answer.raise_for_status().content)
    middle, worst = median(took), max(took)
    found = f"{middle:.0f} ms, at most {worst:.0f} ms, {size // 1024} KB; limit {OPEN_LIMIT_MS:.0f} ms"
    return Check(name=f"{name} opens soon", key=f"open_{name}", passed=middle <= OPEN_LIMIT_MS, found=found)


@contextlib.asynccontextmanager
async def _dev() -> AsyncIterator[dict[str, Any]]:
    command = [sys.executable, "-m", "refold.cli", "dev", "workflows.hello", "--json"]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=DEVNULL)
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


async def _idle(pages: int, seconds: float) -> list[Check]:
    async with _dev() as up, httpx2.AsyncClient(base_url=up["page"], timeout=None) as http:
        before = await _spent(up["gateway_pid"], seconds)
        streams = [asyncio.create_task(_listen(http, "live")) for _ in range(pages)]
        await asyncio.sleep(20)  # until the list is asked as seldom as it will be
        spent = await _spent(up["gateway_pid"], seconds)
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
    each, one = (spent - before) / pages, spent - before
    found = f"{each:.4%} of a core for each of {pages} pages, {one:.3%} for all; limit {IDLE_LIMIT:.1%} each"
    return [Check(name="an open page costs little", key="idle", passed=each < IDLE_LIMIT, found=found)]


async def _listen(http: httpx2.AsyncClient, path: str) -> None:
    async with http.stream("GET", path) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def _spent(pid: int, seconds: float) -> float:
    """The share of a core that a process uses."""
    began = cpu_of(pid)
    await asyncio.sleep(seconds)
    return (cpu_of(pid) - began) / seconds
