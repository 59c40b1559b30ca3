"""What a running tool reports of its progress, sent with heartbeats: the newest report, at most every 250 ms.

A report is transient: it writes no event to history, and the tool's result replaces it. So a tool may report as often
as it likes, and a report never fails it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

from pydantic import JsonValue
from pydantic_core import to_json, to_jsonable_python

from refold.core.values import Value, encodable
from refold.middleware import ProgressPiece
from refold.seen.logs import logger

REPORT_BYTES = 4096
EVERY_S = 0.25

log = logger(__name__)


class Report(Value):
    """The newest report of a tool call, as a heartbeat carries it.

    Attributes:
        attempt: The attempt that reports; a later attempt begins anew.
        number: Counts the reports that were sent, from 1.
        said: What was reported.
    """

    attempt: int
    number: int
    said: JsonValue


class Reports:
    """Takes a tool's reports from any thread, and passes the newest one on in the event loop.

    Attributes:
        through: Passes a piece through the middleware around the tool, to `show`.
    """

    def __init__(self, attempt: int, heartbeat: Callable[[Report], None]) -> None:
        """Start with nothing; called in the event loop.

        Args:
            attempt: The number of the attempt.
            heartbeat: Takes the newest report; called in the event loop.
        """
        self.through: Callable[[Any], None] = self.show
        self._attempt = attempt
        self._heartbeat = heartbeat
        self._loop, self._context = asyncio.get_running_loop(), copy_context()
        self._lock = threading.Lock()
        self._waiting: list[JsonValue] = []
        self._asked = False
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._newest: Report | None = None

    def add(self, said: Any) -> None:
        """Take a report, from any thread; only the newest one waits."""
        with self._lock:
            if self._closed:
                return
            self._waiting = [_fitted(said)]
            if self._asked:
                return
            self._asked = True
        try:
            self._loop.call_soon_threadsafe(self._came, context=self._context)
        except RuntimeError:  # the loop is closed, so nobody is told
            self.close()

    def show(self, piece: Any) -> None:
        """Send a piece that has passed the middleware."""
        if isinstance(piece, ProgressPiece) and not self._closed:
            number = 1 if self._newest is None else self._newest.number + 1
            self._newest = Report(attempt=self._attempt, number=number, said=_fitted(piece.said))
            self._heartbeat(self._newest)

    @property
    def empty(self) -> bool:
        """Whether nothing has been sent yet."""
        return self._newest is None

    def newest(self) -> Report | None:
        """The newest report that was sent."""
        return self._newest

    def close(self) -> None:
        """Send nothing from here on."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _came(self) -> None:
        if self._timer is not None or self._closed:
            return  # the timer will look
        with self._lock:
            waiting, self._waiting, self._asked = self._waiting, [], False
        if waiting:
            self._timer = self._loop.call_later(EVERY_S, self._next)
            self.through(ProgressPiece(waiting[-1]))

    def _next(self) -> None:
        self._timer = None
        self._came()


def _fitted(said: Any) -> JsonValue:
    """A report as JSON of at most 4 KB: a longer text is cut; whatever else does not fit becomes a note of that."""
    try:
        written: JsonValue = encodable(to_jsonable_python(said))
        size = len(to_json(written))
    except Exception:  # noqa: BLE001 - a value's own code, such as a generator's, may raise anything
        log.warning("progress_unfit", type=type(said).__name__)
        return f"(a report of type {type(said).__name__}, which is no JSON)"
    if size <= REPORT_BYTES:
        return written
    if isinstance(written, str):
        return written.encode(errors="replace")[: REPORT_BYTES - 8].decode(errors="ignore") + "…"
    log.warning("progress_unfit", bytes=size)
    return f"(a report of {size:,} bytes; {REPORT_BYTES:,} are shown at the most)"
