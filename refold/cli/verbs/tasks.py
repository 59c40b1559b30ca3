"""`refold start`, `refold answer`, `refold cancel`: verbs that change a task."""

from __future__ import annotations

import asyncio
import getpass
from typing import Annotated

import typer

from refold.cli.errors import DONE, TASK_FAILED
from refold.cli.text.content import content_of
from refold.cli.text.entries import Story
from refold.cli.text.output import Output
from refold.cli.text.views import FAILED, brief
from refold.cli.verb import Call, TaskId, add
from refold.core.errors import NoWorker
from refold.core.fold.journal import Entry
from refold.engine import Engine, TaskView

ASK_AGAIN_S = 1.0
"""Seconds between two looks for a worker, while none is running."""

Wait = Annotated[
    bool, typer.Option("--wait", help="Wait until the task pauses or ends; its journal goes to stderr meanwhile.")
]
Data = Annotated[
    str | None, typer.Option("--data", metavar="JSON", help="The data of the message; `-` reads it from stdin.")
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (start, answer, cancel):
        add(app, run)


async def start(
    call: Call,
    skill: Annotated[str, typer.Argument(metavar="SKILL", help="The skill's id.", show_default=False)],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|KEY=VALUE",
            help="The first message: a text (`-` reads stdin), data as key=value, or both. A value that is valid JSON "
            "is sent as JSON.",
            show_default=False,
        ),
    ] = None,
    data: Data = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The new task's id, never used before; else one is generated.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Stream the model's text to watchers while the model writes it.")
    ] = False,
    owner: Annotated[
        str | None, typer.Option("--owner", help="The task's owner; a gate may exclude the owner from deciding.")
    ] = None,
    previous: Annotated[
        str | None,
        typer.Option("--previous", metavar="TASK_ID", help="The task whose conversation the new task continues."),
    ] = None,
    started_by: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="The person who starts the task. Else REFOLD_APPROVER, else your user name.",
            envvar="REFOLD_APPROVER",
        ),
    ] = None,
    wait: Wait = False,
) -> int:
    """Start a task of a skill, and print its status.

    Examples: `refold start hello "I am Ada"`, `refold start refund order_id=A1 amount_cents=90000`.

    Exits 1 if the task has already failed, or was rejected or canceled.
    """
    engine = await call.engine()
    content = content_of(words or [], data)
    view = await engine.start(
        skill,
        content,
        task_id=id,
        stream=stream,
        owner=owner,
        previous=previous,
        started_by=started_by or getpass.getuser(),
    )
    if wait:
        view = await _settled(call, engine, view.task_id, after=0)
    return _answer(call, view)


async def answer(
    call: Call,
    task_id: TaskId,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|KEY=VALUE", help="The reply, as for `refold start`.", show_default=False),
    ] = None,
    slot: Annotated[
        str | None, typer.Option("--slot", help="The name of the question; needed if several are open.")
    ] = None,
    data: Data = None,
    delivery_id: Annotated[
        str | None,
        typer.Option("--delivery-id", help="Makes a repeated send safe: the task accepts one message with this id."),
    ] = None,
    wait: Wait = False,
) -> int:
    """Answer a question of a task, and print the task's status.

    Example: `refold answer hello-7f3a "yes"`.

    A reply that does not fit is refused, and the task keeps waiting. Exits 1 if the task has failed by then.
    """
    call.hint = f"`refold show {task_id}` tells how it stands"
    engine = await call.engine()
    content = content_of(words or [], data)
    before = (await engine.look(task_id)).seq if wait else 0
    view = await engine.send(task_id, content, slot=slot, delivery_id=delivery_id)
    if wait:
        view = await _settled(call, engine, task_id, after=before)
    return _answer(call, view)


async def cancel(
    call: Call,
    task_id: TaskId,
    reason: Annotated[str, typer.Option("--reason", help="The reason, for the journal.")] = "",
) -> int:
    """Cancel a task, and print its status."""
    call.hint = f"`refold show {task_id}` tells how it ended"
    view = await (await call.engine()).cancel(task_id, reason=reason)
    _answer(call, view)
    return DONE  # to cancel the task was what the caller wanted


async def _settled(call: Call, engine: Engine, task_id: str, *, after: int) -> TaskView:
    """Wait until the task pauses or ends, and return it."""
    story = None if call.out.json else Story(Output(json=False, talk=True))
    told = False
    while True:
        try:
            async for news in engine.watch(task_id, after=after):
                if story is not None:
                    story.tell(news)
                if isinstance(news, Entry):
                    after = news.seq
            return await engine.look(task_id)
        except NoWorker as error:
            # A caller with --wait has time: a worker may be starting just now.
            if not told:
                call.out.note(f"waiting: {error}")
            told = True
            await asyncio.sleep(ASK_AGAIN_S)


def _answer(call: Call, view: TaskView) -> int:
    if call.out.json:
        call.out.value(view)
    else:
        call.out.say(*brief(view))
        if view.note:
            call.out.note(f"note: {view.note}")
    return TASK_FAILED if view.status in FAILED else DONE
