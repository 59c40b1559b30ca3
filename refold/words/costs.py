"""What model calls cost, in words."""

from __future__ import annotations

from refold.cost import Cost
from refold.words.text import counted


def dollars(usd: float | None) -> str:
    """A price for people."""
    if usd is None:
        return "unknown"
    return f"${usd:,.6f}" if usd else "$0"


def in_words(cost: Cost) -> str:
    """A cost in one line."""
    if not cost.calls:
        return "no model calls"
    more = f" and {counted(cost.unpriced_calls, 'call')} of unknown price" if cost.unpriced_calls else ""
    price = "" if cost.usd is None else f"{dollars(cost.usd)}{' estimated' if cost.usd else ''}"
    cached = f" ({cost.cached_tokens:,} cached)" if cost.cached_tokens else ""
    reasoning = f" ({cost.reasoning_tokens:,} reasoning)" if cost.reasoning_tokens else ""
    tokens = f"{cost.input_tokens:,} tokens in{cached}, {cost.output_tokens:,} out{reasoning}"
    return f"{price}{more}".removeprefix(" and ") + f"; {counted(cost.calls, 'call')}, {tokens}"
