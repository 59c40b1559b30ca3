"""Decisions at gates, as messages: data parts with a gate's id and digest each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from refold.core.commands import AskApproval
from refold.core.content import Content
from refold.core.gates import DecisionMade, written_as
from refold.core.schema import fields_of, problems
from refold.engine import Decision, Engine, TaskNotFound
from refold.record import TaskRecord

ANONYMOUS = "anonymous"
"""The approver, if the caller is anonymous and names none."""


AS_SHOWN = ("kind", "arguments", "editable")
"""What a decision may repeat of what the gate shows."""


class DecisionPart(BaseModel):
    """A data part that is a decision. It may also contain the data that the gate showed.

    Attributes:
        gate: The gate's id; or its slot, which names it while it is open.
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


def decisions_in(content: Content) -> list[DecisionPart]:
    """The decisions in a message, which are taken together or not at all; empty if the message is none.

    Raises:
        InvalidParamsError: A decision is malformed.
    """
    found = [
        part.data
        for part in content.parts
        if isinstance(part.data, Mapping) and "gate" in part.data and part.data.keys() & {"digest", "decision"}
    ]
    try:
        return [DecisionPart.model_validate(one) for one in found]
    except ValidationError as error:
        fields = ", ".join(name for name in fields_of(DecisionPart) if name.removesuffix("?") not in AS_SHOWN)
        raise InvalidParamsError(f"the decision does not fit: {problems(error)}; a decision has {fields}") from None


async def decide(
    engine: Engine, record: TaskRecord, decisions: Sequence[DecisionPart], caller: str | None, *, vouches: bool
) -> None:
    """Send the decisions of a message to the task, in the caller's own name.

    Args:
        engine: Runs the task.
        record: The task; the caller may read it.
        decisions: At least one.
        caller: None for an anonymous caller.
        vouches: Whether the caller may name the approver.

    Raises:
        InvalidParamsError: The decisions name several approvers.
        UnsupportedOperationError: The caller names another approver without being allowed to, or may not decide.
        InputRejected: A gate refuses its decision, so that none is taken.
    """
    approver, *others = sorted({_approver(one, caller) for one in decisions})
    if others:
        raise InvalidParamsError("the decisions of one message are one person's; send those of each apart")
    if caller is not None and approver != caller and not vouches:
        raise UnsupportedOperationError(f"{caller} may not decide in the name of {approver}")
    named = {one.gate for one in decisions}
    gates = [(wait.gate, wait.ask) for wait in record.waits if isinstance(wait.ask, AskApproval)]
    guarded = any(ask.policy.guarded for gate, ask in gates if named & {gate, ask.slot})
    made = [
        Decision(
            gate=one.gate,
            approved=one.decision == "approved",
            digest=one.digest,
            comment=one.comment,
            changes=one.changes,
        )
        for one in decisions
    ]
    # Signing needs a key, and only gates that restrict who decides require a signature.
    await engine.decide_together(record.task_id, made, approver=approver, vouched_by=caller if guarded else None)


async def were_made(engine: Engine, record: TaskRecord, decisions: Sequence[DecisionPart], caller: str | None) -> bool:
    """Whether a task, or the parts of it that asked, have taken these decisions of this caller; false for none.

    Args:
        engine: Runs the task.
        record: The task.
        decisions: Of one message.
        caller: None for an anonymous caller.
    """
    missing = [
        (one.gate, one.digest, one.decision, one.comment, written_as(_approver(one, caller), ()), one.changes)
        for one in decisions
    ]
    # A part's gates have its id in theirs.
    parts = {one.gate.rpartition("/")[0] for one in decisions if one.gate.startswith(f"{record.task_id}/")}
    for task_id in sorted({record.task_id, *parts}) if missing else ():
        with suppress(TaskNotFound):  # there is no such part
            async for entry in engine.journal(task_id):
                made = entry.event
                if isinstance(made, DecisionMade) and not entry.refused:
                    name = written_as(made.approver, ())
                    said = (made.gate, made.digest, made.decision, made.comment, name, made.changes)
                    missing = [one for one in missing if one != said]
    return bool(decisions) and not missing


def _approver(decision: DecisionPart, caller: str | None) -> str:
    return decision.approver or caller or ANONYMOUS
