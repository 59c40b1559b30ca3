"""`refold upgrade`: moves open tasks to new code."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from refold import temporal
from refold.cli.application import application, quiet_stdout
from refold.cli.errors import DONE, TASK_FAILED, CallError
from refold.cli.verb import Call, add
from refold.words.text import clean, indented

PACE = 20.0
ID_COLUMNS = 32


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, upgrade)


async def upgrade(
    call: Call,
    task_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK", help="Tasks; else all open tasks of the namespace.", show_default=False),
    ] = None,
    skill: Annotated[str | None, typer.Option("--skill", help="Tasks of this skill only.")] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="BUILD",
            help="The build id that tasks should move to. Else the current version of their worker deployment; without "
            "a deployment, the build of the workers that poll their task queue.",
        ),
    ] = None,
    before_deploy: Annotated[
        bool,
        typer.Option(
            "--before-deploy",
            help="Seal all of them, with the code that runs now, before code is deployed that does not fit what has "
            "happened to them.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and change nothing.")] = False,
    pace: Annotated[
        float, typer.Option("--pace", min=0.01, metavar="PER_SECOND", help="The most tasks sealed in a second.")
    ] = PACE,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--module", help="The code at hand; else `workflows` and `activities` of this folder. Repeatable."
        ),
    ] = None,
) -> int:
    """Move open tasks to new code.

    Each task is checked first: the code at hand replays what has happened to the task, which performs nothing, and
    the skill's `upgrade` is tried on its state. Then the task is sealed: at its next quiet moment it goes on in a new
    run, from its snapshot, and no later code replays what earlier code did. A task that waits for a person, a time, a
    part or an operator is sealed at once; one with an effect under way, when the effect has ended.

    May be stopped and started again at any time; tasks that have moved are left alone. Prints what became of each
    task. Exits 1 if some have not moved: they wait, or cannot, and the table says for what, or why.
    """
    if to is not None and before_deploy:
        raise CallError("--before-deploy seals tasks wherever they are; --to names where they should go: give one")
    with quiet_stdout():
        found = application(modules or [], skill)
    temporal.silence_core()
    engine = await call.engine()
    if not isinstance(engine, temporal.TemporalEngine):
        raise CallError("only tasks on a Temporal server can be moved")
    counts: Counter[temporal.Outcome] = Counter()
    moves = temporal.upgrade_tasks(
        engine,
        found.modules,
        found.tools,
        task_ids=task_ids or (),
        skill=skill,
        to=to,
        before_deploy=before_deploy,
        dry_run=dry_run,
        pace=pace,
    )
    async for move in moves:
        counts[move.outcome] += 1
        _tell(call, move)
    call.out.note(", ".join(f"{count:,} {outcome}" for outcome, count in counts.items()) or "no open task")
    return TASK_FAILED if any(not outcome.done for outcome in counts) else DONE


def _tell(call: Call, move: temporal.Move) -> None:
    if call.out.json:
        call.out.value(move)
        return
    to = f"  to {clean(move.to)}" if move.to else ""
    call.out.say(f"{move.outcome.ljust(13)}  {clean(move.task_id).ljust(ID_COLUMNS)}  {clean(move.skill)}{to}")
    call.out.say(*indented("\n".join(filter(None, (move.why, move.way_out))), " " * 15))
