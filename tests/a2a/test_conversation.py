"""An agent over A2A: the tasks of one context are one conversation."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from refold import Status
from refold.a2a import Settings, a2a_app
from refold.a2a.tasks.sending import LOOKED_BACK
from refold.agent import Agent
from refold.core.lifecycle import TaskState
from refold.engine import Listed, Place, TaskFilter
from refold.testing import FakeEngine
from tests.a2a.conftest import BASE, calling


class LateIndex(FakeEngine):
    """An engine whose index has not heard yet that the newest task has ended."""

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """See `Engine.find`."""
        found = await super().find(wanted, after=after, limit=limit)
        was = {"status": Status.WORKING, "lifecycle": TaskState.RUNNING, "over": False}
        return [*(one.model_copy(update=was) for one in found[:1]), *found[1:]]


class HoldsWhatIsGone(LateIndex):
    """An engine whose index still holds a task that was purged."""

    async def find(self, wanted: TaskFilter, *, after: Place | None = None, limit: int = 50) -> Sequence[Listed]:
        """See `Engine.find`."""
        found = await super().find(wanted, after=after, limit=limit)
        return [*(one.model_copy(update={"task_id": "purged"}) for one in found[:1]), *found]


AT_ONCE = {"returnImmediately": True}
TALKER = Agent("talker", instructions="Talk.")
OTHER = Agent("other", instructions="Talk, too.")


async def test_a_task_goes_on_with_the_newest_one_of_its_context() -> None:
    """
    The next message of a context starts a task that knows what was said; another context, or skill, begins anew.
    """
    engine = FakeEngine([TALKER, OTHER], answers={"model": "yes"})
    said = [("c-1", "talker"), ("c-1", "talker"), ("c-2", "talker"), ("c-1", "other"), ("c-1", "talker")]
    turns = []
    async with calling(a2a_app(engine, [TALKER, OTHER], Settings(url=BASE))) as calls:
        for number, (context, skill) in enumerate(said):
            engine.clock.advance(1)
            task = await calls.send("Hi", metadata={"skill": skill}, contextId=context, messageId=f"m-{number}")
            view = await engine.look(task["id"])
            turns.append(len((await engine.at(task["id"], view.seq)).threads["main"].said))

    assert turns == [2, 4, 2, 2, 6]


@pytest.mark.parametrize("engine_type", [LateIndex, HoldsWhatIsGone])
async def test_a_task_goes_on_with_one_that_is_still_listed_as_open(engine_type: type[FakeEngine]) -> None:
    """
    The server's index lags by moments, in which the caller has read the answer and said the next thing.
    """
    engine = engine_type([TALKER], answers={"model": "yes"})
    turns = []
    async with calling(a2a_app(engine, [TALKER], Settings(url=BASE))) as calls:
        for number in range(3):
            engine.clock.advance(1)
            task = await calls.send("Hi", contextId="c-1", messageId=f"m-{number}")
            view = await engine.look(task["id"])
            turns.append(len((await engine.at(task["id"], view.seq)).threads["main"].said))

    assert turns == [2, 4, 6]


async def test_a_conversation_is_found_behind_many_open_tasks() -> None:
    """
    However many of its tasks are open: the next message knows what was said in the last one that ended.
    """
    engine = FakeEngine([TALKER])
    async with calling(a2a_app(engine, [TALKER], Settings(url=BASE))) as calls:
        first = task = await calls.send("Hi", contextId="c-1", messageId="m-first", configuration=AT_ONCE)
        await engine.reply(first["id"], "model", "yes")
        for number in range(LOOKED_BACK + 1):
            engine.clock.advance(1)
            task = await calls.send("Hi", contextId="c-1", messageId=f"m-{number}", configuration=AT_ONCE)

    view = await engine.look(task["id"])
    assert len((await engine.at(task["id"], view.seq)).threads["main"].said) == 2
