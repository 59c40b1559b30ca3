"""`refold export`, `purge` and `project`: what was recorded of tasks, written to a file or a database, or deleted."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, cast

import typer

from refold import temporal
from refold.cli.application import imported
from refold.cli.errors import DONE, TASK_FAILED, CallError
from refold.cli.text.content import seconds_of
from refold.cli.verb import EMPTY_TOO, Call, TaskId, add
from refold.engine import Engine
from refold.export.read import SUFFIX
from refold.export.write import Histories, Receipts, Wanted, written
from refold.words.text import clean

if TYPE_CHECKING:
    from refold.effects.ledger.purging import PurgedReceipts
    from refold.effects.ledger.store import Store
    from refold.projection import Hook
    from refold.temporal.keeping.purge import Purged


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (export, purge, project):
        add(app, run)


async def export(
    call: Call,
    task_id: TaskId,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The file to write; `-`, or none: stdout.")
    ] = None,
    redact: Annotated[
        bool,
        typer.Option("--redact", help="Replace texts and values by their kind and size; ids, names and digests stay."),
    ] = False,
    parts: Annotated[bool, typer.Option("--parts", help="Also the tasks that are parts of it, and theirs.")] = False,
    history: Annotated[
        bool, typer.Option("--history", help="Also Temporal's history of each run, with its values decoded.")
    ] = False,
    receipts: Annotated[
        bool, typer.Option("--receipts", help="Also the receipts of its effects in the ledger (REFOLD_LEDGER).")
    ] = False,
) -> None:
    """Write a task to a file that anyone can verify.

    The file has the journal, each entry with its digest, and what the task's state is computed from. It is plain text,
    also if the server's values are encrypted. `refold journal --verify FILE` verifies it; `refold show`, `journal`,
    `at`, `explain` and `fork` take it in place of the task, and then need no server: give it a name that ends in
    `.jsonl`. A redacted export can be read, but not computed from.
    """
    engine, gone = await call.engine(), list[str]()
    wanted = Wanted(
        redact=redact,
        parts=parts,
        receipts=_receipts() if receipts else None,
        histories=_histories(engine) if history else None,
        gone=gone.append,
    )
    async with AsyncExitStack() as stack:
        lines = await stack.enter_async_context(aclosing(written(engine, task_id, wanted)))
        if out is None or str(out) == "-":
            async for line in lines:  # bytes, whatever the terminal's encoding is: the file's digests are of them
                sys.stdout.buffer.write(line)
            sys.stdout.flush()
            _tell_gone(call, gone)
            return
        count = 0
        with _whole(out, Path(f"{task_id}{SUFFIX}").name) as file:
            async for line in lines:
                count += 1
                file.write(line)
    if call.out.json:
        missing = {"gone": gone} if gone else {}
        call.out.value({"task_id": task_id, "file": str(out), "lines": count, "redacted": redact, **missing})
    else:
        call.out.say(f"{out}  {count:,} lines{', redacted' if redact else ''}")
    _tell_gone(call, gone)


def _tell_gone(call: Call, parts: Sequence[str]) -> None:
    for part in parts:
        call.out.note(f"part {part!r} is not in the export: it was purged, or the server's retention has deleted it")


async def purge(
    call: Call,
    task_ids: Annotated[
        list[str] | None, typer.Argument(metavar="TASK", help="The tasks' ids.", show_default=False)
    ] = None,
    owner: Annotated[
        str | None, typer.Option("--owner", help="All tasks of this owner; `''` for tasks without an owner."), EMPTY_TOO
    ] = None,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="AGE", help="With --owner: ended so long ago, as 30d or 12h."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; otherwise print what would be deleted.")] = False,
) -> int:
    """Delete what ended tasks left behind.

    Deletes their histories and those of their parts, stored values, receipts and refused updates (REFOLD_LEDGER),
    conversations and webhooks; prints what stays, where and why. A stored value stays if any other workflow of the
    namespace refers to an equal one, which is found out by reading all histories; a receipt with a business key stays,
    since without it the effect could be repeated. Open tasks are refused. If it is interrupted, call it again for the
    tasks that are left.

    Exits 1 if a task stays.
    """
    if not task_ids and owner is None:
        raise CallError("name the tasks to purge, or their owner: --owner NAME")
    if task_ids and owner is not None:
        raise CallError("give --owner or the ids of tasks, not both")
    if older_than is not None and owner is None:
        raise CallError("--older-than goes with --owner; a task that is named is purged whenever it ended")
    ended_before = None if older_than is None else _ago(older_than)
    engine = await call.engine()
    if not isinstance(engine, temporal.TemporalEngine):
        raise CallError("purge needs a Temporal server")
    purging = engine.purge(_ledger(engine.client.namespace))
    if owner is not None:
        task_ids = await purging.owned(owner, ended_before)
    stay = goes = 0
    reports = purging.run(task_ids or [], dry=not yes, listed=owner is not None, ended_before=ended_before)
    async for report in reports:
        stay += not report.gone and (yes or not report.deleted)
        goes += bool(report.deleted)
        if call.out.json:
            call.out.value({**report.model_dump(mode="json"), "dry": not yes})
        else:
            call.out.say(*_report(report, dry=not yes))
    if not task_ids:
        call.out.note(f"no tasks of {owner!r} to purge")
    elif not yes:
        call.out.note("nothing was deleted" + ("; --yes deletes" if goes else ""))
    return TASK_FAILED if stay else DONE


def _ago(age: str) -> datetime:
    """The time so long ago; at most as long ago as clocks count from, which no task is older than."""
    now = datetime.now(UTC)
    return now - timedelta(seconds=min(seconds_of(age), now.timestamp()))


def _report(report: Purged, *, dry: bool) -> Iterator[str]:
    deleted = ", ".join(f"{count:,} {what if count != 1 else what[:-1]}" for what, count in report.deleted.items())
    if report.gone or (dry and report.deleted):
        yield f"{clean(report.task_id)}  {'would delete' if dry else 'deleted'}: {deleted}"
    else:
        yield f"{clean(report.task_id)}  stays"
    yield from (f"  left: {clean(one.what)} in {clean(one.where)}: {clean(one.why)}" for one in report.left)


@contextmanager
def _whole(out: Path, usual: str) -> Iterator[IO[bytes]]:
    """A file that appears under its name once it is complete; readable by this user alone. What is no file, such as a
    pipe or a device, is written to and stays.

    Raises:
        CallError: It cannot be written, or is a folder, in which `usual` is a name that a file could have.
    """
    if out.is_dir():
        raise CallError(f"{out} is a folder; name a file in it: -o {out / usual}")
    place = out.resolve()  # a link stays, and leads to the new file
    new = None
    try:
        if out.exists() and not out.is_file():
            opened: IO[bytes] = out.open("wb")
        else:
            descriptor, name = tempfile.mkstemp(prefix=f".{out.name}-", dir=place.parent)
            opened, new = os.fdopen(descriptor, "wb"), Path(name)
    except OSError as error:
        raise CallError(f"{out} cannot be written: {error.strerror}") from None
    try:
        with opened as file:
            yield file
        if new is not None:
            new.replace(place)
    except BaseException:
        if new is not None:
            new.unlink(missing_ok=True)
        raise


def _histories(engine: Engine) -> Histories:
    if not isinstance(engine, temporal.TemporalEngine):
        raise CallError("--history needs a Temporal server; this engine keeps no histories")
    return engine.histories


def _store() -> Store:
    from refold.effects.ledger.store import store_from_env
    from refold.temporal.data.codec import CodecSeal, codec_from_env

    store = store_from_env()
    if (codec := codec_from_env()) is not None:
        store.seal = CodecSeal(codec)
    return store


def _ledger(namespace: str) -> PurgedReceipts | None:
    """The ledger; None where there is no file of it, so that none is made."""
    from refold.effects.ledger.purging import PurgedReceipts

    store = _store()
    return None if store.file is not None and not store.file.exists() else PurgedReceipts(store, namespace)


def _receipts() -> Receipts:
    store = _store()

    async def receipts(task_id: str) -> list[dict[str, Any]]:
        # In a thread, since reading waits for the database, and for the codec that opens a receipt.
        return [asdict(one) for one in await asyncio.to_thread(store.of_task, task_id)]

    return receipts


async def project(
    call: Call,
    db: Annotated[
        str,
        typer.Option("--db", metavar="DATABASE", help="A SQLite file, or `postgresql://user@host/database`."),
    ],
    once: Annotated[bool, typer.Option("--once", help="Write what is new, and leave.")] = False,
    rebuild: Annotated[
        bool,
        typer.Option("--rebuild", help="Empty the tables first. Tasks whose journals are deleted do not come back."),
    ] = False,
    hook: Annotated[
        list[str] | None,
        typer.Option("--hook", metavar="MODULE:FUNCTION", help="Tell this function of each transition; repeatable."),
    ] = None,
    every: Annotated[
        str, typer.Option("--every", metavar="AGE", help="The pause between two looks, such as 2s.")
    ] = "2s",
) -> None:
    """Write all tasks and their transitions to SQL tables.

    Goes on as tasks change, until Ctrl-C. `task_checkpoints` has a row for each task, `state_transitions` one for each
    change of a lifecycle: each exactly once, however often this command is killed or run beside itself. No row has what
    was said or returned. A hook is told of each transition at least once, a task's in order; one that raises is asked
    again.
    """
    from refold.projection import Projection, ProjectionUnavailable, Projector

    every_s, hooks = seconds_of(every), [_hook(named) for named in hook or ()]
    if every_s <= 0:
        raise CallError(f"--every takes a time above 0, such as 2s, not {every!r}")
    projection = Projection(db)
    projector = Projector(await call.engine(), projection, hooks)
    try:
        if rebuild:
            projection.clear()
        if not once:
            call.out.note(f"projecting into {projection.place}")
            await projector.follow(every_s)
        done = await projector.once()
    except ProjectionUnavailable as error:
        raise CallError(str(error)) from None
    finally:
        projection.close()
    if call.out.json:
        call.out.value(asdict(done))
    else:
        call.out.say(f"{done.tasks} tasks with news in {projection.place}; hooks told {done.transitions} times")
    for task_id, why in done.unread.items():
        call.out.alert(f"not projected yet: {task_id}: {why}")


def _hook(named: str) -> Hook:
    module, _, name = named.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(imported(module, f"module {module!r}"), name)
    except (CallError, AttributeError) as error:
        raise CallError(f"--hook {named} names no function: {error}; write `module:function`") from error
    finally:
        sys.path.remove(str(Path.cwd()))
    if not callable(found):
        raise CallError(f"--hook {named} is no function, but a {type(found).__name__}")
    return cast("Hook", found)
