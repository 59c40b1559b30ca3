"""Tools that the skills of the tests call."""

from __future__ import annotations

import asyncio
from collections import Counter

from refold import tool
from refold.effects import Never, TryLater

calls: Counter[str] = Counter()
"""How often each tool ran, by the key it was called with; kept in the worker's process."""


@tool(effect="idempotent")
async def add(a: int, b: int) -> int:
    """The sum."""
    return a + b


@tool(effect="idempotent")
def flaky(who: str, failures: int) -> int:
    """Fails with "try later" as often as asked, then says how often it was called."""
    calls[who] += 1
    if calls[who] <= failures:
        raise TryLater("the service is busy")
    return calls[who]


@tool(effect="idempotent")
async def broken() -> None:
    """Fails for good."""
    raise Never("the account is closed")


@tool(effect="idempotent")
async def endless(who: str) -> None:
    """Runs until it is canceled, and notes that it was."""
    calls[f"{who} started"] += 1
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        calls[f"{who} canceled"] += 1
        raise


@tool(effect="idempotent")
async def large(size: int) -> str:
    """A text of this many characters."""
    return "x" * size
