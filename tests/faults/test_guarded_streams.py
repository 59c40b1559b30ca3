"""A guarded reply is in no stream while workers are killed in the middle of it, however fast it is written."""

from __future__ import annotations

import asyncio
from functools import partial
from operator import le

import httpx
import pytest

from refold import Status, UserMessage
from refold.a2a import Settings, a2a_app
from refold.engine import Tokens
from refold.temporal import TemporalEngine
from tests.faults.processes import Workers, until
from tests.services.openai_server import OpenAIServer, Trouble
from tests.temporal import guarded
from tests.temporal.test_task import collected
from workflows.order_desk import OrderDesk

MODULES = ["workflows.order_desk", "activities"]
QUESTION = f"I paid with {guarded.CARD}. Where is my order?"
SAID = f"You paid with {guarded.CARD}. " + "It is on its way, and should be with you soon. " * 40
INSTEAD = "I cannot tell you that here."


async def over_a2a(engine: TemporalEngine) -> str:
    """All that a caller of a streaming method reads, but for its own message."""
    message = {"messageId": "m-1", "role": "ROLE_USER", "parts": [{"text": QUESTION}]}
    params = {"message": message, "metadata": {"skill": "order_desk"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": params}
    transport = httpx.ASGITransport(a2a_app(engine, [OrderDesk], Settings()))
    async with httpx.AsyncClient(transport=transport, timeout=120) as http:
        answer = await http.post("http://127.0.0.1/", json=body, headers={"A2A-Version": "1.0"})
    return answer.text.replace(QUESTION, "")


async def heartbeats(engine: TemporalEngine, task_id: str) -> str:
    """What the attempts under way have told the server."""
    described = await engine.client.get_workflow_handle(task_id).describe()
    return "".join(str(one.heartbeat_details) for one in described.raw_description.pending_activities)


@pytest.mark.sweep
@pytest.mark.parametrize("pace_s", [0.01, 0.05, 0.25])
async def test_no_reader_sees_a_digit_of_a_card(
    workers: Workers, engine: TemporalEngine, queue: str, pace_s: float
) -> None:
    """
    Two workers are killed while the model writes the number; a third one finishes. Neither a watcher nor a caller over
    A2A sees it, nor does the server; the question's own number is with whoever asked.
    """
    with OpenAIServer() as model:
        model.say(*[Trouble(says=SAID, pace_s=pace_s)] * 2, Trouble(says=SAID, pace_s=0.01))
        env = {**model.environment, "REFOLD_MODEL": "openai:demo"}
        worker = await workers.start(queue, modules=MODULES, env=env)
        caller = asyncio.create_task(over_a2a(engine))

        async def tasks() -> list[str]:
            return [one.task_id async for one in engine.list(skill="order_desk") if one.status is Status.WORKING]

        async def requests() -> int:
            return len(model.requests)

        await until(requests, lambda count: count == 1)
        [task_id] = await until(tasks, lambda found: len(found) == 1)
        watcher = asyncio.create_task(collected(engine.watch(task_id)))
        told = ""
        for killed in (1, 2):
            await until(requests, partial(le, killed))
            told += await heartbeats(engine, task_id)
            await worker.kill()
            worker = await workers.start(queue, modules=MODULES, env=env)
        seen, answer = await watcher, await caller
        view = await engine.look(task_id)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, INSTEAD)
    assert len(model.requests) == 3
    assert [one for one in seen if isinstance(one, Tokens)] == []
    entries = "".join(str(one) for one in seen if not isinstance(getattr(one, "event", None), UserMessage))
    assert INSTEAD in entries
    assert INSTEAD in answer
    for place in (entries, answer, told):
        assert "You paid with" not in place
        assert not guarded.seen(place)
