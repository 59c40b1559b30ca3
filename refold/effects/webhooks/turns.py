"""Shares the posts that a process sends at once among the hosts that they go to.

Rule 1: at most `AT_ONCE` posts are under way, and at most `AT_ONCE_PER_HOST` of them to one host; others wait.
Rule 2: a free place goes to the waiting host with the fewest posts under way, and among equals to the one whose turn is
        longest ago. So hosts that never answer, however many they are, leave every other host its share.

A host is a name as it stands in the URL: several names of one machine are several hosts.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

AT_ONCE = 500
"""The most posts at once, and so the most connections in use."""

AT_ONCE_PER_HOST = 32
"""The most posts to one host at once."""


class Turns:
    """Lets posts begin, in the event loop that it is used in."""

    def __init__(self) -> None:
        self._all = 0
        self._under_way = Counter[str]()
        # The host whose turn is longest ago comes first. A place that nobody waits for any more is passed over.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def of(self, host: str) -> AsyncGenerator[bool]:
        """Wait for a place, and keep it for the block. The value says whether other posts had to end first."""
        waits = not self._has_room(host)
        if waits:
            await self._place(host)
        else:
            self._begin(host)
        try:
            yield waits
        finally:
            self._end(host)

    def _has_room(self, host: str) -> bool:
        return self._all < AT_ONCE and self._under_way[host] < AT_ONCE_PER_HOST

    async def _place(self, host: str) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # it came in the same moment
                self._end(host)
            raise

    def _begin(self, host: str) -> None:
        self._all += 1
        self._under_way[host] += 1

    def _end(self, host: str) -> None:
        self._all -= 1
        self._under_way[host] -= 1
        if not self._under_way[host]:
            del self._under_way[host]
        while waiting := [one for one in self._waiting if self._has_room(one)]:
            following = min(waiting, key=self._under_way.__getitem__)
            places = self._waiting.pop(following)
            place = places.popleft()
            if places:
                self._waiting[following] = places  # behind the others
            if not place.done():
                self._begin(following)
                place.set_result(None)
