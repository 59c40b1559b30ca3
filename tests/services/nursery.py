"""Python processes that are there at once: children of a process which has loaded the libraries, and waits to fork.

Each is a process of its own, with its own pid, environment, folder and pipes, that runs a module as `python -m` does,
and can be killed as any other. What is not tried this way is the start itself: `tests/cli/verbs/processes` starts
refold's processes as users do.

As a script this is the process that forks. Each connection to its socket asks for one child and is told two lines: the
pid; and once it has ended, the exit code and the CPU seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, ClassVar

LOADED = ["refold.cli.app", "refold.temporal.worker.run", "pydantic_ai.models.openai", "sqlalchemy", "uvicorn", "grpc"]
SERVED = ["workflows", "activities", "tests.faults.skills"]
"""Modules and packages that most of the children serve."""
STREAMS = 3


class Child:
    """One process.

    Attributes:
        pid: Its own.
        stdin: The end that is written; closed when this object goes.
        stdout: The end that is read.
        returncode: None while it runs, or was not yet waited for; negative is the signal that ended it.
        spent_s: CPU seconds of all that have ended.
    """

    spent_s: ClassVar[float] = 0.0

    def __init__(self, pid: int, stdin: IO[bytes], stdout: asyncio.StreamReader) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._ending: asyncio.Task[int] | None = None

    def await_end(self, told: asyncio.StreamReader, asking: asyncio.StreamWriter) -> None:
        """Listen to the nursery, which says how it ends."""
        self._ending = asyncio.create_task(self._end(told, asking))

    async def _end(self, told: asyncio.StreamReader, asking: asyncio.StreamWriter) -> int:
        with self.stdin:
            code, spent_s = (await told.readline()).split()
        Child.spent_s += float(spent_s)
        self.returncode = int(code)
        asking.close()
        return self.returncode

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        assert self._ending is not None
        return await asyncio.shield(self._ending)

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended, and we are not told yet
                os.kill(self.pid, number)


async def start(module: str, *args: str, folder: Path, env: Mapping[str, str], stderr: IO[bytes]) -> Child:
    """A child that runs a module.

    Args:
        module: As after `python -m`.
        args: Of the command line.
        folder: Where it runs; the first place where it finds modules.
        env: Its whole environment.
        stderr: Where its stderr goes.
    """
    asking = socket.socket(socket.AF_UNIX)
    await asyncio.to_thread(lambda: asking.connect(_nursery()))
    theirs, stdin = os.pipe()
    stdout, written = os.pipe()
    message = json.dumps({"module": module, "args": args, "folder": str(folder), "env": dict(env)}).encode() + b"\n"
    socket.send_fds(asking, [message[:1]], [theirs, written, stderr.fileno()])
    asking.sendall(message[1:])
    os.close(theirs)
    os.close(written)
    told, asked = await asyncio.open_connection(sock=asking)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stdout, "rb", buffering=0)
    )
    child = Child(int(await told.readline()), os.fdopen(stdin, "wb", buffering=0), reader)
    child.await_end(told, asked)
    return child


@cache
def _nursery() -> str:
    """The socket of this process's nursery, which ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="nursery-"))
    where = str(folder / "socket")
    nursery = subprocess.Popen(
        [sys.executable, __file__, where], cwd=Path(__file__).parents[2], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    assert nursery.stdout.readline() == b"ready\n"
    atexit.register(_close, nursery, folder)
    return where


def _close(nursery: subprocess.Popen[bytes], folder: Path) -> None:
    with nursery:
        pass
    folder.joinpath("socket").unlink(missing_ok=True)
    folder.rmdir()


# --- the process that forks


def main(where: str) -> None:
    """Serve until stdin closes."""
    from refold.temporal.worker.build import build_of_process  # loaded by the process that forks alone

    sys.path[0] = str(Path.cwd())
    for module in LOADED:
        importlib.import_module(module)
    for module in SERVED:
        found = importlib.import_module(module)
        for _, name, _ in pkgutil.iter_modules(getattr(found, "__path__", ())):
            importlib.import_module(f"{module}.{name}")
    build_of_process()  # kept: a hash of all modules
    assert threading.active_count() == 1, "a process with threads cannot be forked"
    gc.freeze()
    asked = socket.socket(socket.AF_UNIX)
    asked.bind(where)
    asked.listen()
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    for one in (asked, woken, sys.stdin):
        selector.register(one, selectors.EVENT_READ)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    connections: dict[int, socket.socket] = {}
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            elif key.fileobj is asked:
                connection, _ = asked.accept()
                pid = _fork(connection)
                connections[pid] = connection
                connection.sendall(f"{pid}\n".encode())
            else:
                woken.recv(4096)
                _bury(connections)


def _bury(connections: dict[int, socket.socket]) -> None:
    """Say which children have ended."""
    while connections:
        pid, status, used = os.wait4(-1, os.WNOHANG)
        if not pid:
            return
        with connections.pop(pid) as connection:
            connection.sendall(f"{os.waitstatus_to_exitcode(status)} {used.ru_utime + used.ru_stime}\n".encode())


def _fork(connection: socket.socket) -> int:
    message, streams, _, _ = socket.recv_fds(connection, 1, STREAMS)
    with connection.makefile("rb") as rest:
        asked = json.loads(message + rest.readline())
    pid = os.fork()
    if not pid:
        code = 1
        try:
            code = _run(streams, **asked)
        finally:
            os._exit(code)  # without taking all libraries down, which takes as long as to load them
    for stream in streams:
        os.close(stream)
    return pid


def _run(streams: Sequence[int], module: str, args: Sequence[str], folder: str, env: Mapping[str, str]) -> int:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(STREAMS, 256)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    sys.path[0], sys.argv[1:] = folder, args
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code: object = 0
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - what ends a script
        traceback.print_exc()
        code = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


if __name__ == "__main__":
    main(sys.argv[1])
