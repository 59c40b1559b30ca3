"""How refusals of the server are told."""

from __future__ import annotations

import pytest
from temporalio.service import RPCError, RPCStatusCode

from refold.engine import EngineError, NotConnected
from refold.temporal.client.errors import server_refused


@pytest.mark.parametrize(
    ("status", "message"),
    [
        pytest.param(RPCStatusCode.UNAVAILABLE, "tcp connect error", id="nobody listens"),
        pytest.param(RPCStatusCode.UNKNOWN, "transport error", id="killed under a call"),
        pytest.param(RPCStatusCode.DEADLINE_EXCEEDED, "Timeout expired", id="silent"),
    ],
)
def test_a_server_that_is_away_is_no_refusal(status: RPCStatusCode, message: str) -> None:
    """
    However the connection was lost, the caller may try again once the server is back.
    """
    assert isinstance(server_refused(RPCError(message, status, b""), "start it"), NotConnected)


def test_other_errors_stay_what_they_are() -> None:
    """
    An answer that names another cause is no outage.
    """
    error = server_refused(RPCError("unexpected", RPCStatusCode.UNKNOWN, b""), "start it")

    assert type(error) is EngineError
    assert "start it: unexpected" in str(error)
