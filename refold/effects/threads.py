"""Threads for tools and probes that are a plain `def`. They do not keep the process alive: no thread can be stopped."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from refold.effects.failures.contained import contained

TOOL_THREADS = 32
"""The default for the most tools that are a plain `def` running at once in one worker; further calls wait."""

T = TypeVar("T")

_Call = tuple[Future[Any], Callable[[], Any]]


class Threads:
    """At most so many threads, each of which runs one call after another. A call that waits for a thread can be
    canceled by its future, and then never begins."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._changed = threading.Condition()
        self._waiting: deque[_Call] = deque()
        self._started = 0
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Run a call in the next free thread.

        Raises:
            RuntimeError: The threads are closed, or there is none and the system starts no more; the call never runs.
        """
        future: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the threads of this worker's tools are closed")
            if self._idle <= len(self._waiting) and self._started < self._most:
                self._start()
            self._waiting.append((future, call))
            self._changed.notify()
        return future

    def _start(self) -> None:
        try:
            threading.Thread(target=self._work, name=f"{self._name}-{self._started + 1}", daemon=True).start()
        except RuntimeError:  # the system starts no more; the call waits for one that is there
            if not self._started:
                raise
        else:
            self._started += 1

    @property
    def waiting(self) -> int:
        """How many calls wait for a thread."""
        return len(self._waiting)

    def close(self) -> None:
        """Cancel the calls that wait; a call that runs goes on in its thread until it or the process ends."""
        with self._changed:
            self._closed = True
            waiting = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for future, _ in waiting:
            future.cancel()

    def _work(self) -> None:
        while (found := self._next()) is not None:
            run(*found)
            del found  # the result belongs to the caller alone

    def _next(self) -> _Call | None:
        with self._changed:
            self._idle += 1
            while not self._waiting and not self._closed:
                self._changed.wait()
            self._idle -= 1
            return self._waiting.popleft() if self._waiting else None


def run(future: Future[Any], call: Callable[[], Any]) -> None:
    """Make a call in this thread, unless its future is canceled, and give the outcome to the future."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - raised again where the caller awaits the future
        future.set_exception(contained(error))


def in_own_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Run a call at once, in a thread of its own."""
    future: Future[T] = Future()
    threading.Thread(target=run, args=(future, call), name=name, daemon=True).start()
    return future
