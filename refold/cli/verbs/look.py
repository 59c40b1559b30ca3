"""`refold show` and `refold list`: the present state of tasks."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli.text.views import card, rows
from refold.cli.verb import Call, TaskOrFile, add
from refold.core.lifecycle import TaskState
from refold.export.engine import ExportEngine


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (show, list_):
        add(app, run)


async def show(call: Call, task_id: TaskOrFile) -> None:
    """Show the present state of a task.

    Prints its status, what it waits for, its messages and artifacts, its open commands, and related tasks: the one
    from which it was recovered or forked, and those recovered or forked from it. Exits
    0 for a failed task too.
    """
    engine, task_id = await call.reader(task_id)
    view = await engine.look(task_id)
    view = view.model_copy(update={"offspring": await engine.offspring(task_id)})
    if call.out.json:
        call.out.value(view)
    else:
        call.out.say(*card(view, past=isinstance(engine, ExportEngine)))


async def list_(
    call: Call,
    skill: Annotated[str | None, typer.Option("--skill", help="Tasks of this skill only.")] = None,
    lifecycle: Annotated[
        TaskState | None, typer.Option("--lifecycle", help="Tasks in this lifecycle state only.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", help="Tasks of this owner only; `''` for tasks without an owner.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many tasks at most.")] = 100,
) -> None:
    """List tasks, newest first."""
    engine = await call.engine()
    views = engine.list(skill=skill, lifecycle=lifecycle, owner=owner, limit=limit)
    if call.out.json:
        async for view in views:
            call.out.value(view)
        return
    found = [view async for view in views]
    if not found:
        call.out.note("no tasks; `refold start SKILL TEXT` starts one")
        return
    call.out.say(*rows(found))
    if len(found) == limit:
        call.out.note(f"the newest {limit}; --limit shows more")
