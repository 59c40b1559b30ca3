"""A server or a worker that was there, and is away for a while: how long it is asked again."""

from __future__ import annotations

import asyncio

from temporalio.service import RPCError, RPCStatusCode

from refold.core.errors import NotConnected, NoWorker

OUTAGE_S = 5.0
"""A server that was there is asked for so long after the first question that failed; then a watch ends. The SDK takes
about nine seconds to fail a question, so a server may be away for twice as long: a restart takes less."""

AGAIN_S = 0.2
"""The pause before a question that failed is asked again."""

CUT = frozenset({RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
"""How a long poll ends that the server, or somebody on the way to it, would not hold any longer."""


class Patience:
    """How long somebody goes on asking who was answered before."""

    def __init__(self) -> None:
        self._met = False
        self._away_since: float | None = None

    def answered(self) -> None:
        """Whoever was asked is there."""
        self._met, self._away_since = True, None

    async def failed(self, error: Exception) -> None:
        """Wait a little before the question is asked again, or raise the error."""
        now = asyncio.get_running_loop().time()
        self._away_since = self._away_since or now
        if not (self._met and _may_come_back(error, now - self._away_since)):
            raise error
        await asyncio.sleep(AGAIN_S)


def _may_come_back(error: Exception, away_s: float) -> bool:
    if isinstance(error, NoWorker):
        return True  # the task waits, and so do we
    down = isinstance(error, NotConnected) or (isinstance(error, RPCError) and error.status in CUT)
    return down and away_s < OUTAGE_S
