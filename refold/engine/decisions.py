"""Decisions as an engine's caller makes them: which task takes them, and as which events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import JsonValue

from refold.core.errors import InputRejected
from refold.core.gates import DecisionMade, written_as
from refold.engine.arguments import methods_take
from refold.engine.refusals import checked
from refold.engine.values import Decision, TaskView, WaitView


@methods_take()
class DecidesOne(ABC):
    """Gives an engine `decide`, made of its `decide_together`."""

    async def decide(
        self,
        task_id: str,
        gate: str | None = None,
        *,
        approved: bool,
        approver: str,
        digest: str | None = None,
        comment: str = "",
        vouched_by: str | None = None,
        changes: Mapping[str, JsonValue] | None = None,
    ) -> TaskView:
        """See `Engine.decide`."""
        said = {"gate": gate, "approved": approved, "digest": digest, "comment": comment, "changes": changes or {}}
        return await self.decide_together(
            task_id, [checked(Decision, **said)], approver=approver, vouched_by=vouched_by
        )

    @abstractmethod
    async def decide_together(
        self, task_id: str, decisions: Sequence[Decision], *, approver: str, vouched_by: str | None = None
    ) -> TaskView:
        """See `Engine.decide_together`."""


def decision_of(
    said: Decision, met: WaitView, *, approver: str, vouched_by: str | None, said_at: datetime | None = None
) -> DecisionMade:
    """A decision as the task takes it.

    Args:
        said: What the approver decides.
        met: The gate; its digest is for an approver who names none.
        approver: Who decides. A name that the gate knows is sent as it is written there, so that one person cannot
            grant twice, or pass for a second one, under another spelling.
        vouched_by: Who vouches for the approver.
        said_at: When, for a decision that does not say so.

    Raises:
        InputRejected: A field does not fit.
    """
    return checked(
        DecisionMade,
        gate=met.gate,
        digest=met.digest if said.digest is None else said.digest,
        decision="approved" if said.approved else "denied",
        approver=written_as(approver, (*met.excluded, *met.granted_by, *met.approvers)),
        asserted_by=vouched_by,
        comment=said.comment,
        changes=said.changes,
        said_at=said.said_at or said_at,
    )


def holder_of(task_id: str, gates: Sequence[str], asked_by: Mapping[str, str]) -> str:
    """The task that takes decisions at these gates: a part's gates are decided at the part.

    Args:
        task_id: The task that was named.
        gates: The gates' ids.
        asked_by: The task that asks, for each gate that is open.

    Raises:
        InputRejected: There is no gate, or several tasks would have to take the decisions.
    """
    if not gates:
        raise InputRejected("there is no decision to take: name at least one gate")
    holders = sorted({asked_by[gate] for gate in gates if gate in asked_by})
    if len(holders) > 1:
        listed = ", ".join(map(repr, holders))
        raise InputRejected(
            f"none of the {len(gates)} decisions was taken: {listed} ask at these gates, and each task takes its own "
            "decisions; decide at one task at a time"
        )
    return holders[0] if holders else task_id


def gate_of(view: TaskView, said: Decision, late: WaitView | None) -> WaitView:
    """The gate that a decision is for.

    Args:
        view: The task that the decision was sent to.
        said: The decision.
        late: The gate that has timed out and still takes a grant; None if there is none.

    Raises:
        InputRejected: No such gate is open, or several are and the decision names none.
    """
    gates = [wait for wait in view.waiting_for if wait.gate_kind is not None]
    met = [wait for wait in gates if said.gate in (None, wait.gate, wait.slot)]
    if len(met) == 1:
        return met[0]
    if not gates and late is not None and said.gate in (None, late.gate):
        return late
    if not met and said.gate is not None and said.digest is not None:
        # The task itself knows why it refuses.
        return WaitView(slot=said.gate, message="", gate=said.gate, digest=said.digest)
    listed = ", ".join(f"{wait.slot} ({wait.gate})" for wait in gates) or "none"
    if met:
        raise InputRejected(f"several gates of task {view.task_id!r} are open; say which one: {listed}")
    which = "no gate" if said.gate is None else f"no gate {said.gate!r}"
    raise InputRejected(f"{which} of task {view.task_id!r} is open ({view.status}); open: {listed}")
