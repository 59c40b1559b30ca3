"""How a gate is decided: who may decide, what a decision leads to, reminders, and timeouts (of questions too)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from refold.core.commands import AskApproval
from refold.core.events import Event
from refold.core.fold import ending, questions
from refold.core.fold.draft import Draft, notification
from refold.core.fold.snapshot import Receipt, ReceiptStatus, Snapshot
from refold.core.gates import DecisionMade, Grace
from refold.core.lifecycle import Ending, TaskEvent
from refold.core.waits import Wait

APPROVAL_TIMEOUT = "approval_timeout"
APPROVAL_DENIED = "approval_denied"

CHECKED_AGAIN = "refold.decision_checked_again"
"""The patch by which `decided_again` checks a decision; recoveries of earlier releases did not."""


# --- who may decide


def decision_refusal(snapshot: Snapshot, decision: DecisionMade, at: datetime) -> str:
    """Why an open task cannot take a decision; empty if it can."""
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
    # A person who granted before may decide again with changes: they are a new thing to decide on.
    if not decision.changes and any(grant.approver == decision.approver for grant in wait.grants):
        return f"{decision.approver} has decided before; {wait.ask.policy.needed} different people must"
    return decider_refusal(snapshot, wait.ask, decision) or _too_late(wait, wait.ask, decision, at)


def _too_late(wait: Wait, ask: AskApproval, decision: DecisionMade, at: datetime) -> str:
    """Why a decision after the gate's timeout is refused; empty if it came before, or is a grant in the grace time."""
    if wait.timeout_at is None or at < wait.timeout_at:
        return ""
    ended = f"gate {wait.slot!r} timed out at {wait.timeout_at:%Y-%m-%d %H:%M:%S}"
    if ask.policy.on_timeout == "continue" or not decision.approved:
        return f"{ended}; nothing is decided there any more"
    if decision.changes:
        return f"{ended}; a late grant is for what was shown; it can change nothing any more"
    until = wait.timeout_at + timedelta(seconds=ask.policy.grace_s)
    return "" if at < until else f"{ended}, and the time for a late grant is over; recover the task: `refold recover`"


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


def decider_refusal(snapshot: Snapshot, shown: AskApproval | Grace, decision: DecisionMade) -> str:
    """Why the gate's policy does not let this person make this decision; empty if it does."""
    policy, named, digest = shown.policy, decision.digest, shown.digest
    if named not in (digest, shown.former):
        return f"the decision is for {named!r}, but the gate shows {digest!r}: look again at what is decided on"
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


# --- what a decision leads to


def decided(draft: Draft, decision: DecisionMade) -> Sequence[Event]:
    """Count a decision. The last grant that the policy needs, or a denial, closes the gate.

    Returns:
        The events to deliver to the skill.
    """
    wait = _wait(draft, decision.gate)
    ask = wait.ask
    assert isinstance(ask, AskApproval)
    decision = as_kept(decision, ask)
    if wait.late(draft.at):  # after an outage; the decision counts as made after the timeout
        timed_out(draft, decision.gate)
        ending.record_late_grant(draft, decision)
        return []
    after = wait.decided(decision)
    assert isinstance(after.ask, AskApproval)
    ask, grants = after.ask, after.grants
    if decision.changes:
        draft.notes.append(f"{ask.slot}: {decision.approver} changed {', '.join(decision.changes)}")
    if decision.approved and len(grants) < ask.policy.needed:
        draft.waits = tuple(after if one is wait else one for one in draft.waits)
        draft.notes.append(f"{ask.slot}: {len(grants)} of {ask.policy.needed} grants")
        return []
    if not decision.approved and ask.policy.on_denied == "fail":
        comment = f": {decision.comment}" if decision.comment else ""
        reason = f"{APPROVAL_DENIED} by {decision.approver}{comment}"
        ending.end(draft, Ending.FAILED, reason, TaskEvent.APPROVAL_DENIED)
        return []
    if any(grant.changes for grant in grants):
        decision = decision.model_copy(update={"digest": ask.digest, "shown": ask.show})
    outcome = decision.model_dump(mode="json")
    draft.receipts[wait.gate] = Receipt.trusted(invocation_id=wait.gate, status=ReceiptStatus.OK, outcome=outcome)
    return questions.closed(draft, wait, decision)


def decided_again(draft: Draft, decision: DecisionMade) -> Sequence[Event]:
    """Count a decision that the failed task took, if it is one on what its gate shows in the recovered task.

    Today's code may show something else there. The gate then stays open, with a note in the journal.

    Returns:
        The events to deliver to the skill.
    """
    why = decision_refusal(draft.base, decision, draft.at)
    if why and draft.patched(CHECKED_AGAIN):
        draft.notes.append(f"the decision of {decision.approver} at gate {decision.gate} does not count: {why}")
        return []
    return decided(draft, decision)


def as_kept(decision: DecisionMade, ask: AskApproval) -> DecisionMade:
    """A decision as the task records it: with the gate's own slot, and without what its sender says was shown."""
    return decision.model_copy(update={"slot": ask.slot, "shown": None})


def remind(draft: Draft, gate: str) -> None:
    """Send a gate's one reminder to the people who can decide. No other effect starts while a task is paused."""
    wait = _wait(draft, gate)
    ask = wait.ask
    assert isinstance(ask, AskApproval)
    draft.waits = tuple(one.model_copy(update={"reminded": True}) if one is wait else one for one in draft.waits)
    draft.issue_reminder(notification(gate, ask, opened=False))


def timed_out(draft: Draft, gate: str) -> Sequence[Event]:
    """Close a question or gate that timed out. Returns the events to deliver to the skill.

    A gate with `on_timeout="fail"` ends the task instead; for `grace_s` after that, a late grant is recorded.
    """
    wait = _wait(draft, gate)
    ask = wait.ask
    if not isinstance(ask, AskApproval):
        return questions.timed_out(draft, wait, ask.timeout_s)
    policy = ask.policy
    if policy.on_timeout == "continue":
        return questions.timed_out(draft, wait, policy.timeout_s or 0.0)
    if policy.grace_s:
        until = draft.at + timedelta(seconds=policy.grace_s)
        seen = {"digest": ask.digest, "former": ask.former, "granted": tuple(grant.approver for grant in wait.grants)}
        draft.changes["grace"] = Grace(gate=gate, until=until, policy=policy, **seen)
    ending.end(draft, Ending.FAILED, APPROVAL_TIMEOUT, TaskEvent.TIMEOUT)
    return []


def _wait(draft: Draft, gate: str) -> Wait:
    return next(wait for wait in draft.waits if wait.gate == gate)
