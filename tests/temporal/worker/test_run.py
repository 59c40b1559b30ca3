"""What a worker is told when it starts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import structlog
from temporalio.client import Client
from temporalio.plugin import SimplePlugin

from refold import DefinitionError, tool
from refold.effects.ledger.receipts import LedgerUnavailable
from refold.effects.threads import leave_threads
from refold.temporal import RefoldPlugin, TemporalEngine, connect, make_worker, run_worker
from refold.temporal.client.connection import QUEUE_ENV
from refold.temporal.client.fleet.polling import Poller, Polls
from refold.temporal.data.storage import Folder, StorageUnusable
from refold.temporal.dev import DevServer
from refold.temporal.worker import identity, run
from refold.temporal.worker.registry import UnknownSkillWorkflow
from refold.temporal.worker.run import GRACE_ENV, GRACE_S, checked_grace, grace_from_env
from tests.services.serving import free_port
from workflows import hello

ROOT = Path(__file__).parents[3]

STOPPED = """
import asyncio, threading

from refold.engine import NotConnected
from refold.temporal import run_worker
from workflows import hello

async def main():
    try:
        await run_worker([hello], address="127.0.0.1:1")
    except NotConnected:
        asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
        print("stopped")

asyncio.run(main())
"""

CALLED = """
import asyncio, threading

from refold.temporal import lambda_handler
from workflows import hello

def configure(config):
    asyncio.get_running_loop().run_in_executor(None, threading.Event().wait)
    raise InterruptedError

handler = lambda_handler([hello], deployment="shop", build_id="b1", configure=configure)
try:
    handler({}, None)
except InterruptedError:
    print("stopped")
"""


@pytest.mark.parametrize(("given", "seconds"), [("", GRACE_S), ("0", 0), (" 2.5 ", 2.5)])
def test_the_grace_of_a_worker(monkeypatch: pytest.MonkeyPatch, given: str, seconds: float) -> None:
    """
    A setting in seconds; without one, less than the 30 s after which Kubernetes kills.
    """
    monkeypatch.setenv(GRACE_ENV, given)

    assert grace_from_env() == seconds


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf"])
def test_a_grace_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """
    The worker does not start, and says what it was given.
    """
    monkeypatch.setenv(GRACE_ENV, given)

    with pytest.raises(DefinitionError, match=f"(?s)REFOLD_GRACE.*{given}"):
        grace_from_env()


@pytest.mark.parametrize("given", [-1.0, float("inf"), float("nan")])
def test_a_grace_in_code_is_checked_too(given: float) -> None:
    """
    The error says what a grace is, and what was given.
    """
    with pytest.raises(ValueError, match=f"a number of seconds, 0 to .* got {given}"):
        checked_grace(given)


async def test_a_worker_that_would_serve_nothing_is_refused() -> None:
    """
    Before a server is asked. A worker of an empty list waits for nothing.
    """
    with pytest.raises(DefinitionError, match=r"(?s)'refold'.*would serve nothing: give it skills or tools"):
        await run_worker([], address="nowhere.invalid:7233")


async def test_a_program_takes_its_task_queue_from_the_setting(
    client: Client, server: DevServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As commands do, so that a program's worker serves the tasks that they start. What the program names itself counts.
    """
    monkeypatch.setenv(QUEUE_ENV, "")
    assert TemporalEngine(client).task_queue == "refold"

    monkeypatch.setenv(QUEUE_ENV, "orders")
    assert make_worker(client, RefoldPlugin([hello])).task_queue == "orders"
    assert make_worker(client, RefoldPlugin([hello]), task_queue="named").task_queue == "named"
    assert TemporalEngine(client).connection.task_queue == "orders"
    assert (await connect(address=server.address)).task_queue == "orders"
    assert (await connect(address=server.address, task_queue="named")).task_queue == "named"
    with pytest.raises(DefinitionError, match="worker of task queue 'orders'"):
        await run_worker([], address="nowhere.invalid:7233")


async def test_a_workers_grace_is_given_once() -> None:
    """
    The SDK's own setting would be cut off by `grace_s`, which is how long the process stays.
    """
    with pytest.raises(DefinitionError, match=r"its grace is `grace_s`, in seconds; leave out `graceful_shutdown"):
        await run_worker([hello], address="nowhere.invalid:7233", graceful_shutdown_timeout=timedelta(minutes=5))


async def test_a_worker_that_takes_signals_is_refused_outside_of_the_main_thread() -> None:
    """
    Python leaves signals to the main thread, and said so only after the server was asked.
    """
    with pytest.raises(DefinitionError, match=r"(?s)'refold'.*main thread alone: in another one, use make_worker"):
        await asyncio.to_thread(asyncio.run, run_worker([hello], address="nowhere.invalid:7233"))


@pytest.mark.parametrize("program", [STOPPED, CALLED], ids=["program", "function"])
def test_no_thread_of_a_tool_keeps_the_process_of_a_worker(program: str) -> None:
    """
    `asyncio.to_thread` in an `async def` tool may call what never answers: neither a program around `run_worker` nor a
    function of AWS Lambda waits for it.
    """
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=250, check=False
    )

    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr


def test_a_program_keeps_the_threads_that_it_has_set() -> None:
    """
    `set_default_executor` before `run_worker`: calls still get there.
    """
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        loop.set_default_executor(ThreadPoolExecutor(1, "mine"))

        leave_threads(loop)
        assert runner.run(asyncio.to_thread(lambda: threading.current_thread().name)) == "mine_0"


async def test_a_worker_of_a_deployment_names_its_code(client: Client) -> None:
    """
    Without a build id it would be no version of anything.
    """
    with pytest.raises(DefinitionError, match=r"(?s)worker deployment 'shop'.*needs a build id"):
        make_worker(client, RefoldPlugin(), deployment="shop")


@pytest.mark.timeout(60)
async def test_a_worker_that_cannot_start_says_why(client: Client, tmp_path: Path) -> None:
    """
    Also in a program that runs it by `async with`.
    """
    plugin = RefoldPlugin(storage=Folder(tmp_path / "gone"))

    with pytest.raises(StorageUnusable, match="gone"):
        async with make_worker(client, plugin, workflows=[UnknownSkillWorkflow]):
            await asyncio.Event().wait()


@tool(effect="at_most_once")
async def pay() -> None:
    """Pay."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("named", ["postgresql://ada:secret@127.0.0.1:{port}/receipts", "{folder}/gone/ledger.db"])
async def test_a_worker_whose_ledger_is_not_there_does_not_start(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """
    Otherwise its tasks would wait in silence for a misspelled database.
    """
    port = free_port()
    monkeypatch.setenv("REFOLD_LEDGER", named.format(port=port, folder=tmp_path))

    with pytest.raises(LedgerUnavailable, match=r"ledger \(REFOLD_LEDGER\) in .* cannot be used") as refused:
        async with make_worker(client, RefoldPlugin(tools=[pay]), task_queue=f"ledger-{port}"):
            await asyncio.Event().wait()
    assert "secret" not in str(refused.value)


@pytest.mark.timeout(60)
async def test_a_worker_that_ends_while_it_looks_for_other_ledgers_ends_without_an_error(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    As one that was to drain an empty queue: its ledger is closed once the server names the workers beside it.
    """
    monkeypatch.setenv("REFOLD_LEDGER", str(tmp_path / "ledger.db"))
    plugin = RefoldPlugin(tools=[pay])
    worker = make_worker(client, plugin, task_queue="looks")
    leaving = list[asyncio.Task[None]]()

    async def late(*_: object) -> Polls:
        leaving.append(asyncio.create_task(worker.shutdown()))
        with suppress(RuntimeError):  # the ledger is closed
            while plugin.ledger is not None:
                await plugin.ledger.run(plugin.ledger.look, "")
        return Polls((Poller("4711@host~0dd0dd", "", "", datetime.now(UTC)),), "", "")

    monkeypatch.setattr(identity, "polls_of", late)

    await run._run_until(asyncio.Event(), worker, plugin, health=None, grace=1, ready=None)
    await leaving[0]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
async def test_a_worker_that_has_no_connection_yet_leaves_at_once(number: signal.Signals) -> None:
    """
    The server takes the connection and says nothing: each signal that comes then, the second too, ends the worker
    without an error.
    """
    silent = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.get_running_loop()

    def reached() -> None:
        loop.remove_reader(silent)
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)

    loop.add_reader(silent, reached)
    try:
        host, port = silent.getsockname()
        await run_worker([hello], address=f"{host}:{port}")
    finally:
        silent.close()
        structlog.reset_defaults()  # the worker set up the log of this process


@pytest.mark.timeout(60)
async def test_a_worker_that_is_still_starting_leaves_at_once(server: DevServer) -> None:
    """
    While it waits for a storage that does not answer, say: without an error, since it has no effects that could finish.
    """
    starting = asyncio.Event()

    @asynccontextmanager
    async def never_starts() -> AsyncIterator[None]:
        starting.set()
        await asyncio.Event().wait()
        yield

    waits = SimplePlugin("waits", run_context=never_starts)
    running = asyncio.create_task(run_worker([hello], address=server.address, task_queue="starting", plugins=[waits]))
    try:
        await starting.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await running
    finally:
        structlog.reset_defaults()  # the worker set up the log of this process
