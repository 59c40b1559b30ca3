"""Who asks: what a tool can know about the call it serves, by `refold.effects.current()`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from httpx2 import AsyncClient


@dataclass(slots=True, kw_only=True)
class Sent:
    """A request that may have changed something on the other side.

    Attributes:
        method: POST, PUT, PATCH or DELETE.
        status: What was answered; None while nothing has been.
    """

    method: str
    status: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of a tool.

    Attributes:
        task_id: The task that asks.
        invocation_id: The command's id; the same on every try.
        idempotency_key: What to send as `Idempotency-Key`: 64 hex digits, the same on every try.
        attempt: 1, or more if a worker was lost before this one.
        http: The worker's pooled client, as in httpx; for tools that are `async def`. What it sends that may change
            something carries the key by itself; see `refold.effects.http.sending`.
        fence: How often this effect has been begun, for receivers that refuse a number below the highest they have
            seen; 0 where the tool's policy keeps no receipts.
        sent: The requests that `http` has sent for this call and that may have changed something, oldest first; None
            where they are not counted, and carry no key.
    """

    task_id: str
    invocation_id: str
    idempotency_key: str
    attempt: int
    http: AsyncClient
    fence: int = 0
    sent: list[Sent] | None = field(default_factory=list, repr=False)
    stop: threading.Event = field(default_factory=threading.Event, repr=False)

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the result any more.

        A tool that is a plain `def` runs in a thread, which cannot be stopped from outside: a long one looks here now
        and then. A tool that is `async def` gets `asyncio.CancelledError` at its `await`.
        """
        return self.stop.is_set()


_current: ContextVar[Invocation] = ContextVar("refold_invocation")


def current() -> Invocation:
    """The call that is being served; in tools, sync ones too.

    Raises:
        RuntimeError: No tool is being run.
    """
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(
            "refold.effects.current() knows a call only inside a tool that a worker runs; in a test, wrap the call: "
            "`with as_current(Invocation(...)):`"
        ) from None


def serving() -> Invocation | None:
    """The call that is being served; None where there is none."""
    return _current.get(None)


@contextmanager
def as_current(invocation: Invocation) -> Iterator[None]:
    """Serve this call inside the `with` block: for the worker, and for a tool's own tests."""
    token = _current.set(invocation)
    try:
        yield
    finally:
        _current.reset(token)
