"""`Pace`: spaces out the callers of one process, so that they proceed evenly."""

from __future__ import annotations


class Pace:
    """Turns, each some time after the one before, in one process.

    Args:
        gap_s: The least time between two turns, in seconds.
    """

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._due = 0.0

    def wait_s(self, now: float) -> float:
        """Take the next turn.

        Args:
            now: In seconds, by a clock that never goes back.

        Returns:
            How long to wait for it, in seconds.
        """
        at = max(now, self._due)
        self._due = at + self._gap_s
        return at - now
