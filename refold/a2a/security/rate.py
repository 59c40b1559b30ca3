"""How often one caller may call."""

from __future__ import annotations

import math
import time

from limits import parse_many
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.storage import storage_from_string

from refold.a2a.security.refused import Refused


class Rate:
    """Counts calls.

    Args:
        rate: As `600/minute`, or several with `;` between.
        storage: Where they are counted.

    Raises:
        ValueError: The rate or the storage is none.
    """

    def __init__(self, rate: str, storage: str) -> None:
        self.limits = parse_many(rate)
        self.counter = SlidingWindowCounterRateLimiter(storage_from_string(storage))

    async def count(self, caller: str) -> None:
        """Count one call.

        Raises:
            Refused: It is one too many; `Retry-After` says when there will be room.
        """
        for limit in self.limits:
            if not await self.counter.hit(limit, caller):
                stats = await self.counter.get_window_stats(limit, caller)
                wait_s = max(1, math.ceil(stats.reset_time - time.time()))
                raise Refused(429, f"more than {limit}; try again in {wait_s} s", {"Retry-After": str(wait_s)})
