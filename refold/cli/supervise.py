"""Runs `refold worker`, `serve` or `metrics` in a process of its own, and starts it again when it crashes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from refold.cli.errors import WRONG_CALL

FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 10.0
STEADY_S = 30.0  # a process that lived this long did not crash because of its arguments
STOP_TIMEOUT_S = 10.0  # beyond the grace of the process
STDOUT = 1
REST_S = 1.0  # for what a process that has ended has printed: its own children may hold its output open for ever
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
        sock: socket.socket | None = None,
    ) -> None:
        """A process that is not started yet.

        Args:
            verb: `worker`, `serve` or `metrics`.
            options: For the verb.
            say: Called with a line of text when a process crashes and when its successor is ready.
            grace_s: How long the process may take to finish what it does when it is stopped.
            environment: Added to this process's, without its connection to Temporal: the options name the server.
            sock: Given to each process, as a file descriptor of the same number.
        """
        self._environment = {**_unconnected(), **(environment or {})}
        self._grace_s = grace_s
        self._handed = () if sock is None else (sock.fileno(),)
        self._command = [sys.executable, "-m", "refold.cli", verb, *options, "--json", "--with-parent"]
        self._named = "gateway" if verb == "serve" else verb
        self._say = say
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
        transport, process = await asyncio.get_running_loop().subprocess_exec(
            lambda: _Process(self._heard), *self._command,
            stdin=PIPE, stdout=PIPE, stderr=None, pass_fds=self._handed, start_new_session=True, env=self._environment,
        )  # fmt: skip
        try:
            await process.ended()
        except asyncio.CancelledError:
            process.terminate()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._grace_s + STOP_TIMEOUT_S):
                    await process.ended()
            raise
        finally:
            transport.close()  # kills it if it still runs
            await process.exited.wait()
            self.pid = None
        if process.failure is not None:
            raise process.failure
        code = transport.get_returncode()
        assert code is not None
        return code

    def _heard(self, line: str) -> None:
        told = _ready_line(line) if self.pid is None else None
        if told is None:
            self._say(line)
            return
        self.pid, self.told = told["pid"], told
        if self.ready.is_set():
            self._say(f"the {self._named} is back, process {self.pid}")
        self.ready.set()


def _unconnected() -> dict[str, str]:
    """This process's environment without a connection to Temporal: a development server answers no client that comes
    with the key or certificate of another server."""
    ours = os.environ.items()
    kept = {name: value for name, value in ours if not name.startswith("TEMPORAL_") or name in OF_THE_CODE}
    return {**kept, "TEMPORAL_CONFIG_FILE": os.devnull}


class _Process(asyncio.SubprocessProtocol):
    """A process, and the lines that it prints. asyncio's own streams wait for the end of the output before they tell
    that a process has ended, and their lines end with an error at one that is too long for them.

    Attributes:
        exited: Set when the process has ended, whether or not its output has.
        failure: What `heard` raised, which stops the process: nobody learns any more what it prints.
    """

    def __init__(self, heard: Callable[[str], None]) -> None:
        """Calls `heard` with each line, without its end; what is longer than `LONGEST_LINE` is cut."""
        self._heard = heard
        self._begun = b""
        self._read = asyncio.Event()
        self._transport: asyncio.SubprocessTransport | None = None
        self.exited = asyncio.Event()
        self.failure: Exception | None = None

    async def ended(self) -> None:
        """Wait until it has ended, and for `REST_S` more until its output has."""
        await self.exited.wait()
        with suppress(TimeoutError):
            async with asyncio.timeout(REST_S):  # not `wait_for`, in which Python 3.11 may lose a cancellation
                await self._read.wait()

    def terminate(self) -> None:
        """Send SIGTERM, unless it has ended."""
        if self._transport is not None and not self.exited.is_set():
            self._transport.terminate()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self._transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """See asyncio."""
        *lines, begun = (self._begun + data).split(b"\n")
        self._begun = begun[: LONGEST_LINE + 1]
        self._hear(lines)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """See asyncio."""
        if fd != STDOUT:
            return
        self._read.set()
        if self._begun:
            self._hear([self._begun])

    def _hear(self, lines: list[bytes]) -> None:
        try:
            for line in lines if self.failure is None else ():
                self._heard(_decoded(line))
        except Exception as error:  # noqa: BLE001 - raised again where the process is awaited
            self.failure = error
            self.terminate()

    def process_exited(self) -> None:
        """See asyncio."""
        self.exited.set()


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
