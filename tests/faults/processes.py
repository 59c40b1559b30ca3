"""Worker processes, and ways to lose them: SIGKILL, SIGTERM.

Nothing here waits for a time to pass: every wait is for a condition, and has a deadline that only a bug reaches.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from refold.core.values import Value
from tests.services import nursery

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 150.0
ASK_EVERY_S = 0.02
MODULES = ("workflows", "activities", "tests.faults.skills")


class WorkerProcess:
    """`refold worker` as a child process that polls.

    Attributes:
        process: The child.
        about: The line with which it said that it was ready.
        log: Where its stderr goes.
    """

    def __init__(self, process: nursery.Child | Process, log: Path) -> None:
        self.process = process
        self.log = log
        self.about: dict[str, Any] = {}
        self._reading: asyncio.Task[None] | None = None

    async def until_ready(self) -> None:
        """Wait for its ready line.

        Raises:
            AssertionError: It ended instead; what it wrote is in the message.
        """
        async with asyncio.timeout(PATIENCE_S):
            assert self.process.stdout is not None
            while not self.about:
                line = await self.process.stdout.readline()
                assert line, f"the worker ended with {await self.process.wait()}:\n{self.log.read_text()}"
                self._hear(line)
        # Read on, or its pipe fills and it stands still.
        self._reading = asyncio.create_task(self._drain(self.process.stdout))

    def _hear(self, line: bytes) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            return
        if isinstance(told, dict) and "pid" in told:
            self.about = told

    async def _drain(self, stdout: asyncio.StreamReader) -> None:
        while await stdout.readline():
            pass

    @property
    def alive(self) -> bool:
        """It has not ended, as far as we were told."""
        return self.process.returncode is None

    async def kill(self) -> None:
        """SIGKILL: no farewell to anybody. Returns when it is gone."""
        self.process.send_signal(signal.SIGKILL)
        await self.gone()
        assert self.process.returncode == -signal.SIGKILL, "it had ended before it was killed"

    def ask_to_stop(self) -> None:
        """SIGTERM: finish what is going on, then leave."""
        self.process.send_signal(signal.SIGTERM)

    async def gone(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(PATIENCE_S):
            code = await self.process.wait()
            if self._reading is not None:
                await self._reading
        return code


class Workers:
    """Starts workers against one server; none outlives the block."""

    def __init__(self, address: str, folder: Path, *, env: Mapping[str, str] | None = None) -> None:
        """Start none yet.

        Args:
            address: The server.
            folder: For large values and logs.
            env: More environment for all of them.
        """
        self.address = address
        self.folder = folder
        self.env = dict(env or {})
        self.started: list[WorkerProcess] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.started:
            if worker.alive:
                worker.process.send_signal(signal.SIGKILL)
                await worker.gone()

    async def start(
        self,
        queue: str,
        *,
        recovery: str = "fast-recovery",
        modules: Sequence[str] = MODULES,
        env: Mapping[str, str] | None = None,
        doomed: bool = False,
        log: Path | None = None,
        pollers: int | None = None,
    ) -> WorkerProcess:
        """A worker that polls `queue`; if it is doomed, it may be killed before it is ready. `log` is its stderr."""
        command = ["refold.cli", "worker", *modules, "--json", "--with-parent"]
        command += ["--address", self.address, "--task-queue", queue, "--recovery", recovery]
        command += [] if pollers is None else ["--pollers", str(pollers)]
        return await self.launch(command, env=env, doomed=doomed, log=log)

    async def launch(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        doomed: bool = False,
        log: Path | None = None,
    ) -> WorkerProcess:
        """Another process that says on stdout what it serves, and ends when its stdin closes.

        The command is a module and its arguments; or options of Python, for a process that shares nothing.
        """
        log = log or self.folder / f"worker-{len(self.started)}.log"
        with log.open("wb") as err:
            environment = _clean(os.environ) | {"REFOLD_STORAGE": str(self.folder)} | self.env | dict(env or {})
            process: nursery.Child | Process
            if command[0].startswith("-"):
                process = await asyncio.create_subprocess_exec(
                    sys.executable, *command, cwd=ROOT, env=environment, stdin=PIPE, stdout=PIPE, stderr=err
                )
            else:
                process = await nursery.start(*command, folder=ROOT, env=environment, stderr=err)
        worker = WorkerProcess(process, log)
        self.started.append(worker)
        if not doomed:
            await worker.until_ready()
        return worker


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what whoever runs the tests has set for refold, Temporal or a model."""
    ours = ("REFOLD_", "TEMPORAL_", "OPENAI_")
    return {name: value for name, value in environ.items() if not name.startswith(ours)}


async def until(ask: Callable[[], Awaitable[T]], holds: Callable[[T], bool], *, within_s: float = PATIENCE_S) -> T:
    """Ask until the answer is the awaited one.

    Raises:
        AssertionError: The deadline passed; the last answer is in the message.
    """
    answer = await ask()
    deadline = asyncio.get_running_loop().time() + within_s
    while not holds(answer):
        assert asyncio.get_running_loop().time() < deadline, f"not within {within_s} s; the last answer: {answer}"
        await asyncio.sleep(ASK_EVERY_S)  # a pause between questions, so that they take no CPU from whom they ask
        answer = await ask()
    return answer


class Line(Value):
    """What a tool noted in the ledger.

    Attributes:
        what: `begun` or `done`.
        invocation_id: The command.
        attempt: Temporal's count of dispatches.
    """

    what: str
    invocation_id: str
    attempt: int


class Ledger:
    """A file in which tools note that they began and that they were done, from whatever process they run in."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def lines(self) -> list[Line]:
        """All that was noted, in order."""
        text = self.path.read_text() if self.path.exists() else ""
        return [Line.model_validate_json(line) for line in text.splitlines()]

    def noted(self, what: str) -> list[str]:
        """The commands of which this was noted, in order, each as often as it was."""
        return [line.invocation_id for line in self.lines if line.what == what]

    async def until(self, what: str, times: int = 1) -> list[str]:
        """Wait until this was noted so many times."""

        async def noted() -> list[str]:
            return self.noted(what)

        return await until(noted, lambda found: len(found) >= times)
