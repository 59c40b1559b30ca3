"""`refold schedule`: tasks that the server starts by the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from refold import temporal
from refold.cli.errors import CallError
from refold.cli.person import caller
from refold.cli.text.content import content_of, seconds_of
from refold.cli.text.table import aligned, row
from refold.cli.text.views import moment
from refold.cli.verb import EMPTY_TOO, Call, add
from refold.cli.verbs.tasks import Data
from refold.cli.waiting import Wait, report, settled
from refold.engine import Engine
from refold.words.text import clean, indented, snippet

if TYPE_CHECKING:
    from refold.engine import Listed

Id = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's id.", show_default=False)]
Note = Annotated[str, typer.Option("--note", help="Why, for whoever looks at the schedule.")]
OVERLAPS = ("skip", "queue-one", "queue-all", "cancel", "allow")  # as `Overlap` has them, which loads Temporal's SDK
NewId = Annotated[
    str,
    typer.Argument(metavar="SCHEDULE", help="The new schedule's id. Its tasks' ids are ID-TIME.", show_default=False),
]
Skill = Annotated[str, typer.Argument(metavar="SKILL", help="The skill's id.", show_default=False)]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TEXT|KEY=VALUE", help="Each task's first message, as for `refold start`.", show_default=False
    ),
    EMPTY_TOO,
]
Cron = Annotated[
    list[str] | None,
    typer.Option(
        "--cron",
        metavar="EXPRESSION",
        help="When: minute, hour, day of the month, month, day of the week (`0 7 * * 1-5`), or @hourly, @daily, "
        "@weekly. Repeatable.",
        show_default=False,
    ),
]
Every = Annotated[str | None, typer.Option("--every", metavar="TIME", help="The interval: 2h, 30m; units d, h, m, s.")]
Timezone = Annotated[
    str | None, typer.Option("--timezone", metavar="NAME", help="In which --cron is read: Europe/Berlin. Else UTC.")
]
Jitter = Annotated[
    str | None, typer.Option("--jitter", metavar="TIME", help="Each start comes up to so much later, by chance: 5m.")
]
OverlapWord = Annotated[
    str,
    typer.Option(
        "--overlap",
        metavar="|".join(OVERLAPS),
        help="What becomes of a start while an earlier task is open: it is left out; one waits until that task has "
        "ended; all wait; the open task is canceled first; it starts beside it.",
    ),
]
CatchUp = Annotated[
    str,
    typer.Option(
        "--catch-up",
        metavar="TIME",
        help="Starts missed while the server was down are made up for, if they are no older than this.",
    ),
]
By = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="NAME",
        help="The person who starts the tasks. Else REFOLD_APPROVER, else your user name.",
        envvar="REFOLD_APPROVER",
    ),
]
PauseOnFailure = Annotated[
    bool, typer.Option("--pause-on-failure", help="It pauses itself when one of its tasks fails.")
]

Batch = Annotated[
    bool,
    typer.Option("--batch/--no-batch", help="Whether the work of other tasks goes first where workers are busy."),
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs, as a group of their own."""
    group = typer.Typer(
        name="schedule",
        no_args_is_help=True,
        help="Start tasks by the clock, and look after what does.",
        rich_markup_mode=None,
    )
    for run in (create, list_, show, pause, resume, run_, delete):
        add(group, run)
    app.add_typer(group)


async def create(
    call: Call,
    schedule_id: NewId,
    skill: Skill,
    words: Words = None,
    data: Data = None,
    cron: Cron = None,
    every: Every = None,
    timezone: Timezone = None,
    jitter: Jitter = None,
    overlap: OverlapWord = OVERLAPS[0],
    catch_up: CatchUp = "1h",
    owner: Annotated[str | None, typer.Option("--owner", help="The owner of the tasks.")] = None,
    context: Annotated[str | None, typer.Option("--context", help="The A2A conversation of the tasks.")] = None,
    started_by: By = None,
    stream: Annotated[bool, typer.Option("--stream", help="Stream the model's text to watchers.")] = False,
    paused: Annotated[bool, typer.Option("--paused", help="It starts nothing until `refold schedule resume`.")] = False,
    pause_on_failure: PauseOnFailure = False,
    batch: Batch = True,
    note: Note = "",
) -> None:
    """Create a schedule, and print it.

    Examples: `refold schedule create morning hello "I am Ada" --cron "0 7 * * 1-5" --timezone Europe/Berlin`,
    `refold schedule create poll research_loop tides --every 2h --overlap queue-one`.

    A worker is asked first whether it has the skill and takes the input. Each start is a task of its own.
    """
    if overlap not in OVERLAPS:
        raise CallError(f"--overlap takes {', '.join(OVERLAPS)}, not {overlap!r}")
    timing = temporal.Timing(
        cron=tuple(cron or ()),
        every=_time(every),
        timezone=timezone,
        jitter=_time(jitter),
        overlap=temporal.Overlap(overlap),
        catch_up=timedelta(seconds=seconds_of(catch_up)),
    ).checked()
    content = content_of(words or [], data)
    view = await (await _schedules(call)).create(
        schedule_id,
        skill,
        content,
        timing,
        owner=owner,
        context=context,
        started_by=caller(started_by),
        stream=stream,
        paused=paused,
        pause_on_failure=pause_on_failure,
        batch=batch,
        note=note,
    )
    _print(call, view)
    if view.unchecked:
        call.out.alert(f"no worker has said that it takes such a task: {view.unchecked}")


async def list_(call: Call) -> None:
    """List the schedules."""
    views = [view async for view in (await _schedules(call)).list()]
    if call.out.json:
        for view in views:
            call.out.value(view)
        return
    if not views:
        call.out.note("no schedules; `refold schedule create` makes one")
        return
    table = [["SCHEDULE", "SKILL", "NEXT", "LAST TASK", "WHEN"]]
    table += [[view.id, view.skill, _next(view), view.last or "-", view.times] for view in views]
    call.out.say(*aligned(table))


async def show(
    call: Call,
    schedule_id: Id,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many of its tasks.")] = 10,
) -> None:
    """Show a schedule, when it is due next, and the tasks that it has started, newest first."""
    schedules = await _schedules(call)
    view = await schedules.look(schedule_id)
    runs = await schedules.runs(schedule_id, limit=limit)
    if call.out.json:
        call.out.value({**view.model_dump(mode="json"), "runs": [one.model_dump(mode="json") for one in runs]})
        return
    call.out.say(*_card(call, view))
    if runs:
        call.out.say("tasks", *_rows(runs))


async def pause(call: Call, schedule_id: Id, note: Note = "") -> None:
    """Start no more tasks, until `refold schedule resume`. Open tasks go on."""
    _print(call, await (await _schedules(call)).pause(schedule_id, note or f"paused by {caller()}"))


async def resume(call: Call, schedule_id: Id, note: Note = "") -> None:
    """Start tasks again. What was due meanwhile is left out."""
    _print(call, await (await _schedules(call)).resume(schedule_id, note or f"resumed by {caller()}"))


async def run_(call: Call, schedule_id: Id, wait: Wait = False) -> int:
    """Start a task of the schedule now, and print its status.

    Its id ends with the second. Where an earlier task is open, the schedule's overlap says what becomes of this one.
    """
    engine = await call.engine()
    task_id = await _of(engine).run_now(schedule_id)
    view = await settled(call, engine, task_id, after=0) if wait else await engine.look(task_id)
    return report(call, view)


async def delete(call: Call, schedule_id: Id) -> None:
    """Delete a schedule. Its tasks stay, and open ones go on."""
    await (await _schedules(call)).delete(schedule_id)
    if call.out.json:
        call.out.value({"deleted": schedule_id})
    else:
        call.out.say(f"{schedule_id}  deleted")


async def _schedules(call: Call) -> temporal.Schedules:
    return _of(await call.engine())


def _of(engine: Engine) -> temporal.Schedules:
    if not isinstance(engine, temporal.TemporalEngine):
        raise CallError("only a Temporal server has schedules")
    return engine.schedules


def _time(given: str | None) -> timedelta | None:
    return None if given is None else timedelta(seconds=seconds_of(given))


def _print(call: Call, view: temporal.ScheduleView) -> None:
    if call.out.json:
        call.out.value(view)
    else:
        call.out.say(*_card(call, view))


def _next(view: temporal.ScheduleView) -> str:
    if view.paused:
        return "paused"
    return moment(view.next[0]) if view.next else "never"


def _card(call: Call, view: temporal.ScheduleView) -> Iterator[str]:
    yield f"{clean(view.id)}  {clean(view.skill)}"
    lines = {
        "when": view.times,
        "next": "paused" if view.paused else ", ".join(moment(one) for one in view.next) or "never",
        "overlap": view.overlap,
        "owner": view.owner or "",
        "input": f"cannot be read here: {view.unread}" if view.unread else snippet(view.input),
        "note": view.note,
        "started": f"{view.started}" + _left_out(view),
        "open": ", ".join(view.running),
    }
    for label, text in lines.items():
        if text:
            yield row(label, text)
    if view.paused:
        yield row("to go on", call.again("schedule", "resume", view.id))


def _left_out(view: temporal.ScheduleView) -> str:
    parts = [f"{view.skipped} left out, as a task was open"] if view.skipped else []
    parts += [f"{view.missed} missed, as the server was down"] if view.missed else []
    waits = "waits" if view.waiting == 1 else "wait"
    parts += [f"{view.waiting} more {waits} for an open task"] if view.waiting else []
    return f" ({'; '.join(parts)})" if parts else ""


def _rows(runs: Sequence[Listed]) -> Iterator[str]:
    width = max(len(one.task_id) for one in runs)
    for one in runs:
        line = f"{clean(one.task_id).ljust(width)}  {one.status.ljust(14)}  {moment(one.status_at)}"
        yield from indented(line)
