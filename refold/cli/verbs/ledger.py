"""`refold ledger`: what an operator does with the receipts of effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.text.content import seconds_of
from refold.cli.verb import Call, add

if TYPE_CHECKING:
    from refold.effects.ledger.store import Store


def add_to(app: typer.Typer) -> None:
    """Add the verbs, as a group of their own."""
    group = typer.Typer(
        name="ledger",
        no_args_is_help=True,
        help="Count and prune receipts of effects.",
        rich_markup_mode=None,
    )
    for run in (show, prune):
        add(group, run, connects=False)
    app.add_typer(group)


def show(call: Call) -> None:
    """Print where the ledger is, and how many receipts it holds. Makes the tables of a new one."""
    store = _store()
    counts = {state.value: count for state, count in store.counts().items()}
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

    An effect whose receipt is gone is performed again when a call with its key comes: keep receipts for longer than
    tasks run, than tasks are recovered, and than business keys are used. Receipts of unknown outcomes, of effects under
    way and of effects that were undone stay.
    """
    pruned = _store().prune(seconds_of(older_than))
    if call.out.json:
        call.out.value({"pruned": pruned})
    else:
        call.out.say(f"{pruned:,} receipt{'' if pruned == 1 else 's'} deleted")


def _store() -> Store:
    from refold.effects.ledger.store import store_from_env

    return store_from_env()
