"""One attempt of an activity: its log line, its heartbeats, its failure as an `ApplicationError`, its result stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeTaskQueueRequest,
    DescribeWorkflowExecutionRequest,
    ResetStickyTaskQueueRequest,
)
from temporalio.client import AsyncActivityCancelledError
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from refold.core.retry_policy import ANOTHER_RELEASE, LEFT, Failure, FailureKind
from refold.core.schema import problems
from refold.core.values import Value, encodable
from refold.effects.asking import told
from refold.effects.failures.building import transient
from refold.effects.failures.classify import classify
from refold.effects.failures.contained import awaited
from refold.effects.failures.verdicts import OTHERS_S, Verdict
from refold.effects.heartbeat import BEATS_PER_TIMEOUT, Heartbeater
from refold.effects.invocation import Stopped
from refold.effects.ledger.receipts import ANY_TRY, LEASE_S
from refold.effects.models.tail import Tail, TokenTail
from refold.effects.progress import Report, Reports
from refold.engine import CodecError, PayloadTooLarge, StorageError
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count, observe

ActivityHeartbeat: Any = None
with suppress(ImportError):  # a release of the SDK that has moved it
    from temporalio.bridge.proto import ActivityHeartbeat

LARGE_BYTES = 32 * 1024
"""Results of this size or more may be written to storage."""

PAUSES_S = (0.25, 15.0)
"""The first and the longest pause, in seconds, before storage or the codec is tried again."""

NOTICED_S = 0.5
"""How soon such a pause notices that nobody waits any more, in seconds."""

LEASES = 3
"""A lease in heartbeat timeouts: after one the server gives the effect to another worker, which waits for two more."""

WANTED_PATIENCE = timedelta(seconds=2)
"""How long the server may take to say whether an attempt is still wanted."""

FREE_PATIENCE = timedelta(milliseconds=500)
"""How long the server may take to let any worker take a task's next step; less than any heartbeat timeout."""

OTHERS_PAUSE = timedelta(seconds=1)
"""The pause before Temporal offers an activity that this worker does not know to a worker again."""

POLL = timedelta(minutes=2)
"""A worker that is given an attempt began to poll less than this before: a poll ends after one minute."""

STOPPED_BY: ContextVar[Callable[[], Stopped] | None] = ContextVar("refold_stopped_by", default=None)
"""Says why an effect is canceled that may outlast the activity that began it; see `refold.effects.short.local`."""

HELD: ContextVar[bool] = ContextVar("refold_held", default=False)
"""Whether the current activity ends only once what it came to can be sent; see `refold.temporal.worker.holding`."""

NEEDS_TASK: ContextVar[Callable[[], None]] = ContextVar("refold_needs_task", default=lambda: None)
"""Called before a task is asked something for an effect: a workflow task that waits for the effect must end first."""

T = TypeVar("T")
V = TypeVar("V", bound=Value)
log = logger(__name__)


async def effect(kind: str, name: str, call: Callable[[], Awaitable[T]], *, counted_as: str | None = None) -> T:
    """Run one effect: classify its failure, log one line, count it, pass a cancellation through.

    Args:
        kind: `llm`, `chat`, `tool` or `notify`.
        name: For the log.
        call: Performs it.
        counted_as: The name in metrics, where the other one is of a task's own.
    """
    counted = counted_as or name
    info = activity.info()
    bound = log.bind(
        effect=kind, name=name, task_id=info.workflow_id, invocation_id=info.activity_id, attempt=info.attempt
    )
    began = time.monotonic()
    try:
        result = encodable(await awaited(_performed(info, call)))
    except asyncio.CancelledError as error:
        if _asked_to_stop():
            bound.info("effect_canceled", seconds=_since(began))
            _count(kind, counted, "canceled", began)
            raise
        # The activity itself was not canceled, so a cancellation inside it is a failure like any other.
        failure = classify(error)
    except Exception as error:  # noqa: BLE001 - every exception is classified here
        failure = classify(error)
    else:
        bound.debug("effect_done", seconds=_since(began))
        _count(kind, counted, "done", began)
        return result
    bound.info("effect_failed", seconds=_since(began), failure=failure.type, kind=failure.kind.value)
    _count(kind, counted, failure.kind.value, began)
    raise as_application_error(failure)


async def _performed(info: activity.Info, call: Callable[[], Awaitable[T]]) -> T:
    """Perform an effect, unless the server has given this attempt up before it begins.

    Where an earlier attempt lost its worker, any worker may take the task's next step meanwhile.

    The server gives a task's next step to the worker that has the task in its cache, mostly the lost one, and waits
    for it (`Profile.sticky`). A worker that lives on after all loads the task again.
    """
    if await _given_up(info):
        raise Verdict(transient("given_up", "its worker was too busy to begin it before the server gave it up"))
    if info.attempt == 1 or info.is_local or not info.workflow_id:
        return await call()
    freeing = asyncio.create_task(_free(info.namespace, info.workflow_id, info.workflow_run_id or ""))
    try:
        return await call()
    finally:
        await freeing


async def _free(namespace: str, workflow_id: str, run_id: str) -> None:
    task = WorkflowExecution(workflow_id=workflow_id, run_id=run_id)
    request = ResetStickyTaskQueueRequest(namespace=namespace, execution=task)
    # RuntimeError: there is no client, in a test of an activity. The step then waits, as it does without.
    with suppress(RPCError, RuntimeError):
        await activity.client().workflow_service.reset_sticky_task_queue(request, retry=True, timeout=FREE_PATIENCE)


async def workers_beside() -> set[str]:
    """The identities of the workers that may have had an attempt of the current activity, lost ones too.

    Those that have polled its task queue since `POLL` before it was scheduled, within the five minutes that the server
    remembers; none if the server does not tell.
    """
    info = activity.info()
    since = info.scheduled_time - POLL
    queue = TaskQueue(name=info.task_queue)
    request = DescribeTaskQueueRequest(
        namespace=info.namespace, task_queue=queue, task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY
    )
    answer = await told(lambda client: client.workflow_service.describe_task_queue(request, retry=True))
    polled = () if answer is None else answer.pollers
    return {one.identity for one in polled if one.last_access_time.ToDatetime(UTC) >= since}


async def was_left() -> bool:
    """Whether the current attempt is the second one, and the worker of the first one left the effect to others."""
    info = activity.info()
    task = WorkflowExecution(workflow_id=info.workflow_id or "", run_id=info.workflow_run_id or "")
    request = DescribeWorkflowExecutionRequest(namespace=info.namespace, execution=task)
    if info.attempt > 2:
        return False
    answer = await told(lambda client: client.workflow_service.describe_workflow_execution(request, retry=True))
    pending = () if answer is None else answer.pending_activities
    last = [one.last_failure for one in pending if one.activity_id == info.activity_id]
    # The server keeps a large failure, shortened, as the cause of one of its own.
    return any(one.application_failure_info.type in LEFT for failure in last for one in (failure, failure.cause))


def _count(kind: str, name: str, outcome: str, began: float) -> None:
    count(metrics.EFFECTS_ENDED, kind, name, outcome)
    observe(metrics.EFFECT_SECONDS, time.monotonic() - began, kind, outcome)


async def until_stored(result: object) -> None:
    """Retry until storage holds a large result: an attempt whose result cannot be sent would be lost and repeated."""
    if not HELD.get() and len(to_json(result)) >= LARGE_BYTES:
        # What is stored goes by its hash, so encoding it again at completion is cheap.
        await until_encoded(lambda: activity.client().data_converter.encode([result]))


def _is_unwanted() -> bool:
    """Whether nobody waits any more for what the current activity comes to. The SDK interrupts neither an activity in a
    thread, nor one that it has interrupted once, nor a local one as its worker leaves."""
    why = activity.cancellation_details()
    if why is not None and (why.worker_shutdown or why.not_found or why.timed_out):
        return True
    return (why is not None or activity.info().is_local) and activity.is_worker_shutdown()


async def until_encoded(
    encode: Callable[[], Awaitable[object]],
    waits: Callable[[], None] = lambda: None,
    unwanted: Callable[[], bool] = _is_unwanted,
) -> None:
    """Repeat the encoding of what the current activity comes to while storage or the codec is away.

    Args:
        encode: Encodes it.
        waits: Called if the first attempt fails.
        unwanted: Ends the waiting.
    """
    if await _is_encoded(encode):
        return
    waits()
    pause = PAUSES_S[0]
    while await _paused(pause, unwanted) and not await _is_encoded(encode):
        pause = min(2 * pause, PAUSES_S[1])


async def _is_encoded(encode: Callable[[], Awaitable[object]]) -> bool:
    try:
        await encode()
    except PayloadTooLarge:
        return True  # storage is off, or the codec never takes it; completing the activity reports the error
    except (CodecError, StorageError) as error:
        awaited = "codec_awaited" if isinstance(error, CodecError) else "storage_awaited"
        log.warning(awaited, invocation_id=activity.info().activity_id, error=str(error))
        count(metrics.STORAGE_AWAITED)
        return False
    return True


async def _paused(seconds: float, unwanted: Callable[[], bool]) -> bool:
    """Wait so long; False if what is waited for is not wanted any more."""
    while seconds > 0 and not unwanted():
        await asyncio.sleep(min(seconds, NOTICED_S))
        seconds -= NOTICED_S
    return not unwanted()


def _asked_to_stop() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def why_stopped() -> Stopped:
    """Why the current attempt is canceled."""
    if (says := STOPPED_BY.get()) is not None:
        return says()
    why = activity.cancellation_details()
    if why is None or why.cancel_requested:
        return Stopped.UNWANTED
    if why.worker_shutdown:
        return Stopped.LEAVING
    return Stopped.TIMED_OUT if why.not_found or why.timed_out else Stopped.UNWANTED


async def still_wanted() -> bool:
    """Whether the server still wants the current attempt. A cancellation otherwise comes with the next heartbeat.

    Raises:
        RPCError: The server does not say.
    """
    # A worker knows what is local: it would have canceled the attempt.
    return activity.info().is_local or await _why_unwanted() is None


async def _given_up(info: activity.Info) -> bool:
    """Whether the server has given the current attempt up before it begins, so that another one performs the effect.

    The server counts the heartbeat timeout from when it hands an attempt out, and a worker that is given much at once
    begins the last of it a second or more later. By clocks that differ, the server is asked without need, or not.
    """
    if info.heartbeat_timeout is None or info.is_local:
        return False
    if datetime.now(UTC) - info.started_time < info.heartbeat_timeout / BEATS_PER_TIMEOUT:
        return False
    with suppress(RPCError, RuntimeError):  # it does not say; or there is no client, in a test of an activity
        return await _why_unwanted() is Stopped.TIMED_OUT
    return False


async def _why_unwanted() -> Stopped | None:
    """Why the server does not want the current attempt any more; None if it does. Asked by a heartbeat.

    Raises:
        RPCError: The server does not say.
    """
    attempt = activity.client().get_async_activity_handle(task_token=activity.info().task_token)
    try:
        await attempt.heartbeat(rpc_timeout=WANTED_PATIENCE)
    except AsyncActivityCancelledError:
        return Stopped.UNWANTED
    except RPCError as error:
        if error.status is not RPCStatusCode.NOT_FOUND:
            raise
        return Stopped.TIMED_OUT
    return None


def about_try(decided: int | bool, attempt: int) -> int:
    """The fence of the attempt that a person decided to repeat, for `Ask.decided`; see `activities`."""
    if decided is True:
        return ANY_TRY if attempt == 1 else 0
    return int(decided)


def lease_s(info: activity.Info) -> float:
    """The lease of an effect: longer than the heartbeat timeout, since a stalled worker may resume after it."""
    return LEASE_S if info.heartbeat_timeout is None else LEASES * info.heartbeat_timeout.total_seconds()


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


def as_application_error(failure: Failure, *, retryable: bool = False) -> ApplicationError:
    """The failure as a Temporal error; raise it without a cause, since a library's exception may quote a body."""
    failure = encodable(failure)  # else the SDK sends another error in its place, and Temporal repeats the effect
    transient = failure.kind is FailureKind.TRANSIENT
    return ApplicationError(
        failure.message,
        failure,
        type=failure.type,
        non_retryable=not retryable,
        # Benign: the SDK neither logs nor counts a failure that the task retries.
        category=ApplicationErrorCategory.BENIGN if transient else ApplicationErrorCategory.UNSPECIFIED,
    )


def left_to_others(type: str, message: str, *, kind: FailureKind = FailureKind.PERMANENT) -> ApplicationError:
    """The error of an activity that this worker does not know. Temporal dispatches it again, perhaps to a worker that
    knows it; after the last attempt the task goes on asking, for `OTHERS_S`. This worker performed nothing."""
    log.warning("left_to_others", activity=activity.info().activity_type, failure=type, reason=message)
    count(metrics.LEFT_TO_OTHERS, type)
    failure = Failure(kind=kind, type=type, message=message, again_s=OTHERS_S)
    return ApplicationError(
        message, failure, type=type, next_retry_delay=OTHERS_PAUSE, category=ApplicationErrorCategory.BENIGN
    )


def another_release(message: str, *, receipt: bool) -> ApplicationError:
    """The error of an attempt of which only another release's workers know what it asks for.

    Args:
        message: What this worker does not know.
        receipt: The effect may have a receipt: a worker that knew it may have performed it and been lost, so this one
            cannot say that it never took place.
    """
    kind = FailureKind.UNKNOWN if receipt else FailureKind.PERMANENT
    return left_to_others(ANOTHER_RELEASE, message, kind=kind)


def readable(kind: type[V], given: Any, *, receipt: bool = False) -> V:
    """An activity's argument, as a value of refold; see `another_release`.

    Raises:
        ApplicationError: It does not fit: another release of refold wrote it, and its workers can read it.
    """
    try:
        if isinstance(given, RawValue):
            read: V = activity.payload_converter().from_payload(given.payload, kind)
            return read
        return kind.model_validate(given)
    except ValidationError as error:
        message = f"this worker cannot read the command, which another release of refold wrote: {problems(error)}"
        raise another_release(message, receipt=receipt) from None


@contextmanager
def heartbeats(
    heartbeater: Heartbeater, tail: Tail | Reports | None = None, *, beat: Callable[[], None] | None = None
) -> Iterator[None]:
    """Heartbeat for the current activity inside the block, with the newest model text or report if there is one; or by
    `beat`, called in the event loop."""
    info = activity.info()
    if info.heartbeat_timeout is None or info.is_local:
        yield
        return

    def ask_loop() -> None:
        activity.heartbeat(*_details(tail))

    ask = ask_loop if beat is None else beat
    with heartbeater.beating(info.heartbeat_timeout.total_seconds(), ask, _bare_heartbeat(info.task_token)):
        yield


def _details(tail: Tail | Reports | None) -> tuple[TokenTail | Report | None, ...]:
    return () if tail is None or tail.empty else (tail.newest(),)


def _bare_heartbeat(task_token: bytes) -> Callable[[], None]:
    """A function that sends a heartbeat without details from any thread, even while the event loop is busy.

    Uses a private method of sdk-core, since no public one works: `activity.heartbeat` needs the event loop for
    its codec, and a heartbeat by a client (`get_async_activity_handle`) satisfies the server but not sdk-core, which
    times the activity out by its own clock five seconds after the heartbeat timeout. If a later SDK lacks the method, a
    busy loop sends no heartbeats, and a test against the server fails.
    """
    try:
        sender: Any = activity._Context.current().heartbeat.__self__  # type: ignore[union-attr]
        while hasattr(sender, "next"):  # interceptors wrap it
            sender = sender.next
        record = sender._worker._bridge_worker().record_activity_heartbeat
        ActivityHeartbeat(task_token=task_token)
    except (AttributeError, TypeError, ValueError):
        return lambda: None
    return lambda: record(ActivityHeartbeat(task_token=task_token))
