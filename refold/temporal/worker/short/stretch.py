"""The order in which a task takes events, where its effects are performed within workflow tasks.

A workflow task whose worker dies runs again, and by then more may have come: a message, another effect's outcome. The
effects that were performed meanwhile are asked for again under the ids that they had only if the task takes the same
events in the same order. So:

1. *What comes from outside is taken before anything is performed*: the task asks for a timer of a millisecond, and so
   ends the workflow task. From then on its order is in history.
2. With the timer a *stretch* begins. What comes from outside is held until it has ended. Local outcomes are taken in
   the order in which the effects were asked for, at the times that the ledger recorded; and what the task asks for
   then is performed at once.
3. The stretch closes after `STRETCH`, by those recorded times, after `MOST` effects or `MOST_BYTES` of results; or with
   the first outcome that is no recorded result: a failure, or an effect that goes over to a regular activity. Then
   nothing more is begun, what is out is awaited, what was held is taken, and the next stretch begins as the first one
   did. Before something that was held is taken, such a timer ends the workflow task: within one that local activities
   have lengthened, a replay may see another time. Of more than `AT_ONCE` events, each workflow task takes as many; what
   comes meanwhile is held behind them.

What is begun is therefore always known from history and records, and never from what happened to come first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from enum import Enum, auto

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import FailureError

from refold.core.commands import Effect
from refold.core.fold.wanted import Perform
from refold.temporal.data.wire import LEDGER_ACTIVITY, STRETCH_END
from refold.temporal.worker.activation.batches import BATCH

STRETCH = timedelta(seconds=2)
"""For how long a stretch begins effects. Until it has ended, nobody reaches the task."""

MOST = 100
"""How many effects a stretch begins. The workflow task sends all outcomes together, each below 32 KiB in history where
there is storage, and Temporal terminates a workflow that sends more than 4 MB."""

MOST_BYTES = 2 * 1024 * 1024
"""After results of this size, together, a stretch begins no more effects: without storage, one more may bring 2 MB."""

BYTES_PATCH = "refold.stretch_bytes"
"""Marks a run in which a stretch was closed by `MOST_BYTES`."""

OVER_PATCH = "refold.over_begins"
"""Marks a run in which an effect that went over got its regular activity where no other effect would have begun."""

HELD_PATCH = "refold.held_too"
"""Marks a run that holds a seal, or what came of a signal to another task, until its stretch has ended."""

AT_ONCE = BATCH
"""How many held events a task takes in one workflow task. The SDK gives an activation two seconds, and ten thousand
messages may have come for a stretch whose worker died."""

APART_PATCH = "refold.held_apart"
"""Marks a run that took more held events than `AT_ONCE`, in several workflow tasks."""

COMMIT = timedelta(milliseconds=1)
END_PATIENCE = timedelta(seconds=60)
LEDGER_PATIENCE = timedelta(seconds=8)


class _State(Enum):
    NONE = auto()
    ASKED = auto()  # its timer is running
    OPEN = auto()
    CLOSED = auto()  # begins no more effects, and waits for those that it began


class Stretches:
    """The stretches of one run, one after the other.

    Attributes:
        ledger: The id of the ledger that records the effects; empty before the first stretch.
        over: The ids of effects that went over to regular activities.
        waiting: How many updates are inside `until_over`, those included that were released and have not gone on yet.

    Args:
        takes: Whether an effect takes the short way.
        begin_rest: Begins what the task wants and has not begun.
        settle: Gives the task the outcome of the effect with this key.
        fail: Ends the run with an exception.
    """

    def __init__(
        self,
        takes: Callable[[Effect], bool],
        begin_rest: Callable[[], None],
        settle: Callable[[str, asyncio.Future[object]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._takes, self._begin_rest, self._settle, self._fail = takes, begin_rest, settle, fail
        self._off = False
        self._state = _State.NONE
        self._order: list[str] = []
        self._begun = self._bytes = 0
        self._came: dict[str, asyncio.Future[object]] = {}
        self._held: list[Callable[[], object]] = []
        self._first_at: datetime | None = None
        self._commit: asyncio.Future[None] | None = None
        self._end_comes: asyncio.Future[object] | None = None
        self.ledger = ""
        self.over: set[str] = set()
        self.waiting = 0

    def takes(self, want: Perform) -> bool:
        """Whether an effect that may take the short way takes it."""
        return not self._off and want.invocation_id not in self.over and self._takes(want.command)

    @property
    def is_idle(self) -> bool:
        """Whether there is no stretch and none is asked for, so that the task takes outside events at once."""
        return self._state is _State.NONE

    @property
    def is_open(self) -> bool:
        """Whether the stretch begins effects."""
        return self._state is _State.OPEN

    @property
    def _performs(self) -> bool:
        return self._state in (_State.OPEN, _State.CLOSED)

    def ask(self) -> None:
        """Begin a stretch once the workflow task has ended."""
        if self._state is _State.NONE:
            self._state = _State.ASKED
            self._commit = asyncio.ensure_future(self._committed())

    def after_stretch(self, take: Callable[[], object]) -> None:
        """Call `take`, which takes an event from outside: now, or after the current stretch.

        Waits for a stretch that is only asked for, too: the event's place in the order must be in history first.
        """
        if self.is_idle:
            take()
        else:
            self._held.append(take)

    def after_open_stretch(self, take: Callable[[], object]) -> None:
        """As `after_stretch`, but waits only for a stretch that has begun: `take` brings no event.

        In a run of an earlier release, which has no marker, it does not wait.
        """
        if self._performs and workflow.patched(HELD_PATCH):
            self._held.append(take)
        else:
            take()

    async def until_over(self) -> bool:
        """Wait until the stretch is over, and earlier events were taken. Returns False if there is no stretch."""
        if self.is_idle:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append(lambda: None if turn.done() else turn.set_result(None))
        self.waiting += 1
        try:
            await turn
        finally:
            self.waiting -= 1
        return True

    def begun(self, key: str, outcome: asyncio.Future[object]) -> None:
        """Note that the stretch has begun an effect."""
        self._order.append(key)
        self._begun += 1
        if self._begun >= MOST:
            self.close()
        outcome.add_done_callback(lambda done: self._came_back(key, done))

    def dropped(self, keys: Iterable[str]) -> None:
        """Wait no longer for the outcomes of these effects: the task does not want them any more."""
        gone = set(keys)
        self._order = [key for key in self._order if key not in gone]

    def took(self, at: datetime, size: int) -> None:
        """Note that the task has taken a result of this size, in bytes, that was recorded at this time."""
        self._first_at = self._first_at or at
        self._bytes += size
        if at - self._first_at >= STRETCH or (self._bytes >= MOST_BYTES and workflow.patched(BYTES_PATCH)):
            self.close()

    def close(self) -> None:
        """Begin nothing more in this stretch."""
        if self._state is _State.OPEN:
            self._state = _State.CLOSED

    async def _committed(self) -> None:
        if not self.ledger:
            try:
                self.ledger = await workflow.execute_local_activity(
                    LEDGER_ACTIVITY,
                    result_type=str,
                    schedule_to_close_timeout=LEDGER_PATIENCE,
                    retry_policy=RetryPolicy(maximum_attempts=1),
                )
            except FailureError:  # no ledger that could be used: this run takes the regular way
                self._off = True
                await self._ending()
                return
        await workflow.sleep(COMMIT)
        self._state, self._first_at, self._begun, self._bytes = _State.OPEN, None, 0, 0
        self._end_comes = workflow.start_local_activity(
            STRETCH_END, schedule_to_close_timeout=END_PATIENCE, retry_policy=RetryPolicy(maximum_attempts=1)
        )
        self._end_comes.add_done_callback(self._end_arrived)
        self._safely(self._begin_rest)

    def _end_arrived(self, end: asyncio.Future[object]) -> None:
        if not end.cancelled():
            end.exception()  # however it ended
        self._end_comes = None
        self._end_if_over()

    def _came_back(self, key: str, done: asyncio.Future[object]) -> None:
        if key not in self._order:
            self._settle(key, done)  # not wanted any more
            return
        self._came[key] = done
        while self._order and self._order[0] in self._came:
            first = self._order.pop(0)
            self._settle(first, self._came.pop(first))
        self._end_if_over()

    def _end_if_over(self) -> None:
        if self._order or self._end_comes or not self._performs:
            return
        if self._held:
            self._state = _State.ASKED
            self._commit = asyncio.ensure_future(self._taking_held())
        else:
            self._end()

    async def _taking_held(self) -> None:
        await workflow.sleep(COMMIT)
        await self._ending()

    async def _ending(self) -> None:
        while len(self._held) > AT_ONCE and workflow.patched(APART_PATCH):
            some, self._held = self._held[:AT_ONCE], self._held[AT_ONCE:]
            for take in some:
                self._safely(take)
            await workflow.sleep(COMMIT)
        self._end()

    def _end(self) -> None:
        self._state = _State.NONE
        held, self._held = self._held, []
        for take in (*held, self._begin_rest):
            self._safely(take)

    def _safely(self, take: Callable[[], object]) -> None:
        try:
            take()
        except Exception as error:  # noqa: BLE001 - raised again by the workflow; here it would be lost
            self._fail(error)
