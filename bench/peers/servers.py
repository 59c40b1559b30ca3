"""The servers that engines need, each in a fresh folder, with what it is reached by."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, SubprocessError

import httpx
from temporalio.client import Client

from bench.peers.setup import HOME, Missing
from bench.processes import TICKS
from refold.temporal.dev import DevServerError, dev_server, find_binary
from tests.services.postgres import Postgres

HOST = "127.0.0.1"
WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running server.

    Attributes:
        reached: What its engine needs to know, by name.
        pid: Its first process; None where there is no server.
    """

    reached: dict[str, str]
    pid: int | None = None

    def cpu(self) -> float:
        """The CPU time of its processes, those that have ended included, in seconds."""
        return 0.0 if self.pid is None else _cpu_of_tree(self.pid)


def _cpu_of_tree(pid: int) -> float:
    ticks = 0
    with contextlib.suppress(OSError):  # it has ended, and its parent has its time
        ticks = sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
    children: list[str] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children += file.read_text().split()
    return ticks / TICKS + sum(_cpu_of_tree(int(child)) for child in children)


@contextlib.asynccontextmanager
async def none(folder: Path) -> AsyncIterator[Server]:
    """No server: the engine keeps its state in a file."""
    yield Server({})


@contextlib.asynccontextmanager
async def temporal_default(folder: Path) -> AsyncIterator[Server]:
    """Temporal's development server as it is, on a SQLite file."""
    address = f"{HOST}:{_port()}"

    async def answers() -> None:
        await Client.connect(address)

    command = [str(find_binary()), "server", "start-dev", "--headless", "--log-level", "error"]
    command += ["--ip", HOST, "--port", address.rpartition(":")[2], "--db-filename", str(folder / "temporal.db")]
    async with _running(command, answers, RuntimeError) as pid:
        yield Server({"address": address}, pid)


@contextlib.asynccontextmanager
async def temporal_tuned(folder: Path) -> AsyncIterator[Server]:
    """The same server as `refold dev` starts it: WAL, and no limit of 20 dispatches a second."""
    async with dev_server(db=folder / "temporal.db") as server:
        yield Server({"address": server.address}, server.pid)


@contextlib.asynccontextmanager
async def postgres(folder: Path) -> AsyncIterator[Server]:
    """PostgreSQL with its defaults: fsync, synchronous_commit and full_page_writes are on."""
    server = await asyncio.to_thread(Postgres, folder)
    try:
        pid = int((server.data / "postmaster.pid").read_text().split()[0])
        yield Server({"url": server.another("paces")}, pid)
    finally:
        await asyncio.to_thread(server.stop)


@contextlib.asynccontextmanager
async def restate(folder: Path) -> AsyncIterator[Server]:
    """Restate's server with its defaults: one node, its log flushed to the disk (fsync) before it answers."""
    found = sorted((HOME / "restate").glob("node_modules/@restatedev/restate-server-*/bin/restate-server"))
    if not found:
        raise Missing("there is no restate-server for this platform")
    ports = {name: _port() for name in ("ingress", "admin", "service", "node")}
    urls = {name: f"http://{HOST}:{port}" for name, port in ports.items()}
    settings = {
        "RESTATE_INGRESS__BIND_ADDRESS": f"{HOST}:{ports['ingress']}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"{HOST}:{ports['admin']}",
        "RESTATE_BIND_ADDRESS": f"{HOST}:{ports['node']}",
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "error",
    }

    async def answers() -> None:
        async with httpx.AsyncClient() as http:
            for url in (f"{urls['admin']}/health", f"{urls['ingress']}/restate/health"):
                (await http.get(url)).raise_for_status()

    command = [str(found[0]), "--no-logo", "--base-dir", str(folder / "restate"), "--listen-mode", "tcp"]
    async with _running(command, answers, httpx.HTTPError, settings) as pid:
        yield Server(urls, pid)


@contextlib.asynccontextmanager
async def _running(
    command: list[str],
    answers: Callable[[], Awaitable[None]],
    not_yet: type[Exception],
    settings: dict[str, str] | None = None,
) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        *command, env={**os.environ, **(settings or {})}, stdout=DEVNULL, stderr=DEVNULL
    )
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                if process.returncode is not None:
                    raise Missing(f"{Path(command[0]).name} ended with code {process.returncode} at its start")
                try:
                    await answers()
                    break
                except not_yet:
                    await asyncio.sleep(0.05)
        yield process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


FAILURES = (DevServerError, Missing, ImportError, OSError, RuntimeError, SubprocessError, TimeoutError)
"""How a server says that it cannot run on this machine, or an engine's process that it has ended."""
