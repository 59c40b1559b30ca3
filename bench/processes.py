"""Processes that a benchmark measures, and that report their own use.

Each line on stdin is a question, each line on stdout its answer as JSON; the end of stdin ends the process. `cpu`
returns the seconds of CPU that it has used, `memory` its resident bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import resource
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
TICKS = os.sysconf("SC_CLK_TCK")


class Process:
    """A process that reports its use."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def ask(self, question: str) -> float:
        """Ask it for a figure."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{question}\n".encode())
        return float(await self.answer())

    async def answer(self) -> Any:
        """Its next line.

        Raises:
            RuntimeError: It has ended.
        """
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            try:
                return json.loads(line)
            except ValueError:
                continue  # a warning of the SDK's core
        raise RuntimeError(f"a benchmark's process ended with code {await self.process.wait()}; see its errors above")


@contextlib.asynccontextmanager
async def running(
    *arguments: str, python: Path = Path(sys.executable), environment: Mapping[str, str] | None = None
) -> AsyncIterator[Process]:
    """One of our modules as a process, while the block runs.

    Args:
        arguments: The module, and what it is given.
        python: Of which environment.
        environment: Its variables; None for those of this process.
    """
    process = await asyncio.create_subprocess_exec(
        str(python),
        "-m",
        *arguments,
        cwd=ROOT,
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        yield Process(process)
    finally:
        if process.stdin is not None:
            process.stdin.close()
        await process.wait()


def cpu_of(pid: int) -> float:
    """The CPU time of another process, in seconds; measured in ticks, so only useful for many of them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


# --- in the measured process


def cpu() -> float:
    """User and system time since this process began, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def memory() -> float:
    """The resident set in bytes, without memory that is already free, which would count leftovers."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return float(int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES)


async def answering(ready: Any = "ready") -> None:
    """Say that the process is ready, and answer until stdin ends."""
    questions = {"cpu": cpu, "memory": memory}
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    print(json.dumps(ready), flush=True)
    while question := (await lines.readline()).decode().strip():
        print(json.dumps(questions[question]()), flush=True)
