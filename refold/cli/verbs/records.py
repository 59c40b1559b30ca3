"""`refold export`: a task's record as a file."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from refold import temporal
from refold.cli.errors import CallError
from refold.cli.verb import Call, TaskId, add
from refold.engine import Engine
from refold.export.write import Histories, Receipts, Wanted, written


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    for run in (export,):
        add(app, run)


async def export(
    call: Call,
    task_id: TaskId,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The file to write; else stdout.")
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
    engine = await call.engine()
    wanted = Wanted(
        redact=redact,
        parts=parts,
        receipts=_receipts() if receipts else None,
        histories=_histories(engine) if history else None,
    )
    async with AsyncExitStack() as stack:
        lines = await stack.enter_async_context(aclosing(written(engine, task_id, wanted)))
        if out is None:
            async for line in lines:
                sys.stdout.write(line.decode())
            sys.stdout.flush()
            return
        count = 0
        with _whole(out) as file:
            async for line in lines:
                count += 1
                file.write(line)
    if call.out.json:
        call.out.value({"task_id": task_id, "file": str(out), "lines": count, "redacted": redact})
    else:
        call.out.say(f"{out}  {count:,} lines{', redacted' if redact else ''}")


@contextmanager
def _whole(out: Path) -> Iterator[IO[bytes]]:
    """A file that appears under its name once it is complete; readable by this user alone."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{out.name}-", dir=out.parent)
    except OSError as error:
        raise CallError(f"{out} cannot be written: {error.strerror}") from None
    new = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        new.replace(out)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def _histories(engine: Engine) -> Histories:
    if not isinstance(engine, temporal.TemporalEngine):
        raise CallError("--history takes a Temporal server; this engine keeps no histories")
    return engine.histories


def _receipts() -> Receipts:
    from refold.effects.ledger.store import store_from_env
    from refold.temporal.data.codec import CodecSeal, codec_from_env

    store = store_from_env()
    if (codec := codec_from_env()) is not None:
        store.seal = CodecSeal(codec)

    async def receipts(task_id: str) -> list[dict[str, Any]]:
        # In a thread without a loop, since the codec that opens a receipt runs one.
        return [asdict(one) for one in await asyncio.to_thread(store.of_task, task_id)]

    return receipts
