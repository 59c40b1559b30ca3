"""Questions and gates that nobody has answered yet."""

from __future__ import annotations

from datetime import datetime, timedelta

from refold.core.commands import AskApproval, Question
from refold.core.gates import DecisionMade
from refold.core.values import Value, lean


class Wait(Value):
    """An open question or gate. Its id is the invocation id of the command that asked, in whichever task that was.

    Attributes:
        gate: The wait's id.
        ask: What was asked.
        since: When.
        grants: Grants so far, where more than one is needed; oldest first.
        reminded: The people who can decide were reminded.
        holder: The task that asks, where it goes on for the one that asked first; empty otherwise.
    """

    gate: str
    ask: Question
    since: datetime
    grants: tuple[DecisionMade, ...] = lean(())
    reminded: bool = lean(False)
    holder: str = lean("")

    @property
    def asked_by(self) -> str:
        """The task at which it is answered."""
        return self.holder or self.gate.rpartition("/")[0]

    def anew(self, holder: str, at: datetime) -> Wait:
        """The same question in a task that goes on for the one that asked it; its time begins again."""
        return self.model_copy(update={"since": at, "reminded": False, "holder": holder})

    @property
    def slot(self) -> str:
        """The wait's name."""
        return self.ask.slot

    def decided(self, decision: DecisionMade) -> Wait:
        """The gate after one more decision: for the changed thing, where it changes what is shown."""
        assert isinstance(self.ask, AskApproval)
        if decision.changes:
            ask = self.ask.changed(decision.changes)
            return self.model_copy(update={"ask": ask, "grants": (decision.model_copy(update={"digest": ask.digest}),)})
        return self.model_copy(update={"grants": (*self.grants, decision)})

    @property
    def reminder_at(self) -> datetime | None:
        """When a reminder is due; None where there is none, or it is over."""
        if not isinstance(self.ask, AskApproval) or self.ask.policy.reminder_s is None or self.reminded:
            return None
        return self.since + timedelta(seconds=self.ask.policy.reminder_s)

    @property
    def timeout_at(self) -> datetime | None:
        """When the wait is over; None where it has no end."""
        seconds = self.ask.policy.timeout_s if isinstance(self.ask, AskApproval) else self.ask.timeout_s
        return None if seconds is None else self.since + timedelta(seconds=seconds)
