"""`refold start`, `release`, `answer`, `cancel`: verbs that change a task."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from refold.cli.errors import DONE, CallError
from refold.cli.files import Files
from refold.cli.person import As, caller, known_caller
from refold.cli.text.content import content_of, seconds_of
from refold.cli.text.views import FAILED
from refold.cli.verb import EMPTY_TOO, Call, TaskId, add
from refold.cli.waiting import Wait, newest, report, settled
from refold.engine import ON_BUSY, Engine, EngineError, TaskView

EFFECTS = ("tool ", "activity ", "workflow ", "skill ")
"""How the commands begin that may change something outside: all but calls of models, timers and notifications."""

FEW = 10
"""How many lines of one kind tell what a canceled task leaves."""

Data = Annotated[
    str | None, typer.Option("--data", metavar="JSON", help="The data of the message; `-` reads it from stdin.")
]
OnBusy = Annotated[
    str,
    typer.Option(
        "--on-busy",
        metavar="|".join(ON_BUSY),
        help="What becomes of the message if the task asks nothing: it is refused; the task holds it for its next "
        "question; it interrupts the task, in a step with `on_interrupt`, and elsewhere is held.",
    ),
]
Batch = Annotated[
    bool, typer.Option("--batch", help="Nobody waits for it: where workers are busy, other tasks' work goes first.")
]
Previous = Annotated[
    str | None,
    typer.Option("--previous", metavar="TASK_ID", help="The task whose conversation the new task continues."),
]
StartedBy = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="The person who starts the task. Else REFOLD_APPROVER, else your user name.",
        envvar="REFOLD_APPROVER",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (start, release, answer, cancel):
        add(app, run)


async def start(
    call: Call,
    skill: Annotated[str, typer.Argument(metavar="SKILL", help="The skill's id.", show_default=False)],
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT|KEY=VALUE",
            help="The first message: a text (`-` reads stdin), data as key=value, or both, the text first. A value "
            "that is valid JSON is sent as JSON.",
            show_default=False,
        ),
        EMPTY_TOO,
    ] = None,
    data: Data = None,
    file: Files = None,
    id: Annotated[
        str | None, typer.Option("--id", help="The new task's id, never used before; else one is generated.")
    ] = None,
    stream: Annotated[
        bool, typer.Option("--stream", help="Stream the model's text to watchers while the model writes it.")
    ] = False,
    owner: Annotated[
        str | None, typer.Option("--owner", help="The task's owner; a gate may exclude the owner from deciding.")
    ] = None,
    previous: Previous = None,
    started_by: StartedBy = None,
    hold: Annotated[
        bool, typer.Option("--hold", help="The task stays planned, and does nothing, until `refold release`.")
    ] = False,
    delay: Annotated[
        str | None,
        typer.Option("--delay", metavar="TIME", help="The task stays planned for so long: 2h, 30m; units d, h, m, s."),
    ] = None,
    batch: Batch = False,
    wait: Wait = False,
) -> int:
    """Start a task of a skill, and print its status.

    Examples: `refold start hello "I am Ada"`, `refold start refund order_id=A1 amount_cents=90000`.

    Exits 1 if the task has already failed, or was rejected or canceled.
    """
    content = content_of(words or [], data, file or [])
    start_delay = None if delay is None else timedelta(seconds=seconds_of(delay))
    engine = await call.engine()
    view = await engine.start(
        skill,
        content,
        task_id=id,
        stream=stream,
        owner=owner,
        previous=previous,
        started_by=caller(started_by),
        hold=hold,
        start_delay=start_delay,
        batch=batch,
    )
    if wait:
        view = await settled(call, engine, view.task_id, after=0)
    return report(call, view)


async def release(
    call: Call,
    task_id: TaskId,
    by: As = None,
    wait: Wait = False,
) -> int:
    """Begin a task that is held or delayed.

    It was started with --hold or --delay. Prints its status.
    """
    call.hint = f"`{call.again('show', task_id)}` tells how it stands"
    engine = await call.engine()
    view = await engine.release(task_id, by=caller(by))
    if wait:
        view = await settled(call, engine, task_id, after=0)
    return report(call, view)


async def answer(
    call: Call,
    task_id: TaskId,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT|KEY=VALUE", help="The reply, as for `refold start`.", show_default=False),
        EMPTY_TOO,
    ] = None,
    slot: Annotated[
        str | None, typer.Option("--slot", help="The name or id of the question; needed if several are open.")
    ] = None,
    data: Data = None,
    file: Files = None,
    delivery_id: Annotated[
        str | None,
        typer.Option("--delivery-id", help="Makes a repeated send safe: the task accepts one message with this id."),
    ] = None,
    on_busy: OnBusy = "refuse",
    by: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="Your name, for the journal. Else REFOLD_APPROVER.",
            envvar="REFOLD_APPROVER",
        ),
    ] = None,
    wait: Wait = False,
) -> int:
    """Answer or message a task, and print its status.

    Examples: `refold answer hello-7f3a "yes"`, `refold answer report-1c2d "and moons" --on-busy interrupt`.

    A reply that does not fit is refused, and the task keeps waiting. Exits 1 if the task has failed by then.
    """
    call.hint = f"`{call.again('show', task_id)}` tells how it stands"
    if on_busy not in ON_BUSY:
        raise CallError(f"--on-busy takes {', '.join(ON_BUSY)}, not {on_busy!r}")
    content = content_of(words or [], data, file or [])
    engine = await call.engine()
    before = await newest(engine, task_id) if wait else 0
    view = await engine.send(task_id, content, slot=slot, delivery_id=delivery_id, sender=by, early=ON_BUSY[on_busy])
    if wait:
        view = await settled(call, engine, task_id, after=before)
    return report(call, view)


async def cancel(
    call: Call,
    task_id: TaskId,
    reason: Annotated[str, typer.Option("--reason", "-m", help="The reason, for the journal.")] = "",
    by: As = None,
) -> int:
    """Cancel a task, and print its status.

    What the task leaves undone or unknown goes to stderr. Exits 2 if it is not canceled yet, and says why.
    """
    call.hint = f"`{call.again('show', task_id)}` tells how it ended"
    engine = await call.engine()
    before = await engine.look(task_id)
    view = await engine.cancel(task_id, reason=reason, by=known_caller(by))
    report(call, view)
    for line in await _left(call, engine, before, view):
        call.out.note(line)
    return DONE  # to cancel the task was what the caller wanted


async def _left(call: Call, engine: Engine, before: TaskView, after: TaskView) -> list[str]:
    """What people must check after a cancel: effects that may have taken place, and effects not compensated."""
    still = {one.invocation_id for one in after.pending}
    out = [one for one in before.pending if one.command.startswith(EFFECTS) and not one.blocked and one.due_at is None]
    cut = [one for one in out if one.invocation_id not in still]
    shows, journals = call.again("show", after.task_id), call.again("journal", after.task_id)
    was, goes = "was being performed, and may have taken place", "still going on, see `refold show`"
    lines = _few([f"{was}: {one.command}  {one.invocation_id}" for one in cut], journals)
    lines += _few([f"{goes}: {one.command}  {one.invocation_id}" for one in after.pending], shows)
    if after.status not in FAILED:
        lines.append(f"it has not ended yet: `{call.again('watch', after.task_id)}` tells when it has")
    notes, unread = list[str](), list[str]()
    try:
        async for entry in engine.journal(before.task_id, after=before.seq):
            notes += [entry.note] if "NOT " in entry.note else []
    except EngineError as error:
        unread.append(f"what else it left cannot be read: {error}")
    return [*lines, *_few(notes, journals), *unread]


def _few(lines: list[str], lists: str) -> list[str]:
    """The first of many lines of one kind, and which command lists the others."""
    more = len(lines) - FEW
    return lines if more <= 0 else [*lines[:FEW], f"and {more} more: `{lists}` lists them"]
