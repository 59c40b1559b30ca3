"""Heartbeats of a worker whose codec may be away.

The SDK cancels an activity whose heartbeat it cannot encode, though nothing depends on a heartbeat's details: they show
how far the activity is. They are left out then.
"""

from __future__ import annotations

from typing import Any

from temporalio.worker import ActivityInboundInterceptor, ActivityOutboundInterceptor, Interceptor

from refold.temporal.data.payloads import MAY_BE_LOST


class LossyHeartbeats(Interceptor):
    """Heartbeats are sent without their details where these cannot be encoded."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """See the SDK."""
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(ActivityOutboundInterceptor):
    def heartbeat(self, *details: Any) -> None:
        token = MAY_BE_LOST.set(True)  # the SDK encodes them in an asyncio task, which has this context
        try:
            super().heartbeat(*details)
        finally:
            MAY_BE_LOST.reset(token)
