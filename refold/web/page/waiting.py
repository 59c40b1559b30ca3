"""Which tasks wait for people, the oldest first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import monotonic

from refold.engine import Engine, Listed, TaskFilter

WAITING = 2_000
"""How many waiting tasks are put in order."""

FRESH_S = 60.0
"""For how many seconds the waiting tasks are kept; those that come meanwhile are added."""

LAG = timedelta(seconds=10)
"""By how much the server's list of tasks may lag."""


class Waiting:
    """The tasks that wait for people, in order. They are kept, since the server's index sorts nothing.

    Of the kept ones, some may wait no longer: whoever reads one says so.

    Attributes:
        more: More tasks wait than are kept: those that have waited longest are not among them.
    """

    def __init__(self) -> None:
        self._known: dict[str, Listed] = {}
        self._until = 0.0
        self.more = False

    async def oldest_first(self, engine: Engine) -> list[Listed]:
        """The tasks that wait, `WAITING` of them at most."""
        wanted = TaskFilter(waits=True)
        if monotonic() >= self._until:
            self._until = monotonic() + FRESH_S
            self._known, self.more = {}, False
        elif self._known:
            # A clock may be ahead; no task has come from the future.
            newest = min(max(one.moved_at for one in self._known.values()), datetime.now(UTC))
            wanted = TaskFilter(waits=True, moved_since=newest - LAG)
        found = await engine.find(wanted, limit=WAITING)
        self.more = self.more or len(found) == WAITING
        self._known |= {one.task_id: one for one in found}
        return sorted(self._known.values(), key=lambda one: (one.status_at, one.task_id))

    def waits_no_longer(self, task_id: str) -> None:
        """Keep a task no longer."""
        self._known.pop(task_id, None)
