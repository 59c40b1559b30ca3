"""Performs effects within a workflow task, as local activities; one that takes long goes over to a regular activity.

A local activity holds its workflow task open, and nobody reaches the task meanwhile: no message, cancellation or
query. So it answers within `HOLD_S`. An effect that needs longer runs on in this process, and the task starts the
regular activity of the same id:

- by the worker where the effect runs, it takes the effect over: heartbeats for it, cancels it, brings its result;
- by another worker it answers with the record, if there is one by then. Else it performs the effect as any regular
  activity does: one with a receipt waits for the one that runs, and another is repeated under the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from shlex import quote
from time import time
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import JsonValue
from pydantic_core import to_jsonable_python
from temporalio import activity
from temporalio.api.failure.v1 import Failure
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from refold.core.errors import DefinitionError
from refold.effects.attempt import (
    NEEDS_TASK,
    STOPPED_BY,
    as_application_error,
    left_to_others,
    until_encoded,
    why_stopped,
)
from refold.effects.failures.classify import classify
from refold.effects.failures.verdicts import Verdict
from refold.effects.invocation import Stopped
from refold.effects.ledger.ledgered_call import until_answered
from refold.effects.ledger.receipts import Ask
from refold.effects.short.outcomes import Brought, Outcomes
from refold.engine import PayloadTooLarge
from refold.seen.logs import logger

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger

HOLD_S = 1.0
"""How long an effect may hold its workflow task open, in seconds, before it goes over to a regular activity."""

LOOK_S = 0.5
"""How often a worker looks whether the task still wants an effect that no activity waits for, in seconds."""

LEAVE_S = 20.0
"""How long a worker that is stopped waits for effects that no activity has taken over yet, in seconds."""

GOES_OVER = "goes_over"
"""The type of the error by which a local activity leaves its effect to a regular one."""

ANOTHER_LEDGER = "another_ledger"
"""The type of the error of a worker whose ledger is not the one that the task's effects are recorded in."""

T = TypeVar("T")
log = logger(__name__)


@dataclass(slots=True)
class Novelty:
    """What is known of whether earlier attempts of the workflow task have performed an effect.

    Attributes:
        surely: No earlier attempt can have asked for the effect, so no record of it is looked for.
        found: This worker performed the effect and was the first to record it, so no earlier attempt had the outcome.
    """

    surely: bool = False
    found: bool = False


NOVELTY: ContextVar[Novelty | None] = ContextVar("refold_novelty", default=None)
"""The novelty of the effect that runs in this context; None where it is not known, or not asked for."""


@dataclass(eq=False, slots=True)
class _Running:
    """An effect that was begun within a workflow task.

    Attributes:
        work: Performs and records it.
        over: Done once the effect needs an answer from the task, which can only answer after its workflow task.
        watch: Cancels the effect if the task does not want it any more, while no activity waits for it that Temporal
            would cancel; None while its first activity waits.
        why: Why it was canceled last, if it was.
        awaited_by: How many activities wait for it.
    """

    work: asyncio.Task[Brought] = field(init=False)
    over: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    watch: asyncio.Task[None] | None = None
    why: Stopped = Stopped.UNWANTED
    awaited_by: int = 0

    def needs_task(self) -> None:
        """Note that the effect asks the task something."""
        if not self.over.done():
            self.over.set_result(None)

    def outlasts(self) -> None:
        """Note that the activity which began the effect ends before the effect does."""
        if self.watch is None:
            self.watch = asyncio.create_task(_while_wanted(self))


class Local:
    """The effects of one worker process that were begun within workflow tasks.

    Args:
        ledger: Opens the ledger with the records.
    """

    def __init__(self, ledger: Callable[[], Ledger]) -> None:
        self._ledger = ledger
        self._id = ""
        self._running: dict[tuple[str, str], _Running] = {}

    async def ledger_id(self) -> str:
        """The id of the ledger, which the task keeps: no worker with another ledger performs its effects so.

        Raises:
            LedgerUnavailable: The ledger cannot be used.
        """
        if not self._id:
            ledger = self._ledger()
            self._id = await ledger.run(ledger.store.identity)
        return self._id

    async def brought(self, ledger: str, command: RawValue, perform: Callable[[], Awaitable[Any]]) -> Any:
        """The outcome of the current activity's effect: a `Brought` in a local activity, else the plain result.

        Args:
            ledger: The id of the ledger that the task's effects are recorded in.
            command: The command, as it was sent.
            perform: Performs the effect.

        Raises:
            ApplicationError: The effect failed, with the failure and its time as the details; or it has gone over; or
                it was not begun since this worker has another ledger.
            CancelledError: The activity was canceled.
        """
        info = activity.info()
        of = (info.workflow_run_id or "", info.activity_id)
        if not info.is_local:
            return await self._gone_over(of, ledger, command, perform)
        running = self._running.get(of)  # begun by an earlier attempt of the workflow task, which was given up
        if running is None:
            running = self._running[of] = _Running()
            running.work = asyncio.create_task(self._whole(running, ledger, command, perform))
            running.work.add_done_callback(partial(self._ended, of))
        try:
            with _awaiting(running):
                either: list[asyncio.Future[Any]] = [running.work, running.over]
                await asyncio.wait(either, timeout=HOLD_S, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if _unwanted():
                await _stop(running, Stopped.UNWANTED)
            else:
                running.outlasts()
            raise
        if not running.work.done():
            running.outlasts()
            log.debug("effect_goes_over", invocation_id=info.activity_id, name=info.activity_type)
            raise goes_over()
        try:
            return running.work.result()
        except ApplicationError as error:
            raise _dated(error) from None

    def _ended(self, of: tuple[str, str], work: asyncio.Task[Brought]) -> None:
        self._running.pop(of, None)
        if not work.cancelled():
            work.exception()  # perhaps nobody waits for it

    async def _gone_over(
        self, of: tuple[str, str], ledger: str, command: RawValue, perform: Callable[[], Awaitable[Any]]
    ) -> JsonValue:
        running = self._running.get(of)
        if running is None:
            if (another := await self._another(ledger)) is not None:
                raise left_to_others(ANOTHER_LEDGER, another)
            # A later attempt may ask another model, and goes by no record of the former one.
            ask, outcomes = self._asked(command)
            found = await self._answered(outcomes.look_same, ask)
            value: JsonValue = await perform() if found is None else found[1]
            return value
        try:
            with _awaiting(running):
                await asyncio.wait([running.work])
        except asyncio.CancelledError:
            if (why := why_stopped()) is Stopped.TIMED_OUT:
                _time_out(running)
            else:
                await _stop(running, why)
            raise
        if running.work.cancelled() and running.why is Stopped.TIMED_OUT:  # for the attempt before this one
            return await self._gone_over(of, ledger, command, perform)
        try:
            return running.work.result()[1]
        except ApplicationError as error:
            if error.type == ANOTHER_LEDGER:  # which was not known yet as the effect went over
                raise left_to_others(ANOTHER_LEDGER, error.message) from None
            raise

    async def _whole(
        self, running: _Running, ledger: str, command: RawValue, perform: Callable[[], Awaitable[Any]]
    ) -> Brought:
        STOPPED_BY.set(lambda: running.why)
        NEEDS_TASK.set(running.needs_task)
        if (another := await self._another(ledger)) is not None:
            raise ApplicationError(another, type=ANOTHER_LEDGER, non_retryable=True)
        ask, outcomes = self._asked(command)
        novelty = NOVELTY.get() or Novelty()
        recorded = None if novelty.surely else await self._answered(outcomes.look, ask)
        if recorded is not None:
            return recorded
        try:
            value = to_jsonable_python(await perform())
        except ApplicationError as error:
            raise await _sendable(error) from None
        brought, novelty.found = await self._answered(outcomes.record, ask, value)
        return brought

    async def _another(self, ledger: str) -> str | None:
        """Why this worker would perform effects again, as it does not see their records; None if it does see them."""
        try:
            found = await until_answered(self.ledger_id, activity.info().activity_id)
            if found == ledger or await self._answered(self._ledger().store.stands_for, ledger):
                return None
        except DefinitionError as error:  # in a file of this host, which other hosts do not see
            found = str(error)
        return (
            f"this worker's ledger ({found}) is not the one that the effects of this task are recorded in ({ledger}), "
            "so it would perform effects again; let REFOLD_LEDGER name the same ledger at all workers of the task "
            "queue: the same file if they run on one host, else one PostgreSQL database. If that ledger is lost, "
            f"`refold ledger adopt {quote(ledger)}` lets this one take its place"
        )

    async def _answered(self, call: Callable[..., T], *args: Any) -> T:
        ledger = self._ledger()
        try:
            return await until_answered(lambda: ledger.run(call, *args), activity.info().activity_id)
        except Verdict as refused:
            raise as_application_error(refused.failure) from None
        except PayloadTooLarge as error:
            raise as_application_error(classify(error)) from None

    def _asked(self, command: RawValue) -> tuple[Ask, Outcomes]:
        info, outcomes = activity.info(), Outcomes(self._ledger())
        ask = outcomes.asked(
            info.activity_type,
            command.payload.data,
            info.namespace,
            info.workflow_run_id or "",
            info.workflow_id or "",
            info.activity_id,
        )
        return ask, outcomes

    async def close(self) -> None:
        """Wait a while for effects that no activity has taken over, then cancel them: the worker is stopped."""
        left = [running.work for running in self._running.values()]
        if left:
            await asyncio.wait(left, timeout=LEAVE_S)
        for running in list(self._running.values()):
            if running.watch is not None:
                running.watch.cancel()
            await _stop(running, Stopped.LEAVING)


async def _sendable(error: ApplicationError) -> ApplicationError:
    """A failure that the codec takes. Waits while the codec is away: no record brings a failure again. What waits goes
    over, so that its task is not held open, as far as the codec takes anything."""
    sent = [error]

    async def encode() -> None:
        try:
            await activity.client().data_converter.encode_failure(error, Failure())
        except PayloadTooLarge as never:
            failure = error.details[0].without_details(str(never)) if error.details else classify(never)
            sent.append(as_application_error(failure))

    with suppress(RuntimeError):  # there is no client, in a test of an activity
        # Whoever waits for it cancels this; the activity that began it may have ended, and the next one waits, too.
        await until_encoded(encode, unwanted=lambda: False)
    return sent[-1]


@contextmanager
def _awaiting(running: _Running) -> Iterator[None]:
    running.awaited_by += 1
    try:
        yield
    finally:
        running.awaited_by -= 1


async def _while_wanted(running: _Running) -> None:
    """Cancel an effect that has gone over, but whose regular activity was withdrawn before a worker had it."""
    info = activity.info()
    task = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
    while not running.work.done():
        await asyncio.wait([running.work], timeout=LOOK_S)
        if running.work.done() or running.awaited_by:
            continue
        try:
            found = (await task.describe()).raw_description
        except RPCError:
            continue
        asked_for = any(one.activity_id == info.activity_id for one in found.pending_activities)
        # While a workflow task goes on, nobody knows what it will ask for.
        if not (running.awaited_by or asked_for or found.HasField("pending_workflow_task")):
            await _stop(running, Stopped.UNWANTED)


async def _stop(running: _Running, why: Stopped) -> None:
    running.why = why
    running.work.cancel()
    await asyncio.wait([running.work])


def _time_out(running: _Running) -> None:
    """Cancel an effect whose attempt the server has given up, unless another attempt waits for it here.

    One with a receipt runs on, and the next attempt takes it over. A second cancellation would stop it all the same, so
    there is none.
    """
    if not running.awaited_by and running.why is not Stopped.TIMED_OUT:
        running.why = Stopped.TIMED_OUT
        running.work.cancel()


def _unwanted() -> bool:
    """Whether the task cancels the effect; else the workflow task is given up, and the next one asks again."""
    why = activity.cancellation_details()
    return why is not None and why.cancel_requested and not why.worker_shutdown


def _dated(error: ApplicationError) -> ApplicationError:
    """The failure of an effect with the time, in milliseconds since 1970. History keeps it; the workflow's own time is
    another where the failure came as a worker asked for a longer workflow task, and where that is replayed."""
    if not error.details:
        return error
    return ApplicationError(
        error.message,
        *error.details,
        int(time() * 1_000),
        type=error.type,
        non_retryable=error.non_retryable,
        next_retry_delay=error.next_retry_delay,
        category=error.category,
    )


def goes_over() -> ApplicationError:
    """The error by which a local activity leaves its effect to a regular one."""
    benign = ApplicationErrorCategory.BENIGN  # neither logged nor counted by the SDK
    return ApplicationError("it goes over to a regular activity", type=GOES_OVER, non_retryable=True, category=benign)
