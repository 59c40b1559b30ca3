"""What a task waits for from people: open questions, gates with the grants so far, and unresolved commands."""

from __future__ import annotations

from datetime import datetime, timedelta

from refold.core.commands import AskApproval, AskUser, Question
from refold.core.gates import DecisionMade
from refold.core.values import LONGEST_S, Name, Value, lean


class Unresolved(Value):
    """A blocked command that only an operator can resolve, since nobody knows whether its effect took place.

    Attributes:
        task_id: The task that takes the resolution: the task itself, or one of its parts.
        invocation_id: The command's id.
        command: Kind and subject of the command, for people: `tool charge_card`.
        failure: Why nobody knows.
    """

    task_id: Name
    invocation_id: Name
    command: str
    failure: str = lean("")


class Wait(Value):
    """An open question or gate. Its id is the invocation id of the command that asked, in whichever task that was.

    Attributes:
        gate: The id of the question or gate.
        ask: The command that asked.
        since: When the task asked.
        grants: The grants so far, oldest first.
        reminded: Whether the reminder was sent.
        holder: If the task was recovered or forked: its id, since `gate` then has the first task's; empty otherwise.
    """

    gate: str
    ask: Question
    since: datetime
    grants: tuple[DecisionMade, ...] = lean(())
    reminded: bool = lean(False)
    holder: str = lean("")

    @property
    def asked_by(self) -> str:
        """The id of the task that takes the answer."""
        return self.holder or self.gate.rpartition("/")[0]

    def anew(self, holder: str, at: datetime) -> Wait:
        """The same question in a recovered or forked task; its timeout begins again."""
        return self.model_copy(update={"since": at, "reminded": False, "holder": holder})

    def without_callback(self) -> Wait:
        """The same question, if a call to an address answers it, for a message to answer within the same time."""
        if not isinstance(self.ask, AskUser) or self.ask.callback is None:
            return self
        valid_s = (self.ask.callback.until - self.since).total_seconds()
        timeout_s = min(max(valid_s, 0), LONGEST_S) if self.ask.timeout_s is None else self.ask.timeout_s
        return self.model_copy(update={"ask": self.ask.model_copy(update={"callback": None, "timeout_s": timeout_s})})

    @property
    def slot(self) -> str:
        """The name of the question or gate."""
        return self.ask.slot

    def decided(self, decision: DecisionMade) -> Wait:
        """The gate after one more decision. A decision with changes voids earlier grants."""
        assert isinstance(self.ask, AskApproval)
        if decision.changes:
            ask = self.ask.edited(decision.changes)
            return self.model_copy(update={"ask": ask, "grants": (decision.model_copy(update={"digest": ask.digest}),)})
        return self.model_copy(update={"grants": (*self.grants, decision)})

    @property
    def reminder_at(self) -> datetime | None:
        """When the reminder is due; None if there is none, or if it was sent."""
        if not isinstance(self.ask, AskApproval) or self.ask.policy.reminder_s is None or self.reminded:
            return None
        return self.since + timedelta(seconds=self.ask.policy.reminder_s)

    @property
    def timeout_at(self) -> datetime | None:
        """When the question or gate times out; None if it never does."""
        if isinstance(self.ask, AskUser) and self.ask.callback is not None and self.ask.timeout_s is None:
            return self.ask.callback.until
        seconds = self.ask.policy.timeout_s if isinstance(self.ask, AskApproval) else self.ask.timeout_s
        return None if seconds is None else self.since + timedelta(seconds=seconds)

    def late(self, at: datetime) -> bool:
        """Whether an answer at this time comes after the timeout, whose alarm may be late."""
        return self.timeout_at is not None and at >= self.timeout_at
