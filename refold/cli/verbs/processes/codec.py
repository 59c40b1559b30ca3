"""`refold codec`: shows encrypted tasks in Temporal's web UI."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.errors import CallError
from refold.cli.verb import MOST_PORT, Call, add
from refold.cli.verbs.processes.worker import LogJson, WithParent, end_with_parent, stopped_by_signal

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from refold.a2a.security import Security
    from refold.temporal.data.remote import RemoteCodec

PORT = 9002
PREFIX = "REFOLD_CODEC_"
"""What the settings of its callers begin with. They are not the gateway's, who see their own tasks only."""

Origin = Annotated[
    str | None,
    typer.Option(
        "--origin", help="The address of Temporal's web UI, such as http://localhost:8233, whose pages may call."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, codec, connects=False)


async def codec(
    call: Call,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=MOST_PORT, help="The port; 0 takes a free one.")] = PORT,
    origin: Origin = None,
    log_json: LogJson = False,
    with_parent: WithParent = False,
) -> None:
    """Decrypt for Temporal's web UI and command line.

    A codec server for the codec that REFOLD_CODEC names.

    Enter its address in the web UI (the glasses at the top right), or as `temporal --codec-endpoint`. It decrypts what
    a task wrote to Temporal and to the storage for large values, for whoever may call it: callers on this machine,
    or those that REFOLD_CODEC_API_KEYS or REFOLD_CODEC_JWT_JWKS_URL names. Prints its address once it accepts calls;
    with --json, one object. Ctrl-C or SIGTERM stops it.
    """
    # Imported here: these libraries are an extra, and slow to load.
    try:
        from refold.a2a import serve as serving
        from refold.a2a.security import as_origin, security_from_env
        from refold.temporal.data.codec import ENV, codec_from_env
        from refold.temporal.data.remote import RemoteCodec
        from refold.temporal.worker.logs import log_to_stderr
    except ImportError as error:
        raise CallError(f"the codec server needs more packages: {error}") from None
    if codec_from_env() is None:
        raise CallError(
            f"{ENV} names no codec, such as refold.temporal.encryption:from_env: there is nothing to decrypt"
        )
    security = security_from_env(prefix=PREFIX)
    if origin is not None:
        try:
            security = replace(security, origins=(as_origin(origin),))
        except ValueError as error:
            raise CallError(f"--origin: {error}") from None
    security.check_bind(host)
    log_to_stderr(as_json=log_json)
    if with_parent:
        end_with_parent()
    try:
        sock = serving.bound(host, port)
    except OSError as error:
        raise CallError(f"the codec server cannot listen on {host}:{port}: {error.strerror or error}") from None
    with sock:
        url = serving.url_of(sock, host)
        app = app_of(RemoteCodec(), security, url)
        await serving.serve(app, sock, stopped_by_signal(), ready=lambda: _say_ready(call, url))
    call.out.note("codec server stopped")


def app_of(remote: RemoteCodec, security: Security, url: str = "") -> Starlette:
    """The codec server behind the checks of its callers."""
    from refold.a2a.security import guards
    from refold.temporal.data.payloads import AWAY
    from refold.temporal.data.remote import OPERATIONS
    from refold.web.codec_server import codec_app

    async def ping() -> None:
        """Always ready: a codec server needs no other service."""

    return codec_app(remote, OPERATIONS, AWAY, guards(security, ping, url=url))


def _say_ready(call: Call, url: str) -> None:
    if call.out.json:
        call.out.value({"pid": os.getpid(), "url": url})
        return
    call.out.say(f"codec server at {url}")
