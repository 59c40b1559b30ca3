"""What model calls cost, as people read it: a line, a table of calls, a table of sums."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from refold.cli.text.table import aligned
from refold.cost import Cost, ModelCall, total
from refold.words.costs import dollars
from refold.words.text import clean, counted


def remarks(cost: Cost) -> Iterator[str]:
    """What people should know of a sum."""
    if not cost.calls:
        return
    if cost.cached_tokens or cost.reasoning_tokens:
        yield f"of the tokens, {cost.cached_tokens:,} in were cached, and {cost.reasoning_tokens:,} out were reasoning"
    yield "an estimate: each call at the price of its day, as its worker recorded it; invoices may differ" + (
        f". {counted(cost.listed_calls, 'call')} without a recorded price: by {cost.prices}" if cost.prices else ""
    )
    if unknown := cost.unpriced_calls - cost.unmeasured_calls:
        models = ", ".join(clean(one) or "a model that is not recorded" for one in cost.unpriced_models)
        yield (
            f"{counted(unknown, 'call')} not in the sum, for no price is known: {models}; the setting "
            "usd_per_million_tokens gives later calls a price"
        )
    if cost.unmeasured_calls:
        yield f"{counted(cost.unmeasured_calls, 'call')} not in the sum, for the provider gave no count of tokens"


def calls_table(calls: Sequence[ModelCall]) -> Iterator[str]:
    """Calls as an aligned table, with their sum."""
    rows: list[tuple[str, ...]] = [("TIME", "MODEL", "IN", "OUT", "USD", "CALL")]
    for one in calls:
        at, name = one.at.astimezone().strftime("%Y-%m-%d %H:%M:%S"), f"{one.invocation_id} {one.id}"
        name += "  (answer of no use)" if one.failed else ""
        usd = f"{dollars(one.usd)}{'*' if one.priced == 'listed' else ''}"
        rows.append((at, one.model or "-", f"{one.input_tokens:,}", f"{one.output_tokens:,}", usd, name))
    yield from aligned([*rows, _sum("total", "", total(calls))], right=(2, 3, 4))


def groups_table(head: str, groups: Sequence[tuple[str, Cost]], whole: Cost) -> Iterator[str]:
    """Groups as an aligned table, with their sum."""
    rows: list[tuple[str, ...]] = [(head, "CALLS", "IN", "OUT", "USD", "")]
    rows += [_sum(name or "-", f"{cost.calls:,}", cost) for name, cost in groups]
    yield from aligned([*rows, _sum("total", f"{whole.calls:,}", whole)], right=(1, 2, 3, 4))


def _sum(name: str, calls: str, cost: Cost) -> tuple[str, ...]:
    more = f"+ {counted(cost.unpriced_calls, 'call')} of unknown price" if cost.unpriced_calls else ""
    return name, calls, f"{cost.input_tokens:,}", f"{cost.output_tokens:,}", dollars(cost.usd), more
