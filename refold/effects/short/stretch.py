"""Performs the effects of a stretch within one local activity, which gives each outcome to the task at once.

The task may ask for the next effect on the ground of an outcome, and has it performed by the same activity: the task
and the activity are in one process, and talk without Temporal (`Run`). The activity's result is the record of all
outcomes, in the order in which the task was given them: one marker in history, however many effects there were.

`refold.effects.short.within` begins each effect, and `refold.effects.short.local` performs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import thread_time
from typing import Any, Protocol, TypeAlias
from weakref import WeakValueDictionary

from pydantic_core import to_json, to_jsonable_python
from temporalio.api.common.v1 import Payload
from temporalio.exceptions import ApplicationError

from refold.effects.ledger.thread_pool import ThreadPool
from refold.effects.short.local import goes_over

STRETCH = "refold.stretch"
"""The activity's name."""

STRETCH_END = "refold.stretch_end"
"""The name of the activity whose end tells a task that its stretch has ended."""

ALONE_BYTES = 16 * 1024
"""A result of this size or more is left to a local activity of its own, whose marker refers to storage."""

ENOUGH_BYTES = 16 * 1024
"""Once a record has this size, and nothing is under way, the activity ends, so that history can hold the record itself;
another one goes on. What many effects at once bring may go to storage."""

ENOUGH_S = 0.25
"""Once the task's code has computed for so long on what a record holds, in seconds, the activity begins nothing more,
and ends once all that is under way is over: a replay gives the task the whole record in one activation, and the SDK two
seconds for that."""

MOST_S = 1.5
"""For how long the task's code may compute on one outcome, and beyond `ENOUGH_S` on a record, in seconds. A replay
could not give the task more in time; the activity fails, so that history never holds such a record."""

PLACES = 3
"""How many stretches of a worker go on at once, as long as their effects take less than `QUICK_S`: all that they use is
the processor, and with more of them each would bring fewer effects before it closes."""

PLACE_S = 20.0
"""How long a stretch waits for its place, in seconds. Then it goes on without one."""

QUICK_S = 0.1
"""After this time, in seconds, a stretch that waits for an effect lets another one begin."""

STEP_S = 10.0
"""How long the task's code may run for one outcome, in seconds. Then the activity fails, and the SDK finds the code
that hangs (TMPRL1101) as it tells the task."""

Record: TypeAlias = list[Any]
"""The outcome of one effect: its label; then

- when its result was recorded, in milliseconds since 1970, and the result;
- or what is known of its failure (`failed`);
- or None: the result has `ALONE_BYTES` or more, and a local activity of its own brings it;
- or nothing in this place: the same, and other effects are asked for meanwhile, as earlier releases did. The last
  record has this form where nothing else is asked for, so that workers of these releases replay it, too.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedEffect:
    """An effect that the task asks for.

    Attributes:
        label: What its record is labeled with.
        id: The activity's id.
        type: The activity's type.
        args: The activity's arguments.
        headers: The activity's headers.
    """

    label: str
    id: str
    type: str
    args: Sequence[Payload]
    headers: Mapping[str, Payload]


@dataclass(frozen=True, slots=True, kw_only=True)
class NextWants:
    """What the task wants once it was given an outcome.

    Attributes:
        asked: New effects, in order. What is not begun is asked for again by another such activity.
        dropped: The ids of effects that it does not want any more.
        over: The task is given no further outcome: its run has ended, or has left the worker's cache.
    """

    asked: Sequence[AskedEffect] = ()
    dropped: Sequence[str] = ()
    over: bool = False


class Run(Protocol):
    """A run of a task, for the activity that performs its effects."""

    @property
    def untold(self) -> dict[str, Record]:
        """Failures that an activity before brought and did not give to the task, by the ids of their effects. Results
        are found in the ledger again; failures are recorded nowhere."""

    def take(self, record: Record | None) -> NextWants:
        """Give the task the outcome of the first effect that it still waits for. Called from a thread; blocks for as
        long as the task's code runs.

        Args:
            record: The outcome; None only asks what the task wants.
        """


class Going(Protocol):
    """An effect that is under way."""

    @property
    def asked(self) -> AskedEffect:
        """What the task asked for."""

    @property
    def is_over(self) -> bool:
        """Whether the effect has ended."""

    @property
    def is_new(self) -> bool:
        """Whether it was performed, and no earlier attempt of the workflow task had its outcome."""

    async def record(self) -> Record:
        """The effect's outcome, once it has ended."""

    def drop(self) -> None:
        """Cancel it: the task does not want it any more."""

    def leave(self) -> None:
        """Let it run on, though this activity does not wait for it any more."""


RUNS: WeakValueDictionary[str, Run] = WeakValueDictionary()
"""The runs of this process that wait for such an activity, by the token that it is given."""


class Begin(Protocol):
    """Begins an effect."""

    def __call__(self, asked: AskedEffect, *, new: bool) -> Going:
        """Begin it; `new` where no earlier attempt of the workflow task can have asked for it."""


class Stretch:
    """The activity that performs a task's effects, one stretch after another.

    Args:
        run: The run that it belongs to.
        begin: Begins effects.
        threads: Where the task's code runs.
        places: The worker's, `PLACES` of them.
    """

    def __init__(self, run: Run, begin: Begin, threads: ThreadPool, places: asyncio.Semaphore) -> None:
        self._places = places
        self._has_place = False
        self._telling = False
        self._run = run
        self._begin = begin
        self._threads = threads
        self._going: dict[str, Going] = {}  # by their ids, in the order in which they were asked for
        self._records: list[Record] = []
        self._bytes = 0
        self._computed_s = 0.0
        self._is_new = False  # the newest outcome: who lacked it has not asked for what the task asks for then

    async def records(self) -> list[Record]:
        """Perform effects until the task asks for none, or the record is large enough.

        Raises:
            CancelledError: The activity was canceled before there was an outcome.
            TimeoutError: The task's code hangs, or computed for longer than a replay may.
        """
        with suppress(TimeoutError):
            await asyncio.wait_for(self._places.acquire(), PLACE_S)
            self._has_place = True
        try:
            wants = await self._told(None)
            while not await self._is_over(wants):
                for asked in wants.asked:
                    self._going[asked.id] = self._begun(asked)
                wants = await self._told(await self._next())
            self._end_as_before(wants)
        except asyncio.CancelledError:
            if self._telling or not self._records:
                raise
            # History has to hold the outcomes that the task was given. Regular activities bring the others.
            self._records += [await self._left(one) for one in self._going.values()]
        finally:
            self._give_place()
            for one in self._going.values():
                one.leave()
        return self._records

    def _give_place(self) -> None:
        if self._has_place:
            self._has_place = False
            self._places.release()

    def _end_as_before(self, wants: NextWants) -> None:
        """Write a large result, if it is the only one and nothing else is asked for, as earlier releases did."""
        large = [record for record in self._records if is_large(record)]
        if len(large) == 1 and large[0] is self._records[-1] and not (self._going or wants.asked):
            self._records[-1] = large[0][:1]

    def _begun(self, asked: AskedEffect) -> Going:
        if (failure := self._run.untold.pop(asked.id, None)) is not None:
            return _Failed(asked, failure)
        return self._begin(asked, new=self._is_new)

    async def _is_over(self, wants: NextWants) -> bool:
        """Give up what the task does not want any more. Returns whether the activity ends."""
        for id in wants.dropped:
            if (dropped := self._going.pop(id, None)) is not None:
                dropped.drop()
        if wants.over:
            return True
        if not await self._closes():
            # With something under way, a record does not end for its size: the next activity would look for that again.
            return not self._going and (not wants.asked or self._bytes >= ENOUGH_BYTES)
        # The next activity gives the task what is under way here, so that no activation brings too much.
        for id, one in self._going.items():
            if is_failure(record := await one.record()):
                self._run.untold[id] = record
        return True

    async def _closes(self) -> bool:
        """Whether the record may hold nothing more: the task would take too much in one activation of a replay."""
        if not self._is_full:
            return False
        self._give_place()
        # Large results come one by one, but the task takes what follows them together with the last one.
        first = next(iter(self._going.values()), None)
        return self._computed_s >= ENOUGH_S or first is None or not is_large(await first.record())

    @property
    def _is_full(self) -> bool:
        return self._computed_s >= ENOUGH_S or (bool(self._records) and is_large(self._records[-1]))

    async def _next(self) -> Record:
        """The outcome of the effect that was asked for first."""
        first = next(iter(self._going.values()))
        slow = asyncio.get_running_loop().call_later(QUICK_S, self._give_place)
        try:
            record = await first.record()
        finally:
            slow.cancel()
        del self._going[first.asked.id]
        self._is_new = first.is_new
        self._records.append(record)
        self._bytes += len(to_json(record))
        return record

    async def _left(self, one: Going) -> Record:
        """The record of an effect that the activity does not wait for."""
        if one.is_over and (is_failure(record := await one.record()) or not self._is_full):
            return record
        return failed(one.asked.label, goes_over())

    async def _told(self, record: Record | None) -> NextWants:
        # Not `to_thread`: the task's code must not run within the context of an activity.
        step, self._telling = self._threads.run(_timed, self._run, record), True
        hangs = asyncio.get_running_loop().call_later(STEP_S, _give_up, step)
        try:
            wants, computed_s = await step
        finally:
            hangs.cancel()
        self._telling = False
        self._computed_s += computed_s
        if computed_s > MOST_S or self._computed_s > ENOUGH_S + MOST_S:
            raise TimeoutError(
                f"the code of a task computed for {self._computed_s:.1f} s (outcomes: {len(self._records)}), and no "
                "worker could replay that within the two seconds that Temporal allows; let an effect do what takes long"
            )
        return wants


def _give_up(step: asyncio.Future[Any]) -> None:
    if not step.done():
        step.set_exception(TimeoutError(f"the code of a task ran for {STEP_S:g} s without an await"))


def _timed(run: Run, record: Record | None) -> tuple[NextWants, float]:
    """What the task wants, and for how long its code computed on the outcome, in seconds."""
    began = thread_time()
    wants = run.take(record)
    return wants, thread_time() - began if record else 0.0


@dataclass(frozen=True, slots=True)
class _Failed:
    """An effect whose failure is known from an activity before; see `Going`."""

    asked: AskedEffect
    failure: Record
    is_over: bool = True
    is_new: bool = False

    async def record(self) -> Record:
        return self.failure

    def drop(self) -> None:
        pass

    def leave(self) -> None:
        pass


def is_large(record: Record) -> bool:
    """Whether a local activity of its own brings the result."""
    return len(record) == 2 and record[1] is None


def is_failure(record: Record) -> bool:
    """Whether the record is that of a failure."""
    return len(record) == 2 and record[1] is not None


def is_known(record: Any) -> bool:
    """Whether the record has a form that this release knows."""
    match record:
        case [str()] | [str(), None] | [str(), {"type": _, "message": str()}] | [str(), int() | float(), _]:
            return True
        case _:
            return False


def failed(label: str, error: BaseException) -> Record:
    """The record of a failure."""
    if not isinstance(error, ApplicationError):
        return [label, {"type": type(error).__name__, "message": str(error)}]
    known = {"type": error.type, "message": error.message}
    return [label, {**known, "details": to_jsonable_python(list(error.details))} if error.details else known]


def error_of(failure: Mapping[str, Any]) -> ApplicationError:
    """The error whose failure was recorded."""
    message, details = failure["message"], failure.get("details", ())
    return ApplicationError(message, *details, type=failure["type"], non_retryable=True)
