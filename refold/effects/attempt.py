"""One try of an activity: its line in the log, its heartbeats, its failure as Temporal carries it, its result kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import structlog
from pydantic_core import to_json
from temporalio import activity
from temporalio.bridge.proto import ActivityHeartbeat
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from refold.core.errors import PayloadTooLarge, StorageError
from refold.core.retry import Failure, FailureKind
from refold.core.values import encodable
from refold.effects.failures.classify import classify
from refold.effects.heartbeat import Heartbeater
from refold.effects.ledger.receipts import ANY_TRY, LEASE_S
from refold.effects.models.tail import Tail, TokenTail

LARGE_BYTES = 32 * 1024
"""From here on a result may go to storage."""

STORAGE_PAUSES_S = (0.25, 15.0)
"""How long a result waits before storage is asked again: at first, and at most."""

LEASES = 3
"""A lease in heartbeat timeouts: after one, the server asks another worker; for two more, that one waits."""

T = TypeVar("T")
log = structlog.get_logger(__name__)


async def effect(kind: str, name: str, call: Callable[[], Awaitable[T]]) -> T:
    """Run one effect: its failure classified, one line logged, a cancellation passed through."""
    info = activity.info()
    bound = log.bind(
        effect=kind, name=name, task_id=info.workflow_id, invocation_id=info.activity_id, attempt=info.attempt
    )
    began = time.monotonic()
    try:
        result = encodable(await call())
    except asyncio.CancelledError as error:
        if _asked_to_stop():
            bound.info("effect_canceled", seconds=_since(began))
            raise
        # Nobody canceled the activity: something inside it was, which is a failure like any other.
        failure = classify(error)
    except Exception as error:  # noqa: BLE001 - this is where every exception gets its verdict
        failure = classify(error)
    else:
        bound.debug("effect_done", seconds=_since(began))
        return result
    bound.info("effect_failed", seconds=_since(began), failure=failure.type, kind=failure.kind.value)
    raise as_application_error(failure)


async def until_stored(result: object) -> None:
    """Wait until storage has a large result: one that cannot be kept is lost, and its effect is made again."""
    if len(to_json(result)) < LARGE_BYTES:
        return
    converter, pause = activity.client().data_converter, STORAGE_PAUSES_S[0]
    while True:
        try:
            await converter.encode([result])  # kept by its hash, so that the second time costs next to nothing
        except PayloadTooLarge:
            return  # storage is off; whoever sends the result says so
        except StorageError as error:
            log.warning("storage_awaited", invocation_id=activity.info().activity_id, error=str(error))
        else:
            return
        await asyncio.sleep(pause)
        pause = min(2 * pause, STORAGE_PAUSES_S[1])


def _asked_to_stop() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def given_up() -> bool:
    """Whether the server has given this try up, without anybody wishing the effect away: the worker stood still."""
    why = activity.cancellation_details()
    return why is not None and (why.not_found or why.timed_out) and not (why.cancel_requested or why.worker_shutdown)


def about_try(decided: int | bool, attempt: int) -> int:
    """The fence of the try that may be repeated, of what was decided; see `activities`."""
    if decided is True:
        return ANY_TRY if attempt == 1 else 0
    return int(decided)


def lease_s(info: activity.Info) -> float:
    """A worker that stood still for longer than the server bears may still come back: it is believed for longer."""
    return LEASE_S if info.heartbeat_timeout is None else LEASES * info.heartbeat_timeout.total_seconds()


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)


def as_application_error(failure: Failure, *, retryable: bool = False) -> ApplicationError:
    """The failure as Temporal carries it. Raised without a cause: what a library raises may quote a body."""
    transient = failure.kind is FailureKind.TRANSIENT
    return ApplicationError(
        failure.message,
        failure,
        type=failure.type,
        non_retryable=not retryable,
        # What is tried again is no news for the SDK's log and its count of failures.
        category=ApplicationErrorCategory.BENIGN if transient else ApplicationErrorCategory.UNSPECIFIED,
    )


@contextmanager
def heartbeats(heartbeater: Heartbeater, tail: Tail | None = None) -> Iterator[None]:
    """Heartbeat for the current activity; with the newest text, if there is a tail."""
    info = activity.info()
    if info.heartbeat_timeout is None or info.is_local:
        yield
        return

    def ask_loop() -> None:
        activity.heartbeat(*_details(tail))

    with heartbeater.beating(info.heartbeat_timeout.total_seconds(), ask_loop, _bare_heartbeat(info.task_token)):
        yield


def _details(tail: Tail | None) -> tuple[TokenTail, ...]:
    return () if tail is None or tail.empty else (tail.newest(),)


def _bare_heartbeat(task_token: bytes) -> Callable[[], None]:
    """What sends a heartbeat without details from any thread, however busy the event loop is.

    This reaches into the SDK, as nothing public does it: `activity.heartbeat` goes through the event loop, for its
    codec's sake; and a heartbeat of a client of one's own (`get_async_activity_handle`) keeps the server content, but
    the SDK's core has a clock of its own, hears nothing, and gives the activity up five seconds after the heartbeat
    timeout. The core's own method takes calls from any thread. Where the SDK has changed and it is not found, busy
    loops go without heartbeats, and a test against the server says so.
    """
    try:
        sender: Any = activity._Context.current().heartbeat.__self__  # type: ignore[union-attr]
        while hasattr(sender, "next"):  # interceptors wrap it
            sender = sender.next
        record = sender._worker._bridge_worker().record_activity_heartbeat
    except AttributeError:
        return lambda: None
    return lambda: record(ActivityHeartbeat(task_token=task_token))
