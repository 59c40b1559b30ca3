"""Decisions at gates, as messages: a data part that names the gate, and what it showed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from refold.core.commands import AskApproval
from refold.core.content import Content
from refold.core.fold.record import TaskRecord
from refold.core.schema import problems
from refold.core.waits import Wait
from refold.engine import Engine

ANONYMOUS = "anonymous"
"""Who decides, where nobody is known and nobody is named."""


class Decision(BaseModel):
    """What a data part says that decides. What was shown may be sent back with it.

    Attributes:
        gate: The gate's id.
        digest: What the caller was shown.
        decision: The only two there are.
        comment: Why.
        approver: Who decided; None is the caller. Another name than the caller's is refused.
        changes: What is granted differently from what is shown, where the gate lets that be edited.
        kind: As it was shown; not read.
        arguments: As they were shown; not read: the digest stands for them.
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
    """The decision that a message is; None where it is something else.

    Raises:
        InvalidParamsError: It is one, and is written wrongly.
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
    """Have a decision taken, in the caller's own name.

    Args:
        engine: Where the task is.
        record: The task; the caller may read it.
        decision: What is decided.
        caller: Who calls; None where nobody is known.
        vouches: The caller may say who decided.

    Raises:
        UnsupportedOperationError: The caller claims to be somebody else; or is not the one to decide.
        InputRejected: The gate does not take it.
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
        # It takes a key, which only gates with rules about who decides ask for.
        vouched_by=caller if guarded else None,
        changes=decision.changes,
    )
