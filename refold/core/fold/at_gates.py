"""What becomes of a task at a gate: decisions, reminders, and the time that runs out."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from refold.core.commands import AskApproval, Notify
from refold.core.fold.journal import Issued
from refold.core.fold.snapshot import Pending, Receipt, ReceiptStatus
from refold.core.gates import DecisionMade, Grace
from refold.core.lifecycle import Ending, TaskEvent
from refold.core.waits import Wait

if TYPE_CHECKING:
    from refold.core.fold.turn import Turn

APPROVAL_TIMEOUT = "approval_timeout"
APPROVAL_DENIED = "approval_denied"


def as_told(decision: DecisionMade, ask: AskApproval) -> DecisionMade:
    """A decision as the task keeps it: what whoever sent it says of the gate does not count."""
    return decision.model_copy(update={"slot": ask.slot, "shown": None})


def decided(turn: Turn, decision: DecisionMade) -> None:
    """Take a decision: count it, end the gate, and let the skill or the lifecycle have it."""
    wait, ask = _gate(turn, decision.gate)
    decision = as_told(decision, ask)
    after = wait.decided(decision)
    assert isinstance(after.ask, AskApproval)
    ask, grants = after.ask, after.grants
    if decision.changes:
        turn.notes.append(f"{ask.slot}: {decision.approver} changed {', '.join(decision.changes)}")
    if decision.approved and len(grants) < ask.policy.needed:
        turn.waits = tuple(after if one is wait else one for one in turn.waits)
        turn.notes.append(f"{ask.slot}: {len(grants)} of {ask.policy.needed} grants")
        return
    turn.waits = tuple(one for one in turn.waits if one is not wait)
    for id, pending in list(turn.pending.items()):
        if isinstance(pending.command, Notify) and pending.command.gate == wait.gate:
            del turn.pending[id]
    if not decision.approved and ask.policy.on_denied == "fail":
        said = f": {decision.comment}" if decision.comment else ""
        turn.end(Ending.FAILED, f"{APPROVAL_DENIED} by {decision.approver}{said}", TaskEvent.APPROVAL_DENIED)
        return
    if any(grant.changes for grant in grants):
        decision = decision.model_copy(update={"digest": ask.digest, "shown": ask.show})
    outcome = decision.model_dump(mode="json")
    turn.receipts[wait.gate] = Receipt.trusted(invocation_id=wait.gate, status=ReceiptStatus.OK, outcome=outcome)
    if turn.waits:
        turn.hold(decision)
    else:
        turn.answered(decision)


def remind(turn: Turn, gate: str) -> None:
    """Remind the people who can decide, once. The one effect that starts while a task is paused."""
    wait, ask = _gate(turn, gate)
    turn.waits = tuple(one.model_copy(update={"reminded": True}) if one is wait else one for one in turn.waits)
    id = f"{turn.base.task_id}/{turn.seq}.{len(turn.issued) + 1}"
    notify = Notify(
        id=f"remind {ask.slot}", gate=gate, message=ask.message, show=ask.show, approvers=ask.policy.approvers
    )
    turn.issued.append(Issued.trusted(invocation_id=id, command=notify))
    turn.pending[id] = Pending.trusted(invocation_id=id, command=notify, started=True, aside=True)


def timed_out(turn: Turn, gate: str) -> None:
    """Fail the task for want of a decision; a late grant is recorded for some time yet."""
    wait, ask = _gate(turn, gate)
    if ask.policy.grace_s:
        until = turn.at + timedelta(seconds=ask.policy.grace_s)
        granted = tuple(grant.approver for grant in wait.grants)
        turn.changes["grace"] = Grace(gate=gate, digest=ask.digest, until=until, policy=ask.policy, granted=granted)
    turn.end(Ending.FAILED, APPROVAL_TIMEOUT, TaskEvent.TIMEOUT)


def _gate(turn: Turn, gate: str) -> tuple[Wait, AskApproval]:
    wait = next(wait for wait in turn.waits if wait.gate == gate)
    assert isinstance(wait.ask, AskApproval)
    return wait, wait.ask
