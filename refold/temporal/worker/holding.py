"""Holds what an activity came to while the codec or the storage is away.

The SDK encodes a result once the activity's code has returned. If it cannot, the result is lost, and the server has the
activity performed again: a tool would run anew, up to five times, and then its task would fail. So each activity of a
worker ends only once its outcome is encoded, be it a tool's, a model's, a record of the ledger, or that of an activity
of the program's own; and the SDK sends what was encoded then.

Without this module a codec or a storage that is away for a second repeats every effect that ends within that second.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from refold.effects.attempt import until_encoded
from refold.temporal.data.payloads import RefoldConverter
from refold.temporal.worker.heartbeats import SHOWN


class HeldOutcomes(Interceptor):
    """Activities whose outcome is held until it can be sent.

    A local activity is held, too, though its workflow task stays open meanwhile: that could not end either, and what it
    performs when it runs again is all that the ledger has no record of, such as a tool that failed.

    Args:
        converter: The worker's.
        heartbeats: Heartbeats for the current activity within the block, with the given details.
    """

    def __init__(
        self, converter: RefoldConverter, heartbeats: Callable[[Sequence[Any]], AbstractContextManager[None]]
    ) -> None:
        self.converter = converter
        self.heartbeats = heartbeats

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See the SDK."""
        return _Held(next, self)


class _Held(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, by: HeldOutcomes) -> None:
        super().__init__(next)
        self._by = by

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        try:
            result = await super().execute_activity(input)
        except Exception as error:
            await self._hold(error)
            raise
        await self._hold(result)
        return result

    async def _hold(self, outcome: object) -> None:
        shown = SHOWN.get()
        with self._by.heartbeats(() if shown is None else shown.details):
            await until_encoded(lambda: self._by.converter.keep(outcome))
