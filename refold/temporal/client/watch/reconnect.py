"""How long a watch retries where a server or a worker that has answered before stops answering."""

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


class Reconnect:
    """Decides whether a call that failed is made again, for one who watches."""

    def __init__(self) -> None:
        self._ever_answered = False
        self._away_since: float | None = None

    def answered(self) -> None:
        """A call was answered."""
        self._ever_answered, self._away_since = True, None

    async def failed(self, error: Exception) -> None:
        """Wait a little before the call is made again, or raise the error."""
        now = asyncio.get_running_loop().time()
        self._away_since = self._away_since or now
        if not (self._ever_answered and _may_come_back(error, now - self._away_since)):
            raise error
        await asyncio.sleep(AGAIN_S)


def _may_come_back(error: Exception, away_s: float) -> bool:
    if isinstance(error, NoWorker):
        return True  # the task waits, and so do we
    down = isinstance(error, NotConnected) or (isinstance(error, RPCError) and error.status in CUT)
    return down and away_s < OUTAGE_S
