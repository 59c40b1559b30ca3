"""What verbs that change a task share: `--wait`, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

import typer

from refold.cli.errors import DONE, TASK_FAILED
from refold.cli.text.entries import Story
from refold.cli.text.output import Output
from refold.cli.text.views import FAILED, brief, ways_out
from refold.cli.verb import Call
from refold.core.fold.journal import Entry
from refold.core.lifecycle import TaskState
from refold.engine import Engine, EngineError, News, NotConnected, NoWorker, TaskView

ASK_AGAIN_S = 1.0
"""Seconds between two looks for a worker, while none is running."""

SILENT_S = 5.0
"""After so many seconds without news of a task it is asked why."""

Wait = Annotated[
    bool,
    typer.Option(
        "--wait", help="Wait until the task ends, pauses, or needs an operator; its journal goes to stderr meanwhile."
    ),
]


async def settled(call: Call, engine: Engine, task_id: str, *, after: int) -> TaskView:
    """Wait until the task ends, pauses, or needs an operator, and return it."""
    story = None if call.out.json else Story(Output(json=False, talk=True))
    try:
        while True:
            async with contextlib.aclosing(patiently(call, engine, task_id, after=after)) as watched:
                async for news in watched:
                    if story is not None:
                        story.tell(news)
                    if isinstance(news, Entry):
                        after = news.seq
            with contextlib.suppress(NoWorker):  # gone since; it is waited for again
                return await engine.look(task_id)
    except asyncio.CancelledError:  # by Ctrl-C
        call.out.note(f"interrupted; the task goes on: {call.again('watch', task_id)}")
        raise
    except NotConnected as error:  # the id may be one that nobody has seen yet
        message = f"{error}. Task {task_id!r} is there once the server is: `{call.again('watch', task_id)}`"
        raise NotConnected(message) from None


async def patiently(
    call: Call, engine: Engine, task_id: str, *, after: int, follow: bool = False
) -> AsyncGenerator[News]:
    """Watch a task, and wait where no worker runs: it may be starting just now, or be replaced.

    Whoever reads closes it: when nobody reads the output any more, the event loop ends, and would close this and the
    watch within it at the same time, which Python refuses.
    """
    told, reasons = False, Reasons(call)
    while True:
        try:
            watch = engine.watch(task_id, after=after, follow=follow)
            async with contextlib.aclosing(_explained(reasons, engine, task_id, watch)) as watched:
                async for news in watched:
                    yield news
                    if isinstance(news, Entry):
                        after = news.seq
                        tell_blocked(call, task_id, news)
            return
        except NoWorker as error:
            if not told:
                reasons.tell(str(error).removeprefix(f"task {task_id!r} cannot be asked: "))
            told = True
            await asyncio.sleep(ASK_AGAIN_S)


@dataclass(slots=True)
class Reasons:
    """Tells on stderr why a task waits, and the same reason again only after another one, or after none."""

    call: Call
    told: str = ""

    def tell(self, why: str) -> None:
        """Tell a reason; empty if there is none."""
        same = _AGO.sub("", why)  # the seconds are others each time
        if why and same != self.told:
            self.call.out.note(f"waiting: {why}")
        self.told = same


_AGO = re.compile(r"\d+ s ago")


async def _explained(
    reasons: Reasons, engine: Engine, task_id: str, watched: AsyncGenerator[News]
) -> AsyncGenerator[News]:
    """The news of a watch. After a while without news, the task's own reason goes to stderr."""
    coming: asyncio.Future[News] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(watched))
            if (await asyncio.wait([coming], timeout=SILENT_S))[0]:
                try:
                    news = coming.result()
                except StopAsyncIteration:
                    return
                coming = None
                yield news
                continue
            with contextlib.suppress(EngineError):  # the watch itself says whether the server is away for too long
                reasons.tell(await why_waits(engine, await engine.look(task_id)))
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await watched.aclose()


PARTS_ASKED = 10
"""How many of the parts below a task are asked why they wait: each costs a question to its worker."""


async def why_waits(engine: Engine, view: TaskView) -> str:
    """Why nothing comes from a task: its own reason, else that of the nearest part that has one; empty if none has.

    Of the parts below it, `PARTS_ASKED` are asked.
    """
    if view.note:
        return view.note
    parts = [("", id) for id in _parts_at_work(view)]
    for path, id in islice(parts, PARTS_ASKED):  # what a part waits for comes after all parts that are as near as it
        so_far = f"{path}its part {id} waits: "
        with contextlib.suppress(EngineError):  # a part that has not begun is not there
            part = await engine.look(id)
            if part.note:
                return so_far + part.note
            parts += [(so_far, one) for one in _parts_at_work(part)]
    return ""


def _parts_at_work(view: TaskView) -> list[str]:
    return [
        one.invocation_id
        for one in view.pending
        if one.command.startswith("skill ") and not one.blocked and not one.held and one.due_at is None
    ]


def tell_blocked(call: Call, task_id: str, entry: Entry) -> None:
    """Say on stderr what an operator can do for a task that is blocked, and goes on once its dependency answers."""
    if entry.moves and entry.moves[-1].to_state is TaskState.BLOCKED and entry.backoffs:
        call.out.note(f"blocked until the dependency answers: {entry.note}")
        call.out.note(f"next: {call.again('resolve', task_id, '--retry')}    # to retry it now")


def tell_next(call: Call, view: TaskView) -> None:
    """Print on stderr what a person types next."""
    for line in ways_out(view, call.server.options):
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
