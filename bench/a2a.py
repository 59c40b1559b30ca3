"""What refold's gateway costs, compared with the A2A SDK's own server, which keeps its tasks in memory and loses them.

uvicorn serves both, each in a process of its own, refold's as `refold serve` runs it; both get the same requests over
JSON-RPC. refold's tasks are on a Temporal server, with a worker. CPU is the user and system time of the server's
process for a batch of requests, divided by their number; for refold the sum with worker and Temporal server is shown
too. Rounds alternate, and a ratio is the median of the rounds' ratios.

First event: from the request to the first event of a stream that starts a task, one after the other.

Waiting: many waiting tasks, each with an open stream, each on a connection. CPU is the gateway's share of a core while
nothing happens, measured several times for as long as one of the server's long polls lasts; the lowest value counts,
since the rest is other processes' use of the CPU caches. Memory is the growth of the gateway's resident set since
before the streams, divided by their number; measured again at the end, after a time without events.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx

from bench.processes import Process, cpu_of, running
from bench.report import Check, Figure, Report, figure
from refold.cli.verbs.processes.serve import SDK_SPANS
from refold.temporal.data.storage import ENV
from refold.temporal.dev import DevServer, dev_server

GET_TASK_LIMIT = 4.0
FIRST_EVENT_LIMIT_MS = 150.0
IDLE_CPU_LIMIT = 0.01
IDLE_KIB_LIMIT = 200.0
IDLE_ROUNDS = 4

QUEUE = "bench"
SDK, REFOLD = "sdk", "refold"
HEADERS = {"A2A-Version": "1.0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of the benchmark.

    Attributes:
        rounds: Of each kind of request.
        requests: In one batch of a round.
        abreast: How many requests are open at a time.
        waiting: Waiting tasks, each with an open stream.
        warm: Streams before the first measurement, closed again, which fill caches that are filled once.
        idle_s: Seconds without events, a few times; the server ends a long poll after 20 seconds.
    """

    rounds: int
    requests: int = 200
    abreast: int = 4
    waiting: int = 200
    warm: int = 20
    idle_s: float = 20.0


QUICK = Size(rounds=1, requests=4, abreast=2, waiting=4, warm=1, idle_s=0.2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """This benchmark's own options."""
    parser.add_argument("--rounds", type=int, default=5, help="rounds of requests (default: 5)")
    parser.add_argument("--quick", action="store_true", help="only show that it runs: the figures mean nothing")
    parser.add_argument("--only", choices=["requests", "waiting"], action="append", help="only this part; repeatable")


def run(options: argparse.Namespace) -> Report:
    """Measure; takes some minutes."""
    size = QUICK if options.quick else Size(rounds=options.rounds)
    parts = options.only or ["requests", "waiting"]
    with tempfile.TemporaryDirectory(prefix="refold-bench-") as folder:
        os.environ[ENV] = folder
        return asyncio.run(_measured(size, parts))


async def _measured(size: Size, parts: list[str]) -> Report:
    settings = {"rounds": size.rounds, "requests": size.requests, "abreast": size.abreast, "waiting": size.waiting}
    report = Report(benchmark="a2a", settings={**settings, "idle_s": size.idle_s, "parts": parts}, beside="SDK")
    async with (
        dev_server() as server,
        running("bench.a2a_worker", server.address, QUEUE) as worker,
        # With the environment that `refold serve` sets for itself.
        running(
            "bench.a2a_serving", REFOLD, server.address, QUEUE, environment={SDK_SPANS: "false", **os.environ}
        ) as gateway,
        running("bench.a2a_serving", SDK) as sdk,
        httpx.AsyncClient(timeout=60, headers=HEADERS, limits=httpx.Limits(max_connections=None)) as http,
    ):
        await worker.answer()
        ours = Side(http, await gateway.answer(), gateway, worker, server)
        theirs = Side(http, await sdk.answer(), sdk)
        if "requests" in parts:
            print("measuring requests …", file=sys.stderr, flush=True)
            figures, check = await _requests(ours, theirs, size)
            report.figures += figures
            report.checks.append(check)
        if "waiting" in parts:
            print("measuring streams of tasks that wait …", file=sys.stderr, flush=True)
            report.checks += await _waiting(ours, size)
    return report


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two servers, with the processes behind it."""

    http: httpx.AsyncClient
    url: str
    process: Process
    worker: Process | None = None
    server: DevServer | None = None

    async def call(self, method: str, params: Any) -> Any:
        """Send a request with a plain response."""
        answer = (await self.http.post(self.url, json=_body(method, params))).json()
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    @contextlib.asynccontextmanager
    async def stream(self, method: str, params: Any) -> AsyncIterator[AsyncIterator[str]]:
        """Send a request with a stream as response; returns the stream's lines."""
        async with self.http.stream("POST", self.url, json=_body(method, params)) as response:
            yield response.aiter_lines()

    async def task(self, skill: str) -> str:
        """Start a task that ends or waits; returns its id."""
        id: str = (await self.call("SendMessage", _said(skill)))["task"]["id"]
        return id

    async def cpu(self) -> tuple[float, float]:
        """Seconds of CPU of the server's process; and of all processes, those behind it included."""
        own = await self.process.ask("cpu")
        worker = 0.0 if self.worker is None else await self.worker.ask("cpu")
        return own, own + worker + (0.0 if self.server is None else cpu_of(self.server.pid))


def _body(method: str, params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def _said(skill: str) -> dict[str, Any]:
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "The tide turns twice a day."}]}
    return {"message": message, "metadata": {"skill": skill}}


# --- requests


@dataclass(frozen=True, slots=True)
class _Batch:
    own_ms: float
    all_ms: float
    per_s: float


async def _requests(ours: Side, theirs: Side, size: Size) -> tuple[list[Figure], Check]:
    kinds = {
        "GetTask of a waiting task": ("get_task", "waits", _get),
        "GetTask of an ended task": ("get_ended_task", "echo", _get),
        "SendMessage": ("send", None, _send),
        "SendStreamingMessage": ("stream", None, _stream),
    }
    figures: list[Figure] = []
    for name, (key, skill, request) in kinds.items():
        asks = [await request(side, "" if skill is None else await side.task(skill)) for side in (ours, theirs)]
        found = [[await _batch(side, ask, size) for side, ask in zip((ours, theirs), asks, strict=True)]]
        found += [
            [await _batch(side, ask, size) for side, ask in zip((ours, theirs), asks, strict=True)]
            for _ in range(size.rounds)
        ]
        rounds = found[1:]  # the first one warms up
        limit = GET_TASK_LIMIT if request is _get else None
        pairs = [(one.own_ms, two.own_ms) for one, two in rounds]
        figures.append(figure(f"{name}, CPU of the server", f"{key}.cpu", "ms", pairs, limit=limit))
        pairs = [(one.all_ms, two.all_ms) for one, two in rounds]
        figures.append(figure(f"{name}, with worker and Temporal", f"{key}.cpu_of_all", "ms", pairs))
        pairs = [(one.per_s, two.per_s) for one, two in rounds]
        figures.append(figure(f"{name}, requests a second", f"{key}.per_s", "1/s", pairs))
    first = [(await _first_event_ms(ours), await _first_event_ms(theirs)) for _ in range(size.rounds * 10)]
    figures.append(figure("first event of a stream", "first_event", "ms", first))
    took = median(ms for ms, _ in first)
    check = Check(
        name=f"the first event of a stream comes within {FIRST_EVENT_LIMIT_MS:g} ms, at the median",
        key="first_event_ms",
        passed=took <= FIRST_EVENT_LIMIT_MS,
        found=f"{took:.1f} ms",
    )
    return figures, check


Ask = Callable[[], Awaitable[object]]


async def _get(side: Side, task_id: str) -> Ask:
    return lambda: side.call("GetTask", {"id": task_id})


async def _send(side: Side, _: str) -> Ask:
    return lambda: side.task("echo")


async def _stream(side: Side, _: str) -> Ask:
    async def read() -> None:
        async with side.stream("SendStreamingMessage", _said("echo")) as lines:
            async for _ in lines:
                pass

    return read


async def _batch(side: Side, ask: Ask, size: Size) -> _Batch:
    left = iter(range(size.requests))

    async def ask_on() -> None:
        for _ in left:
            await ask()

    own, everything = await side.cpu()
    began = time.perf_counter()
    await asyncio.gather(*(ask_on() for _ in range(size.abreast)))
    took = time.perf_counter() - began
    own_after, everything_after = await side.cpu()
    # At least one tick: in a very small batch, no time may have been measured.
    each = 1_000 / size.requests
    return _Batch(
        max(own_after - own, 0.001) * each, max(everything_after - everything, 0.001) * each, size.requests / took
    )


async def _first_event_ms(side: Side) -> float:
    began = time.perf_counter()
    async with side.stream("SendStreamingMessage", _said("echo")) as lines:
        async for line in lines:
            if line.startswith("data:"):
                return (time.perf_counter() - began) * 1_000
    raise RuntimeError("a stream ended without an event")


# --- streams of waiting tasks


async def _waiting(side: Side, size: Size) -> list[Check]:
    tasks = [await side.task("waits") for _ in range(size.waiting)]
    async with _following(side, tasks[: size.warm], size):
        pass
    before = await side.process.ask("memory")
    async with _following(side, tasks, size):
        opened = await side.process.ask("memory")
        shares = [await _share(side, size.idle_s) for _ in range(IDLE_ROUNDS)]
        after = await side.process.ask("memory")
    kib = [max(memory - before, 0.0) / size.waiting / 1024 for memory in (opened, after)]
    return [
        Check(
            name=f"{size.waiting} open streams that wait take at most {IDLE_CPU_LIMIT:.0%} of a core",
            key="waiting_cpu",
            passed=min(shares) <= IDLE_CPU_LIMIT,
            found=", ".join(f"{share:.2%}" for share in sorted(shares)),
        ),
        Check(
            name=f"each takes at most {IDLE_KIB_LIMIT:g} KiB, then and in the end",
            key="waiting_memory",
            passed=max(kib) <= IDLE_KIB_LIMIT,
            found=f"{kib[0]:.0f} KiB, {kib[1]:.0f} KiB",
        ),
    ]


@contextlib.asynccontextmanager
async def _following(side: Side, tasks: list[str], size: Size) -> AsyncIterator[None]:
    """A stream of each task, once it is idle."""
    async with contextlib.AsyncExitStack() as stack:
        streams = []
        for task_id in tasks:
            lines = await stack.enter_async_context(side.stream("SubscribeToTask", {"id": task_id}))
            streams.append(lines)  # else the client would be closed with its last reference
            while not (await anext(lines)).startswith("data:"):
                pass
        await asyncio.sleep(size.idle_s / 4)  # until the last long poll has begun
        yield


async def _share(side: Side, seconds: float) -> float:
    used, began = await side.process.ask("cpu"), time.perf_counter()
    await asyncio.sleep(seconds)
    return (await side.process.ask("cpu") - used) / (time.perf_counter() - began)
