"""Threads for tools and probes that are a plain `def`. They do not keep the process alive: no thread can be stopped."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, ParamSpec, TypeVar

from refold.effects.failures.contained import contained

TOOL_THREADS = 32
"""The default for the most tools that are a plain `def` running at once in one worker; further calls wait."""

LOOP_THREADS = 32
"""The most calls of `asyncio.to_thread` that run at once in a process that leaves its threads; as many as asyncio's own
executor has on a large machine."""

T = TypeVar("T")
P = ParamSpec("P")

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


class LeftThreads(ThreadPoolExecutor):
    """The executor of `asyncio.to_thread` for a process that ends while a call goes on. asyncio's own executor joins
    its threads, so that the process would wait for a call that never returns."""

    def __init__(self) -> None:
        super().__init__(LOOP_THREADS)  # starts no thread, as no call gets to it
        self._threads_left = Threads(LOOP_THREADS, "asyncio")

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in the next free thread.

        Raises:
            RuntimeError: The executor is shut down, or there is no thread and the system starts none.
        """
        return self._threads_left.submit(partial(fn, *args, **kwargs))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the calls that wait for a thread. A call that runs is not awaited, whatever `wait` says."""
        self._threads_left.close()
        super().shutdown(wait=False, cancel_futures=cancel_futures)


def leave_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Let no call of `asyncio.to_thread` keep the process alive, unless the loop has an executor of its own by now."""
    # Other loops than asyncio's do not say whether they have one.
    if getattr(loop, "_default_executor", loop) is None:
        loop.set_default_executor(LeftThreads())


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
