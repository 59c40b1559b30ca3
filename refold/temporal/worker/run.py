"""The worker: skills and tools in, a process that runs tasks out."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio.client import Client
from temporalio.worker import Worker

from refold.effects.mcp.servers import McpServer, servers_in
from refold.temporal.client import search
from refold.temporal.client.connection import connected
from refold.temporal.worker.logs import log_to_stderr
from refold.temporal.worker.plugin import RefoldPlugin
from refold.temporal.worker.profile import DEFAULT, Profile

GRACE = timedelta(seconds=5)
"""What is going on when the worker is asked to leave may take this long to finish."""

START_POLL_S = 0.01
"""How often a starting worker is asked whether it polls."""


def make_worker(client: Client, plugin: RefoldPlugin, *, task_queue: str = "refold", **options: Any) -> Worker:
    """A Temporal worker with refold's settings, for programs that run it themselves.

    Args:
        client: Any connected client.
        plugin: The skills and tools.
        task_queue: Where tasks and effects are taken from.
        options: Passed on to `temporalio.worker.Worker`.
    """
    settings: dict[str, Any] = {
        "sticky_queue_schedule_to_start_timeout": plugin.recovery.sticky,
        "graceful_shutdown_timeout": GRACE,
        **options,
    }
    # A client that was made with the plugin brings it along; given twice, it would run twice.
    brought = plugin in client.config()["plugins"]
    return Worker(client, task_queue=task_queue, plugins=[] if brought else [plugin], **settings)


async def run_worker(
    skills: Sequence[Any],
    tools: Sequence[Callable[..., Any]] = (),
    *,
    address: str | None = None,
    namespace: str | None = None,
    config_profile: str | None = None,
    task_queue: str = "refold",
    model: str | None = None,
    recovery: Profile = DEFAULT,
    sandboxed: bool = True,
    mcp: Sequence[McpServer] | Path | None = None,
    log_json: bool = False,
    ready: Callable[[Worker], None] | None = None,
    **options: Any,
) -> None:
    """Run a worker until SIGINT or SIGTERM; then finish what is going on, within a few seconds, and return.

    Args:
        skills: Skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.
        address: The server; None takes Temporal's own settings (`TEMPORAL_ADDRESS`, profiles), else localhost:7233.
        namespace: None takes Temporal's own settings, else `default`.
        config_profile: A profile of Temporal's configuration file.
        task_queue: Where tasks and effects are taken from.
        model: See `RefoldPlugin`.
        recovery: See `RefoldPlugin`.
        sandboxed: See `RefoldPlugin`.
        mcp: MCP servers, or the file that lists them; see `RefoldPlugin`.
        log_json: Write log lines to stderr as JSON, instead of columns for people. A program that has set up
            structlog itself keeps its own way.
        ready: Called once the worker polls.
        options: Passed on to `temporalio.worker.Worker`.

    Raises:
        DefinitionError: A skill, a tool or an MCP server is written wrongly.
        NotConnected: No server answers.
        StorageError: The storage for large values cannot be used.
    """
    log_to_stderr(as_json=log_json)
    servers = servers_in(mcp) if isinstance(mcp, Path) else mcp
    plugin = RefoldPlugin(skills, tools, model=model, recovery=recovery, sandboxed=sandboxed, mcp=servers)
    plugin.refuse_unfit()  # before a server is asked
    client = await connected(address=address, namespace=namespace, profile=config_profile, plugins=[plugin])
    await search.register(client)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    worker = make_worker(client, plugin, task_queue=task_queue, **options)
    # Not `async with worker`: where the worker cannot start, that waits for its end for ever.
    running = asyncio.create_task(worker.run())
    stopping = asyncio.create_task(stop.wait())
    try:
        while not (worker.is_running or running.done()):  # noqa: ASYNC110 - the SDK has no event for it
            await asyncio.sleep(START_POLL_S)
        if ready is not None and not running.done():
            ready(worker)
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            await worker.shutdown()
        await running
    finally:
        for task in (running, stopping):
            task.cancel()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
