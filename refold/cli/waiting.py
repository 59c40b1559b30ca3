"""What verbs that change a task share: `--wait`, and how they end."""

from __future__ import annotations

import asyncio
from shlex import quote
from typing import Annotated

import typer

from refold.cli.errors import DONE, TASK_FAILED
from refold.cli.text.entries import Story
from refold.cli.text.output import Output
from refold.cli.text.views import FAILED, brief, ways_out
from refold.cli.verb import Call
from refold.core.fold.journal import Entry
from refold.core.lifecycle import TaskState
from refold.engine import Engine, NoWorker, TaskView

ASK_AGAIN_S = 1.0
"""Seconds between two looks for a worker, while none is running."""

Wait = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait until the task ends, pauses, or needs an operator; its journal goes to stderr meanwhile."
    ),
]


async def settled(call: Call, engine: Engine, task_id: str, *, after: int) -> TaskView:
    """Wait until the task ends, pauses, or needs an operator, and return it."""
    story = None if call.out.json else Story(Output(json=False, talk=True))
    told = False
    while True:
        try:
            async for news in engine.watch(task_id, after=after):
                if story is not None:
                    story.tell(news)
                if isinstance(news, Entry):
                    after = news.seq
                    tell_blocked(call, task_id, news)
            return await engine.look(task_id)
        except NoWorker as error:
            # A caller with --wait has time: a worker may be starting just now.
            if not told:
                call.out.note(f"waiting: {error}")
            told = True
            await asyncio.sleep(ASK_AGAIN_S)


def tell_blocked(call: Call, task_id: str, entry: Entry) -> None:
    """Say on stderr what an operator can do for a task that is blocked, and goes on once its dependency answers."""
    if entry.moves and entry.moves[-1].to_state is TaskState.BLOCKED and entry.backoffs:
        call.out.note(f"blocked until the dependency answers: {entry.note}")
        call.out.note(f"next: refold resolve {quote(task_id)} --retry    # to retry it now")


def tell_next(call: Call, view: TaskView) -> None:
    """Print on stderr what a person types next."""
    for line in ways_out(view):
        call.out.note(f"next: {line}")


async def newest(engine: Engine, task_id: str) -> int:
    """The number of a task's newest entry: with `--wait`, the entries after it are printed."""
    return (await engine.look(task_id)).seq


async def shown(call: Call, engine: Engine, view: TaskView, *, wait: bool, after: int = 0) -> int:
    """Print a task after a decision: at once, or with `--wait` once it has settled; then a failed task exits 1."""
    if wait:
        return report(call, await settled(call, engine, view.task_id, after=after))
    report(call, view)
    return DONE


def report(call: Call, view: TaskView) -> int:
    """Print a task after a call, and return the exit code of the call."""
    if call.out.json:
        call.out.value(view)
    else:
        call.out.say(*brief(view))
        if view.note:
            call.out.note(f"note: {view.note}")
        tell_next(call, view)
    return TASK_FAILED if view.status in FAILED else DONE
