"""`refold show` and `refold list`: how tasks stand."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli.text.views import card, rows
from refold.cli.verb import Call, TaskId, add
from refold.core.lifecycle import TaskState


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (show, list_):
        add(app, run)


async def show(call: Call, task_id: TaskId) -> None:
    """Show how a task stands.

    Its status, what it waits for, what was said and handed over, what is going on, and which tasks it goes on from or
    go on from it. Exits 0 for a failed task
    too: the look succeeded.
    """
    engine = await call.engine()
    view = await engine.look(task_id)
    view = view.model_copy(update={"offspring": await engine.offspring(task_id)})
    if call.out.json:
        call.out.value(view)
    else:
        call.out.say(*card(view))


async def list_(
    call: Call,
    skill: Annotated[str | None, typer.Option("--skill", help="Tasks of this skill only.")] = None,
    lifecycle: Annotated[
        TaskState | None, typer.Option("--lifecycle", help="Tasks in this state of their life only.")
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", help="Tasks of this owner only; an empty one: of nobody.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 100,
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
