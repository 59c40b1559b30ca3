"""The call that a tool serves, as the tool reads it by `refold.effects.current()`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from httpx2 import AsyncClient

    from refold.effects.memory.memory import Memory


class Stopped(StrEnum):
    """Why an attempt is canceled."""

    UNWANTED = "unwanted"
    """The task does not want the effect any more."""
    TIMED_OUT = "timed_out"
    """The server has timed out the attempt, because its worker stalled. The task still wants the effect."""
    LEAVING = "leaving"
    """The worker is being stopped, and another one takes over the effect."""


@dataclass(slots=True, kw_only=True)
class Sent:
    """A writing request of a tool.

    Attributes:
        method: POST, PUT, PATCH or DELETE.
        status: The status of the answer; None without an answer.
        earlier: The statuses of earlier sendings of the same request, before a redirect, a login or the tool's own
            repetition; None for one without an answer.
    """

    method: str
    status: int | None = None
    earlier: list[int | None] = field(default_factory=list)


SENT = "refold.sent"
"""The extension of a writing request that holds its `Sent`, as `.sent`; a redirect inherits it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One call of a tool.

    Attributes:
        task_id: The task that issued the command.
        invocation_id: The command's id; the same on every attempt.
        idempotency_key: The value for `Idempotency-Key`: 64 hex digits, the same on every attempt.
        attempt: 1, or more if workers were lost before.
        http: The worker's pooled client, with httpx's interface; for tools that are `async def`. It adds the key to
            writing requests, see `refold.effects.http.sending`, and keeps no cookies, since all calls share it.
        fence: The number of this attempt at the effect, for receivers that refuse a lower number than the highest they
            have seen; 0 if the tool's policy keeps no receipts, and in a probe.
        sent: The writing requests that `http` has sent for this call, oldest first; None if requests are neither
            counted nor given a key.
        over: Set once an attempt with a receipt has failed: from then on `http` sends no writing request for it, since
            what the receipt says is about those that were sent before.
        memory: Sessions and facts of the call's owner; None outside a worker.
        report: Takes what `progress` reports; None drops it. A test passes `[].append` of its own list.
    """

    task_id: str
    invocation_id: str
    idempotency_key: str
    attempt: int
    http: AsyncClient
    fence: int = 0
    sent: list[Sent] | None = field(default_factory=list, repr=False)
    stop: threading.Event = field(default_factory=threading.Event, repr=False)
    over: threading.Event = field(default_factory=threading.Event, repr=False)
    report: Callable[[Any], None] | None = field(default=None, repr=False)
    memory: Memory | None = field(default=None, repr=False)

    def progress(self, said: Any) -> None:
        """Report progress to those who watch the task; from `def` and `async def` tools alike.

        A report is shown, not recorded: it costs no event, the next one replaces it, and so does the tool's result. A
        watcher gets the newest report four times a second at most. It never fails the tool.

        Args:
            said: A text, or other JSON, of at most 4 KB: `"40 of 100"`, `{"done": 40, "of": 100}`. A longer text is
                cut; for anything else that does not fit, watchers get a note of what it was.
        """
        if self.report is not None:
            self.report(said)

    @property
    def cancelled(self) -> bool:
        """Whether the call was canceled or has timed out.

        A tool that is a plain `def` runs in a thread, which cannot be stopped from outside: a long-running one checks
        this property now and then. A tool that is `async def` gets `asyncio.CancelledError` at its `await`.
        """
        return self.stop.is_set()


_current: ContextVar[Invocation] = ContextVar("refold_invocation")


def current() -> Invocation:
    """The call that the running tool or probe serves; works in `def` and `async def` alike.

    Raises:
        RuntimeError: Called outside a tool.
    """
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError(
            "refold.effects.current() knows a call only inside a tool that a worker runs; in a test, wrap the call: "
            "`with as_current(Invocation(...)):`"
        ) from None


def serving() -> Invocation | None:
    """The call that the running tool serves; None outside a tool."""
    return _current.get(None)


@contextmanager
def as_current(invocation: Invocation) -> Iterator[None]:
    """Make `current()` return this call inside the `with` block; used by the worker, and by tests of tools."""
    token = _current.set(invocation)
    try:
        yield
    finally:
        _current.reset(token)
