"""`refold ledger`: what an operator does with the receipts of effects, and an auditor with refused updates."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.errors import CallError
from refold.cli.text.content import seconds_of
from refold.cli.text.views import moment
from refold.cli.verb import CODEC_ENV, Call, add
from refold.words.text import clean, counted, indented

if TYPE_CHECKING:
    from refold.effects.ledger.refused_table import RefusedTable
    from refold.effects.ledger.store import Store


def add_to(app: typer.Typer) -> None:
    """Add the verbs, as a group of their own."""
    group = typer.Typer(
        name="ledger",
        no_args_is_help=True,
        help="Count and prune receipts; list refused updates.",
        rich_markup_mode=None,
    )
    for run in (show, refused, prune, adopt):
        add(group, run, connects=False)
    app.add_typer(group)


def show(call: Call) -> None:
    """Print where the ledger is, and how many receipts it holds. Makes what tables and indexes are missing."""
    store = _store()
    counts = {state.value: count for state, count in store.counts().items()}
    _make_other_tables(store)
    if call.out.json:
        call.out.value({"place": store.place, "receipts": counts})
    else:
        call.out.say(store.place, *(f"{state:<10} {count:>10,}" for state, count in counts.items()))


def prune(
    call: Call,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Such as 30d or 12h; units are d, h, m and s.")
    ],
) -> None:
    """Delete receipts that have not changed for a while, of effects that took place or certainly did not.

    Refused updates of that age are deleted, too.

    An effect whose receipt is gone is performed again when a call with its key comes: keep receipts for longer than
    tasks run, than tasks are recovered, and than business keys are used. Receipts of unknown outcomes, of effects under
    way and of effects that were undone stay.
    """
    age_s = seconds_of(older_than)
    pruned, refusals = _store().prune(age_s), _refused().prune(age_s)
    if call.out.json:
        call.out.value({"pruned": pruned, "refusals": refusals})
    else:
        call.out.say(f"{counted(pruned, 'receipt')} deleted")
        if refusals:
            call.out.say(f"{counted(refusals, 'refusal')} deleted")


def refused(
    call: Call,
    task_id: Annotated[
        str | None, typer.Argument(metavar="TASK", help="Only refusals by this task.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="How many at most.")] = 100,
) -> None:
    """Print refused updates, newest first.

    An update that a task refuses is in no journal: a worker keeps it in the ledger's database. Equal ones are counted
    together, and a task has at most 100. A refused signal is in the task's journal.
    """
    found = _refused().newest(task_id, limit=limit)
    for one in found:
        if call.out.json:
            call.out.value(asdict(one))
            continue
        times = f"  {one.times} times" if one.times > 1 else ""
        who = f"  by {one.by}" if one.by else ""
        call.out.say(
            clean(f"{moment(datetime.fromtimestamp(one.last_at, UTC))}  {one.task_id}  {one.trigger}{who}{times}")
        )
        call.out.say(*indented(one.reason))
    if not found:
        call.out.note("no update was refused")


def adopt(
    call: Call,
    ledger: Annotated[str, typer.Argument(metavar="LEDGER", help="The lost ledger's id, as the task's note says it.")],
) -> None:
    """Let this ledger take the place of a lost one, for open tasks with effects in it (`durability="ledger"`).

    Without it they stand still, since workers with another ledger would perform effects again. What this ledger has no
    record of is performed again: effects of the workflow tasks that were under way when the other one was lost, unless
    they have a receipt here. A ledger that was copied from the other one knows them all.
    """
    if not re.fullmatch("[0-9a-f]{24}", ledger):
        raise CallError(f"{ledger!r} is no ledger's id: `refold show TASK` says the one that the task's effects are in")
    store = _store()
    store.adopt(ledger)
    if call.out.json:
        call.out.value({"place": store.place, "adopted": ledger})
    else:
        call.out.say(f"the ledger in {store.place} takes the place of {ledger}")


def _store() -> Store:
    from refold.effects.ledger.store import store_from_env

    return store_from_env()


def _make_other_tables(store: Store) -> None:
    """Make the tables that workers make on first use, since a worker's role may not be allowed to; and an index."""
    from refold.effects.ledger.receipts import LedgerUnavailable
    from refold.effects.ledger.refused_table import RefusedTable
    from refold.effects.ledger.spending import Spending
    from refold.effects.memory.tables import make_tables

    RefusedTable(store).make()
    Spending(store).make()
    make_tables(store)
    store.identity()
    with suppress(LedgerUnavailable):  # it is the owner's to make; whoever is not goes without
        store.make_index()
    store.close()


def _refused() -> RefusedTable:
    from refold.effects.ledger.refused_table import RefusedTable

    return RefusedTable(readable_store())


def readable_store() -> Store:
    """The ledger's database, whose encrypted texts the codec that REFOLD_CODEC names can read."""
    store = _store()
    if os.environ.get(CODEC_ENV):
        from refold.temporal.data.codec import CodecSeal, codec_from_env

        codec = codec_from_env()
        store.seal = None if codec is None else CodecSeal(codec)
    return store
