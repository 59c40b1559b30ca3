"""The clock of the engine in memory."""

from __future__ import annotations

from datetime import datetime, timedelta

from refold.engine.arguments import takes
from refold.testing.answers import ScriptError
from refold.testing.play import START


class Clock:
    """A clock that stands still until it is advanced.

    Attributes:
        now: The time it shows, aware.
    """

    @takes(ScriptError)
    def __init__(self, now: datetime = START) -> None:
        self.now = now

    @takes(ScriptError)
    def advance(self, seconds: float) -> None:
        """Advance it. Timers that are due by then fire when the engine settles next.

        Raises:
            ValueError: `seconds` is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock only advances; got {seconds:g} seconds")
        self.now += timedelta(seconds=seconds)
