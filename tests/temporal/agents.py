"""Agents of the server tests."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from refold import GatePolicy, tool
from refold.agent import Agent, Cache, Concurrent, RateLimit, around
from refold.temporal import workflow_for

looked_up: list[str] = []
"""What the tool was asked, in this process."""


@tool(effect="read_only")
async def look_up(word: str) -> str:
    """Looks a word up."""
    looked_up.append(word)
    return f"{word}!"


@tool(effect="at_most_once")
async def write_down(word: str) -> str:
    """Writes a word down."""
    looked_up.append(f"written {word}")
    return "written"


@around("model", scope="activity")
async def polite(turn: Any, proceed: Callable[[Any], Any]) -> Any:
    """Runs where the model is asked, once for each try."""
    reply = await proceed(turn)
    return reply.model_copy(update={"text": f"Please: {reply.text}"}) if reply.text else reply


Clerk = Agent(
    "clerk",
    instructions="Look words up.",
    tools=[look_up, write_down],
    gates={"write_down": GatePolicy(allow_unsigned=True)},
    orchestrator=Concurrent(3),
    middleware=[polite, Cache(tools=["look_up"], scope="activity"), RateLimit(1000, steps=("tool",), scope="activity")],
    turns=2,
)

ClerkWorkflow = workflow_for(Clerk)

Buyer = Agent(
    "buyer",
    instructions="Buy.",
    tools=["shop.search", "shop.buy"],
    gates={"shop.buy": GatePolicy(allow_unsigned=True)},
)
BuyerWorkflow = workflow_for(Buyer)


@tool(effect="at_most_once")
async def book(day: date, at: datetime | None = None, price: Decimal = Decimal(1)) -> str:
    """Books a table."""
    looked_up.append(f"booked {day:%d.%m.%Y}")
    return "booked"


Waiter = Agent(
    "waiter", tools=[book], gates={"book": GatePolicy(allow_unsigned=True)}, keys={"book": "book:{day}:{price}"}
)
WaiterWorkflow = workflow_for(Waiter)

TOOLS: list[Callable[..., Any]] = [look_up, write_down, book]
