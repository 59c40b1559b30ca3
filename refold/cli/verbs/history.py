"""`refold journal`, `watch`, `at` and `explain`: a task's past, its present, an earlier state, and where a value came
from."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

from refold.cli.errors import DONE, TASK_FAILED, CallError
from refold.cli.text.entries import Story
from refold.cli.text.reasoning import Reasoning
from refold.cli.text.views import FAILED, card
from refold.cli.verb import Call, TaskId, TaskOrFile, add
from refold.cli.verifying import verified
from refold.cli.waiting import patiently, tell_next
from refold.engine.view import view_of
from refold.words.reasoning import without_reasoning
from refold.words.text import clean, snippet

After = Annotated[int, typer.Option("--after", min=0, help="Only entries after this number.")]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (watch, journal, at, explain):
        add(app, run)


async def journal(
    call: Call,
    task_id: Annotated[
        str | None,
        typer.Argument(
            metavar="TASK", help="The task's id; or the file of its export, which ends in `.jsonl`.", show_default=False
        ),
    ] = None,
    after: After = 0,
    verify: Annotated[
        Path | None,
        typer.Option(
            "--verify",
            metavar="FILE",
            help="Verify this export instead: without TASK by itself, which needs no server; with TASK also against "
            "the server's journal.",
        ),
    ] = None,
    reasoning: Reasoning = False,
) -> int:
    """Print a task's journal, oldest entry first; or verify an export.

    Also says which build of the worker wrote it, where that changed, and which entries history cannot verify yet.

    --verify checks each line's digest, the entries' numbers, and what the header claims, and names the first wrong
    line. Exits 1 if the export is damaged, is redacted (then only TASK can vouch for its digests), or is not what the
    server has.
    """
    if verify is not None:
        return await verified(call, verify, task_id)
    if task_id is None:
        raise CallError("name the task whose journal to print, or `--verify FILE`")
    call.out.reasoning = reasoning
    engine, task_id = await call.reader(task_id)
    story, builds = Story(call.out), [*await engine.builds(task_id)]
    confirmed, last, refused = builds[-1].seq if builds else 0, 0, ""
    known = builds[0].build_id if len({one.build_id for one in builds}) == 1 else ""
    async for entry in engine.journal(task_id, after=after):
        while builds and builds[0].seq < entry.seq:
            del builds[0]
        if builds and builds[0].build_id != known:
            known = builds[0].build_id
            call.out.note(f"code: build {known}")
        story.tell(entry)
        last, refused = entry.seq, entry.refused or ""
    if last > confirmed:
        what = f"entries after {confirmed}" if confirmed else "the entries"
        call.out.note(
            f"{what} are not verified yet: history holds no digest of them, so they are what today's code says"
        )
    if (view := await engine.look(task_id)).note:
        call.out.note(view.note.removesuffix(f": {refused}"))  # the entry has said why a start was refused
    return DONE


async def watch(
    call: Call,
    task_id: TaskId,
    after: After = 0,
    follow: Annotated[bool, typer.Option("--follow", help="Continue at pauses, until the task ends.")] = False,
    reasoning: Reasoning = False,
) -> int:
    """Print a task's journal as it is written.

    Prints journal entries, and the model's text if the task was started with --stream. Begins with the first entry,
    ends when the task ends, pauses, or needs an operator. Exits 1 if the task failed, was rejected or canceled. With
    --json, model text comes as `{"kind": "tokens", …}` between the entries.
    """
    call.out.reasoning = reasoning
    engine = await call.engine()
    story = Story(call.out)
    async with contextlib.aclosing(patiently(call, engine, task_id, after=after, follow=follow)) as watched:
        async for news in watched:
            story.tell(news)
    view = await engine.look(task_id)
    for wait in view.waiting_for:
        call.out.note(f"waiting for {wait.slot}: {wait.message}")
    for one in view.unresolved:
        call.out.note(f"waiting for an operator: {one.command}: {one.failure}")
    if view.differs:
        call.out.note(f"it takes nothing, since its code has changed: {view.differs}")
    tell_next(call, view)
    return TASK_FAILED if view.status in FAILED else DONE


async def at(
    call: Call,
    task_id: TaskOrFile,
    seq: Annotated[int, typer.Argument(metavar="SEQ", min=1, help="The entry's number.", show_default=False)],
    reasoning: Reasoning = False,
) -> None:
    """Show a task as it was after a journal entry.

    With --json, the whole snapshot. An export is folded with the skill in this folder. Where the worker's code differs
    from what was recorded of the entry, the task is shown as it was recorded, with a note, and without the state, which
    history does not hold: --json then has `null`.
    """
    call.out.reasoning = reasoning
    engine, task_id = await call.reader(task_id)
    snapshot = await engine.at(task_id, seq)
    differs = ""
    if snapshot.state is None and (view := await engine.look(task_id)).differs:
        differs = view.note
    if call.out.json:
        call.out.value(snapshot)
        if differs:
            call.out.alert(differs)
        return
    call.out.say(*card(view_of(snapshot, differs), past=True))
    if differs:
        call.out.say("state", "  not kept in history: only the code that recorded the entry can say")
        return
    state = snapshot.state if reasoning else json.loads(without_reasoning(json.dumps(snapshot.state)))
    call.out.say("state", *clean(json.dumps(state, indent=2, ensure_ascii=False)).splitlines())


async def explain(
    call: Call,
    task_id: TaskOrFile,
    field: Annotated[
        str, typer.Argument(metavar="FIELD", help="A field of the state that the steps share.", show_default=False)
    ],
    upto: Annotated[
        int | None, typer.Option("--upto", min=1, help="Explain the field as it was after this entry.")
    ] = None,
) -> None:
    """Say which step wrote a field, when, and from which fields.

    For skills whose steps have a contract. Each source has the number of the entry that wrote it; pass that number to
    `--upto` to explain the source.
    """
    engine, task_id = await call.reader(task_id)
    found = await engine.explain(task_id, field, upto=upto)
    if call.out.json:
        call.out.value(found)
        return
    took = (found.at - found.started_at).total_seconds()
    moved = f", {found.from_state} → {found.to_state}" if found.from_state else ""
    call.out.say(f"{clean(found.field)} = {_short(found.value)}")
    call.out.say(f"written by  {found.step}{moved}")
    call.out.say(f"when        {found.at.astimezone():%Y-%m-%d %H:%M:%S}  entry {found.seq}, after {took:.3g} s")
    if found.awaited:
        call.out.say(f"waited for  {clean(', '.join(found.awaited))}")
    for number, source in enumerate(found.sources):
        head = "read        " if number == 0 else " " * 12
        call.out.say(f"{head}{source.field} = {_short(source.value)}  ({source.step}, entry {source.seq})")
    if found.earlier:
        call.out.say(f"before      entry {', '.join(map(str, found.earlier))}")


def _short(value: JsonValue) -> str:
    return snippet(json.dumps(value, ensure_ascii=False))
