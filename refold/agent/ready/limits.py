"""Middleware that limits how often an agent calls in a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from refold.agent.middleware import Proceed, Scope, Simple
from refold.pace import Pace


@dataclass(frozen=True)
class RateLimit(Simple):
    """At most so many steps a second, evenly spaced; a step that is too early waits.

    In workflow scope it limits each task by itself, by a durable timer. In activity scope it limits all tasks of a
    worker's process together. To limit all workers, give the tool a task queue of its own and limit that queue.

    Attributes:
        max_per_second: More than 0.
        steps: The kinds of step that are counted, all kinds together.
        scope: Where.
    """

    streams = True  # what the model answers stays as it is
    max_per_second: float
    steps: Collection[str] = ("model",)
    scope: Scope = "workflow"
    _shared: Pace = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.max_per_second <= 0:
            raise ValueError(f"max_per_second={self.max_per_second!r} lets nothing go on; give a positive number")
        object.__setattr__(self, "_shared", Pace(1 / self.max_per_second))

    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        if self.scope == "activity":
            await asyncio.sleep(self._shared.wait_s(time.monotonic()))
            return await proceed(turn)
        name = f"rate_limit {'+'.join(self.steps)}"
        now = turn.ctx.now.timestamp()
        due = turn.state.kept.get(name)
        at = max(now, due) if isinstance(due, float) else now
        turn.state.kept[name] = at + 1 / self.max_per_second
        if at > now:
            await turn.ctx.sleep(at - now, id="rate limit")
        return await proceed(turn)
