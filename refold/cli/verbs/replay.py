"""`refold replay`: recorded histories against the code at hand."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refold import temporal
from refold.cli.application import application, without_skill
from refold.cli.errors import DONE, TASK_FAILED, WRONG_CALL, CallError
from refold.cli.files import check_report
from refold.cli.verb import Call, add
from refold.junit import Case, junit
from refold.words.text import clean, counted

if TYPE_CHECKING:
    from refold.temporal.client.connection import Connection
    from refold.temporal.replay.replaying import Replayed

What = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK|FILE",
        help="Tasks by their ids; files and folders of histories, each as `temporal workflow show --output json` "
        "prints it, or an export with histories. What exists as a file or folder, or ends in `.json` or `.jsonl`, is "
        "one.",
        show_default=False,
    ),
]
Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        metavar="MODULE",
        help="The code, as `refold worker` takes it; else `workflows` and `activities` of this folder. Repeatable.",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="The open tasks of the task queue: their open runs.")]
Recent = Annotated[
    int | None,
    typer.Option("--recent", min=1, metavar="N", help="The N newest tasks of the task queue, ended ones too."),
]
OfSkill = Annotated[
    str | None, typer.Option("--skill", metavar="ID", help="With --open and --recent: tasks of this skill only.")
]
JUnit = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", help="Write the results as JUnit XML, a test case for each run."),
]
PROGRESS_S = 0.2
"""The least time between two updates of the progress line."""


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    add(app, replay)


async def replay(
    call: Call,
    what: What = None,
    open: Open = False,
    recent: Recent = None,
    skill: OfSkill = None,
    modules: Modules = None,
    junit_file: JUnit = None,
) -> int:
    """Replay recorded tasks with the code of this folder.

    Reports where today's code would do something else than what was recorded. Compares the commands, their arguments
    and, as far as history holds them, the journal entries: what was asked, said, shown and decided. Performs no effect
    and changes nothing. Files need no server. All runs of a task are replayed; with --open the open ones alone, since
    an open task goes on from what earlier runs left behind.

    Exits 0 if today's code does what was recorded; 1 if not, with the first difference of each run; 2 if a history
    could not be replayed: its skill is not in the code, the file is no history, or a stored value cannot be read.
    With --json, an object for each run.
    """
    names, files = _sorted(what or [])
    choice = temporal.Choice(tasks=names, files=files, open=open, recent=recent or 0, skill=skill)
    if sum([bool(names or files), open, recent is not None]) != 1:
        raise CallError("name tasks or files, or give one of --open and --recent N")
    if skill is not None and not (open or recent is not None):
        raise CallError("--skill narrows --open and --recent; tasks and files are named one by one")
    found = application(modules or [], skill)
    if not found.skills:
        raise without_skill(found)
    replays = temporal.Replays(found.modules, found.tools)
    cases: list[Case] = []
    if junit_file is not None:
        check_report(junit_file, files)
        _write(junit_file, cases)  # before the work, so that a file that cannot be written is known at once
    tally = _Tally(call)
    histories = temporal.histories(choice, await _connection(call) if choice.needs_server else None, call.out.note)
    async with aclosing(histories), aclosing(replays.each(histories)) as each:
        async for one in each:
            tally.add(one)
            if junit_file is not None:
                cases.append(_case(one))
    if junit_file is not None:
        _write(junit_file, cases)
    return tally.end()


def _sorted(what: Sequence[str]) -> tuple[list[str], list[Path]]:
    """The arguments that name tasks, and those that name files and folders."""
    files = {one: Path(one) for one in what if one.endswith((".json", ".json.gz", ".jsonl")) or Path(one).exists()}
    return [one for one in what if one not in files], list(files.values())


async def _connection(call: Call) -> Connection:
    engine = await call.engine()
    if not isinstance(engine, temporal.TemporalEngine):
        raise CallError("histories are those of a Temporal server; this engine has none")
    return engine.connection


class _Tally:
    """Prints what differs, counts, and keeps a line of progress on a terminal."""

    def __init__(self, call: Call) -> None:
        self._out = call.out
        self._same = self._differ = self._unread = 0
        self._told_at = 0.0

    def add(self, one: Replayed) -> None:
        """Count a run, and print it if it differs or could not be replayed; as JSON in any case."""
        self._same += one.same
        self._differ += one.divergence is not None
        self._unread += bool(one.problem)
        if self._out.json:
            self._out.value({**one.model_dump(mode="json"), "same": one.same})
        elif not one.same:
            self._clear()
            self._out.say(*_lines(one))
        self._progress()

    def end(self) -> int:
        """Print the counts; returns the exit code."""
        self._clear()
        count = self._same + self._differ + self._unread
        parts = [f"{self._same} as recorded", f"{self._differ} different", f"{self._unread} not replayed"]
        self._out.note(f"{counted(count, 'run')}: {', '.join(parts)}")
        if not self._differ and self._unread:
            return WRONG_CALL
        return TASK_FAILED if self._differ else DONE

    def _progress(self) -> None:
        now = time.monotonic()
        if self._out.json or not sys.stderr.isatty() or now - self._told_at < PROGRESS_S:
            return
        self._told_at = now
        count = self._same + self._differ + self._unread
        sys.stderr.write(f"\r{count} replayed, {self._differ} different")
        sys.stderr.flush()

    def _clear(self) -> None:
        if self._told_at:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def _lines(one: Replayed) -> Iterator[str]:
    run = f" (run {one.run_id})" if one.run_id else ""
    if one.divergence is None:
        yield clean(f"{one.task_id}{run}: not replayed: {one.problem}")
        return
    yield clean(f"{one.task_id}{run}: {one.divergence.where}")
    yield clean(f"    recorded  {one.divergence.recorded}")
    yield clean(f"    now       {one.divergence.now}")


def _write(file: Path, cases: list[Case]) -> None:
    try:
        file.write_text(junit("refold replay", cases), encoding="utf-8")
    except OSError as error:
        raise CallError(f"{file} cannot be written: {error.strerror or error}") from None


def _case(one: Replayed) -> Case:
    name = f"{one.task_id} {one.run_id}".strip()
    differs = "" if one.divergence is None else str(one.divergence)
    return Case(name=name, group=one.skill or "unknown", failure=differs, error=one.problem)
