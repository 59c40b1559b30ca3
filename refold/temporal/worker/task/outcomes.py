"""Turns the finished future of a command or an alarm into the event that the fold takes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, assert_never

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    ChildWorkflowError,
    FailureError,
    TerminatedError,
    TimeoutError,
)

from refold.conversation import LlmOutcome
from refold.core.chat import Reply
from refold.core.commands import (
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Notify,
    Sleep,
)
from refold.core.events import (
    ActivityResult,
    ChatResult,
    CommandFailed,
    Event,
    LlmResult,
    Notified,
    SkillOutcome,
    SkillResult,
    ToolResult,
    WorkflowResult,
)
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, Want
from refold.core.retry_policy import LEFT, NOT_READABLE, Failure, FailureKind
from refold.core.schema import problems
from refold.core.values import Value
from refold.engine import PayloadTooLarge
from refold.temporal.data.inputs import AnotherRelease, Newer, Unread, adds
from refold.temporal.data.wire import TaskResult

LOST_S = 3600.0
"""How long, in seconds, a command is sent again whose workers were lost or could not read it. Then a person is asked,
or, if no worker could read it and it is no tool's, the command fails."""

UNREAD_PATCH = "refold.unread_unknown"
"""The patch with which it is not known whether a tool's effect took place that a worker could not read."""

ANOTHER_LEDGER = "another_ledger"
"""The type of the failure of a worker that does not see what was performed for the task (`refold.effects.short`)."""

CANCELED = Failure(kind=FailureKind.PERMANENT, type="canceled", message="it was canceled from outside")
"""The failure of an activity or a part that somebody else canceled."""


class AnotherLedger(Exception):
    """This worker has another ledger than the one that recorded the task's effects.

    Fails the workflow task, so that another worker may take it.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOutcome:
    """What came of an effect that was performed within a workflow task.

    Attributes:
        event: The outcome; None where the effect goes over to a regular activity.
        at: When it came; None where it goes over.
        recorded: The ledger brings it again if its workflow task is lost, which a failure is not.
        size: Of its result, in bytes; 0 for a failure.
    """

    event: Event | None = None
    at: datetime | None = None
    recorded: bool = False
    size: int = 0


def local_outcome(want: Perform, done: asyncio.Future[Any]) -> LocalOutcome:
    """What came of a local activity.

    Raises:
        AnotherLedger: Another worker has to go on with the task.
        AnotherRelease: The same.
    """
    if done.cancelled():
        return LocalOutcome()  # by its worker, which is stopped
    error = done.exception()
    if error is None:
        return _read_local(want, done.result())
    cause = error.cause if isinstance(error, ActivityError) else error
    if isinstance(cause, ApplicationError) and cause.type == ANOTHER_LEDGER:
        raise AnotherLedger(cause.message)
    # Only what the effect itself said is its failure: a worker that does not know it, or leaves, is none.
    if not isinstance(cause, ApplicationError) or len(cause.details) < 2 or cause.type in LEFT:
        return LocalOutcome()
    failure = _classified(cause, want)
    failed = CommandFailed(id=want.command.id, invocation_id=want.invocation_id, failure=failure)
    return LocalOutcome(event=failed, at=_moment(cause.details[1]))


def _read_local(want: Perform, brought: Any) -> LocalOutcome:
    written = b""
    try:
        at, value = brought
        kind, written = _VALUES.get(type(want.command)), to_json(value)
        event = _result_or_failure(want, value if kind is None else kind.model_validate_json(written))
        return LocalOutcome(event=event, at=_moment(at), recorded=True, size=len(written))
    except (TypeError, ValueError) as error:  # an `Unread`, for example
        if isinstance(error, ValidationError) and adds(error, written):
            _leave_newer("returned this result", problems(error))
        return LocalOutcome()


def _leave_newer(did: str, why: str) -> None:
    """Leave an outcome that this release cannot read to workers of the newer one whose worker brought it.

    Not in a replay: of what an earlier release took for a failure, or for an effect that goes over, the task goes on.

    Raises:
        AnotherRelease: Another worker has to go on with the task.
    """
    if not workflow.unsafe.is_replaying():
        raise AnotherRelease(f"another release of refold {did}: {why}")


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


_VALUES: dict[type, type[Value]] = {CallLlm: LlmOutcome, CallChat: Reply}


def outcome(want: Want, done: asyncio.Future[Any]) -> Event | None:
    """The event that a finished future is; None for what was canceled because nobody wants it any more.

    Raises:
        AnotherRelease: Another worker has to go on with the task.
    """
    if done.cancelled():
        return None
    error = done.exception()
    if isinstance(want, Alarm):
        return want.event if error is None else None
    if isinstance(want, SendAnswer):
        return None  # a part that is gone has an outcome of its own
    if error is None:
        return _result_or_failure(want, done.result())
    if not isinstance(error, FailureError | PayloadTooLarge):
        raise error
    failure = failure_of(error, want)
    return CommandFailed(id=want.command.id, invocation_id=want.invocation_id, failure=failure)


_OF_REFOLD = {CallLlm: LlmOutcome, CallChat: Reply, CallSkill: SkillOutcome | TaskResult}


def _result_or_failure(want: Perform, value: Any) -> Event:
    """The command's result; a failure where it is none, which an activity or a workflow of any program may return."""
    if isinstance(value, Newer):
        _leave_newer("returned this result", value.why)
    expected = _OF_REFOLD.get(type(want.command), object)
    try:
        if isinstance(value, expected) and not isinstance(value, Unread):
            return _result(want, value)
        why = value.why if isinstance(value, Unread) else f"{type(value).__name__} came"
    except ValidationError:
        why = f"{type(value).__name__} is no JSON"
    failure = Failure(kind=FailureKind.PERMANENT, type="result", message=f"its result cannot be read: {why}")
    return CommandFailed(id=want.command.id, invocation_id=want.invocation_id, failure=failure)


def _result(want: Perform, value: Any) -> Event:
    ids = {"id": want.command.id, "invocation_id": want.invocation_id}
    match want.command:
        case CallLlm():
            answer: LlmOutcome = value
            return LlmResult(**ids, value=answer.value, model=answer.model, usage=answer.usage)
        case CallChat():
            return ChatResult(**ids, reply=value)
        case CallTool():
            return ToolResult(**ids, value=value)
        case Notify():
            return Notified(**ids)
        case CallActivity():
            return ActivityResult(**ids, value=value)
        case CallSkill():
            found = value if isinstance(value, SkillOutcome) else value.outcome
            return SkillResult(**ids, outcome=found)
        case CallWorkflow():
            return WorkflowResult(**ids, value=value)
        case Sleep():
            raise AssertionError("a sleep is an alarm")
        case _:
            assert_never(want.command)


def failure_of(error: BaseException, want: Perform | None = None) -> Failure:
    """Why an activity or a child failed, as it was classified where it ran.

    Args:
        error: What the SDK raised.
        want: Whose failure it is, if it is a command's.

    Raises:
        AnotherRelease: Another worker has to go on with the task.
    """
    cause = error.cause if isinstance(error, ActivityError | ChildWorkflowError) and error.cause else error
    match cause:
        case ApplicationError() if isinstance(error, ActivityError):
            return _classified(cause, want)
        case ApplicationError():
            return Failure(kind=FailureKind.PERMANENT, type=cause.type or "failed", message=cause.message)
        case TimeoutError():
            # Many workers may be killed at once, so it is sent again later; one that must not be repeated is looked up.
            message = "its worker was lost, or it took too long, again and again"
            return Failure(kind=FailureKind.UNKNOWN, type="worker_lost", message=message, again_s=LOST_S)
        case CancelledError():
            return CANCELED
        case TerminatedError():
            return Failure(kind=FailureKind.PERMANENT, type="terminated", message="it was terminated from outside")
        case _:
            return Failure(kind=FailureKind.PERMANENT, type=type(cause).__name__, message=str(cause))


def _classified(error: ApplicationError, want: Perform | None) -> Failure:
    if error.type == NOT_READABLE:
        kind = FailureKind.UNKNOWN if _may_be_done(want) else FailureKind.PERMANENT
        return Failure(kind=kind, type=NOT_READABLE, message=error.message, again_s=LOST_S)
    if error.details:
        try:
            return Failure.model_validate(error.details[0])
        except ValidationError as misfit:
            # A worker of refold writes the type in both places; whoever else fails an activity has details of its own.
            own = want is not None and isinstance(want.command, CallActivity) and error.type not in LEFT
            if not own and adds(misfit, error.details[0]) and error.details[0].get("type") == error.type:
                _leave_newer("reported this failure", problems(misfit))
    return Failure(kind=FailureKind.PERMANENT, type=error.type or "failed", message=error.message)


def _may_be_done(want: Perform | None) -> bool:
    """Whether a worker that could read what is wanted may have performed it, and been lost before its last attempt.

    The last worker cannot tell: not even which tool's receipt to look for. Where a person has said what came of the
    effect, that is what counts.
    """
    called = want is not None and isinstance(want.command, CallTool) and want.given is None
    return called and workflow.patched(UNREAD_PATCH)
