"""`refold dev`: a Temporal server and a worker, with one command."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold import temporal
from refold.cli.code import Modules
from refold.cli.errors import DONE, WRONG_CALL
from refold.cli.supervise import Supervised
from refold.cli.verb import QUEUE, Call, Namespace, TaskQueue, add
from refold.cli.worker import LogJson, Mcp, Model, NoSandbox, Recovery
from refold.temporal.dev import DevServerError
from refold.temporal.profile import DEFAULT

if TYPE_CHECKING:
    from refold.temporal.dev import DevServer


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, dev, connects=False)


async def dev(
    call: Call,
    modules: Modules = None,
    more_modules: Annotated[
        list[str] | None, typer.Option("--modules", help="As MODULE; repeatable.", show_default=False)
    ] = None,
    db: Annotated[
        Path | None, typer.Option("--db", metavar="FILE", help="Keep the server's state in this file; else in memory.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="The server's port; a free one is taken.")] = None,
    ui_port: Annotated[int | None, typer.Option("--ui-port", help="The web UI's port; a free one is taken.")] = None,
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Append the server's output to it.")] = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = QUEUE,
    model: Model = None,
    recovery: Recovery = DEFAULT.name,
    no_sandbox: NoSandbox = False,
    mcp: Mcp = None,
    log_json: LogJson = False,
) -> int:
    """Start a Temporal server and a worker.

    The server comes with its web UI, the worker serves the skills and tools of this folder. Prints where they are
    once all is up; with --json, one object on one line. A worker that crashes is reported and started again. Ctrl-C
    or SIGTERM stops everything.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    space = namespace or "default"
    async with temporal.dev_server(port=port, ui=True, ui_port=ui_port, db=db, namespace=space, log=log) as server:
        options = [*(modules or []), *(more_modules or []), "--address", server.address]
        options += ["--namespace", space, "--task-queue", task_queue, "--recovery", recovery]
        options += ["--model", model] if model else []
        options += ["--no-sandbox"] if no_sandbox else []
        options += ["--mcp", str(mcp)] if mcp else []
        options += ["--log-json"] if log_json else []
        async with Supervised(options, call.out.alert) as worker:
            await _first(worker.ready.wait(), worker.gave_up.wait(), stop.wait())
            if worker.ready.is_set():
                _say(call, server, worker, task_queue)
                await _first(worker.gave_up.wait(), stop.wait(), asyncio.shield(server.ended))
                call.out.note("stopping")
        if server.ended.done() and not stop.is_set():
            raise DevServerError(f"{server.ended.result()}\n{_what_is_left(db)}")
    return DONE if stop.is_set() else WRONG_CALL


def _say(call: Call, server: DevServer, worker: Supervised, task_queue: str) -> None:
    ui = f"{server.ui_url}/namespaces/{server.namespace}/workflows"
    if call.out.json:
        line = {"address": server.address, "ui": ui, "namespace": server.namespace, "task_queue": task_queue}
        pids = {"server_pid": server.pid, "worker_pid": worker.pid}
        call.out.value({**line, **pids, "skills": worker.skills, "tools": worker.tools})
        return
    call.out.say(
        f"Temporal   {server.address}   namespace {server.namespace}",
        f"UI         {ui}",
        f"worker     {', '.join(worker.skills)}   task queue {task_queue}",
        "",
        "In another terminal:",
        f"  export TEMPORAL_ADDRESS={server.address}",
        f"  {_first_start(worker)}",
    )
    call.out.note("Ctrl-C stops all of it.")


def _first_start(worker: Supervised) -> str:
    """A command that starts a task: of a skill that takes a text, if there is one."""
    for skill in worker.skills:
        if skill not in worker.inputs:
            return f'refold start {skill} "Hello"'
    skill = worker.skills[0]
    return f"refold start {skill} {' '.join(f'{name}=…' for name in worker.inputs[skill] if not name.endswith('?'))}"


def _what_is_left(db: Path | None) -> str:
    if db is None:
        return "Its tasks were in memory, and are gone; --db FILE keeps them."
    return f"Its tasks are in {db}: `refold dev --db {db}` goes on with them."


async def _first(*awaited: Awaitable[Any]) -> None:
    """Wait for the first of several."""
    waits = [asyncio.ensure_future(one) for one in awaited]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
