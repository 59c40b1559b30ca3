"""Agents with budgets, whose scripted model has a price, for tests on the server."""

from __future__ import annotations

from pydantic import JsonValue

from refold import tool
from refold.agent import Agent, Budget
from refold.temporal import workflow_for

DOLLAR_PER_THOUSAND: dict[str, JsonValue] = {"usd_per_million_tokens": {"input": 1_000.0, "output": 1_000.0}}


@tool(effect="read_only")
def weigh(item: str) -> int:
    """The weight of an item, in grams."""
    return len(item)


Thrifty = Agent(
    "thrifty",
    tools=[weigh],
    settings=DOLLAR_PER_THOUSAND,
    middleware=[Budget(usd=0.01)],
)
Daily = Agent(
    "daily",
    settings=DOLLAR_PER_THOUSAND,
    middleware=[Budget(usd=0.04, per="owner_day", when_spent="ask")],
)

ThriftyWorkflow = workflow_for(Thrifty)
DailyWorkflow = workflow_for(Daily)

TOOLS = [weigh]
