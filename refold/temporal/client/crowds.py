"""Many callers of one task at once: their updates are sent in turn, and one look at the task serves all who wait.

Rule 1: at most `AT_ONCE` updates of one client wait for a task; the others are sent in the order they came.
Rule 2: they are sent for as long as the task answers somebody. Once it answers nobody, no one that waited is sent.
Rule 3: a caller is told what a look found that began after the caller asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast
from weakref import WeakValueDictionary

from temporalio.client import RPCTimeoutOrCancelledError

from refold.core.errors import RefoldError
from refold.engine import TaskView
from refold.record import TaskRecord
from refold.temporal.client.errors import cancelable, server_away

T = TypeVar("T")

AT_ONCE = 4
"""Temporal lets ten updates wait for one workflow, unless it is told otherwise. As it refuses one more, it forgets the
workflow task that a worker has for the others. So two such clients find room, and a person beside them."""


class NoTurn(Exception):
    """An update was not sent: the task answered none of those that were sent before it."""


class _Shared(Generic[T]):
    """A question about one task, put once for all who ask at the same time."""

    def __init__(self) -> None:
        self._asking = asyncio.Lock()
        self._begun = 0
        self._found: T | RefoldError | None = None

    async def ask(self, question: Callable[[], Awaitable[T]]) -> T:
        """See `Crowd.look`."""
        wanted = self._begun + 1
        async with self._asking:
            if self._begun < wanted:
                self._begun += 1
                try:
                    self._found = await question()
                except RefoldError as error:
                    self._found = error
                except BaseException:  # this caller is canceled: the next one asks itself
                    self._begun -= 1
                    raise
            found = self._found
        if isinstance(found, RefoldError):
            raise _another(found)
        return cast("T", found)


def _another(error: RefoldError) -> RefoldError:
    """The same error as an object of its own: what is raised takes the frames of whoever raises it."""
    # Not by `copy.copy`, which calls the class with the message: many classes make theirs from something else.
    other = type(error).__new__(type(error), *error.args)
    other.__dict__.update(error.__dict__)
    other.__cause__, other.__context__ = error.__cause__, error.__context__
    other.__suppress_context__ = error.__suppress_context__
    return other.with_traceback(error.__traceback__)


class Crowd:
    """The callers of one task."""

    def __init__(self) -> None:
        self._view: _Shared[TaskView] = _Shared()
        self._record: _Shared[TaskRecord] = _Shared()
        self._places = asyncio.Semaphore(AT_ONCE)
        self._answers = 0
        self._silences = 0

    async def send(self, update: Callable[[], Awaitable[T]]) -> T:
        """Send an update when its turn comes.

        Raises:
            NoTurn: It was not sent.
            Exception: Whatever `update` raises.
        """
        silences = self._silences
        async with self._places:
            if self._silences > silences:
                raise NoTurn
            answers = self._answers
            try:
                with cancelable():
                    found = await update()
            except Exception as error:
                if not (isinstance(error, RPCTimeoutOrCancelledError) or server_away(error)):
                    self._answers += 1
                elif self._answers == answers:
                    self._silences += 1
                raise
            self._answers += 1
            return found

    async def look(self, question: Callable[[], Awaitable[TaskView]]) -> TaskView:
        """The task's view, as `question` finds it, or that of another caller which began after this one asked.

        Raises:
            RefoldError: Whatever that question raises.
        """
        return await self._view.ask(question)

    async def record(self, question: Callable[[], Awaitable[TaskRecord]]) -> TaskRecord:
        """The same for the task's record."""
        return await self._record.ask(question)


class Crowds:
    """The callers of each task, kept while there are any."""

    def __init__(self) -> None:
        self._crowds: WeakValueDictionary[tuple[asyncio.AbstractEventLoop, str], Crowd] = WeakValueDictionary()

    def of(self, task_id: str) -> Crowd:
        """The callers of a task, in this event loop."""
        key = (asyncio.get_running_loop(), task_id)
        crowd = self._crowds.get(key)
        if crowd is None:
            crowd = self._crowds[key] = Crowd()
        return crowd
