"""`refold eval`: exported tasks against the code at hand, or another model, without any effect."""

from __future__ import annotations

from collections.abc import Awaitable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.application import application
from refold.cli.errors import DONE, TASK_FAILED, WRONG_CALL, CallError
from refold.cli.files import check_report
from refold.cli.verb import Call, add
from refold.core.errors import RefoldError
from refold.junit import Case, junit
from refold.words.text import clean

if TYPE_CHECKING:
    from refold.evals import Evaluation


class Tools(StrEnum):
    """What answers a tool's call."""

    RECORDED = "recorded"
    STRICT = "strict"
    LIVE_READ_ONLY = "live-read-only"


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, eval_, connects=False)


async def eval_(
    call: Call,
    exports: Annotated[
        list[Path], typer.Argument(metavar="EXPORT", help="Files that `refold export` wrote.", show_default=False)
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="PROVIDER:NAME", help="Ask this model anew; else replies are recorded."),
    ] = None,
    since: Annotated[
        int,
        typer.Option("--from", metavar="SEQ", min=0, help="With --model: replies up to this entry stay as recorded."),
    ] = 0,
    tools: Annotated[
        Tools,
        typer.Option(
            "--tools",
            help="`recorded`: the equal recorded call answers, else the next of the same name, whose arguments are "
            "printed. `strict`: only the equal one. `live-read-only`: a read-only tool is called if none is equal.",
        ),
    ] = Tools.RECORDED,
    patched: Annotated[
        bool,
        typer.Option(
            "--patched",
            help="Take the new path of each `ctx.patched`, as new tasks do; else that of the recorded task.",
        ),
    ] = False,
    report: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit's XML, too.")] = None,
    modules: Annotated[
        list[str] | None,
        typer.Option("--module", help="The module with the skills and tools; else this folder's. Repeatable."),
    ] = None,
) -> int:
    """Fold recorded runs with the code at hand, and compare.

    People, tools and other skills answer as they did; models, too, unless --model asks one anew. Prints the first
    divergence, both journals side by side where they differ, calls with other arguments than recorded, changes under
    `ctx.patched` that did not run, and what the models cost. No effect takes place: a tool is called only if it is
    declared `read_only`, and only with `--tools live-read-only`; a call that nothing answers fails as `NotRecorded`.
    The skills and tools are those of this folder's `workflows` and `activities`.

    Exits 0 if all runs are as recorded; 1 if one diverges; 2 if a file could not be evaluated: it is damaged, redacted,
    without the entry of --from, or of a skill that is not in the code or cannot take over its state. The other files
    are evaluated all the same.
    """
    from refold.evals import evaluated

    if since and model is None:
        raise CallError("--from goes with --model: it says from which entry on the model is asked")
    parts = application(modules or [])
    if report is not None:
        check_report(report, exports)
        _write(report, [])  # before the work, so that a file that cannot be written is known at once
    evaluate = partial(
        evaluated,
        skills=parts.by_any_id,
        model=model,
        since=since,
        tools=tools.value,
        functions=parts.tools,
        patched=patched,
    )
    cases = [await _case(call, file, evaluate(file)) for file in exports]
    if report is not None:
        _write(report, cases)
    unread = WRONG_CALL if any(one.error for one in cases) else DONE
    return TASK_FAILED if any(one.failure for one in cases) else unread


async def _case(call: Call, file: Path, evaluation: Awaitable[Evaluation]) -> Case:
    """Print what was found of a file, or why it was not evaluated; as a test case."""
    from refold.evals.result import case

    try:
        found = await evaluation
    except RefoldError as error:
        call.out.alert(f"{file}: not evaluated: {error}")
        if call.out.json:
            call.out.value({"file": str(file), "problem": str(error)})
        return Case(name=str(file), group="unknown", error=str(error))
    if call.out.json:
        call.out.value({"file": str(file), **found.model_dump(mode="json")})
    else:
        call.out.say(*(clean(line) for line in found.lines()))
    return case(str(file), found)


def _write(file: Path, cases: list[Case]) -> None:
    try:
        file.write_text(junit("refold eval", cases), encoding="utf-8")
    except OSError as error:
        raise CallError(f"{file} cannot be written: {error.strerror}") from None
