"""`refold dev`: a Temporal server, a worker and an A2A gateway, with one command."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold import temporal
from refold.callbacks.address import KEY, URL
from refold.cli.errors import AS_TEXT, DONE, WRONG_CALL, CallError
from refold.cli.supervise import Supervised
from refold.cli.text.views import filled
from refold.cli.verb import MOST_PORT, QUEUE, Call, Namespace, TaskQueue, add
from refold.cli.verbs.code import Modules
from refold.cli.verbs.processes.serve import PORT as A2A_PORT
from refold.cli.verbs.processes.worker import LogJson, Mcp, Model, NoSandbox, Recovery, stopped_by_signal
from refold.engine import NotConnected
from refold.temporal.worker.profile import DEFAULT

if TYPE_CHECKING:
    from refold.temporal.dev import DevServer

GRACE_S = 5.0
"""How long the worker's running effects may take to finish when `refold dev` is stopped, in seconds, without a setting:
short, so that Ctrl-C ends a trial soon."""

HOST = "127.0.0.1"

BACKLOG = 1024
"""The most connections that wait for a gateway that is being started."""

GRACE = "REFOLD_GRACE"
PAGE_SECRET = "REFOLD_PAGE_SECRET"

ANONYMOUS = "REFOLD_A2A_ANONYMOUS"
"""Unset for the gateway, which listens on loopback: it would be open to proxies too, and so have no page."""

PORT, UI_PORT = 7233, 8233
"""The ports of Temporal's own development server, where `refold` looks for a server without a setting."""

_TOLD = {"a2a": "url", "card": "card", "page": "page"}
"""The addresses of the gateway that `refold dev --json` prints: their names there, and in the gateway's own output."""

MoreModules = Annotated[list[str] | None, typer.Option("--modules", help="As MODULE; repeatable.", show_default=False)]
Db = Annotated[
    Path | None, typer.Option("--db", metavar="FILE", help="Store the server's state in this file; else in memory.")
]
ServerPort = Annotated[
    int | None, typer.Option("--port", min=1, max=MOST_PORT, help="The server's port; else 7233, or a free one.")
]
UiPort = Annotated[
    int | None, typer.Option("--ui-port", min=1, max=MOST_PORT, help="The web UI's port; else 8233, or a free one.")
]
GatewayPort = Annotated[
    int | None,
    typer.Option("--a2a-port", min=1, max=MOST_PORT, help="The A2A gateway's port; else 9000, or a free one."),
]
WithGateway = Annotated[
    bool, typer.Option("--a2a/--no-a2a", help="Start the A2A gateway, if the extra `a2a` is installed.")
]
MetricsFrom = Annotated[
    str | None,
    typer.Option(
        "--metrics",
        metavar="HOST:PORT",
        envvar="REFOLD_METRICS",
        help="Show metrics for Prometheus: of the worker at this port, of the gateway at the next, of open tasks at "
        "the one after.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, dev, connects=False)


async def dev(
    call: Call,
    modules: Modules = None,
    more_modules: MoreModules = None,
    db: Db = None,
    port: ServerPort = None,
    ui_port: UiPort = None,
    log: Annotated[Path | None, typer.Option("--log", metavar="FILE", help="Append the server's output to it.")] = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = QUEUE,
    model: Model = None,
    recovery: Recovery = DEFAULT.name,
    no_sandbox: NoSandbox = False,
    mcp: Mcp = None,
    log_json: LogJson = False,
    metrics: MetricsFrom = None,
    a2a_port: GatewayPort = None,
    a2a: WithGateway = True,
) -> int:
    """Start a Temporal server, a worker and an A2A gateway.

    The server comes with its web UI, the worker serves the skills and tools of this folder, the gateway offers the
    skills to other agents. Prints the addresses once all are ready; with --json, one object on one line. A worker or
    gateway that crashes is reported and started again. Ctrl-C or SIGTERM stops everything.
    """
    stop = stopped_by_signal()
    space = namespace or os.environ.get("TEMPORAL_NAMESPACE") or "default"
    seen, grace_s = _ports(metrics), grace()
    starting = temporal.dev_server(
        port=port, ui=True, ui_port=ui_port, usual=(PORT, UI_PORT), db=db, namespace=space, log=log
    )
    async with _started(starting, stop) as server:
        if server is None:
            return DONE
        at_server = ["--address", server.address, "--namespace", space, "--task-queue", task_queue]
        at_server += ["--log-json"] if log_json else []
        shared = [*(modules or []), *(more_modules or []), *at_server, "--recovery", recovery]
        options = [*shared, *seen.get("worker", ()), *(["--model", model] if model else [])]
        options += ["--no-sandbox"] if no_sandbox else []
        options += ["--mcp", str(mcp)] if mcp else []
        async with AsyncExitStack() as running:
            known = {} if call.out.json else {AS_TEXT: "1"}
            sock = gateway = None
            if a2a and all(importlib.util.find_spec(name) for name in ("a2a", "uvicorn")):
                sock = running.enter_context(_listening(a2a_port))
                known |= _callbacks(sock.getsockname()[1])
            at_work = {**known, GRACE: str(grace_s)}
            polling = Supervised("worker", options, call.out.alert, grace_s=grace_s, environment=at_work)
            worker = await running.enter_async_context(polling)
            if sock is not None:
                served = _gateway(server, sock, [*shared, *seen.get("serve", ())], known, call.out.alert)
                gateway = await running.enter_async_context(served)
            processes = [one for one in (worker, gateway) if one is not None]
            if "metrics" in seen:
                asked = Supervised("metrics", [*seen["metrics"], *at_server], call.out.alert, environment=known)
                processes.append(await running.enter_async_context(asked))
            gave_up = [one.gave_up.wait() for one in processes]
            await _first(_all_ready(processes), *gave_up, stop.wait())
            if all(one.ready.is_set() for one in processes):
                _say(call, server, worker, gateway, seen)
                gave_up = [one.gave_up.wait() for one in processes]
                await _first(*gave_up, stop.wait(), asyncio.shield(server.ended))
                call.out.note("stopping")
        if server.ended.done() and not stop.is_set():
            raise temporal.DevServerError(f"{server.ended.result()}\n{what_is_left(db)}")
    return DONE if stop.is_set() else WRONG_CALL


def grace() -> float:
    """How long running effects may take to finish when `refold dev` is stopped: `REFOLD_GRACE`, else `GRACE_S`.

    Raises:
        DefinitionError: `REFOLD_GRACE` is no number of seconds.
    """
    from refold.temporal.worker.run import grace_from_env

    return grace_from_env() if os.environ.get(GRACE, "").strip() else GRACE_S


@asynccontextmanager
async def _started(
    server: AbstractAsyncContextManager[DevServer], stop: asyncio.Event
) -> AsyncIterator[DevServer | None]:
    """The server, inside the block; None if `stop` is set before it answers."""
    async with AsyncExitStack() as running:
        starting = asyncio.ensure_future(running.enter_async_context(server))
        await _first(starting, stop.wait())
        yield None if starting.cancelled() else starting.result()


def _gateway(
    server: DevServer,
    sock: socket.socket,
    options: Sequence[str],
    environment: Mapping[str, str],
    say: Callable[[str], None],
) -> Supervised:
    """The gateway at a socket, with the page beside it; to be started."""
    options = [*options, "--socket", str(sock.fileno()), "--allow-loopback", *_page(server)]
    # A gateway that is started again has to know the page's sessions, or people lose the name they chose.
    secret = os.environ.get(PAGE_SECRET) or secrets.token_hex(32)
    ours = {**environment, PAGE_SECRET: secret, ANONYMOUS: ""}
    return Supervised("serve", options, say, environment=ours, sock=sock)


def _page(server: DevServer) -> list[str]:
    """The page beside the gateway, as arguments; none if its libraries are not installed."""
    if importlib.util.find_spec("jinja2") is None:
        return []
    return ["--page", "--temporal-ui", f"{server.ui_url}/namespaces/{server.namespace}/workflows"]


def _listening(port: int | None) -> socket.socket:
    """The gateway's socket: at this port; None is the usual one, or a free one if that is taken.

    It is open for as long as `refold dev` runs: a gateway that is started again is where the worker's callbacks lead,
    and no other process gets them meanwhile.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((HOST, A2A_PORT if port is None else port))
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if port is None:
            return _listening(0)
        raise CallError(f"the gateway cannot listen on {HOST}:{port}: {error.strerror or error}") from None
    return sock


def _callbacks(port: int) -> dict[str, str]:
    """Settings of callbacks that nobody has set: addresses on this machine, with a key for as long as this runs."""
    usual = {URL: f"http://{HOST}:{port}", KEY: secrets.token_hex(16)}
    return {name: value for name, value in usual.items() if not os.environ.get(name)}


def _ports(metrics: str | None) -> dict[str, list[str]]:
    """Where each process shows its metrics, as its arguments."""
    if metrics is None:
        return {}
    if "://" in metrics:
        return {"worker": ["--metrics", metrics], "serve": ["--metrics", metrics], "metrics": [metrics]}
    host, _, port = metrics.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and 0 < int(port) <= MOST_PORT - 2):
        raise CallError(f"--metrics takes HOST:PORT, and uses the port and the two after it; not {metrics!r}")
    first, second, third = (f"{host}:{int(port) + more}" for more in range(3))
    return {"worker": ["--metrics", first], "serve": ["--metrics", second], "metrics": [third]}


async def _all_ready(processes: Sequence[Supervised]) -> None:
    for one in processes:
        await one.ready.wait()


def _say(
    call: Call, server: DevServer, worker: Supervised, gateway: Supervised | None, seen: dict[str, list[str]]
) -> None:
    skills, tools, task_queue = worker.told["skills"], worker.told["tools"], worker.told["task_queue"]
    shown = [f"http://{one[-1]}/metrics" if "://" not in one[-1] else one[-1] for one in seen.values()]
    ui = f"{server.ui_url}/namespaces/{server.namespace}/workflows"
    if call.out.json:
        line = {"address": server.address, "ui": ui, "namespace": server.namespace, "task_queue": task_queue}
        pids = {"server_pid": server.pid, "worker_pid": worker.pid}
        if gateway is not None:
            line |= {name: gateway.told[key] for name, key in _TOLD.items() if key in gateway.told}
            pids["gateway_pid"] = gateway.pid
        if seen:
            line["metrics"] = list(dict.fromkeys(shown))
        call.out.value({**line, **pids, "skills": skills, "tools": tools})
        return
    links = [f"UI         {ui}"]
    if gateway is not None:
        links = [*([f"page       {gateway.told['page']}"] if "page" in gateway.told else []), *links]
        links += [f"A2A        {gateway.told['url']}", f"card       {gateway.told['card']}"]
    if seen:
        links.append(f"metrics    {'  '.join(dict.fromkeys(shown))}")
    call.out.say(
        f"Temporal   {server.address}   namespace {server.namespace}",
        *links,
        f"worker     {', '.join(skills)}   task queue {task_queue}",
        "",
        "In another terminal:",
        *(f"  {line}" for line in [*exports(server.address, server.namespace, task_queue), first_start(worker.told)]),
    )
    call.out.note("Ctrl-C stops all of it.")


def exports(address: str, namespace: str, task_queue: str) -> list[str]:
    """The settings that a command in another terminal lacks to reach the server, if that terminal has this one's."""
    from refold.temporal.client.connection import settings_from

    try:
        ours = settings_from()
    except NotConnected:
        ours = {}
    wanted = {
        "TEMPORAL_ADDRESS": (address, ours.get("target_host"), f"127.0.0.1:{PORT}"),
        "TEMPORAL_NAMESPACE": (namespace, ours.get("namespace"), "default"),
        "REFOLD_TASK_QUEUE": (task_queue, os.environ.get("REFOLD_TASK_QUEUE"), QUEUE),
        # With a key or certificate of another server a client would speak TLS, and a development server does not.
        "TEMPORAL_TLS": ("false", "true" if ours.get("tls") else None, "false"),
    }
    # Exported although this terminal has it, unless it is the usual value: it may be set for this command alone.
    return [f"export {name}={quote(to)}" for name, (to, now, usual) in wanted.items() if {to, now or usual} != {usual}]


def first_start(told: dict[str, Any]) -> str:
    """A command that starts a task, preferably of a skill that takes a text."""
    skills, inputs = told["skills"], told["inputs"]
    for skill in skills:
        if skill not in inputs:
            return f'refold start {quote(skill)} "Hello"'
    return f"refold start {quote(skills[0])} {filled(inputs[skills[0]])}"


def what_is_left(db: Path | None) -> str:
    """What the end of the server leaves, and how to go on with it."""
    if db is None:
        return "Its tasks were in memory, and are gone; --db FILE keeps them."
    return f"Its tasks are in {db}: `refold dev --db {quote(str(db))}` goes on with them."


async def _first(*awaited: Awaitable[Any]) -> None:
    """Wait for the first of several coroutines."""
    waits = [asyncio.ensure_future(one) for one in awaited]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
