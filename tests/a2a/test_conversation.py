"""An agent over A2A: the tasks of one context are one conversation."""

from __future__ import annotations

from refold.a2a import Settings, a2a_app
from refold.agent import Agent
from refold.testing import FakeEngine
from tests.a2a.conftest import BASE, calling

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
