"""Gates: points where a person must decide, who may, and what a decision is.

A gate shows its arguments as data, and has a digest of what it shows. A decision names gate and digest, so that a
grant for one thing never passes another. Source: S3.29 to S3.41.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from annotated_types import Ge
from pydantic import JsonValue, model_validator

from refold.core.values import Name, Patience, Remark, Seconds, Value, encodable, lean


class GateKind(StrEnum):
    """Why a person is asked."""

    APPROVAL = "approval"
    CONTENT_REVIEW = "content_review"
    BUDGET = "budget"
    RISK = "risk"


class GatePolicy(Value):
    """Who decides, and how long they have.

    Attributes:
        kind: Why a person is asked.
        approvers: Who may decide; empty lets anybody.
        needed: How many grants it takes; one denial ends the gate.
        second_person: Neither the task's owner nor who started it may decide.
        on_denied: Whether a denial fails the task, or is told to the skill.
        timeout_s: Seconds until the time for a decision is over; None waits for ever.
        on_timeout: Whether the task fails then, or the skill is told: the gate comes back as a `CommandFailed` whose
            failure has the type `timeout`.
        reminder_s: Seconds until the approvers are reminded, once; None never does.
        grace_s: Seconds after the timeout in which a late grant is still recorded.
        allow_unsigned: Take decisions that nobody vouches for, such as raw signals.
        sign_in: What is missing is a sign-in or a credential, which comes by another way than a message.
    """

    kind: GateKind = lean(GateKind.APPROVAL)
    approvers: tuple[str, ...] = lean(())
    needed: Annotated[int, Ge(1)] = lean(1)
    second_person: bool = lean(False)
    on_denied: Literal["fail", "continue"] = lean("fail")
    timeout_s: Patience | None = lean(1800.0)
    on_timeout: Literal["fail", "continue"] = lean("fail")
    reminder_s: Seconds | None = lean(900.0)
    grace_s: Seconds = lean(300.0)
    allow_unsigned: bool = lean(False)
    sign_in: bool = lean(False)

    @model_validator(mode="after")
    def _can_be_passed(self) -> Self:
        if self.approvers and self.needed > len(set(self.approvers)):
            raise ValueError(f"needed={self.needed} grants, but only {len(set(self.approvers))} may decide")
        return self

    @property
    def guarded(self) -> bool:
        """Whether it matters who decides, so that somebody must vouch for it."""
        return bool(self.approvers) or self.needed > 1 or self.second_person


def digest_of(slot: str, kind: GateKind, show: JsonValue) -> str:
    """What a gate shows, as a hash: 32 hex digits, other ones for other arguments."""
    shown = json.dumps([slot, kind.value, encodable(show)], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(shown.encode()).hexdigest()[:32]


class DecisionMade(Value):
    """A person decided at a gate.

    Attributes:
        gate: The gate's id.
        digest: What the person was shown.
        decision: The only two there are.
        approver: Who decided.
        asserted_by: Who vouches for it; None where nobody does.
        comment: Why, in the approver's words.
        said_at: When the approver says so; data, and never the time that counts.
        slot: The gate's name; the skill is always told it.
        changes: What whoever grants has changed in what is shown. The grant is for the changed thing, and earlier
            grants, which were for another, are void.
        shown: What was granted, where somebody has changed it; told to the skill.
    """

    kind: Literal["decision_made"] = "decision_made"
    gate: Name
    digest: Name
    decision: Literal["approved", "denied"]
    approver: Name
    asserted_by: Name | None = lean()
    comment: Remark = lean("")
    said_at: datetime | None = lean()
    slot: str | None = lean()
    changes: dict[str, JsonValue] = lean(factory=dict)
    shown: JsonValue = lean()

    @property
    def approved(self) -> bool:
        """Whether it is a grant."""
        return self.decision == "approved"


class Grace(Value):
    """The time after a gate's timeout in which a late grant is recorded.

    Attributes:
        gate: The gate.
        digest: What it showed.
        until: When the time is over.
        policy: Who may decide.
        granted: Who has granted it in time.
    """

    gate: str
    digest: str
    until: datetime
    policy: GatePolicy
    granted: tuple[str, ...] = lean(())
