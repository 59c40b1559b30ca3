"""The data of gates: policy (who may decide, timeouts), decision, digest. `fold/gates.py` handles decisions.

A gate has a digest of what a person saw and of who may decide: message, data, policy. A decision names gate and digest,
so that a grant is valid for nothing else. Source: S3.29 to S3.41.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Literal, Self

from annotated_types import Ge
from pydantic import JsonValue, model_validator

from refold.core.values import Name, Names, Patience, Remark, Seconds, Value, encodable, lean


class GateKind(StrEnum):
    """Why a person is asked."""

    APPROVAL = "approval"
    CONTENT_REVIEW = "content_review"
    BUDGET = "budget"
    RISK = "risk"


class GatePolicy(Value):
    """Who decides at a gate, and within which time.

    Attributes:
        kind: Why a person is asked.
        approvers: Who may decide; empty lets anybody.
        needed: How many people must grant; one denial closes the gate.
        second_person: Neither the task's owner nor a person who started it may decide.
        on_denied: Whether a denial fails the task, or is delivered to the skill.
        timeout_s: Seconds until the gate times out; None waits for ever.
        on_timeout: Whether the timeout fails the task, or is delivered to the skill, as a `CommandFailed` whose failure
            has the type `timeout`.
        notify_at_open: Whether the approvers are told when the gate opens, by the same way as they are reminded.
        reminder_s: Seconds until the approvers are reminded, once; None never does.
        grace_s: Seconds after the timeout in which a late grant is still recorded.
        allow_unsigned: Take decisions that nobody vouches for, such as raw signals.
        sign_in: What is missing is a sign-in or a credential, which comes by another way than a message.
    """

    kind: GateKind = lean(GateKind.APPROVAL)
    approvers: Names = lean(())
    needed: Annotated[int, Ge(1)] = lean(1)
    second_person: bool = lean(False)
    on_denied: Literal["fail", "continue"] = lean("fail")
    timeout_s: Patience | None = lean(1800.0)
    on_timeout: Literal["fail", "continue"] = lean("fail")
    notify_at_open: bool = lean(False)
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
        """Whether the policy depends on who decides, so that the approver's name must be signed."""
        return bool(self.approvers) or self.needed > 1 or self.second_person


def written_as(name: str, known: Iterable[str]) -> str:
    """A person's name as the first of the known names that is the same is written; tidied if none is.

    Names are the same that differ in spaces around them, in how many stand between words, or in how Unicode composes
    their letters. The fold compares names as they are written, so callers write a name like this before they send it.
    """
    tidied = _tidied(name)
    return next((one for one in known if _tidied(one) == tidied), tidied)


def is_among(name: str, known: Iterable[str]) -> bool:
    """Whether one of the known names is the same person's; see `written_as`."""
    tidied = _tidied(name)
    return any(_tidied(one) == tidied for one in known)


def _tidied(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name).split())


def digest_of(*seen: JsonValue) -> str:
    """The hash of what a gate shows: 32 hex digits."""
    shown = json.dumps([encodable(one) for one in seen], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(shown.encode()).hexdigest()[:32]


class DecisionMade(Value):
    """A person decided at a gate.

    Attributes:
        gate: The gate's id.
        digest: The digest of what the person saw.
        decision: Grant or denial.
        approver: Who decided.
        asserted_by: Who vouches for the approver's name; None if nobody does.
        comment: The reason, in the approver's words.
        said_at: The approver's own time of the decision, for information only.
        slot: The gate's name; the fold fills it before the decision is delivered to the skill.
        changes: The approver's changes to the data shown. The grant is for the changed data, and voids earlier grants.
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
        gate: The gate's id.
        digest: The digest of what the gate showed.
        former: The same gate's digest as earlier releases made it.
        until: When the grace time ends.
        policy: The gate's policy.
        granted: Who granted before the timeout.
    """

    gate: str
    digest: str
    former: str = lean("")
    until: datetime
    policy: GatePolicy
    granted: tuple[str, ...] = lean(())
