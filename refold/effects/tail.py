"""The text of a model as it comes: its last few kilobytes, often enough to watch, seldom enough to be cheap."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from refold.core.base import Value

TAIL_BYTES = 4096
EVERY_S = 0.25


class TokenTail(Value):
    """The end of what a model has said so far, as a heartbeat carries it.

    Attributes:
        attempt: Which try of the call it belongs to; a later try begins again.
        offset: Where `text` starts in the whole text, in characters.
        text: At most 4 KB as UTF-8.
    """

    attempt: int
    offset: int
    text: str


class Tail:
    """Collects a text's pieces and shows its end: the first piece at once, then every 250 ms, never a piece late."""

    def __init__(self, attempt: int, show: Callable[[TokenTail], None]) -> None:
        """Start with no text.

        Args:
            attempt: Which try of the call it is.
            show: Takes the newest tail; called on the event loop.
        """
        self._attempt = attempt
        self._show = show
        self._end = ""
        self._length = 0
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = False

    def add(self, piece: str) -> None:
        """Append a piece of text."""
        if not piece:
            return
        self._length += len(piece)
        self._end = _last_bytes(self._end + piece)
        if self._timer is None:
            self._show_now()
        else:
            self._waiting = True

    @property
    def empty(self) -> bool:
        """Whether there is no text yet."""
        return self._length == 0

    def newest(self) -> TokenTail:
        """The tail as it is now."""
        return TokenTail(attempt=self._attempt, offset=self._length - len(self._end), text=self._end)

    def close(self) -> None:
        """Show nothing from here on."""
        if self._timer is not None:
            self._timer.cancel()

    def _show_now(self) -> None:
        self._waiting = False
        self._show(self.newest())
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._next)

    def _next(self) -> None:
        self._timer = None
        if self._waiting:
            self._show_now()


def _last_bytes(text: str) -> str:
    """The longest end of `text` that is at most `TAIL_BYTES` as UTF-8, without half a character."""
    end = text[-TAIL_BYTES:]
    data = end.encode("utf-8", errors="replace")
    return end if len(data) <= TAIL_BYTES else data[-TAIL_BYTES:].decode("utf-8", errors="ignore")
