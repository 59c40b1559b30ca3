"""Questions that nobody has answered yet."""

from __future__ import annotations

from datetime import datetime

from refold.core.base import Value
from refold.core.commands import AskUser


class Wait(Value):
    """An open question. Its gate is the invocation id of the command that asked, in whichever task that was."""

    gate: str
    ask: AskUser
    since: datetime

    @property
    def slot(self) -> str:
        """The wait's name."""
        return self.ask.slot
