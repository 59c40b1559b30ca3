"""The audit of a skill with a contract: what each step read, wrote and moved, and where a field's value comes from.

The fold writes the audit into the journal's entries, always. Source: S1.58 to S1.60.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import JsonValue

from refold.core.errors import CommandError, ContractError, text_of
from refold.core.retry_policy import FailureKind
from refold.core.values import Value, lean

ORCHESTRATOR = "orchestrator"
"""The writer of the first state and of the changes of a move's `then`, in the audit."""


class ErrorRecord(Value):
    """Why a step failed, as data, for the audit and for an `on_error` step.

    Attributes:
        type: The error's class, or the failure's short name: `UnauthorizedWriteError`, `http_404`.
        message: One sentence for people.
        stage: The step.
        at: When the step failed.
        retryable: Whether the failure was transient, with no retry left.
        lifecycle: The state of the skill's own lifecycle in which the step ran.
        field: The field that the error names; empty if none.
        rule: The rule that was broken, if the contract was.
        expected: What the rule expects.
        actual: What was found instead.
    """

    type: str
    message: str
    stage: str
    at: datetime
    retryable: bool = lean(False)
    lifecycle: str = lean("")
    field: str = lean("")
    rule: str = lean("")
    expected: str = lean("")
    actual: str = lean("")


def error_record(error: BaseException, kind: str, *, stage: str, lifecycle: str, at: datetime) -> ErrorRecord:
    """Why a step failed, as data. `kind` is the record's type, except for a command's failure, which has its own."""
    about: dict[str, Any] = {"type": kind}
    match error:
        case ContractError(field=field, rule=rule, expected=expected, actual=actual):
            about |= {"field": field, "rule": rule, "expected": expected, "actual": actual}
        case CommandError(failure=failure):
            about |= {"type": failure.type, "retryable": failure.kind is FailureKind.TRANSIENT}
        case _:
            pass
    return ErrorRecord(message=text_of(error), stage=stage, lifecycle=lifecycle, at=at, **about)


class StateTransitionEvent(Value):
    """One execution of a step. Source: S1.58.

    Attributes:
        session_id: The state's field of this name; the task's id if the state has no such field.
        stage: The step; `orchestrator` for the first state.
        from_state: The lifecycle's state before; the step's name if the contract has no moves.
        to_state: The state after; `from_state` if the step failed.
        read_set: The fields that the step may read.
        write_set: The fields that the step may write.
        patch: The step's changes; empty if it failed.
        owned: The orchestrator's changes of the same move.
        started_at: When the step was entered: the time of that entry.
        finished_at: When the step ended: the time of this entry.
        awaited: The invocation ids of the commands and questions that the step waited for, oldest first.
        free: Whether the step declares `enforce_moves=False`.
        err: Why the step failed; None if it did not.
    """

    session_id: str
    stage: str
    from_state: str
    to_state: str
    read_set: tuple[str, ...] = lean(())
    write_set: tuple[str, ...] = lean(())
    patch: dict[str, JsonValue] = lean(factory=dict)
    owned: dict[str, JsonValue] = lean(factory=dict)
    started_at: datetime
    finished_at: datetime
    awaited: tuple[str, ...] = lean(())
    free: bool = lean(False)
    err: ErrorRecord | None = lean()
