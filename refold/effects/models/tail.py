"""The end of a model's answer while it streams: the last 4 KB, sent with heartbeats at most every 250 ms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from refold.core.values import Value, lean

TAIL_BYTES = 4096
EVERY_S = 0.25


class CallTail(Value):
    """The end of a tool call's arguments so far, as JSON text.

    Attributes:
        number: Which call of the answer it is, from 0.
        tool: The tool's name.
        offset: Where `args` starts in the whole arguments, in characters.
        args: The end of the arguments.
    """

    number: int
    tool: str
    offset: int = lean(0)
    args: str = lean("")


class TokenTail(Value):
    """The end of a model's answer so far, as a heartbeat carries it: at most 4 KB as UTF-8, the newest first served.

    Attributes:
        attempt: The attempt that streams the answer; a later attempt starts a new answer.
        offset: Where `text` starts in the whole text, in characters.
        text: The end of the text.
        calls: The tool calls of the answer, in order; the arguments of an older call may be cut away entirely.
    """

    attempt: int
    offset: int
    text: str
    calls: tuple[CallTail, ...] = lean(())


@dataclass(slots=True)
class _Stream:
    tool: str = ""
    end: str = ""
    length: int = 0

    def add(self, piece: str) -> None:
        self.length += len(piece)
        self.end = _last_bytes(self.end + piece, TAIL_BYTES)


class Tail:
    """Collects an answer's pieces and shows its end: the first piece at once, later ones at most every 250 ms."""

    def __init__(self, attempt: int, show: Callable[[TokenTail], None]) -> None:
        """Start with nothing.

        Args:
            attempt: The number of the attempt.
            show: Takes the newest tail; called on the event loop.
        """
        self._attempt = attempt
        self._show = show
        self._text = _Stream()
        self._calls: list[_Stream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._waiting = False

    def text(self, piece: str) -> None:
        """Append a piece of text."""
        if piece:
            self._text.add(piece)
            self._came()

    def call(self, number: int, tool: str, piece: str) -> None:
        """Append a piece of a tool call's arguments; the first one may be empty."""
        while len(self._calls) <= number:
            self._calls.append(_Stream(tool=tool))
        self._calls[number].add(piece)
        self._came()

    @property
    def empty(self) -> bool:
        """Whether no piece has arrived yet."""
        return self._text.length == 0 and not self._calls

    def newest(self) -> TokenTail:
        """The tail as it is now."""
        left = TAIL_BYTES
        ends: list[str] = []
        for stream in [*reversed(self._calls), self._text]:  # newest first
            ends.append(_last_bytes(stream.end, left))
            left -= len(ends[-1].encode("utf-8", errors="replace"))
        *calls, text = ends
        return TokenTail(
            attempt=self._attempt,
            offset=self._text.length - len(text),
            text=text,
            calls=tuple(
                CallTail(number=number, tool=stream.tool, offset=stream.length - len(args), args=args)
                for number, (stream, args) in enumerate(zip(self._calls, reversed(calls), strict=True))
            ),
        )

    def close(self) -> None:
        """Show nothing from here on."""
        if self._timer is not None:
            self._timer.cancel()

    def _came(self) -> None:
        if self._timer is None:
            self._show_now()
        else:
            self._waiting = True

    def _show_now(self) -> None:
        self._waiting = False
        self._show(self.newest())
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._next)

    def _next(self) -> None:
        self._timer = None
        if self._waiting:
            self._show_now()


def _last_bytes(text: str, limit: int) -> str:
    """The longest end of `text` of at most `limit` bytes as UTF-8, without half a character."""
    end = text[-limit:] if limit else ""
    data = end.encode("utf-8", errors="replace")
    return end if len(data) <= limit else data[-limit:].decode("utf-8", errors="ignore")
