"""Calls a tool whose effect must happen once: the steps around the tool, and what its outcome means.

Ask the ledger; wait while another call performs the effect; resolve an unknown outcome by the tool's probe; perform;
record the outcome.

| what the tool did                                                   | receipt     | the task receives            |
| ------------------------------------------------------------------- | ----------- | ---------------------------- |
| returned                                                            | done        | the result                   |
| raised `TryLater(unsent=True)`                                      | released    | transient: it tries again    |
| raised `Never`                                                      | released    | permanent                    |
| could not connect, or not resolve the name                          | released    | transient                    |
| was refused by a status that says "not done" (table in `failures`)  | released    | as the status is classified  |
| anything else: no answer, 5xx, an answer that cannot be read, a bug | ask probe   | see the next table           |
| waited for a thread when it was canceled                            | released    | canceled                     |
| got no thread, since the system starts no more                      | released    | transient: it tries again    |
| timed out, and its thread still runs                                | executing   | `outcome_unknown`            |
| runs in a thread, and its worker is being stopped                   | executing   | (the next worker waits)      |
| was canceled otherwise                                              | unknown     | canceled                     |

The rows about a failed connection and a refusing status apply only if no other writing request of the call may have had
an effect. Only requests sent by `current().http` are counted, and an error about a request sent by other means counts
as one about the call's only request. So a tool that sends several by other means catches such an error, and raises
`TryLater` without `unsent=True`: an earlier request may have had its effect.

| the probe answers                             | receipt  | the task receives                                       |
| --------------------------------------------- | -------- | ------------------------------------------------------- |
| `Done(result)`                                | done     | the result                                              |
| `NotDone()`, about an earlier worker's attempt| executing| (the tool is called, with the next fence)               |
| `NotDone()`, about this attempt               | released | the failure, as it is classified                        |
| `Unknown()`, or an exception                  | unknown  | `outcome_unknown`: the task asks again for an hour      |
| nothing: the tool has no probe                | unknown  | `outcome_unknown`: a person decides                     |

While another call performs the effect, this one waits: for the tool's time limit, and at least for the lease. If that
call still performs then, or a thread outlasts its time limit, the task receives `outcome_unknown`, and asks again for
an hour, with or without a probe: the receipt will say what came of it. If an earlier attempt may have been made by a
worker with another ledger, the task asks again for ten minutes, since that worker may get the next attempt.

If a person has decided to repeat the effect, the probe is asked first all the same: only on `Unknown` does the decision
count. While the ledger is unavailable, the call waits, and begins nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, assert_never

from pydantic import JsonValue

from refold.core.authoring.tool import ToolSpec
from refold.core.retry_policy import Failure, FailureKind
from refold.effects.failures.classify import classify, surely_not_done
from refold.effects.failures.contained import awaited
from refold.effects.failures.verdicts import OTHERS_S, OutOfTime, TryLater, Verdict
from refold.effects.http.keys import after_undoing
from refold.effects.invocation import Invocation, Stopped, as_current
from refold.effects.ledger.receipts import (
    ANY_TRY,
    Ask,
    Begun,
    Finished,
    InDoubt,
    InProgress,
    KeyReused,
    LedgerAnswer,
    LedgerUnavailable,
    ReceiptState,
)
from refold.effects.probing import Done, NotDone, Unknown
from refold.effects.threads import in_own_thread
from refold.effects.tracing import note
from refold.seen import metrics
from refold.seen.logs import logger
from refold.seen.meters import count

if TYPE_CHECKING:
    from refold.effects.ledger.ledger import Ledger

FIRST_LOOK_S = 0.02
LONGEST_LOOK_S = 0.5
"""The longest pause between two questions to the ledger while another call performs the effect, in seconds."""

PROBE_S = 60.0
"""The time limit of a probe, in seconds; the tool's own limit if that is shorter."""

ASKED_AGAIN_S = 3600.0
"""For how long, in seconds, the receipt and the probe of an effect with an unknown outcome are asked again before a
person decides."""

LEDGER_PAUSES_S = (0.25, 15.0)
"""The first and the longest pause, in seconds, before a ledger that is unavailable is asked again."""

NO_PROBE = "the tool has no probe"

_COUNTED_AS = {
    Begun: "begun",
    Finished: "repeated",
    KeyReused: "key_reused",
    InDoubt: "outcome_unknown",
    InProgress: "in_progress",
}
"""What an answer of the ledger counts as, of `metrics.LEDGER`."""

T = TypeVar("T")
log = logger(__name__)


class NotBegun(TryLater):
    """A tool that waited for a thread never began; `canceled` is why, or None if the worker has no thread for it."""

    def __init__(self, canceled: asyncio.CancelledError | None) -> None:
        self.canceled = canceled
        super().__init__("it was withdrawn before a thread was free for it", type="not_begun", unsent=True)


class StillRunning(OutOfTime):
    """A tool has timed out, or its worker is being stopped, and its thread cannot be stopped.

    Attributes:
        thread: The future of the tool's outcome.
        canceled: The activity was canceled meanwhile.
    """

    def __init__(self, spec: ToolSpec, thread: Future[Any], canceled: asyncio.CancelledError | None = None) -> None:
        self.thread = thread
        self.canceled = canceled
        super().__init__(spec.name, spec.timeout_s)


class LedgeredCall:
    """One call of a tool whose effect has a receipt."""

    def __init__(
        self,
        ledger: Ledger,
        spec: ToolSpec,
        invocation: Invocation,
        ask: Ask,
        perform: Callable[[Invocation], Coroutine[Any, Any, Any]],
        write: Callable[[Any], JsonValue],
        *,
        why: Callable[[], Stopped] = lambda: Stopped.UNWANTED,
        elsewhere: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """Prepare a call; begin nothing.

        Args:
            ledger: The ledger with the receipt.
            spec: The tool's declaration.
            invocation: The call as the tool sees it; its fence is filled in here.
            ask: The request to the ledger.
            perform: Calls the tool.
            write: Encodes the tool's result as JSON, or raises.
            why: Asked at a cancellation for its reason. An attempt that the server has timed out runs to its end, and
                the next attempt finds the outcome on the receipt.
            elsewhere: Asked if the ledger has no receipt, or a released one: why an earlier attempt may have a receipt
                in another ledger; empty if none may. None: there was no earlier attempt.
        """
        self._ledger = ledger
        self._spec = spec
        self._invocation = invocation
        self._ask = replace(ask, decided=0)
        self._decided = ask.decided
        self._perform = perform
        self._write = write
        self._why = why
        self._elsewhere = elsewhere

    async def result(self) -> JsonValue:
        """The effect's result, from this call or from an earlier one.

        Raises:
            Verdict: The outcome is unknown, as while another call of the key, or this one's own thread, takes too long;
                the key belongs to other arguments; or the tool itself raised it.
            CancelledError: The activity was canceled.
            Exception: Any other exception of the tool.
        """
        loop = asyncio.get_running_loop()
        # A lost worker counts as alive until its lease expires, and only then the probe is asked.
        patience, pause = loop.time() + max(self._spec.timeout_s, self._ask.lease_s), FIRST_LOOK_S
        await self._note_elsewhere()
        answer = await self._begin(self._ledger.begin, self._ask)
        while True:
            count(metrics.LEDGER_ANSWERS, _COUNTED_AS[type(answer)])
            match answer:
                case Begun():
                    return await self._performed(answer)
                case Finished():
                    note("refold.receipt_found", True)
                    self._tell_of(answer)
                    return answer.value
                case KeyReused():
                    raise Verdict(reused(self._spec.name, self._ask.key, answer))
                case InDoubt():
                    note("refold.outcome_unknown", True)
                    probed = await self._probed(answer.receipt.undone)
                    if isinstance(probed, Done):
                        return await self._note(self._ledger.finish, self._ask.key, answer.fence, probed.result)
                    if isinstance(probed, Unknown):
                        if self._decided not in (answer.fence, ANY_TRY):
                            again_s = 0.0 if answer.receipt.holder else OTHERS_S
                            raise Verdict(self._unknown(_about(answer, probed), fence=answer.fence, again_s=again_s))
                        repeated, self._decided = replace(self._ask, decided=answer.fence), 0
                        answer = await self._begin(self._ledger.begin, repeated)
                        continue
                    answer = await self._begin(self._ledger.take_over, self._ask, answer.fence)
                case InProgress():
                    if loop.time() >= patience:
                        why = "another call with the same key is still under way"
                        raise Verdict(self._unknown(why, cause="in_progress", again_s=ASKED_AGAIN_S))
                    await asyncio.sleep(pause)
                    pause = min(2 * pause, LONGEST_LOOK_S)
                    answer = await self._begin(self._ledger.begin, self._ask)
                case _:
                    assert_never(answer)

    def _tell_of(self, found: Finished) -> None:
        """Say that the effect is not performed: by a key or an id that is used again, another task may have done it."""
        log.info(
            "receipt_found",
            invocation_id=self._invocation.invocation_id,
            tool=self._spec.name,
            by=found.task_id,
            at=datetime.fromtimestamp(found.at, UTC).isoformat(timespec="seconds"),
        )

    async def _note_elsewhere(self) -> None:
        """Record in this ledger that an earlier attempt may have its receipt in another one, if it may.

        The attempt that a person has decided to repeat had one: a ledger without it has taken the place of another.
        """
        id, key = self._invocation.invocation_id, self._ask.key
        if self._elsewhere is None and self._decided <= 0:
            return
        found = await until_answered(lambda: self._ledger.run(self._ledger.look, key), id)
        if found is None and self._decided > 0:
            why = f"this ledger has no receipt of attempt {self._decided}, whose outcome was unknown"
            await until_answered(lambda: self._ledger.run(self._ledger.made_elsewhere, self._ask, why), id)
            self._decided = ANY_TRY  # for that attempt, whatever its number here
            return
        if self._elsewhere is None:
            return
        if found is not None:
            made_here = found.invocation_id == id and found.fence >= self._invocation.attempt - 1
            if made_here or found.state is not ReceiptState.RELEASED:
                return
        if not (why := await self._elsewhere()):
            return
        log.error("another_ledger", invocation_id=id, tool=self._spec.name, reason=why)
        await until_answered(lambda: self._ledger.run(self._ledger.made_elsewhere, self._ask, why), id)

    async def _begin(self, begin: Callable[..., LedgerAnswer], *args: Any) -> LedgerAnswer:
        answer, canceled = await until_answered(
            lambda: _to_the_end(self._ledger.run(begin, *args)), self._invocation.invocation_id
        )
        if canceled is None:
            return answer
        if isinstance(answer, Begun):
            await _to_the_end(self._ledger.run(self._ledger.release, self._ask.key, answer.fence, "canceled before it"))
        raise canceled

    # --- perform

    async def _performed(self, answer: Begun) -> JsonValue:
        key, fence = self._ask.key, answer.fence
        shown = after_undoing(self._invocation.idempotency_key, answer.undone)
        invocation = replace(self._invocation, fence=fence, idempotency_key=shown)
        call, canceled = await self._ended(asyncio.ensure_future(self._perform(invocation)))
        if call.cancelled() and canceled:
            left = self._why() is Stopped.LEAVING
            how = "its worker was stopped" if left else "it was canceled"
            self._invocation.over.set()
            await self._note(self._ledger.doubt, key, fence, f"{how} while it was under way")
            raise canceled
        error = RuntimeError("the tool canceled itself") if call.cancelled() else call.exception()
        if error is None:
            # Even if the call was canceled: the tool returned, so its effect took place.
            try:
                value = self._write(call.result())
            except Exception as unwritable:  # noqa: BLE001 - the result type's serializer may raise anything
                error = unwritable
            else:
                return await self._note(self._ledger.finish, key, fence, value)
        if isinstance(error, StillRunning):
            self._ledger.left_to_thread(key)
            error.thread.add_done_callback(lambda thread: self._came_late(thread, invocation))
            raise canceled or Verdict(
                self._unknown(str(error), fence=fence, cause="timeout", again_s=ASKED_AGAIN_S)
            ) from error
        self._invocation.over.set()  # in the step that looks at what was sent: what is left under way sends no more
        if isinstance(error, Exception) and surely_not_done(error, invocation.sent or []):
            await self._note(self._ledger.release, key, fence, classify(error).message)
        elif canceled or not isinstance(error, Exception):
            await self._note(self._ledger.doubt, key, fence, classify(error).message)
        else:
            return await self._found_out(error, answer)
        raise canceled or error

    async def _ended(self, call: asyncio.Future[Any]) -> tuple[asyncio.Future[Any], asyncio.CancelledError | None]:
        """Wait for the tool; cancel it with the activity, unless the server has only timed this attempt out."""
        canceled: asyncio.CancelledError | None = None
        while not call.done():
            try:
                await asyncio.wait([call])
            except asyncio.CancelledError as error:
                if canceled or self._why() is not Stopped.TIMED_OUT:
                    call.cancel()
                canceled = error
        return call, canceled

    async def _found_out(self, error: Exception, answer: Begun) -> JsonValue:
        key, fence, failure = self._ask.key, answer.fence, classify(error)
        try:
            probed = await self._probed(answer.undone)
        except asyncio.CancelledError:
            await self._note(self._ledger.doubt, key, fence, failure.message)
            raise
        match probed:
            case Done():
                return await self._note(self._ledger.finish, key, fence, probed.result)
            case NotDone():
                await self._note(self._ledger.release, key, fence, failure.message)
                raise error
            case Unknown():
                await self._note(self._ledger.doubt, key, fence, failure.message)
                why = f"{failure.message}{_because(probed)}"
                raise Verdict(self._unknown(why, fence=fence, cause=failure.type)) from error
            case _:
                assert_never(probed)

    async def _note(self, write: Callable[..., T], *args: Any) -> T:
        """Record an outcome in the ledger, even if the activity is canceled meanwhile."""
        written, _ = await _to_the_end(self._ledger.run(write, *args))
        return written

    def _came_late(self, thread: Future[Any], invocation: Invocation) -> None:
        """Record the outcome of a tool whose caller did not wait for it; called in its thread when it ends."""
        key, fence = self._ask.key, invocation.fence
        try:
            self._ledger.finish(key, fence, self._write(thread.result()))
        except Exception as error:  # noqa: BLE001 - no caller waits for it any more
            invocation.over.set()
            if surely_not_done(error, invocation.sent or []):
                self._ledger.release(key, fence, classify(error).message)
            else:
                self._ledger.doubt(key, fence, classify(error).message)

    # --- unknown outcomes

    async def _probed(self, undone: int) -> Done | NotDone | Unknown:
        probe = self._spec.probe
        if probe is None:
            return Unknown(NO_PROBE)
        # `sent=None`: requests of the probe are not counted as requests of the tool.
        key = after_undoing(self._ask.key, undone)
        looking = replace(self._invocation, sent=None, idempotency_key=key)
        try:
            async with asyncio.timeout(min(self._spec.timeout_s, PROBE_S)):
                with as_current(looking):
                    if inspect.iscoroutinefunction(probe):
                        probed = probe(key)
                    else:
                        call = partial(copy_context().run, probe, key)
                        probed = await asyncio.wrap_future(in_own_thread(call, "refold-probe"))
                    if inspect.isawaitable(probed):
                        probed = await awaited(probed)
            if isinstance(probed, Done):
                return Done(self._write(probed.result))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return Unknown("its probe failed: it canceled itself")
        except Exception as error:  # noqa: BLE001 - a probe that raises counts as Unknown
            return Unknown(f"its probe failed: {classify(error).message}")
        if isinstance(probed, NotDone | Unknown):
            return probed
        return Unknown(f"its probe answered {type(probed).__name__}, which is none of Done, NotDone and Unknown")

    def _unknown(self, why: str, *, fence: int | None = None, cause: str | None = None, again_s: float = 0) -> Failure:
        """The failure of an effect with an unknown outcome; `again_s`: for so long the task asks again without a probe,
        since a receipt will say what came of the effect."""
        facts = {"fence": fence, "key": self._ask.key, "cause": cause}
        details: dict[str, JsonValue] = {name: fact for name, fact in facts.items() if fact is not None}
        return Failure(
            kind=FailureKind.UNKNOWN,
            type="outcome_unknown",
            message=unknown_outcome(self._spec.name, why),
            details=details,
            again_s=again_s if self._spec.probe is None else ASKED_AGAIN_S,
        )


async def until_answered(call: Callable[[], Awaitable[T]], invocation_id: str) -> T:
    """Repeat a call to the ledger while the ledger is unavailable: no effect has begun, so waiting loses nothing.

    Raises:
        PayloadTooLarge: The codec never takes what the ledger should hold.
    """
    pause = LEDGER_PAUSES_S[0]
    while True:
        try:
            return await call()
        except LedgerUnavailable as error:
            log.warning("ledger_awaited", invocation_id=invocation_id, error=str(error))
            count(metrics.LEDGER_ANSWERS, "unavailable")
        await asyncio.sleep(pause)
        pause = min(2 * pause, LEDGER_PAUSES_S[1])


def reused(tool: str, key: str, answer: KeyReused) -> Failure:
    """The failure of a call whose key belongs to a call with other arguments."""
    return Failure(
        kind=FailureKind.PERMANENT,
        type="key_reused",
        message=f"the key of this call of the tool {tool!r} stands for a call with other arguments "
        f"(then {answer.known[:16]}, now {answer.given[:16]}); give another effect another key",
        details={"key": key, "known": answer.known, "given": answer.given},
    )


def unknown_outcome(tool: str, why: str) -> str:
    """The message for the person who decides about an effect with an unknown outcome."""
    return (
        f"it is not known whether the tool {tool!r} has had its effect, and it may happen once at most: {why}; find "
        "out at the receiver, then resolve the command"
    )


def _about(answer: InDoubt, probed: Unknown) -> str:
    receipt = answer.receipt
    began = datetime.fromtimestamp(receipt.began_at, UTC).isoformat(timespec="seconds")
    whose = f" for task {receipt.task_id}" if receipt.task_id else ""
    return f"{receipt.why} (begun {began}{whose}){_because(probed)}"


def _because(probed: Unknown) -> str:
    return f"; {probed.why}" if probed.why else ""


async def _to_the_end(future: asyncio.Future[T]) -> tuple[T, asyncio.CancelledError | None]:
    """Wait for a short operation that must complete. Returns its result, and the cancellation that came meanwhile."""
    canceled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            canceled = error
    if canceled is not None and future.exception() is not None:
        raise canceled
    return future.result(), canceled
