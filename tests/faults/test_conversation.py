"""A worker dies in the middle of a conversation: the next one has every word of it."""

from __future__ import annotations

import json

import pytest

from refold import Status
from refold.engine import Tokens
from refold.temporal import TemporalEngine
from tests.faults.model import Model, Thoughtful
from tests.faults.processes import Workers, until
from tests.temporal.test_task import settled, text

MODULES = ["tests.temporal.chat_skills"]
SCRIPT = """How is it?
-> weather(city="Oslo", days=100)
-> weather(city="Rome")
-> So it rains.
"""


async def test_a_call_that_lost_its_worker_is_asked_with_the_same_past(
    workers: Workers, engine: TemporalEngine, queue: str, model: Model
) -> None:
    """
    SIGKILL inside the third call: a worker that knows nothing sends the model the same messages under the same key.
    """
    env = {**model.environment, "REFOLD_MODEL": "openai:demo"}
    model.begin(lose=3)
    first = await workers.start(queue, modules=MODULES, env=env)
    view = await engine.start("chats", text(SCRIPT))
    await until(model.hangs, bool)
    await first.kill()
    await workers.start(queue, modules=MODULES, env=env)
    view = await settled(engine, view.task_id)

    assert (view.status, view.messages[-1].text) == (Status.INPUT_REQUIRED, "So it rains.")
    assert sorted(model.asked.values()) == [1, 1, 2]
    again = model.requests[-1].body["messages"]
    assert [message["role"] for message in again] == ["system", "user", *["assistant", "tool"] * 2]
    assert again[:4] == model.requests[-2].body["messages"]


@pytest.mark.sweep
async def test_a_broken_stream_is_written_again_from_its_start(
    workers: Workers, engine: TemporalEngine, queue: str
) -> None:
    """
    Who watches reads the first attempt's arguments, then the second one's from their beginning.
    """
    city = "Oslo, and all that lies around it, and what is behind that, " * 8
    said = f'How is it?\n-> weather(city="{city}", days=2)\n-> Wet.'
    with Thoughtful() as server:
        env = {**server.environment, "REFOLD_MODEL": "openai:any"}
        first = await workers.start(queue, modules=MODULES, env=env)
        view = await engine.start("chats", text(said), stream=True)
        heard = {1: "", 2: ""}
        server.heard = lambda: all(heard.values())
        async for news in engine.watch(view.task_id):
            if not isinstance(news, Tokens) or news.tool != "weather":
                continue
            assert news.offset == len(heard[news.attempt])
            heard[news.attempt] += news.text
            if first.alive and news.text:
                await first.kill()
                await workers.start(queue, modules=MODULES, env=env)

    whole = json.dumps({"city": city, "days": 2})
    assert all(part and whole.startswith(part) for part in heard.values())
