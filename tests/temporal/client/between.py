"""A client whose calls to a real server pass through a function of the test, which may refuse, lose or count them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from temporalio.client import Client
from temporalio.service import ServiceClient

Call = Callable[[], Awaitable[Any]]
Pass = Callable[[str, Call], Awaitable[Any]]
"""Gets the call's name and the call itself, and returns what the client is answered."""


class _Between(ServiceClient):
    def __init__(self, behind: ServiceClient, on: Pass) -> None:
        super().__init__(behind.config)
        self.behind = behind
        self.on = on

    @property
    def worker_service_client(self) -> Any:
        return self.behind.worker_service_client

    def update_rpc_metadata(self, metadata: Mapping[str, str | bytes]) -> None:
        raise NotImplementedError

    def update_api_key(self, api_key: str | None) -> None:
        raise NotImplementedError

    async def _rpc_call(self, rpc: str, req: Any, resp_type: Any, **how: Any) -> Any:
        return await self.on(rpc, partial(self.behind._rpc_call, rpc, req, resp_type, **how))


def between(client: Client, on: Pass) -> Client:
    """A client of the same server."""
    config = {**client.config(), "service_client": _Between(client.service_client, on)}
    return Client(**config)  # type: ignore[arg-type]
