"""Holds what an activity came to while the codec or the storage is away.

The SDK encodes a result once the activity's code has returned. If it cannot, the result is lost, and the server has the
activity performed again: a tool would run anew, up to five times, and then its task would fail. So each activity of a
worker ends only once its outcome is encoded, be it a tool's, a model's, a record of the ledger, or that of an activity
of the program's own; and the SDK sends what was encoded then.

Without this module a codec or a storage that is away for a second repeats every effect that ends within that second.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from temporalio import activity
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from refold.effects.attempt import HELD, until_encoded
from refold.temporal.data.payloads import RefoldConverter
from refold.temporal.worker.heartbeats import LossyInbound


class HeldOutcomes(Interceptor):
    """Activities whose outcome is held until it can be sent, with heartbeats as of `LossyHeartbeats`.

    A local activity is held, too, though its workflow task stays open meanwhile: that could not end either, and what it
    performs when it runs again is all that the ledger has no record of, such as a tool that failed.

    Give it before all other interceptors: what they make of an outcome is held, too.

    Args:
        converter: The worker's.
        heartbeats: Heartbeats for the current activity within the block, by the given function.
        outermost: No interceptor comes before it, as those of the worker's client would: these may change an outcome.
    """

    def __init__(
        self,
        converter: RefoldConverter,
        heartbeats: Callable[[Callable[[], None]], AbstractContextManager[None]],
        *,
        outermost: bool,
    ) -> None:
        self.converter = converter
        self.heartbeats = heartbeats
        self.outermost = outermost

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See the SDK."""
        return _Held(next, self)


class _Held(LossyInbound):
    def __init__(self, next: ActivityInboundInterceptor, by: HeldOutcomes) -> None:
        super().__init__(next, by.converter)
        self._by = by

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        HELD.set(True)
        try:
            result = await super().execute_activity(input)
        except Exception as error:
            await self._hold(error)
            raise
        await self._hold(result)
        return result

    async def _hold(self, outcome: object) -> None:
        keep = partial(self._by.converter.keep, outcome, final=self._by.outermost)
        with self._by.heartbeats(self._beat):  # a codec may take long, before it is known to be away
            await until_encoded(keep, self._waits)

    def _waits(self) -> None:
        if not activity.info().is_local:
            with suppress(Exception):  # of a client's interceptor, which would take the outcome along
                self._beat()  # the last heartbeat of the activity's own may be long ago

    def _beat(self) -> None:
        self.outbound.heartbeat(*self.shown.details)  # that of the context blocks the loop after code in a thread
