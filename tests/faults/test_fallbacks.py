"""A worker dies while a fallback model answers: the next worker asks the same model."""

from __future__ import annotations

import pytest

from refold import Status
from refold.temporal import TemporalEngine
from tests.faults.processes import Workers, until
from tests.services.openai_server import OpenAIServer, Trouble
from tests.temporal.test_task import settled, text


@pytest.mark.sweep
async def test_a_killed_worker_goes_on_with_the_same_model(
    workers: Workers, engine: TemporalEngine, queue: str
) -> None:
    """
    The first model is not asked a fourth time, although it would answer by now.
    """
    with OpenAIServer() as model:
        model.say(*[Trouble.status(503)] * 3, Trouble(delay_s=600), "Done.")

        async def requests() -> int:
            return len(model.requests)

        first = await workers.start(queue, modules=["tests.faults.agents"], env=model.environment)
        view = await engine.start("pair", text("Go."))
        await until(requests, (4).__le__)
        await first.kill()
        await workers.start(queue, modules=["tests.faults.agents"], env=model.environment)
        view = await settled(engine, view.task_id)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "Done.")
    assert [one.body["model"] for one in model.requests] == ["first"] * 3 + ["second"] * 2
