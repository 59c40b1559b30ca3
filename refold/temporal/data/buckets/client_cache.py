"""A client that is opened once for all who use it in an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class _Client(Generic[T]):
    opened: asyncio.Future[T]
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    keeper: asyncio.Task[None] | None = None  # held here: a loop holds its tasks weakly


class Kept(Generic[T]):
    """Opens a client with its first use, and keeps it, with its connections and credentials, for those that follow.

    Each event loop has its own, as connections belong to one. It is closed when its loop cancels all tasks, as that of
    `asyncio.run` does at its end; or as its last user leaves, once a use has failed: the next one opens another, which
    reads settings and credentials again.

    Args:
        open: Opens a client; what it raises is raised at each use.
    """

    def __init__(self, open: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self._open = open
        self._clients: dict[asyncio.AbstractEventLoop, _Client[T]] = {}

    @asynccontextmanager
    async def __call__(self) -> AsyncIterator[T]:
        """The client, for one use.

        Raises:
            Exception: What opening raises.
        """
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop) or self._begun(loop)
        client.users += 1
        try:
            yield await asyncio.shield(client.opened)
        except Exception:
            self._forget(loop, client)
            raise
        finally:
            client.users -= 1
            if not client.users and self._clients.get(loop) is not client:
                client.unused.set()

    def _begun(self, loop: asyncio.AbstractEventLoop) -> _Client[T]:
        client = self._clients[loop] = _Client(loop.create_future())
        # In a task and a context of its own: whoever comes first may be canceled, and is traced.
        client.keeper = loop.create_task(self._keep(loop, client), context=Context())
        return client

    async def _keep(self, loop: asyncio.AbstractEventLoop, client: _Client[T]) -> None:
        try:
            async with self._open() as opened:
                client.opened.set_result(opened)
                await client.unused.wait()
        except Exception as error:  # noqa: BLE001 - the clients' libraries share no base of errors
            if not client.opened.done():  # else it fails to close, which concerns no use
                client.opened.set_exception(error)
                client.opened.exception()  # all who wait may have been canceled
        finally:
            client.opened.cancel()
            self._forget(loop, client)

    def _forget(self, loop: asyncio.AbstractEventLoop, client: _Client[T]) -> None:
        if self._clients.get(loop) is client:
            del self._clients[loop]
