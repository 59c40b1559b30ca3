"""Limits how often one caller may call."""

from __future__ import annotations

import math
import time

from limits import parse_many
from limits.aio.storage import Storage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string

from refold.a2a.security.http_errors import Refused
from refold.seen.logs import logger

log = logger("refold.a2a")


class Rate:
    """Counts calls.

    Args:
        rate: Such as `600/minute`, or several separated by `;`.
        storage: Where calls are counted.

    Raises:
        ValueError: The rate or the storage is not valid.
    """

    def __init__(self, rate: str, storage: str) -> None:
        # The shortest first: a call that it refuses counts for none of the others.
        self.limits = sorted(parse_many(rate), key=lambda limit: limit.get_expiry())
        self.counter = SlidingWindowCounterRateLimiter(counting(storage))

    async def count(self, caller: str) -> None:
        """Count one call.

        Raises:
            Refused: It exceeds the rate (429; `Retry-After` says when to try again), or the storage does not answer
                (503).
        """
        try:
            for limit in self.limits:
                if not await self.counter.hit(limit, caller):
                    stats = await self.counter.get_window_stats(limit, caller)
                    wait_s = max(1, math.ceil(stats.reset_time - time.time()))
                    raise Refused(429, f"more than {limit}; try again in {wait_s} s", {"Retry-After": str(wait_s)})
        except StorageError as error:
            log.error("calls_cannot_be_counted", reason=str(error.storage_error))
            raise Refused(503, "calls cannot be counted now; try again", {"Retry-After": "5"}) from error


def counting(uri: str) -> Storage:
    """The storage of that name.

    Raises:
        ValueError: There is no such storage, or its package is not installed.
    """
    try:
        storage = storage_from_string(uri, wrap_exceptions=True)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None
    if not isinstance(storage, Storage):
        raise ValueError(f"{uri!r} would make all calls wait for each other; begin it with `async+`")
    return storage
