"""A small shop: tools that agents of the tests are made with, and what their models are told."""

from collections.abc import Callable
from typing import Any

from refold import tool
from refold.agent import Agent
from refold.core.chat import Reply, ToolReturn
from refold.testing import Played


@tool(effect="read_only")
def price(item: str) -> int:
    """What an item costs, in cents."""
    return 100 * len(item)


@tool(effect="read_only")
def stock(item: str) -> int:
    """How many there are."""
    return len(item)


@tool(effect="at_most_once")
def buy(item: str, count: int = 1) -> str:
    """Buy an item."""
    return f"{count} {item}"


TOOLS: list[Callable[..., Any]] = [price, stock, buy]


def shop(**options: Any) -> Agent:
    """An agent of the shop."""
    return Agent("shop", **{"instructions": "Sell tea.", "tools": TOOLS, "gates": "none", **options})


def results(story: Played, thread: str = "main") -> list[tuple[str, Any, bool]]:
    """What the model was told of its tool calls: name, value, and whether it failed."""
    said = story.snapshot.threads[thread].said
    return [(one.name, one.value, one.failed) for one in said if isinstance(one, ToolReturn)]


def replies(story: Played, thread: str = "main") -> list[str]:
    """What the model said, as it is kept."""
    return [one.text for one in story.snapshot.threads[thread].said if isinstance(one, Reply)]
