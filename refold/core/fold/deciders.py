"""Who may decide at a gate, and why not."""

from __future__ import annotations

from refold.core.commands import AskApproval
from refold.core.fold.snapshot import Snapshot
from refold.core.gates import DecisionMade, GatePolicy


def decision_refusal(snapshot: Snapshot, decision: DecisionMade) -> str:
    """Why a decision cannot be taken at an open task; empty if it can."""
    wait = next((wait for wait in snapshot.waits if wait.gate == decision.gate), None)
    if wait is None:
        gates = ", ".join(wait.gate for wait in snapshot.waits if isinstance(wait.ask, AskApproval)) or "none"
        part = next((wait for wait in snapshot.open_waits if wait.gate == decision.gate), None)
        if part is not None:
            return f"gate {decision.gate} is a part's: decide at task {part.asked_by!r}"
        return f"no gate {decision.gate!r} is open; open: {gates}"
    if not isinstance(wait.ask, AskApproval):
        return f"{wait.slot!r} is a question, not a gate: it takes a message, not a decision"
    if found := _unfit_changes(wait.ask, decision):
        return found
    # Whoever changes what is shown decides on another thing than before.
    if not decision.changes and any(grant.approver == decision.approver for grant in wait.grants):
        return f"{decision.approver} has decided before; {wait.ask.policy.needed} different people must"
    return decider_refusal(snapshot, wait.ask.policy, wait.ask.digest, decision)


def _unfit_changes(ask: AskApproval, decision: DecisionMade) -> str:
    if not decision.changes:
        return ""
    if not decision.approved:
        return "a denial changes nothing: grant what is changed, or deny without changes"
    wrong = [name for name in decision.changes if name not in ask.editable]
    if not wrong:
        return ""
    may = ", ".join(ask.editable) or "nothing"
    return f"{', '.join(wrong)} cannot be changed at gate {ask.slot!r}; what can: {may}"


def decider_refusal(snapshot: Snapshot, policy: GatePolicy, digest: str, decision: DecisionMade) -> str:
    """Why this person cannot decide on this; empty if they can."""
    if decision.digest != digest:
        return (
            f"the decision is for {decision.digest!r}, but the gate shows {digest!r}: look again at what is decided on"
        )
    if not decision.approver.strip():
        return "a decision names its approver"
    if policy.approvers and decision.approver not in policy.approvers:
        return f"{decision.approver} may not decide here; those who may: {', '.join(policy.approvers)}"
    if policy.second_person and snapshot.owner is None and not snapshot.started_by:
        return (
            "nobody knows who owns the task, or who started it, so that nobody can be told to be a second person: "
            "start it with an owner"
        )
    if policy.second_person and decision.approver == snapshot.owner:
        return f"{decision.approver} owns the task; a second person must decide"
    if policy.second_person and decision.approver in snapshot.started_by:
        return f"{decision.approver} started the task; a second person must decide"
    if policy.guarded and decision.asserted_by is None and not policy.allow_unsigned:
        return (
            "nobody vouches for this decision: set REFOLD_APPROVAL_KEY, the key that the workers have, and send it "
            "with `refold approve`, `refold deny` or the callback; or let the gate's policy allow unsigned ones"
        )
    return ""
