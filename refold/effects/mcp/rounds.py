"""Leaves a doubt if a later request of a call is refused: the server has answered an earlier one, and may have acted.

MCP's SDK may send several requests for one call: the next round of a call whose server asks for one (MCP 2026-07-28),
or a listing to check the result against. They are sent one after another, each once the one before is answered.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCRequest, RequestId

from refold.effects.failures.verdicts import Never, TryLater, Verdict

_ASKED: ContextVar[list[RequestId] | None] = ContextVar("refold_mcp_asked", default=None)
"""The ids of a call's requests: the SDK sends them in the context of its caller."""


@contextlib.contextmanager
def first_alone_refused() -> Iterator[None]:
    """Make one call inside the block.

    Raises:
        Verdict: A verdict of the block. If the call has sent more than one request, it does not say "not done".
    """
    asked: list[RequestId] = []
    before = _ASKED.set(asked)
    try:
        yield
    except (Never, TryLater) as verdict:
        if len(asked) < 2:
            raise
        raise Verdict(verdict.failure) from None
    finally:
        _ASKED.reset(before)


class Wrapped:
    """What every stream of MCP's SDK has, passed on to another one."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        ended: bool | None = await self._stream.__aexit__(kind, error, trace)
        return ended


class Counted(Wrapped):
    """The stream of what is sent to a server, which notes the requests of each call; see `mcp.client.WriteStream`."""

    async def send(self, item: SessionMessage) -> None:
        asked = _ASKED.get()
        if asked is not None and isinstance(item.message, JSONRPCRequest):
            asked.append(item.message.id)
        await self._stream.send(item)
