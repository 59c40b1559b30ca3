"""Heartbeats from a thread of their own, so that a busy event loop is not mistaken for a dead worker.

The thread asks each activity's event loop to send a heartbeat with the newest details, encoded by the client's
converter. If the loop has not answered by the next time it is busy, and the thread sends a heartbeat without details
itself. So a tool may block the loop for minutes without losing its activity. Only code that never releases the
interpreter lock (a C extension) stops this thread too.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field

from refold.seen.logs import logger

log = logger(__name__)

BEATS_PER_TIMEOUT = 4
"""Heartbeats per timeout: two may be missed and a third be late before the server counts the worker as lost."""


@dataclass(eq=False, slots=True, kw_only=True)
class _Beat:
    every_s: float
    due: float
    loop: asyncio.AbstractEventLoop
    context: Context
    ask: Callable[[], None]
    force: Callable[[], None]
    unanswered: bool = field(default=False)

    def answer(self) -> None:
        self.unanswered = False
        self.ask()


class Heartbeater:
    """A thread that heartbeats for all activities of a worker; a context manager that starts and stops it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._beats: set[_Beat] = set()
        self._wakes_at = math.inf  # when the thread wakes if nobody notifies it
        self._thread: threading.Thread | None = None
        self._stopped = True

    def __enter__(self) -> Heartbeater:
        self._stopped = False
        # A daemon, since heartbeats alone must not prevent the process from exiting.
        self._thread = threading.Thread(target=self._run, name="refold-heartbeat", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def beating(self, timeout_s: float, ask: Callable[[], None], force: Callable[[], None]) -> Iterator[None]:
        """Heartbeat for one activity inside the `with` block; called on the activity's event loop.

        Args:
            timeout_s: The activity's heartbeat timeout, in seconds.
            ask: Sends a heartbeat with the newest details; called on the event loop, in the caller's context.
            force: Sends a heartbeat without details; called on the heartbeater's thread while the loop is busy.
        """
        every = timeout_s / BEATS_PER_TIMEOUT
        beat = _Beat(
            every_s=every,
            due=time.monotonic() + every,
            loop=asyncio.get_running_loop(),
            context=copy_context(),
            ask=ask,
            force=force,
        )
        with self._changed:
            self._beats.add(beat)
            if beat.due < self._wakes_at:  # else the thread wakes in time: no effect is worth a change of threads
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._beats.discard(beat)

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                now = time.monotonic()
                due = [beat for beat in self._beats if beat.due <= now]
                if not due:
                    self._wakes_at = min((beat.due for beat in self._beats), default=math.inf)
                    self._changed.wait(None if self._wakes_at == math.inf else self._wakes_at - now)
                    continue
                for beat in due:
                    beat.due = now + beat.every_s
                    self._beat(beat)

    def _beat(self, beat: _Beat) -> None:
        # Under the lock, so that no heartbeat is sent for an activity that has ended.
        try:
            if beat.unanswered:
                beat.force()
            else:
                beat.unanswered = True
                beat.loop.call_soon_threadsafe(self._answered, beat, context=beat.context)
        except Exception as error:  # noqa: BLE001 - one activity's error must not stop the others' heartbeats
            log.warning("heartbeat_failed", error=type(error).__name__)

    def _answered(self, beat: _Beat) -> None:
        if beat in self._beats:
            beat.answer()
