"""How long a watch retries after the server or the worker stops answering."""

from __future__ import annotations

import asyncio

from refold.engine import NotConnected, NoWorker
from refold.temporal.client.errors import server_away, timed_out

OUTAGE_S = 5.0
"""How long a watch retries after the first call that the server did not answer, in seconds. The SDK takes about nine
seconds to fail a call, so a server may be down for about twice as long; a restart takes less."""

AGAIN_S = 0.2
"""The pause before a failed call is retried, in seconds."""


def cut(error: Exception) -> bool:
    """Whether the server, or a proxy before it, ended a long poll early."""
    return server_away(error) or timed_out(error)


class Reconnect:
    """Decides for a watch whether a failed call is retried."""

    def __init__(self) -> None:
        self._ever_answered = False
        self._away_since: float | None = None

    def answered(self) -> None:
        """Report a successful call."""
        self._ever_answered, self._away_since = True, None

    async def failed(self, error: Exception) -> None:
        """Report a failed call: pause before the retry, or raise the error."""
        if not (self._ever_answered and self._may_come_back(error)):
            raise error
        await asyncio.sleep(AGAIN_S)

    def _may_come_back(self, error: Exception) -> bool:
        if isinstance(error, NoWorker):  # the server answered; the task keeps waiting, so the watch does too
            self._away_since = None
            return True
        now = asyncio.get_running_loop().time()
        self._away_since = self._away_since or now
        return (isinstance(error, NotConnected) or cut(error)) and now - self._away_since < OUTAGE_S
