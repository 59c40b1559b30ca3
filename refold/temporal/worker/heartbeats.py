"""Heartbeats of a worker whose codec may be away.

The SDK cancels an activity whose heartbeat it cannot encode. Such a heartbeat is sent with the details of the last one
that could be encoded: the next attempt of an activity may go on by them.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from temporalio import activity
from temporalio.converter import DataConverter
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from refold.engine import CodecError, StorageError
from refold.temporal.data.payloads import MAY_BE_LOST, Shown


class LossyHeartbeats(Interceptor):
    """Heartbeats are sent with the details of an earlier one where their own cannot be encoded.

    Give it before other interceptors: what they do in a heartbeat is none.

    Args:
        converter: The worker's.
    """

    def __init__(self, converter: DataConverter) -> None:
        self._converter = converter

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See the SDK."""
        return LossyInbound(next, self._converter)


class LossyInbound(ActivityInboundInterceptor):
    """One attempt of an activity.

    Attributes:
        shown: What the server was last shown of it.
        outbound: Sends its heartbeats.
    """

    outbound: ActivityOutboundInterceptor

    def __init__(self, next: ActivityInboundInterceptor, converter: DataConverter) -> None:
        super().__init__(next)
        self._converter = converter
        self.shown = Shown()

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        """See the SDK."""
        self.outbound = _Outbound(outbound, self.shown)
        super().init(self.outbound)

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        """See the SDK."""
        if before := activity.info().heartbeat_details:
            self.shown.details = before
            with suppress(CodecError, StorageError):
                self.shown.sent = await self._converter.encode(before)
        return await super().execute_activity(input)


class _Outbound(ActivityOutboundInterceptor):
    def __init__(self, next: ActivityOutboundInterceptor, shown: Shown) -> None:
        super().__init__(next)
        self._shown = shown

    def heartbeat(self, *details: Any) -> None:
        self._shown.details = details
        token = MAY_BE_LOST.set(self._shown)  # the SDK encodes them in an asyncio task, which has this context
        try:
            super().heartbeat(*details)
        finally:
            MAY_BE_LOST.reset(token)
