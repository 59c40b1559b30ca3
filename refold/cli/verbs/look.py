"""`refold show`, `refold list` and `refold cost`: the present state of tasks, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from refold import temporal
from refold.cli import costs
from refold.cli.costs import Gathered, Spender
from refold.cli.files import save
from refold.cli.text.costs import calls_table, groups_table, remarks
from refold.cli.text.views import card, rows
from refold.cli.verb import EMPTY_TOO, Call, Reader, TaskOrFile, add
from refold.cli.waiting import why_waits
from refold.core.lifecycle import TaskState
from refold.cost import ModelCall, total
from refold.engine import Engine, TaskView
from refold.export.engine import ExportEngine
from refold.summary import context_summary


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (show, list_, cost):
        add(app, run)


async def show(
    call: Call,
    task_id: TaskOrFile,
    summary: Annotated[
        bool, typer.Option("--summary", help="Where the task stands, in a few lines for a model or a person new to it.")
    ] = False,
    save_to: Annotated[
        Path | None,
        typer.Option("--save", metavar="FOLDER", help="Write the files that the task has handed over to this folder."),
    ] = None,
) -> None:
    """Show the present state of a task.

    Prints its status, what it waits for, its messages and artifacts, its open commands, what its model calls cost, and
    related tasks: the one from which it was recovered or forked, and those recovered or forked from it. Exits 0 for a
    failed task too.

    With --summary it prints what was done, with the results cut short, and what the task waits for, instead of what was
    said; with --json the task's checkpoint, too: the row that `refold project` makes of it.
    """
    engine, task_id = await call.reader(task_id)
    view = await engine.look(task_id)
    if save_to is not None:
        for path in save(view.artifacts, save_to):
            call.out.note(f"saved {path}")
    if summary:
        await _summarized(call, engine, view)
        return
    found = await costs.cost_of(engine, view)
    more: dict[str, object] = {"offspring": await engine.offspring(task_id), "cost": found}
    if isinstance(engine, temporal.TemporalEngine):
        more["schedule"] = await engine.schedules.of(task_id)
    if not isinstance(engine, ExportEngine):
        more["note"] = await why_waits(engine, view)
    view = view.model_copy(update=more)
    if call.out.json:
        call.out.value(view)
    else:
        call.out.say(*card(view, past=isinstance(engine, ExportEngine), options=call.server.options))


async def _summarized(call: Call, engine: Reader, view: TaskView) -> None:
    # Imported here: the tables need a database's library, which few commands do.
    from refold.projection.rows import checkpoint

    entries = [entry async for entry in engine.journal(view.task_id)]
    said = context_summary(view.task_id, entries)
    if call.out.json:
        found = checkpoint(view.task_id, view.skill, entries)
        call.out.value({"task_id": view.task_id, "summary": said, "checkpoint": found})
    else:
        call.out.say(said)


async def list_(
    call: Call,
    skill: Annotated[str | None, typer.Option("--skill", help="Tasks of this skill only.")] = None,
    lifecycle: Annotated[
        TaskState | None, typer.Option("--lifecycle", help="Tasks in this lifecycle state only.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Tasks of this owner only; `''` for tasks without an owner."),
        EMPTY_TOO,
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many tasks at most.")] = 100,
    cost: Annotated[
        bool, typer.Option("--cost", help="Add what each task's own model calls cost; reads every journal.")
    ] = False,
) -> None:
    """List tasks, newest first."""
    engine = await call.engine()
    views = engine.list(skill=skill, lifecycle=lifecycle, owner=owner, limit=limit)
    if cost:
        views = costs.costed(engine, views)
    if call.out.json:
        async for view in views:
            call.out.value(view)
        return
    found = [view async for view in views]
    if not found:
        call.out.note(f"no tasks; `{call.again('start', 'SKILL', 'TEXT')}` starts one")
        return
    call.out.say(*rows(found))
    if len(found) == limit:
        call.out.note(f"the newest {limit}; --limit shows more")


class By(StrEnum):
    """How costs are summed up."""

    TASK = "task"
    SKILL = "skill"
    OWNER = "owner"
    DAY = "day"


async def cost(
    call: Call,
    task_id: Annotated[
        str | None,
        typer.Argument(
            metavar="[TASK]",
            help="The task's id; or the file of its export, which ends in `.jsonl`. Left out: all tasks.",
            show_default=False,
        ),
    ] = None,
    by: Annotated[By | None, typer.Option("--by", help="Sum up by this; days are in UTC.")] = None,
    skill: Annotated[str | None, typer.Option("--skill", help="Tasks of this skill only, without their parts.")] = None,
    owner: Annotated[
        str | None,
        typer.Option("--owner", help="Tasks of this owner only; `''` for tasks without an owner."),
        EMPTY_TOO,
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many tasks at most, the newest.")] = 1000,
) -> None:
    """Add up what model calls cost: of a task, or of all tasks.

    In tokens and US dollars; a task's parts are counted with it. Prices are estimates: a worker records each call's
    price with its result; calls without one are priced by the installed price list (genai-prices) for their day, and
    marked with `*`. A call whose price nobody knows is said to be unknown, and is not in the sum.

    With --json, one line for each call of a task, or for each sum; the last line is the total.
    """
    if task_id is not None:
        found = await _of_task(call, task_id)
    else:
        engine = await call.engine()
        listed = [view.task_id async for view in engine.list(skill=skill, owner=owner, limit=limit)]
        found = await costs.with_parts(engine, listed, parts=skill is None)
        if len(listed) == limit:
            call.out.note(f"of the newest {limit} tasks; --limit takes more")
    whole = total(found.calls)
    if task_id is not None and by is None:
        _print_calls(call, found)
    else:
        _print_groups(call, found.tasks, by or By.TASK)
    if call.out.json:
        call.out.value({"total": whole.model_dump(mode="json")})
    for line in remarks(whole):
        call.out.note(line)
    for one, why in found.unread.items():
        call.out.alert(f"not counted, for its journal cannot be read: {one}: {why}")


async def _of_task(call: Call, task_id: str) -> Gathered:
    reader, task_id = await call.reader(task_id)
    view = await reader.look(task_id)
    if hasattr(reader, "record"):
        engine: Engine = reader  # type: ignore[assignment]  # an export has no tasks but its own
        return await costs.with_parts(engine, [task_id])
    one = await costs.spender(reader, task_id, skill=view.skill)
    for part in one.parts:
        call.out.note(f"not counted, for the export does not have it: {part}")
    return Gathered(tasks=[one])


def _print_calls(call: Call, found: Gathered) -> None:
    if call.out.json:
        for one in found.calls:
            call.out.value(one)
        return
    call.out.say(*calls_table(found.calls))


def _print_groups(call: Call, tasks: Sequence[Spender], by: By) -> None:
    def name(task: Spender, one: ModelCall) -> str:
        return {By.TASK: task.task_id, By.SKILL: task.skill, By.OWNER: task.owner, By.DAY: one.day}[by]

    groups = costs.grouped(tasks, name)
    if call.out.json:
        for key, sum_ in groups:
            call.out.value({by.value: key, **sum_.model_dump(mode="json")})
        return
    calls = [one for task in tasks for one in task.calls]
    call.out.say(*groups_table(by.value.upper(), groups, total(calls)))
