"""refold beside DBOS, Restate, LangGraph, Burr and hand-written Temporal workflows: the same work on each, in turn.

A task is a loop of steps; a step appends a line to a file and returns 1,000 bytes, all of which the task keeps. In each
round each side has one turn, alone on the machine: fresh server, fresh process, some tasks to warm up, then

- time a step: three tasks of 20 steps one after the other, wall time divided by the steps;
- at once: 100 tasks of 20 steps, steps a second, and CPU time of the engine's process and of its server;
- SIGKILL inside the tenth effect of a task: the seconds from the kill to the task's end, the new process's start
  included, and how many effects ran twice.

The first round also runs one task each of 20, 100, 400 and 800 steps: the bytes kept of it, and its time a step.

`--setup` makes the engines' environments; a side that cannot run here is left out, by name. `--record` writes what was
found to bench/peers/recorded.json, and from it the tables and pictures of docs/performance.md, after each turn, so that
a run may be broken off; `--page` writes the page alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.logs import quiet_logs
from bench.peers import machine, page, setup
from bench.peers.found import Found
from bench.peers.servers import FAILURES, Server
from bench.peers.setup import ROOT
from bench.peers.table import BY_KEY, SIDES, Side
from bench.peers.work import FOLDER, KILL_AT, LOG, SERVER
from bench.processes import Process, running

LENGTHS = (20, 100, 400, 800)
ALONE = 3
WARM = 10
PATIENCE_S = 900.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This benchmark's own options."""
    parser.add_argument("--setup", action="store_true", help="make the engines' environments, and end")
    parser.add_argument("--page", action="store_true", help="write the page anew from what was recorded, and end")
    parser.add_argument("--record", action="store_true", help="keep what was found, and write the page from it")
    parser.add_argument("--rounds", type=int, default=5, help="in each of which every side has a turn (default: 5)")
    parser.add_argument("--steps", type=int, default=20, help="of a task (default: 20)")
    parser.add_argument("--at-once", type=int, default=100, help="tasks at once (default: 100)")
    parser.add_argument("--only", choices=list(BY_KEY), action="append", help="only this side; repeatable")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: the figures mean nothing")


def run(options: argparse.Namespace) -> Found:
    """Measure; takes about five minutes a round.

    Raises:
        SystemExit: Only the environments, or the page, were asked for; or what is to be recorded would be a part.
    """
    if options.setup:
        failed = setup.set_up()
        print("\n".join(f"{name}: {why}" for name, why in failed.items()) or f"ready, in {setup.HOME}")
        raise SystemExit(1 if failed else 0)
    if options.page:
        page.write(page.recorded())
        raise SystemExit(0)
    if options.record and (options.only or options.quick):
        print("--record needs a run of all sides: leave out --only and --quick", file=sys.stderr)
        raise SystemExit(2)
    if options.quick:
        options.rounds, options.at_once = 1, 4
    quiet_logs()
    return asyncio.run(measured(options))


async def measured(options: argparse.Namespace) -> Found:
    """The figures of a run."""
    sides = [BY_KEY[key] for key in options.only] if options.only else list(SIDES)
    lengths = LENGTHS[:1] if options.quick else LENGTHS
    settings = {"rounds": options.rounds, "steps": options.steps, "at_once": options.at_once, "lengths": list(lengths)}
    data: dict[str, Any] = {"settings": settings, "machine": machine.described(ROOT)}
    data |= {"missing": {}, "rounds": [], "lengths": {}}
    print(f"load at the start: {machine.load()}", file=sys.stderr, flush=True)
    for number in range(options.rounds):
        data["rounds"].append({})
        for side in _turned(sides, number):
            if side.key in data["missing"]:
                continue
            try:
                async with asyncio.timeout(2 * PATIENCE_S), _turn(side) as turn:
                    figures = await turn.measured(options.steps, options.at_once)
                    data["rounds"][-1][side.key] = figures
                    shown = ", ".join(f"{name} {value:.3g}" for name, value in figures.items())
                    print(f"round {number + 1}, {side.name}: {shown}", file=sys.stderr, flush=True)
                    if number == 0 and not side.kill_only:
                        data["lengths"][side.key] = await turn.of_lengths(lengths)
            except FAILURES as why:
                data["missing"][side.key] = f"{str(why) or type(why).__name__} (round {number + 1})"
                print(f"left out: {side.name}: {data['missing'][side.key]}", file=sys.stderr, flush=True)
            data["machine"]["load_at_end"] = machine.load()
            if options.record:
                page.record(Found(data))
    return Found(data)


def _turned(sides: Sequence[Side], number: int) -> list[Side]:
    """Each round begins with another side, so that no side always follows the same one."""
    first = number * 5 % len(sides)
    return [*sides[first:], *sides[:first]]


@dataclass(slots=True)
class _Turn:
    """A side with its server and its folder."""

    side: Side
    server: Server
    environment: dict[str, str]
    log: Path

    async def measured(self, steps: int, at_once: int) -> dict[str, float]:
        """The figures of one round."""
        figures = {"load": machine.load()[0]}
        if not self.side.kill_only:
            async with self._process() as process:
                await _ask(process, "at_once", [f"warm-{n}" for n in range(WARM)], steps)
                figures |= await self._costs(process, "alone", ALONE, steps)
                figures |= await self._costs(process, "at_once", at_once, steps)
        return figures | await self._killed(steps)

    async def _costs(self, process: Process, how: str, tasks: int, steps: int) -> dict[str, float]:
        names = [f"{how}-{n}" for n in range(tasks)]
        server = self.server.cpu()
        used = await _ask(process, how, names, steps)
        number = tasks * steps
        return {
            f"{how}.step_ms": used["wall_s"] / number * 1_000,
            f"{how}.process_cpu_ms": used["cpu_s"] / number * 1_000,
            f"{how}.server_cpu_ms": (self.server.cpu() - server) / number * 1_000,
            f"{how}.twice": self._runs(names) - number,
        }

    async def _killed(self, steps: int) -> dict[str, float]:
        async with self._process() as process:
            await _ask(process, "alone", ["warm-again"], steps)
            _put(process, "alone", ["kill"], max(steps, 2 * KILL_AT))
            await asyncio.wait_for(process.process.wait(), PATIENCE_S)
        began = time.perf_counter()
        async with self._process() as process:
            ready = time.perf_counter()
            await _ask(process, "alone", ["kill"], max(steps, 2 * KILL_AT))
            done = time.perf_counter()
        twice = self._runs(["kill"]) - max(steps, 2 * KILL_AT)
        return {"kill.ready_s": ready - began, "kill.done_s": done - began, "kill.twice": twice}

    async def of_lengths(self, lengths: Sequence[int]) -> dict[str, dict[str, float]]:
        """What tasks of several lengths keep and take."""
        found = {}
        async with self._process() as process:
            await _ask(process, "alone", ["warm-long"], lengths[0])
            await _ask(process, "kept", ["warm-long"], 0)
            for steps in lengths:
                task = f"long-{steps:04}"
                used = await _ask(process, "alone", [task], steps)
                kept = await _ask(process, "kept", [task], 0)
                found[str(steps)] = {"bytes": kept["bytes"], "step_ms": used["wall_s"] / steps * 1_000}
        return found

    def _runs(self, tasks: Sequence[str]) -> int:
        """How many effects of tasks took place."""
        return sum(line.split()[0] in tasks for line in self.log.read_text().splitlines())

    @asynccontextmanager
    async def _process(self) -> AsyncIterator[Process]:
        module = f"bench.peers.sides.{self.side.module}"
        words = ("bench.peers.process", module, self.side.variant)
        async with running(*words, python=setup.python(self.side.environment), environment=self.environment) as process:
            try:
                await asyncio.wait_for(process.answer(), PATIENCE_S)
                yield process
            finally:
                # It may be at work, where a run is broken off, and a clean end is measured by nothing.
                if process.process.returncode is None:
                    process.process.kill()


@asynccontextmanager
async def _turn(side: Side) -> AsyncIterator[_Turn]:
    setup.python(side.environment)
    # On the disk of this folder: a folder for temporary files may be in memory.
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=ROOT) as name:
        folder = Path(name)
        folder.chmod(0o755)  # noqa: ASYNC240 - PostgreSQL has a user of its own where this process is root's
        async with side.server(folder) as server:
            own = {LOG: str(folder / "effects"), SERVER: json.dumps(server.reached), FOLDER: name}
            yield _Turn(side, server, {**os.environ, **own, "PYTHONPATH": str(ROOT)}, folder / "effects")


def _put(process: Process, question: str, tasks: Sequence[str], steps: int) -> None:
    assert process.process.stdin is not None
    process.process.stdin.write(json.dumps({"ask": question, "tasks": list(tasks), "steps": steps}).encode() + b"\n")


async def _ask(process: Process, question: str, tasks: Sequence[str], steps: int) -> dict[str, float]:
    _put(process, question, tasks, steps)
    found: dict[str, float] = await asyncio.wait_for(process.answer(), PATIENCE_S)
    return found
