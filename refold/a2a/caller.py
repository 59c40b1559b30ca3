"""The caller of a method, and the tasks that it may see."""

from __future__ import annotations

from a2a.server.context import ServerCallContext

from refold.core.commands import AskApproval
from refold.core.gates import is_among
from refold.record import TaskRecord


def caller_of(context: ServerCallContext) -> str | None:
    """The authenticated principal; None for an anonymous caller."""
    return context.user.user_name if context.user.is_authenticated else None


def owns(caller: str | None, record: TaskRecord) -> bool:
    """Whether a task belongs to the caller. Anonymous callers share the tasks without an owner."""
    return record.owner == caller


def may_read(caller: str | None, record: TaskRecord) -> bool:
    """Whether the caller may see a task: as its owner, or as an approver of one of its open gates."""
    if owns(caller, record):
        return True
    asks = (wait.ask for wait in record.waits)
    return caller is not None and any(
        isinstance(ask, AskApproval) and is_among(caller, ask.policy.approvers) for ask in asks
    )
