"""How a connection to a server is set up."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client
from temporalio.service import GrpcCompression

from refold.engine import NotConnected
from refold.temporal import connect


@pytest.mark.parametrize(
    ("environment", "compression"),
    [
        pytest.param({}, GrpcCompression.NONE, id="no TLS"),
        pytest.param({"TEMPORAL_TLS": "true"}, GrpcCompression.GZIP, id="TLS"),
        pytest.param({"TEMPORAL_API_KEY": "key"}, GrpcCompression.GZIP, id="an API key, which turns TLS on"),
    ],
)
async def test_only_a_server_far_away_gets_compressed_calls(
    environment: dict[str, str], compression: GrpcCompression, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A server without TLS is near: compressing a call to it takes more time than sending it.
    """
    given: dict[str, Any] = {}

    async def refuse(**settings: Any) -> None:
        given.update(settings)
        raise RuntimeError("Connection refused")

    monkeypatch.setattr(Client, "connect", refuse)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(NotConnected):
        await connect(address="localhost:7233")

    assert given.get("grpc_compression", GrpcCompression.GZIP) == compression
