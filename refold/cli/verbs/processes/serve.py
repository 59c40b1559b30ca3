"""`refold serve`: the A2A gateway to this folder's skills."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from refold import temporal
from refold.cli.application import application, without_skill
from refold.cli.errors import CallError
from refold.cli.verb import MOST_PORT, Call, add
from refold.cli.verbs.code import Modules
from refold.cli.verbs.processes.worker import (
    LogJson,
    Metrics,
    Recovery,
    WithParent,
    end_with_parent,
    profile_named,
    stopped_by_signal,
)
from refold.core.authoring.skill import Skill
from refold.core.schema import problems
from refold.engine import Engine
from refold.temporal.worker.profile import DEFAULT

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer
    from starlette.applications import Starlette

    from refold.a2a import Security
    from refold.a2a.grpc.server import GrpcServer
    from refold.a2a.settings import Settings
    from refold.webhooks import Webhooks

PORT = 9000

SDK_SPANS = "OTEL_INSTRUMENTATION_A2A_SDK_ENABLED"
"""Whether A2A's SDK opens spans of its own; it looks as it is imported. The gateway's spans are refold's, and the SDK's
four for each call take time (0.15 ms of CPU) even where nobody records them."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="REFOLD_A2A_URL",
        help="The address at which clients reach the gateway, if it differs from where it listens.",
    ),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option(
        "--settings", metavar="FILE", help="Settings of the gateway and its card, as JSON; docs/a2a.md lists them."
    ),
]
PostWebhooks = Annotated[
    bool, typer.Option("--webhooks/--no-webhooks", help="Post updates of tasks to registered webhooks.")
]
AllowLoopback = Annotated[
    bool, typer.Option("--allow-loopback", help="Allow webhooks to this machine, for development.")
]
Inherited = Annotated[
    int | None,
    typer.Option("--socket", hidden=True, help="The file descriptor of the socket to listen on; for `refold dev`."),
]
Anonymous = Annotated[
    bool, typer.Option("--anonymous", help="Let everyone who can reach the gateway call it, from other machines too.")
]
WithPage = Annotated[
    bool, typer.Option("--page", help="Serve the page for people, too, under /page. Needs `refold[web]`.")
]
TemporalUi = Annotated[
    str | None,
    typer.Option(
        "--temporal-ui",
        metavar="URL",
        envvar="REFOLD_TEMPORAL_UI",
        help="Temporal's UI, for links from the page: the address that a workflow's id is added to.",
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        "--grpc-port",
        min=0,
        max=MOST_PORT,
        help="Serve gRPC, too, on this port; 0 takes a free one. Needs `refold[grpc]`.",
    ),
]
Router = Annotated[
    str | None,
    typer.Option("--router", metavar="SKILL", help="The skill that chooses a skill for messages that name none."),
]


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, serve)


async def serve(
    call: Call,
    modules: Modules = None,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=MOST_PORT, help="The port; 0 takes a free one.")] = PORT,
    inherited: Inherited = None,
    url: Url = None,
    name: Annotated[str | None, typer.Option("--name", help="The agent's name on its card.")] = None,
    grpc_port: GrpcPort = None,
    router: Router = None,
    page: WithPage = False,
    temporal_ui: TemporalUi = None,
    settings: SettingsFile = None,
    webhooks: PostWebhooks = True,
    allow_loopback: AllowLoopback = False,
    recovery: Recovery = DEFAULT.name,
    anonymous: Anonymous = False,
    log_json: LogJson = False,
    metrics: Metrics = None,
    with_parent: WithParent = False,
) -> None:
    """Offer the skills of this folder to other agents, over A2A.

    JSON-RPC, REST and gRPC, A2A 1.0; JSON-RPC and REST for 0.3. A gateway stores nothing: any number of gateways serve
    the same tasks, and workers run the tasks. A gateway also delivers webhooks. Prints its address once it accepts
    calls; with --json, one object. Ctrl-C or SIGTERM stops it.
    """
    if with_parent:
        end_with_parent()
    os.environ.setdefault(SDK_SPANS, "false")
    # Imported here: these libraries are an extra, and slow to load.
    try:
        from refold import a2a
        from refold.a2a import serve as serving
        from refold.temporal.worker.logs import log_to_stderr
    except ImportError as error:
        raise CallError(f"the gateway needs more packages: {error}") from None
    security = _security(a2a.security_from_env(), host, anonymous=anonymous)
    log_to_stderr(as_json=log_json)
    # The SDK logs a traceback for each request that does not fit; refold logs such requests itself.
    logging.getLogger("a2a").setLevel(logging.CRITICAL)
    skills = _skills(modules or [], router)
    told = _settings(settings, url=url, name=name)
    temporal.measure(metrics)
    engine = await call.lasting_engine()
    grpc, grpc_url = _grpc(security, host, grpc_port)
    sock = _bound(host, port) if inherited is None else socket.socket(fileno=inherited)
    told = _completed(told, url=serving.url_of(sock, host), grpc_url=grpc_url)
    hooks: AbstractAsyncContextManager[Webhooks | None] = nullcontext()
    if webhooks and isinstance(engine, temporal.TemporalEngine):
        profile = profile_named(recovery)
        hooks = temporal.TemporalWebhooks(engine, a2a.WebhookFeed(engine), loopback=allow_loopback, recovery=profile)
    stop = stopped_by_signal()
    with sock:
        async with hooks as delivering:
            push = None if delivering is None else a2a.WebhookPush(delivering)
            try:
                offered = [skill for id, skill in skills.items() if id != router]
                tracer = _tracer(engine)
                app = a2a.a2a_app(engine, offered, told, push=push, router=router, security=security, tracer=tracer)
            except ValueError as error:
                raise CallError(str(error)) from None
            served = _with_page(app, engine, offered, security, host, told.url, temporal_ui) if page else app
            async with _serving(grpc, app, stop):
                ready = partial(_say_ready, call, told, sorted(skills), grpc=told.grpc_url or grpc_url, page=page)
                # What is loaded by now stays. To look through it for garbage takes a tenth of a second, each time.
                gc.freeze()
                await serving.serve(served, sock, stop, ready=ready, security=security)
    call.out.note("gateway stopped")


def _bound(host: str, port: int) -> socket.socket:
    """The socket that the gateway listens on."""
    from refold.a2a import serve as serving

    try:
        return serving.bound(host, port)
    except OSError as error:
        raise CallError(f"the gateway cannot listen on {host}:{port}: {error.strerror or error}") from None


def _security(security: Security, host: str, *, anonymous: bool) -> Security:
    """Who may call, with what the command line says."""
    if anonymous:
        security = replace(security, anonymous="everywhere")
    security.check_bind(host)
    return security


def _with_page(
    gateway: Starlette, engine: Engine, skills: list[Skill], security: Security, host: str, url: str, ui: str | None
) -> Starlette:
    """The gateway with the page beside it."""
    try:
        from refold.cli.verbs.processes.page import access, with_page
    except ImportError as error:
        raise CallError(f"the page needs more packages ({error}): pip install 'refold[web]'") from None
    return with_page(gateway, engine, skills, access(security, host, url), ui, url)


def _tracer(engine: Engine) -> Tracer | None:
    """What requests are traced with; None if the connection is not traced."""
    return temporal.tracer_of(engine.client) if isinstance(engine, temporal.TemporalEngine) else None


def _grpc(security: Security, host: str, port: int | None) -> tuple[GrpcServer | None, str | None]:
    """The server for gRPC, if there is to be one, and its address from this machine."""
    if port is None:
        return None, None
    try:
        from refold.a2a.grpc.server import GrpcServer
    except ImportError as error:
        raise CallError(f"gRPC needs more packages ({error}): pip install 'refold[grpc]'") from None
    server = GrpcServer(security)
    try:
        port = server.bind(host, port)
    except OSError:
        raise CallError(f"the gateway cannot listen on {host}:{port} for gRPC; is the port in use?") from None
    named = "127.0.0.1" if host in ("0.0.0.0", "::") else host
    return server, f"[{named}]:{port}" if ":" in named else f"{named}:{port}"


@asynccontextmanager
async def _serving(grpc: GrpcServer | None, app: Starlette, stop: asyncio.Event) -> AsyncIterator[None]:
    """gRPC beside HTTP."""
    if grpc is None:
        yield
        return
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(grpc.serve(app, stop, ready=ready.set))
        await ready.wait()
        yield


def _skills(modules: list[str], router: str | None) -> Mapping[str, Skill]:
    """The skills to serve, by id."""
    found = application(modules)
    if not found.skills:
        raise without_skill(found)
    if router is not None and router not in found.skills:
        raise CallError(f"--router names no skill {router!r}; skills: {', '.join(found.skills)}")
    return found.skills


def _settings(file: Path | None, **said: str | None) -> Settings:
    """The settings: options of the command line override the file."""
    from refold.a2a.settings import Settings

    try:
        text = "{}" if file is None else file.read_text(encoding="utf-8-sig", errors="replace")
        read = Settings.model_validate_json(text).model_dump(exclude_unset=True)
        return Settings.model_validate({**read, **{key: value for key, value in said.items() if value is not None}})
    except OSError as error:
        raise CallError(f"--settings {file} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        place = "" if file is None else f" in {file}"
        misspelled = any(found["type"] == "extra_forbidden" for found in error.errors())
        names = f"; there are: {', '.join(Settings.model_fields)}" if misspelled else ""
        raise CallError(f"the gateway's settings{place} do not fit: {problems(error)}{names}") from None


def _completed(settings: Settings, **found: str | None) -> Settings:
    """The settings with the addresses that were found, where they say nothing; `null` for gRPC's is something."""
    new = {name: at for name, at in found.items() if at and name not in settings.model_fields_set}
    return settings.model_copy(update=new)


def _say_ready(call: Call, settings: Settings, skills: list[str], *, grpc: str | None, page: bool) -> None:
    card = f"{settings.url}/.well-known/agent-card.json"
    pages = {"page": f"{settings.url}/page/"} if page else {}
    if call.out.json:
        ports = {} if grpc is None else {"grpc": grpc}
        call.out.value({"pid": os.getpid(), "url": settings.url, **ports, "card": card, **pages, "skills": skills})
        return
    call.out.say(f"A2A gateway at {settings.url}; skills: {', '.join(skills)}", f"card {card}")
    for url in pages.values():
        call.out.say(f"page {url}")
    if grpc is not None:
        call.out.say(f"gRPC at {grpc}")
