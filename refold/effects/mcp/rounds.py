"""What the requests of a call say of its failure: whether the server may have performed the tool for one of them.

A later request that is refused leaves a doubt: the server has answered an earlier one, and may have acted.

MCP's SDK may send several requests for one call: the next round of a call whose server asks for one (MCP 2026-07-28),
or a listing to check the result against. They are sent one after another, each once the one before is answered.

No doubt comes from a call that was answered with `HEADER_MISMATCH`, after which the SDK lists the tools and sends the
call again: the server has not performed it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from mcp.shared.message import SessionMessage
from mcp_types import HEADER_MISMATCH, JSONRPCError, JSONRPCRequest, RequestId

from refold.effects.failures.verdicts import Never, TryLater, Verdict


@dataclass(eq=False, slots=True, weakref_slot=True)
class _Asked:
    """A request of a call.

    Attributes:
        harmless: The server has certainly not performed the tool for this request.
    """

    harmless: bool


_ASKED: ContextVar[list[_Asked] | None] = ContextVar("refold_mcp_asked", default=None)
"""A call's requests, oldest first: the SDK sends them in the context of its caller."""


@contextlib.contextmanager
def first_alone_refused() -> Iterator[None]:
    """Make one call inside the block.

    Raises:
        Verdict: A verdict of the block. It does not say "not done" if the server may have performed the tool for a
            request before the last one. A `TryLater` says "not done" if the server has not performed it for any.
    """
    asked: list[_Asked] = []
    before = _ASKED.set(asked)
    try:
        yield
    except (Never, TryLater) as verdict:
        if not all(earlier.harmless for earlier in asked[:-1]):
            raise Verdict(verdict.failure) from None
        if isinstance(verdict, TryLater) and all(one.harmless for one in asked[-1:]):
            verdict.unsent = True
        raise
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

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._asked: WeakValueDictionary[RequestId, _Asked] = WeakValueDictionary()  # of the calls under way

    async def send(self, item: SessionMessage) -> None:
        calls, message = _ASKED.get(), item.message
        if calls is not None and isinstance(message, JSONRPCRequest):
            asked = self._asked[message.id] = _Asked(harmless=message.method != "tools/call")
            calls.append(asked)
        await self._stream.send(item)

    def answered(self, error: JSONRPCError) -> None:
        """Note an error by which the server answers a request."""
        if error.error.code == HEADER_MISMATCH and error.id is not None and (asked := self._asked.get(error.id)):
            asked.harmless = True
