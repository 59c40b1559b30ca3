"""The event streams of open pages: one for each page. It says what changed, and the page then fetches it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import JsonValue
from pydantic_core import to_json
from starlette.responses import Response, StreamingResponse

from refold.callbacks.address import LONGEST_TOKEN
from refold.core.errors import InputRejected
from refold.core.fold.journal import Entry
from refold.engine import Engine, EngineError, Progress, TaskFilter, TaskNotFound, Tokens
from refold.web.page.templates import as_long, line, plain

ALIVE_S = 20.0
"""Seconds between two signs of life in a stream where nothing happens. Each is an event, as scripts get no comments: a
page that gets none for a minute opens another stream.
"""

MOST = 500
"""How many streams one process keeps open."""

SOON_S, LATE_S = 2.0, 15.0
"""Seconds between two looks at the list of tasks: while it changes, and after a while without a change."""

SLOWER = 1.5
"""By how much a look comes later than the one before, where nothing changed."""

FIRST = 100
"""How many of the tasks that changed last are compared."""

REPORT_CHARS = 2_000
"""How much of a tool's report is shown, in characters."""

LAG = timedelta(seconds=10)
"""By how much the server's list of tasks may lag."""

Moved = tuple[str, str, datetime]
"""A task, its state, and since when it is in it."""

News = tuple[str, JsonValue]
"""The name of an event, and its data."""

_Written = dict[tuple[str, int, int | None], str]
"""The end of what each model call has written, since the address of a callback comes in pieces."""


class OpenStreams:
    """The streams that are open in this process."""

    def __init__(self) -> None:
        self._open = 0
        self._ended = asyncio.Event()

    def __len__(self) -> int:
        return self._open

    def end(self) -> None:
        """End all streams, and each that begins from now on, so that pages connect to another process."""
        self._ended.set()

    def cut(self) -> None:
        """Does nothing: `end` ends all that these streams are."""

    def answer(self, news: AsyncGenerator[News]) -> Response:
        """A stream of this news, until it ends or the page is closed."""
        if self._open >= MOST or self._ended.is_set():
            return Response("too many pages are open; come back later\n", 503, {"Retry-After": "10"})
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._frames(news), media_type="text/event-stream", headers=headers)

    async def _frames(self, news: AsyncGenerator[News]) -> AsyncIterator[bytes]:
        self._open += 1
        ended = asyncio.create_task(self._ended.wait())
        coming: asyncio.Task[News | None] | None = None
        try:
            yield b"retry: 2000\n\n"
            while not ended.done():
                coming = coming or asyncio.create_task(_next(news))
                await asyncio.wait({coming, ended}, timeout=ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done():
                    if not ended.done():
                        yield b"event: alive\ndata: {}\n\n"
                    continue
                found = coming.result()
                if found is None:
                    return
                event, data = found
                coming = None
                yield b"event: " + event.encode() + b"\ndata: " + to_json(data) + b"\n\n"
        finally:
            self._open -= 1
            ended.cancel()
            if coming is not None:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            await news.aclose()


async def _next(news: AsyncGenerator[News]) -> News | None:
    return await anext(news, None)


async def task_news(
    engine: Engine, task_id: str, after: int, *, text: bool, still: Callable[[], Awaitable[object]] | None = None
) -> AsyncGenerator[News]:
    """What happens to a task after an entry: `changed` for each entry, and if wanted `text` for what a model writes and
    `progress` for what a tool reports, which is kept nowhere.

    Ends with `ended` once the task has ended. While no worker runs, or the server is away, it waits for them.

    Args:
        engine: Runs the task.
        task_id: The task.
        after: The entry.
        text: Whether `text` and `progress` are wanted.
        still: Called before each of the news is told: raises `TaskNotFound` once the listener may not see the task any
            more, which ends the news, too. None for a listener who always may.
    """
    written: _Written = {}
    while True:
        try:
            async with aclosing(engine.watch(task_id, after=after, follow=True)) as watched:
                async for one in watched:
                    if still is not None:
                        await still()
                    if isinstance(one, Entry):
                        after = one.seq
                        yield "changed", {"seq": one.seq}
                    elif text and isinstance(one, Tokens):
                        yield "text", _text(one, written)
                    elif text and isinstance(one, Progress):
                        yield "progress", _progress(one)
            yield "ended", {"seq": after}
            return
        except TaskNotFound:
            yield "ended", {"seq": after}
            return
        except (EngineError, InputRejected):  # the latter of a worker that cannot read what is asked
            await asyncio.sleep(SOON_S)


def _text(one: Tokens, written: _Written) -> dict[str, Any]:
    place = (one.invocation_id, one.attempt, one.call)
    before = written.get(place, "")
    written[place] = (before + one.text)[-LONGEST_TOKEN:]
    shown = as_long(before + one.text)[len(before) :]
    return {**one.model_dump(mode="json", exclude={"kind"}), "text": shown}


def _progress(one: Progress) -> dict[str, Any]:
    said = one.said if isinstance(one.said, str) else json.dumps(one.said, ensure_ascii=False)
    report = {"tool": line(one.tool), "said": plain(said, REPORT_CHARS)}
    return {"invocation_id": one.invocation_id, "attempt": one.attempt, **report}


class Bell:
    """Rings when the list of tasks, or of those that wait, has changed. Looks while somebody listens, once for all.

    Args:
        engine: Runs the tasks.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners = 0
        self._looking: asyncio.Task[None] | None = None
        self._rung = asyncio.Event()

    async def news(self, since: datetime | None = None) -> AsyncGenerator[News]:
        """`changed` whenever the list has changed; at once if it has since the moment at which the page was made."""
        self._listeners += 1
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        try:
            rung = self._rung
            if since is not None and await self._changed(since):
                yield "changed", {}
            while True:
                await rung.wait()
                rung = self._rung
                yield "changed", {}
        finally:
            self._listeners -= 1
            if not self._listeners and self._looking is not None:
                self._looking.cancel()
                self._looking = None

    def ring(self) -> None:
        """Ring now: one of several gates of a task was decided, of which the list of tasks tells nothing."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def _changed(self, since: datetime) -> bool:
        with contextlib.suppress(EngineError):
            return bool(await self._engine.find(TaskFilter(moved_since=since - LAG), limit=1))
        return True  # nobody knows, so the page asks

    async def _look(self) -> None:
        pause, since = SOON_S, None
        seen: frozenset[Moved] | None = None
        while True:
            with contextlib.suppress(EngineError):
                found = await self._moved(since)
                if seen is not None and not found <= seen:
                    self.ring()
                    pause = SOON_S
                seen = found | (seen or frozenset()) if len(found) < FIRST else found
                if found:
                    # The clock of a client that started a task may be ahead; no change has come from the future.
                    since = min(max(moved_at for _, _, moved_at in found), datetime.now(UTC))
                    seen = frozenset(one for one in seen if one[2] >= since - LAG)
            await asyncio.sleep(pause)
            pause = min(pause * SLOWER, LATE_S)

    async def _moved(self, since: datetime | None) -> frozenset[Moved]:
        """Which tasks have changed: since about this time, or at all."""
        wanted = TaskFilter(moved_since=None if since is None else since - LAG)
        newest = await self._engine.find(wanted, limit=FIRST)
        return frozenset((one.task_id, one.lifecycle, one.moved_at) for one in newest)
