"""Decisions at gates, as messages: a data part with the gate's id and digest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from refold.core.commands import AskApproval
from refold.core.content import Content
from refold.core.schema import problems
from refold.core.waits import Wait
from refold.engine import Engine
from refold.record import TaskRecord

ANONYMOUS = "anonymous"
"""The approver, if the caller is anonymous and names none."""


class Decision(BaseModel):
    """A data part that is a decision. It may also contain the data that the gate showed.

    Attributes:
        gate: The gate's id.
        digest: The digest of what the caller was shown.
        decision: Approved or denied.
        comment: Why.
        approver: Who decided; None is the caller. Another name than the caller's is refused.
        changes: Edits of fields that the gate declares editable.
        kind: As shown; ignored.
        arguments: As shown; ignored, since the digest stands for them.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    gate: str
    digest: str
    decision: Literal["approved", "denied"]
    comment: str = ""
    approver: str | None = None
    changes: dict[str, JsonValue] = {}
    kind: str | None = None
    arguments: JsonValue = None
    editable: JsonValue = None


def decision_in(content: Content) -> Decision | None:
    """The decision in a message; None if the message is no decision.

    Raises:
        InvalidParamsError: The decision is malformed.
    """
    found = [
        part.data
        for part in content.parts
        if isinstance(part.data, Mapping) and {"gate", "decision"} <= part.data.keys()
    ]
    if not found:
        return None
    if len(found) > 1:
        raise InvalidParamsError("one message holds one decision; send them one by one")
    try:
        return Decision.model_validate(found[0])
    except ValidationError as error:
        raise InvalidParamsError(f"the decision does not fit: {problems(error)}") from None


def gates_of(record: TaskRecord) -> tuple[Wait, ...]:
    """The open gates of a task."""
    return tuple(wait for wait in record.waits if isinstance(wait.ask, AskApproval))


async def decide(engine: Engine, record: TaskRecord, decision: Decision, caller: str | None, *, vouches: bool) -> None:
    """Send a decision to the task, in the caller's own name.

    Args:
        engine: Runs the task.
        record: The task; the caller may read it.
        decision: The decision.
        caller: None for an anonymous caller.
        vouches: Whether the caller may name the approver.

    Raises:
        UnsupportedOperationError: The caller names another approver without being allowed to, or may not decide.
        InputRejected: The gate refuses the decision.
    """
    approver = decision.approver or caller or ANONYMOUS
    if caller is not None and approver != caller and not vouches:
        raise UnsupportedOperationError(f"{caller} may not decide in the name of {approver}")
    guarded = any(
        wait.gate == decision.gate and isinstance(wait.ask, AskApproval) and wait.ask.policy.guarded
        for wait in record.waits
    )
    await engine.decide(
        record.task_id,
        decision.gate,
        approved=decision.decision == "approved",
        approver=approver,
        digest=decision.digest,
        comment=decision.comment,
        # Signing needs a key, and only gates that restrict who decides require a signature.
        vouched_by=caller if guarded else None,
        changes=decision.changes,
    )
