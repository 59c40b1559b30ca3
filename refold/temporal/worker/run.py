"""Runs a worker process for skills and tools, until SIGINT or SIGTERM."""

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
"""How long running effects may take to finish after the worker was told to stop."""

START_POLL_S = 0.01
"""The interval, in seconds, of checking whether a starting worker polls yet."""


def make_worker(client: Client, plugin: RefoldPlugin, *, task_queue: str = "refold", **options: Any) -> Worker:
    """A Temporal worker with refold's settings, for programs that run it themselves.

    Args:
        client: Any connected client.
        plugin: The skills and tools.
        task_queue: The task queue that the worker polls for tasks and effects.
        options: Passed on to `temporalio.worker.Worker`.
    """
    settings: dict[str, Any] = {
        "sticky_queue_schedule_to_start_timeout": plugin.recovery.sticky,
        "graceful_shutdown_timeout": GRACE,
        **options,
    }
    # A worker inherits the plugins of its client; passed again, the plugin would run twice.
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
    """Run a worker until SIGINT or SIGTERM; then let running effects finish for up to `GRACE`, and return.

    Args:
        skills: Skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.
        address: The server; None takes Temporal's own settings (`TEMPORAL_ADDRESS`, profiles), else localhost:7233.
        namespace: None takes Temporal's own settings, else `default`.
        config_profile: A profile of Temporal's configuration file.
        task_queue: The task queue that the worker polls for tasks and effects.
        model: See `RefoldPlugin`.
        recovery: See `RefoldPlugin`.
        sandboxed: See `RefoldPlugin`.
        mcp: MCP servers, or the file that lists them; see `RefoldPlugin`.
        log_json: Write log lines to stderr as JSON, instead of columns for people. A program that has set up
            structlog itself keeps its own settings.
        ready: Called once, when the worker polls.
        options: Passed on to `temporalio.worker.Worker`.

    Raises:
        DefinitionError: A skill, a tool or an MCP server is defined wrongly.
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
    # Not `async with worker`, which waits for ever if the worker cannot start.
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
