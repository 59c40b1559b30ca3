"""Threads that run the ledger's blocking calls for an event loop, with little overhead.

A `ThreadPoolExecutor` needs a second future, a lock and two more turns of the loop for each call: about 60 µs, a
quarter of a commit on a good disk.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    answer: asyncio.Future[Any]

    def make(self) -> None:
        """Run the call in a pool thread, and pass its result or exception to the loop."""
        try:
            self._tell(self._done, self.function(*self.arguments))
        except BaseException as error:  # noqa: BLE001 - raised again where the caller awaits the future
            self._tell(self._failed, error)

    def _tell(self, how: Callable[[Any], None], what: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed, so no caller waits
            self.answer.get_loop().call_soon_threadsafe(how, what)

    def _done(self, result: Any) -> None:
        if not self.answer.done():
            self.answer.set_result(result)

    def _failed(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class ThreadPool:
    """A fixed number of threads, each of which runs one call after another."""

    def __init__(self, threads: int, name: str) -> None:
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def run(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        """Run a call in the next free thread; called on an event loop. Cancelling the future does not stop the call."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(function, arguments, answer))
        return answer

    def close(self, *, wait: bool = True) -> None:
        """Run the calls that are queued, then end the threads.

        Args:
            wait: Return once they have ended.
        """
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()
