"""Heartbeats of a worker whose codec may be away.

The SDK cancels an activity whose heartbeat it cannot encode. Such a heartbeat is sent with the details of the last one
that could be encoded: the next attempt of an activity may go on by them.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar
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

SHOWN: ContextVar[Shown | None] = ContextVar("refold_shown", default=None)
"""What the server was last shown of the current activity."""


class LossyHeartbeats(Interceptor):
    """Heartbeats are sent with the details of an earlier one where their own cannot be encoded.

    Args:
        converter: The worker's.
    """

    def __init__(self, converter: DataConverter) -> None:
        self._converter = converter

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See the SDK."""
        return _Inbound(next, self._converter)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, converter: DataConverter) -> None:
        super().__init__(next)
        self._converter = converter
        self._shown = Shown()

    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound, self._shown))

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        info = activity.info()
        if not info.is_local:
            SHOWN.set(self._shown)
            if info.heartbeat_details:
                self._shown.details = info.heartbeat_details
                with suppress(CodecError, StorageError):
                    self._shown.sent = await self._converter.encode(info.heartbeat_details)
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
