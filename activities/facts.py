"""Looking facts up: ten small tools that change nothing."""

import os
from collections.abc import Awaitable, Callable

from refold import tool
from refold.effects import current

TOPICS = ("stock", "price", "weight", "size", "route", "weather", "customs", "rating", "warranty", "discount")


def _lookup(topic: str) -> Callable[[str], Awaitable[int]]:
    @tool(effect="read_only", name=f"look_up_{topic}", timeout_s=30)
    async def look_up(order_id: str) -> int:
        server = os.environ.get("FACTS_URL", "http://localhost:8403")
        response = await current().http.get(f"{server}/facts/{topic}")
        response.raise_for_status()
        return int(response.json()["value"])

    return look_up


FACTS = {f"look_up_{topic}": _lookup(topic) for topic in TOPICS}
"""The tools by name."""
