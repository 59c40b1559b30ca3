"""Middleware that limits how often an agent calls in a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from refold.agent.middleware import Proceed, Scope, Simple
from refold.core.values import is_number


class _Pace:
    """When the next step may begin, in one process."""

    def __init__(self) -> None:
        self._due = 0.0

    def wait_s(self, now: float, gap_s: float) -> float:
        at = max(now, self._due)
        self._due = at + gap_s
        return at - now


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
    _shared: _Pace = field(default_factory=_Pace, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not is_number(self.max_per_second):
            raise ValueError(f"max_per_second={self.max_per_second!r} is no rate; give a positive number")
        object.__setattr__(self, "steps", tuple(self.steps))  # copied: the caller may change its list

    async def around(self, turn: Any, proceed: Proceed) -> Any:
        """See `Simple.around`."""
        gap_s = 1 / self.max_per_second
        if self.scope == "activity":
            await asyncio.sleep(self._shared.wait_s(time.monotonic(), gap_s))
            return await proceed(turn)
        name = f"rate_limit {'+'.join(self.steps)}"
        now = turn.ctx.now.timestamp()
        due = turn.state.kept.get(name)
        at = max(now, due) if isinstance(due, float) else now
        turn.state.kept[name] = at + gap_s
        if at > now:
            await turn.ctx.sleep(at - now, id="rate limit")
        return await proceed(turn)
