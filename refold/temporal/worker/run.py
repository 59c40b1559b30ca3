"""Runs a worker process for skills and tools, until a signal or the caller stops it."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

from temporalio.client import Client
from temporalio.common import VersioningBehavior, WorkerDeploymentVersion
from temporalio.worker import Worker, WorkerDeploymentConfig

from refold.core.errors import DefinitionError
from refold.core.values import LONGEST_S
from refold.effects.mcp.servers import McpServer, servers_in
from refold.effects.notify import Notifier
from refold.effects.threads import TOOL_THREADS, leave_threads
from refold.engine.arguments import Count, defining, takes
from refold.seen.logs import logger
from refold.temporal.client.connection import connected, queue_of
from refold.temporal.client.index import search
from refold.temporal.seen.ready import answering, check_place, worker_checks
from refold.temporal.seen.runtime import measure
from refold.temporal.serverless.drain import Drained
from refold.temporal.worker.leaving import signals_to_leave
from refold.temporal.worker.logs import log_to_stderr
from refold.temporal.worker.plugin import RefoldPlugin
from refold.temporal.worker.profile import DEFAULT, Profile

GRACE_S = 25.0
"""How long running effects may take to finish after the worker was told to stop, in seconds: less than the 30 s after
which Kubernetes kills it."""

GRACE_ENV = "REFOLD_GRACE"

LEAVE_S = 5.0
"""How long a worker waits, in seconds, for effects that it has canceled at the end of its grace."""

T = TypeVar("T")

log = logger(__name__)

START_POLL_S = 0.01
"""The interval, in seconds, of checking whether a starting worker polls yet."""


@takes(defining("make_worker", "worker"))
def make_worker(
    client: Client,
    plugin: RefoldPlugin,
    *,
    task_queue: str | None = None,
    deployment: str | None = None,
    build_id: str | None = None,
    **options: Any,
) -> Worker:
    """A Temporal worker with refold's settings, for programs that run it themselves.

    Args:
        client: Any connected client.
        plugin: The skills and tools.
        task_queue: The task queue that the worker polls for tasks and effects; None takes `REFOLD_TASK_QUEUE`, else
            `refold`.
        deployment: The worker deployment that it belongs to, as the version `build_id`: a task stays on the version
            that began its run, and its next run goes to the current one. None: any worker may take any task.
        build_id: A name of the code that it runs, such as a commit; None takes a hash of all loaded modules.
        options: Passed on to `temporalio.worker.Worker`. `graceful_shutdown_timeout` is how long running effects may
            take to finish when the worker is stopped; without it `REFOLD_GRACE` counts, else 25 s.

    Raises:
        DefinitionError: `REFOLD_GRACE` is no number of seconds, or a deployment has no build id.
    """
    settings: dict[str, Any] = {
        **_version(deployment, build_id),
        "sticky_queue_schedule_to_start_timeout": plugin.recovery.sticky,
        "graceful_shutdown_timeout": timedelta(seconds=grace_from_env()),
        **options,
    }
    # A worker inherits the plugins of its client; passed again, the plugin would run twice.
    brought = plugin in client.config()["plugins"]
    plugins = [*([] if brought else [plugin]), *settings.pop("plugins", ())]
    return Worker(client, task_queue=queue_of(task_queue), plugins=plugins, **settings)


def _version(deployment: str | None, build_id: str | None) -> dict[str, Any]:
    if deployment is None:
        return {} if build_id is None else {"build_id": build_id}
    if not build_id:
        problem = "it needs a build id beside it, which names the code of this worker, such as a commit"
        raise DefinitionError(deployment, [problem], what="worker deployment")
    config = WorkerDeploymentConfig(
        version=WorkerDeploymentVersion(deployment_name=deployment, build_id=build_id),
        use_worker_versioning=True,
        default_versioning_behavior=VersioningBehavior.PINNED,
    )
    return {"deployment_config": config}


def grace_from_env() -> float:
    """How long running effects may take to finish after the worker was told to stop, in seconds.

    Raises:
        DefinitionError: `REFOLD_GRACE` is no number of seconds.
    """
    given = os.environ.get(GRACE_ENV, "").strip()
    if not given:
        return GRACE_S
    try:
        return checked_grace(float(given))
    except ValueError:
        raise DefinitionError(GRACE_ENV, [f"{given!r} is no number of seconds, 0 or more"], what="setting") from None


def checked_grace(seconds: float) -> float:
    """The grace, if it is one.

    Raises:
        ValueError: It is negative, or no finite number.
    """
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"the grace is a number of seconds, 0 to {LONGEST_S:.0f}; got {seconds}")
    return seconds


_SERVED = {"workflows", "activities", "nexus_service_handlers", "plugins"}
"""Options by which a worker may serve something of the program's own."""


@takes(defining("run_worker", "worker"))
async def run_worker(
    skills: Sequence[Any],
    tools: Sequence[Callable[..., Any]] = (),
    *,
    address: str | None = None,
    namespace: str | None = None,
    config_profile: str | None = None,
    task_queue: str | None = None,
    model: str | None = None,
    recovery: Profile = DEFAULT,
    sandboxed: bool = True,
    mcp: Sequence[McpServer] | Path | None = None,
    notifier: Notifier | None = None,
    log_json: bool = False,
    grace_s: float | None = None,
    threads: Count = TOOL_THREADS,
    deployment: str | None = None,
    build_id: str | None = None,
    metrics: str | None = None,
    health: str | None = None,
    drain: Drained | None = None,
    durability: str | None = None,
    ready: Callable[[Worker], None] | None = None,
    **options: Any,
) -> None:
    """Run a worker until SIGINT, SIGTERM or SIGHUP; then let running effects finish for up to `grace_s`, and return.

    An effect that has not finished by then is left to other workers. One that runs in a thread is not waited for: its
    receipt tells them that it is under way, for as long as this process lives. Nor is one waited for that goes on
    although it was canceled; but `asyncio.run` waits for it, since it cancels and awaits all tasks of its loop.

    It takes these signals in place of the process's own handlers, in the main thread: a program that handles signals
    itself, such as a web server, uses `make_worker` instead.

    Args:
        skills: Skills, their workflow classes, or modules that hold them.
        tools: Functions declared with `@tool`.
        address: The server; None takes Temporal's own settings (`TEMPORAL_ADDRESS`, profiles), else localhost:7233.
        namespace: None takes Temporal's own settings, else `default`.
        config_profile: A profile of Temporal's configuration file.
        task_queue: The task queue that the worker polls for tasks and effects; None takes `REFOLD_TASK_QUEUE`, else
            `refold`.
        model: See `RefoldPlugin`.
        recovery: See `RefoldPlugin`.
        sandboxed: See `RefoldPlugin`.
        mcp: MCP servers, or the file that lists them; see `RefoldPlugin`.
        notifier: See `RefoldPlugin`.
        log_json: Write log lines to stderr as JSON, instead of columns for people. A program that has set up
            structlog itself keeps its own settings.
        grace_s: How long running effects may take to finish after the signal; None takes `REFOLD_GRACE`, else 25 s.
        threads: The most tools that are a plain `def` running at once.
        deployment: The worker deployment that the worker belongs to; see `make_worker`.
        build_id: A name of the code that it runs; see `make_worker`.
        metrics: Where the process shows its metrics: `HOST:PORT`, for Prometheus, or the URL of an OpenTelemetry
            collector. None takes `REFOLD_METRICS`, else shows none.
        health: Where it answers `/livez` and `/readyz`, as `HOST:PORT`; None takes `REFOLD_HEALTH`, else nowhere.
        drain: When to end without a signal: `Drained()` ends when the task queue is empty; None never does.
        durability: See `RefoldPlugin`.
        ready: Called once, when the worker polls.
        options: Passed on to `temporalio.worker.Worker`; `grace_s` stands for its `graceful_shutdown_timeout`.

    Raises:
        DefinitionError: A skill, a tool, an MCP server or a setting is wrong, there is nothing to serve, or this is not
            the main thread.
        NotConnected: No server answers.
        StorageError: The storage for large values cannot be used.
        LedgerUnavailable: A tool needs the ledger, which cannot be used.
    """
    log_to_stderr(as_json=log_json)
    servers = servers_in(mcp) if isinstance(mcp, Path) else mcp
    grace = grace_from_env() if grace_s is None else checked_grace(grace_s)
    serves = bool(skills or tools or servers or options.keys() & _SERVED)
    if problem := _why_not(serves, options):
        raise DefinitionError(queue_of(task_queue), [problem], what="worker of task queue")
    leave_threads(asyncio.get_running_loop())
    check_place(health)
    measure(metrics)
    plugin = RefoldPlugin(
        skills, tools, model=model, recovery=recovery, sandboxed=sandboxed, mcp=servers, threads=threads,
        notifier=notifier, durability=durability,
    )  # fmt: skip
    plugin.refuse_unfit()  # before a server is asked
    async with _set_by_signals() as stop:
        client = await _unless(
            stop, _ready_server(address=address, namespace=namespace, profile=config_profile, plugins=[plugin])
        )
        if client is None:
            return
        await _unless(stop, plugin.know_ledger(client))
        if stop.is_set():
            return
        options["graceful_shutdown_timeout"] = timedelta(seconds=grace)
        options["plugins"] = [*options.get("plugins", ()), *([] if drain is None else [drain])]
        worker = make_worker(client, plugin, task_queue=task_queue, deployment=deployment, build_id=build_id, **options)
        await _run_until(stop, worker, plugin, health=health, grace=grace, ready=ready)


async def _ready_server(**where: Any) -> Client:
    """A client of a server that knows refold's search attributes."""
    client = await connected(**where)
    await search.register(client)
    return client


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What `work` returns; None, and `work` is canceled, if the event is set first."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()


async def _run_until(
    stop: asyncio.Event,
    worker: Worker,
    plugin: RefoldPlugin,
    *,
    health: str | None,
    grace: float,
    ready: Callable[[Worker], None] | None,
) -> None:
    # Not `async with worker`, which waits for ever if the worker cannot start.
    running, stopping = asyncio.create_task(worker.run()), asyncio.create_task(stop.wait())
    checks = worker_checks(worker, plugin.storage, plugin.ledger, stop.is_set)
    try:
        async with answering(checks, health):
            await _until_ready(worker, running, stopping, plugin)
            if ready is not None and not (running.done() or stopping.done()):
                ready(worker)
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if (worker.is_running or worker.is_shutdown) and not running.done():  # else it has no effects yet
                await _left(worker, running, grace)
            if running.done():
                await running
    finally:
        for task in (running, stopping):
            task.cancel()


def _why_not(serves: bool, options: Mapping[str, Any]) -> str | None:
    if not serves:
        return "it would serve nothing: give it skills or tools"
    if "graceful_shutdown_timeout" in options:
        return "its grace is `grace_s`, in seconds; leave out `graceful_shutdown_timeout`"
    if threading.current_thread() is not threading.main_thread():
        return "run_worker takes the process's signals, in the main thread alone: in another one, use make_worker"
    return None


@asynccontextmanager
async def _set_by_signals() -> AsyncIterator[asyncio.Event]:
    """An event that is set when a signal stops the worker, inside the block."""
    loop, signals, stop = asyncio.get_running_loop(), signals_to_leave(), asyncio.Event()
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def _until_ready(
    worker: Worker, running: asyncio.Task[None], stopping: asyncio.Task[Any], plugin: RefoldPlugin
) -> None:
    """Wait until a worker polls, and warn of models that it cannot use and of other ledgers beside its own; no longer
    once it has failed or is to stop."""
    while not (worker.is_running or running.done() or stopping.done()):  # noqa: ASYNC110 - the SDK has no event for it
        await asyncio.sleep(START_POLL_S)
    if running.done() or stopping.done():
        return
    looking = asyncio.create_task(_warned(worker, plugin))
    try:
        await asyncio.wait((looking, running, stopping), return_when=asyncio.FIRST_COMPLETED)
        if looking.done():
            looking.result()
    finally:
        looking.cancel()
    gc.freeze()  # what is loaded by now stays: the collector need not look through it while tasks run


async def _warned(worker: Worker, plugin: RefoldPlugin) -> None:
    for why in await plugin.unusable_models():
        log.warning("model_unusable", reason=why)
    if others := await plugin.with_another_ledger(worker):
        do = "let REFOLD_LEDGER name the same ledger at all workers of the task queue"
        log.warning("ledgers_differ", workers=", ".join(others), do=do)


async def _left(worker: Worker, running: asyncio.Task[None], grace_s: float) -> None:
    """Stop a worker, and wait until its effects have finished or are left to other workers."""
    shutdown = asyncio.create_task(worker.shutdown())
    try:
        await asyncio.wait([running], timeout=grace_s + LEAVE_S)
        if not running.done():
            log.warning("effects_abandoned", grace_s=grace_s)
    finally:
        shutdown.cancel()
