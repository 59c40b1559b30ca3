"""Starts what a task wants on Temporal: a command as an activity or child workflow, an alarm as a timer.

Each start returns a future; `refold.temporal.worker.task.outcomes` makes an event of each finished one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Literal, assert_never

from pydantic import Field
from temporalio import workflow
from temporalio.common import RetryPolicy, TypedSearchAttributes
from temporalio.exceptions import ApplicationError

from refold.conversation import MEMORY_TOOLS, LlmOutcome, request_of
from refold.core.chat import Reply
from refold.core.commands import (
    CallActivity,
    CallChat,
    CallLlm,
    CallSkill,
    CallTool,
    CallWorkflow,
    Effect,
    Notify,
    Sleep,
)
from refold.core.events import UserMessage
from refold.core.fold.snapshot import Snapshot
from refold.core.fold.wanted import Alarm, Perform, SendAnswer, Want
from refold.cost import OWNER_DAY
from refold.engine import PayloadTooLarge
from refold.engine.refusals import not_needed
from refold.temporal.data.search_attributes import at_start
from refold.temporal.data.wire import (
    CHAT_ACTIVITY,
    LLM_ACTIVITY,
    NOTIFY_ACTIVITY,
    TOOL_ACTIVITIES,
    EarlierPart,
    TaskResult,
    TaskStart,
)
from refold.temporal.worker import profile
from refold.temporal.worker.task.signals import signal

LOCAL_PATIENCE = timedelta(seconds=60)
"""How long a local activity may wait for a free slot of its worker, and for its effect."""

_CLOSE, _CANCEL = workflow.ParentClosePolicy, workflow.ChildWorkflowCancellationType
_WAIT = workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED


class _ModelCall(CallLlm):
    """A model call as its activity gets it: without its kind, which the activity's name says."""

    kind: Literal["llm"] = Field(default="llm", exclude=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How an effect is started.

    Attributes:
        part: For a part of a task that this one goes on for: how far it came.
        wrapped: The skill has middleware around its effects, which is told the task's owner.
        recovery: The skill's own timeouts; None takes the worker's.
        ledger: The id of the ledger that holds its outcome, if it takes the short way, or has gone over from it.
        local: It is performed within the workflow task; its future then holds a `Brought`.
        started: Called with its id once the server has started it, if it is a part.
    """

    part: EarlierPart = field(default_factory=EarlierPart)
    wrapped: bool = False
    recovery: profile.Profile | None = None
    ledger: str | None = None
    local: bool = False
    started: Callable[[str], None] = lambda _: None


def begin(want: Want, task: Snapshot, how: How) -> asyncio.Future[Any]:
    """Start what is wanted; called from workflow code only.

    Args:
        want: The effect or alarm.
        task: The task that wants it.
        how: How it is started, if it is an effect.
    """
    if isinstance(want, Alarm):
        return _timer(want, task)
    if isinstance(want, SendAnswer):
        said = want.message.model_dump(mode="json", exclude={"kind"})
        return asyncio.ensure_future(signal(want.task_id, "message", said))
    try:
        return _effect(want, task, how)
    except PayloadTooLarge as error:
        # As the command's outcome: raised here, it would refuse an update whose event the task has taken.
        return _failed(error)


def _timer(alarm: Alarm, task: Snapshot) -> asyncio.Future[Any]:
    # The task's time is ahead of the server's where a ledger with such a clock recorded a result.
    left = max(alarm.due_at - max(workflow.now(), task.at), timedelta(milliseconds=1))
    return asyncio.ensure_future(workflow.sleep(left, summary=alarm.summary))


def _effect(want: Perform, task: Snapshot, how: How) -> asyncio.Future[Any]:
    command, part, timeouts = want.command, how.part, how.recovery or profile.current()
    told = how.wrapped or _has_own_key(command) or _has_own_limit(command) or _remembers(command)
    owner = task.owner if told else None
    pending = task.pending.get(want.invocation_id)
    probes = pending is not None and pending.blocked
    activity = partial(_local, want) if how.local else partial(_activity, want, timeouts, probes=probes)
    match command:
        case CallLlm():
            # Left out if false, since it would be written to history with each call.
            call = _ModelCall.trusted(**vars(command))
            args = _lean([call, task.stream, owner, how.ledger], [False, None, None])
            return activity(LLM_ACTIVITY, args, LlmOutcome, queue=command.queue)
        case CallChat():
            assert want.prior is not None
            request = request_of(command, want.prior)
            args = _lean([request, task.stream, owner, how.ledger], [False, None, None])
            return activity(CHAT_ACTIVITY, args, Reply, queue=command.queue)
        case CallTool():
            decided = want.decided if want.given is None else False
            args = [command, decided, *_lean([want.given, owner, how.ledger], [None, None, None])]
            return activity(TOOL_ACTIVITIES + command.name, args, None, queue=command.queue)
        case Notify():
            return activity(NOTIFY_ACTIVITY, [command], None, queue=None)
        case CallActivity():
            timeout = timedelta(seconds=command.timeout_s)
            return activity(command.name, list(command.args), None, queue=command.queue, timeout=timeout)
        case CallSkill():
            if part.outcome is not None:
                return _known(part.outcome)
            start = TaskStart(
                message=UserMessage(content=command.input) if part.journal is None else None,
                recover=part.journal,
                in_turn=part.in_turn,
                parts=part.parts,
                stream=task.stream,
                parent=task.task_id,
                budget=command.budget,
                owner=task.owner,
                started_by=task.started_by,
                context=task.context,
            )
            shown = at_start(command.skill, workflow.now())
            return _child(want, command.skill, [start], TaskResult, command.queue, shown, how.started)
        case CallWorkflow():
            return _child(want, command.name, list(command.args), None, command.queue)
        case Sleep():
            raise AssertionError("a sleep is an alarm")
        case _:
            assert_never(command)


def _has_own_key(command: Effect) -> bool:
    """Whether a command, or the effect that it compensates, has a business key of the owner's own."""
    keyed = (command, command.undoes) if isinstance(command, CallTool) else ()
    return any(one is not None and one.key is not None and one.key_scope == "owner" for one in keyed)


def _has_own_limit(command: Effect) -> bool:
    """Whether a model call counts towards what the owner may spend in a day."""
    match command:
        case CallLlm(settings=settings):
            return OWNER_DAY in settings
        case CallChat(frame=frame):
            return frame is not None and OWNER_DAY in frame.settings
        case _:
            return False


def _remembers(command: Effect) -> bool:
    """Whether a tool call reads or writes what its owner's tasks remember."""
    return isinstance(command, CallTool) and command.name in MEMORY_TOOLS


def _lean(args: list[Any], defaults: list[Any]) -> list[Any]:
    """The arguments up to the last one that differs from its default, since each is written to history."""
    while defaults and args[-1] == defaults[-1]:
        args, defaults = args[:-1], defaults[:-1]
    return args


def _known(value: Any) -> asyncio.Future[Any]:
    """A future that is done, for an outcome that is known already."""
    known = asyncio.get_running_loop().create_future()
    known.set_result(value)
    return known


def _failed(error: Exception) -> asyncio.Future[Any]:
    failed = asyncio.get_running_loop().create_future()
    failed.set_exception(error)
    return failed


def _activity(
    want: Perform,
    timeouts: profile.Profile,
    name: str,
    args: list[Any],
    result_type: type | None,
    *,
    probes: bool,
    queue: str | None,
    timeout: timedelta | None = None,
) -> asyncio.Future[Any]:
    existing = timeout is not None  # an activity of the user's own may not heartbeat
    return workflow.start_activity(
        name,
        args=args,
        result_type=result_type,
        activity_id=want.invocation_id,
        # Where a person decides meanwhile, the next attempt has the same id, and begins once this one has ended.
        cancellation_type=_WAIT if probes else workflow.ActivityCancellationType.TRY_CANCEL,
        task_queue=queue,
        start_to_close_timeout=timeout or timeouts.effect,
        heartbeat_timeout=None if existing else timeouts.heartbeat,
        retry_policy=_worker_loss(timeouts),
        summary=_summary(want),
    )


def _local(
    want: Perform, name: str, args: list[Any], result_type: type | None, *, queue: str | None
) -> asyncio.Future[Any]:
    return workflow.start_local_activity(
        name,
        args=args,
        activity_id=want.invocation_id,
        # Its worker is there, and answers soon. Where it does not, the regular activity of the same id does.
        schedule_to_close_timeout=LOCAL_PATIENCE,
        retry_policy=RetryPolicy(maximum_attempts=1),
        cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
    )


CANCELED_AT_ONCE = "refold.part_canceled_at_once"


class LeftOpen(asyncio.Future[Any]):
    """A part that an earlier run started. It never ends by itself, since the part sends its outcome as a signal.

    Whoever cancels it cancels the part, also at once: the run's first event may do so. Earlier releases left the part
    as it was then; a patch marker in history says that this one does not.

    Called from workflow code only.

    Args:
        part: The part's id.
    """

    def __init__(self, part: str) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop=loop)
        self._part = part
        self._begun = self._dropped = False
        self._canceling: asyncio.Future[None] | None = None
        loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._begun = True
        if self._dropped:
            super().cancel()

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the part; it is canceled itself once the server has the request."""
        if self._canceling is not None or self._dropped or self.done():
            return False
        if self._begun or workflow.patched(CANCELED_AT_ONCE):
            self._canceling = asyncio.ensure_future(self._end(msg))
        else:
            self._dropped = True
        return True

    async def _end(self, msg: Any | None) -> None:
        try:
            await _cancel(self._part)
        except Exception as error:  # noqa: BLE001 - whoever waits for the part is told
            self.set_exception(error)
        else:
            super().cancel(msg)


async def _cancel(part: str) -> None:
    reason = not_needed(workflow.info().workflow_id)
    await workflow.get_external_workflow_handle(part).cancel(reason=reason)


def _child(
    want: Perform,
    name: str,
    args: list[Any],
    result_type: type | None,
    queue: str | None,
    shown: TypedSearchAttributes | None = None,
    started: Callable[[str], None] = lambda _: None,
) -> asyncio.Future[Any]:
    is_part = isinstance(want.command, CallSkill)

    async def whole() -> Any:
        child = await workflow.start_child_workflow(
            name,
            args=args,
            id=want.invocation_id,
            result_type=result_type,
            task_queue=queue,
            search_attributes=shown,
            # The server would cancel a part also where its task continues in a new run. A task that ends cancels its
            # parts itself, and waits until they have ended: as canceled, with their journals.
            parent_close_policy=_CLOSE.ABANDON if is_part else _CLOSE.REQUEST_CANCEL,
            cancellation_type=_CANCEL.WAIT_CANCELLATION_REQUESTED if is_part else _CANCEL.WAIT_CANCELLATION_COMPLETED,
            static_summary=f"{name}, for {workflow.info().workflow_id}",
        )
        started(want.invocation_id)
        try:
            return await asyncio.shield(child)
        except asyncio.CancelledError:
            if not child.done():  # the SDK would cancel its first run alone, which is over where it has gone on since
                with contextlib.suppress(ApplicationError):  # it has ended meanwhile, and says so by itself
                    await _cancel(want.invocation_id)
                await asyncio.wait([child])
            raise

    return asyncio.ensure_future(whole())


def _worker_loss(timeouts: profile.Profile) -> RetryPolicy:
    """Temporal's own retry policy, for lost workers only: refold marks all other failures non-retryable."""
    return RetryPolicy(
        initial_interval=timeouts.first_retry, backoff_coefficient=2.0, maximum_attempts=timeouts.max_attempts
    )


def _summary(want: Perform) -> str:
    return want.command.id if want.attempt == 1 else f"{want.command.id} (try {want.attempt})"
