"""Runs `refold worker`, `serve` or `metrics` in a process of its own, and starts it again when it crashes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from asyncio import StreamReader
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from refold.cli.errors import WRONG_CALL

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0
STEADY_S = 30.0  # a process that lived this long did not crash because of its arguments
STOP_TIMEOUT_S = 10.0  # beyond the grace of the process
LONGEST_LINE = 2**18  # bytes; a longer line is cut

OF_THE_CODE = ("TEMPORAL_DEPLOYMENT_NAME", "TEMPORAL_WORKER_BUILD_ID")
"""Settings of Temporal's that are no connection's."""


class Supervised:
    """Keeps a process of `refold worker`, `serve` or `metrics` running while the `async with` block runs.

    A process that never became ready and exits with 2 (a wrong call) is not started again: it would fail the same way.

    Attributes:
        ready: Set once the first process is ready.
        gave_up: Set when no further process will be started.
        pid: Of the process that is ready now; None between two processes.
        told: The line that the process printed when it was ready.
    """

    def __init__(
        self,
        verb: str,
        options: Sequence[str],
        say: Callable[[str], None],
        *,
        grace_s: float = 5.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """A process that is not started yet.

        Args:
            verb: `worker`, `serve` or `metrics`.
            options: For the verb.
            say: Called with a line of text when a process crashes and when its successor is ready.
            grace_s: How long the process may take to finish what it does when it is stopped.
            environment: Added to this process's, without its connection to Temporal: the options name the server.
        """
        self._environment = {**_unconnected(), **(environment or {})}
        self._grace_s = grace_s
        self._command = [sys.executable, "-m", "refold.cli", verb, *options, "--json", "--with-parent"]
        self._named = "gateway" if verb == "serve" else verb
        self._say = say
        self._process: Process | None = None
        self._running: asyncio.Task[None] | None = None
        self.ready = asyncio.Event()
        self.gave_up = asyncio.Event()
        self.pid: int | None = None
        self.told: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self._keep_running())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._running is not None
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            try:
                async with asyncio.timeout(self._grace_s + STOP_TIMEOUT_S):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()

    async def _keep_running(self) -> None:
        try:
            await self._run_again_and_again()
        except Exception as error:
            self._say(f"the {self._named} cannot be kept running: {type(error).__name__}: {error}")
            raise
        finally:
            self.gave_up.set()

    async def _run_again_and_again(self) -> None:
        wait = FIRST_WAIT_S
        while True:
            began = time.monotonic()
            code = await self._run_once()
            if code == WRONG_CALL and not self.ready.is_set():
                return
            wait = FIRST_WAIT_S if time.monotonic() - began > STEADY_S else wait
            self._say(f"the {self._named} {_how(code)}; starting it again")
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT_S)

    async def _run_once(self) -> int:
        # A session of its own: Ctrl-C in the terminal reaches `refold dev` alone, which passes it on. The child's stdin
        # closes when `refold dev` dies.
        self._process = await asyncio.create_subprocess_exec(
            *self._command, stdin=PIPE, stdout=PIPE, start_new_session=True, env=self._environment
        )
        assert self._process.stdout is not None
        async for line in _lines(self._process.stdout):
            self._heard(line)
        code = await self._process.wait()
        self.pid = None
        return code

    def _heard(self, line: str) -> None:
        told = _ready_line(line) if self.pid is None else None
        if told is None:
            self._say(line)
            return
        before, self.pid, self.told = self.told.get("url"), told["pid"], told
        if self.ready.is_set():
            moved = told.get("url") != before
            at = f", now at {told.get('page', told['url'])}, as its port is taken" if moved else ""
            self._say(f"the {self._named} is back, process {self.pid}{at}")
        self.ready.set()


def _unconnected() -> dict[str, str]:
    """This process's environment without a connection to Temporal: a development server answers no client that comes
    with the key or certificate of another server."""
    ours = os.environ.items()
    kept = {name: value for name, value in ours if not name.startswith("TEMPORAL_") or name in OF_THE_CODE}
    return {**kept, "TEMPORAL_CONFIG_FILE": os.devnull}


async def _lines(output: StreamReader) -> AsyncIterator[str]:
    """The lines of a process's output. The reader's own lines end with an error at one that is too long for it, and
    then nothing is read any more: the process would wait for ever to write."""
    begun = b""
    while chunk := await output.read(LONGEST_LINE):
        *lines, begun = (begun + chunk).split(b"\n")
        for line in lines:
            yield _decoded(line)
        begun = begun[: LONGEST_LINE + 1]
    if begun:
        yield _decoded(begun)


def _decoded(line: bytes) -> str:
    return line[:LONGEST_LINE].decode(errors="replace") + ("…" if len(line) > LONGEST_LINE else "")


def _ready_line(line: str) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    return told if isinstance(told, dict) and "pid" in told else None


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
