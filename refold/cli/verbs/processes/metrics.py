"""`refold metrics`: what the server knows of open tasks, for Prometheus."""

from __future__ import annotations

import asyncio
import os
from typing import Annotated

import typer

from refold import temporal
from refold.cli.errors import CallError
from refold.cli.verb import Call, add
from refold.cli.verbs.processes.worker import LogJson, WithParent, end_with_parent, stopped_by_signal

EVERY_S = 15.0

Where = Annotated[
    str,
    typer.Argument(
        metavar="HOST:PORT",
        help="Where Prometheus finds them, under /metrics; or the URL of an OpenTelemetry collector.",
    ),
]
Queues = Annotated[
    list[str] | None,
    typer.Option("--queue", metavar="QUEUE", help="Look at this task queue, too; repeatable.", show_default=False),
]
Every = Annotated[
    float,
    typer.Option(
        "--every", min=1, max=120, metavar="SECONDS", help="The pause between two looks; longer if they take long."
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, metrics)


async def metrics(
    call: Call,
    where: Where = "127.0.0.1:9464",
    queue: Queues = None,
    every: Every = EVERY_S,
    log_json: LogJson = False,
    with_parent: WithParent = False,
) -> None:
    """Show what the server knows of open tasks, as metrics.

    How many tasks are open by skill and state, how long the oldest has been in its state, who polls the task queue and
    what waits there. One process is enough for a namespace; it also says so when no worker runs. Runs until Ctrl-C or
    SIGTERM; with --json, prints an object once it has looked.
    """
    temporal.log_to_stderr(as_json=log_json)
    shown = temporal.measure(where, said_as="HOST:PORT")
    if shown is None:
        raise CallError("HOST:PORT is empty; name where Prometheus finds the metrics, such as 127.0.0.1:9464")
    if with_parent:
        end_with_parent()
    engine = await call.lasting_engine()
    if not isinstance(engine, temporal.TemporalEngine):
        raise CallError("open tasks are asked of a Temporal server")
    queues = [call.server.task_queue, *(queue or [])]
    stop = stopped_by_signal()
    asking = temporal.OpenTasks(engine.client, queues, every_s=every)
    looking, ended = asyncio.create_task(asking.run()), asyncio.create_task(stop.wait())
    looked = asyncio.create_task(asking.looked.wait())
    await asyncio.wait([looked, looking, ended], return_when=asyncio.FIRST_COMPLETED)
    if not looked.done():
        looked.cancel()
    elif call.out.json:
        call.out.value({"pid": os.getpid(), "metrics": shown, "queues": queues})
    else:
        call.out.say(f"open tasks at {shown}; task queues: {', '.join(queues)}")
    await asyncio.wait([looking, ended], return_when=asyncio.FIRST_COMPLETED)
    if looking.done():
        await looking
    looking.cancel()
