"""A watch waits where no worker runs: it may be starting just now, or be replaced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest

from refold import Content, Ctx, Transition, UserMessage, flow_skill, step
from refold.cli import waiting
from refold.cli.text.output import Output
from refold.cli.verb import Call, ServerOptions
from refold.cli.verbs import history
from refold.core.fold.journal import Entry
from refold.core.lifecycle import Status, TaskState
from refold.engine import Engine, NotConnected, NoWorker, TaskView
from refold.testing import FakeEngine

ENTRY = Entry(seq=1, at=datetime(2026, 1, 1, tzinfo=UTC), event=UserMessage(content=Content.from_text("x")))


class LateWorker(FakeEngine):
    """An engine whose worker answers the third question only."""

    asked = 0

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[Any]:
        """See `Engine`."""
        self.asked += 1
        if self.asked < 3:
            raise NoWorker("no poller seen on task queue 'refold'")
        yield ENTRY


class NoNews(FakeEngine):
    """An engine whose task is at work, and from which nothing comes."""

    def __init__(self) -> None:
        super().__init__([])
        self.watched = asyncio.Event()

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[Any]:
        """See `Engine`."""
        self.watched.set()
        await asyncio.Event().wait()
        yield ENTRY


class OneEntry(FakeEngine):
    """An engine of whose task one entry comes, and which knows whether somebody still watches."""

    watched = True

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[Any]:
        """See `Engine`."""
        try:
            yield ENTRY
        finally:
            self.watched = False


async def test_a_watch_waits_for_a_worker(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Also one that was killed before its first answer; what is waited for is said once.
    """
    monkeypatch.setattr(waiting, "ASK_AGAIN_S", 0.0)
    call = Call(Output(json=False))
    engine = LateWorker([])

    assert [one async for one in waiting.patiently(call, engine, "T", after=0)] == [ENTRY]
    assert engine.asked == 3
    assert capsys.readouterr().err == "waiting: no poller seen on task queue 'refold'\n"


class Stopped(FakeEngine):
    """An engine whose worker has just stopped: a task is silent, then cannot be asked, and then is answered for."""

    def __init__(self) -> None:
        super().__init__([])
        self.looked = asyncio.Semaphore(0)
        self.looks = self.watches = 0

    def why(self) -> str:
        """As a Temporal server says it: for how long no worker has asked for work is another number each time."""
        self.looks += 1
        return f"no answer came in time. A worker polled task queue 'refold' {3 * self.looks} s ago"

    async def look(self, task_id: str) -> TaskView:
        """See `Engine`."""
        self.looked.release()
        status, state = Status.SUBMITTED, TaskState.PLANNED
        return TaskView(task_id=task_id, skill="hello", status=status, lifecycle=state, note=self.why())

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[Any]:
        """See `Engine`."""
        self.watches += 1
        if self.watches == 1:
            for _ in range(3):
                await self.looked.acquire()
            raise NoWorker(f"task {task_id!r} cannot be asked: {self.why()}")
        yield ENTRY


async def test_a_reason_to_wait_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    However it is found, and although the seconds in it are others each time.
    """
    monkeypatch.setattr(waiting, "ASK_AGAIN_S", 0.0)
    monkeypatch.setattr(waiting, "SILENT_S", 0.01)
    engine = Stopped()

    assert [one async for one in waiting.patiently(Call(Output(json=False)), engine, "T", after=0)] == [ENTRY]
    assert (engine.watches, engine.looks >= 4) == (2, True)
    assert capsys.readouterr().err == "waiting: no answer came in time. A worker polled task queue 'refold' 3 s ago\n"


async def test_an_interrupted_wait_says_that_the_task_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """
    Ctrl-C ends the wait alone, and the way back to the task is named.
    """
    call = Call(Output(json=False))
    engine = NoNews()
    waits = asyncio.create_task(waiting.settled(call, engine, "T", after=0))
    await engine.watched.wait()
    waits.cancel()

    with pytest.raises(asyncio.CancelledError):
        await waits
    assert capsys.readouterr().err.endswith("interrupted; the task goes on: refold watch T\n")


class GoneServer(FakeEngine):
    """An engine whose server goes away while a task is watched."""

    async def watch(self, task_id: str, *, after: int = 0, follow: bool = False) -> AsyncGenerator[Any]:
        """See `Engine`."""
        yield ENTRY
        raise NotConnected("no Temporal server answers")


async def test_a_wait_that_loses_the_server_names_the_task() -> None:
    """
    The id that `refold start --wait` has made is not lost with the server.
    """
    with pytest.raises(NotConnected, match=r"no Temporal server answers.*`refold watch hello-1`"):
        await waiting.settled(Call(Output(json=True)), GoneServer([]), "hello-1", after=0)


class Unread(Output):
    """An output whose reader has closed it."""

    def say(self, *lines: object) -> None:
        """See `Output`."""
        raise BrokenPipeError


async def test_an_output_that_nobody_reads_ends_the_watch() -> None:
    """
    `refold watch TASK | head -1`: the watch has ended before the event loop ends, which cannot close both at once.
    """
    engine = OneEntry([])

    async def connect(_: ServerOptions) -> Engine:
        return engine

    with pytest.raises(BrokenPipeError) as error:
        await history.watch(Call(Unread(json=False), connect=connect), "T")
    assert error.tb is not None  # what is on its way is not collected as garbage
    assert not engine.watched


@flow_skill(id="tree")
class Tree:
    """Has two parts of its own kind for each word but the first, which asks."""

    @step(start=True)
    async def grow(self, ctx: Ctx, content: Content) -> Transition:
        """Wait for both."""
        _, _, rest = content.text.partition(" ")
        if not rest:
            return ctx.complete((await ctx.ask("leaf", "And now?")).text)
        await ctx.gather(*(ctx.skill(side, "tree", Content.from_text(rest)) for side in ("left", "right")))
        return ctx.complete("grown")


class OneUnserved(FakeEngine):
    """An engine that knows no worker for one of its tasks, and which tasks were looked at."""

    unserved = ""

    def __init__(self) -> None:
        super().__init__([Tree])
        self.looked: list[str] = []

    async def look(self, task_id: str) -> TaskView:
        """See `Engine`."""
        self.looked.append(task_id)
        note = "no worker answers" if task_id == self.unserved else ""
        return (await super().look(task_id)).model_copy(update={"note": note})


async def test_why_a_task_waits_costs_few_questions_however_many_parts_it_has() -> None:
    """
    The nearest parts are asked first: one below a sibling is found, and not every part of a healthy tree is asked.
    """
    engine = OneUnserved()
    view = await engine.start("tree", Content.from_text("a b c d e"), task_id="t")

    assert await waiting.why_waits(engine, view) == ""
    assert len(engine.looked) == waiting.PARTS_ASKED

    engine.unserved = "t/1.2/1.1"
    assert await waiting.why_waits(engine, view) == (
        "its part t/1.2 waits: its part t/1.2/1.1 waits: no worker answers"
    )
