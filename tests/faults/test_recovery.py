"""A worker dies in the middle of an effect, or is only too busy to answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from temporalio.api.workflow.v1 import PendingActivityInfo

from refold import Content, LlmResult, Status
from refold.engine import Tokens
from refold.temporal import TemporalEngine
from tests.faults.model import Model, Thoughtful
from tests.faults.processes import Ledger, Workers, until
from tests.temporal.test_task import collected, settled, text


@pytest.fixture
def model() -> Iterator[Model]:
    """A model that counts its calls."""
    with Model() as model:
        yield model


@pytest.fixture
def asking(workers: Workers, model: Model) -> Workers:
    """Workers that ask this model."""
    workers.env |= {**model.environment, "REFOLD_MODEL": "openai:demo"}
    return workers


async def under_way(engine: TemporalEngine, task_id: str) -> PendingActivityInfo:
    """The one effect that Temporal knows to be under way."""
    description = await engine.client.get_workflow_handle(task_id).describe()
    (activity,) = description.raw_description.pending_activities
    return activity


async def test_a_call_that_lost_its_worker_is_the_same_call(
    asking: Workers, engine: TemporalEngine, queue: str, model: Model
) -> None:
    """
    SIGKILL inside a model call: attempt 2 carries the same InvocationId and idempotency key, and the task goes on.
    """
    model.begin(lose=1, times=2)
    first = await asking.start(queue)
    view = await engine.start("hello", text("Ada"))
    await until(model.hangs, bool)
    before = await under_way(engine, view.task_id)
    await first.kill()

    second = await asking.start(queue)
    await until(model.hangs, bool)
    after = await under_way(engine, view.task_id)
    await second.kill()
    await asking.start(queue)
    done = await settled(engine, view.task_id)

    assert (before.activity_id, before.attempt) == (f"{view.task_id}/1.1", 1)
    assert (after.activity_id, after.attempt) == (f"{view.task_id}/1.1", 2)
    assert done.messages[-1].text == "Hello, Ada!"
    assert list(model.asked.values()) == [3], "one key, asked three times"
    journaled = [entry.event for entry in await collected(engine.journal(view.task_id))]
    assert [event.invocation_id for event in journaled if isinstance(event, LlmResult)] == [f"{view.task_id}/1.1"]


async def test_the_text_of_a_lost_attempt_is_not_taken_for_the_next(
    workers: Workers, engine: TemporalEngine, queue: str
) -> None:
    """
    Who watches while the worker dies in a call reads what each attempt said, and from its beginning.
    """
    said = ["What nobody will ever hear the end of, " * 9, "Something else altogether, with an end of its own. " * 3]
    with Thoughtful() as server:
        server.say(*said)
        env = {**server.environment, "REFOLD_MODEL": "openai:any"}
        first = await workers.start(queue, env=env)
        view = await engine.start("hello", text("Ada"), stream=True)
        heard = {1: "", 2: ""}
        async for news in engine.watch(view.task_id):
            if not isinstance(news, Tokens):
                continue
            assert news.offset == len(heard[news.attempt])
            heard[news.attempt] += news.text
            if first.alive:
                await first.kill()
                await workers.start(queue, env=env)

    assert all(whole.startswith(part) for whole, part in zip(said, heard.values(), strict=True))
    assert all(heard.values())


@pytest.mark.parametrize(
    ("recovery", "seconds", "beside"),
    [
        # Effects that the worker was given and could not begin send no heartbeat: they have 10 seconds.
        pytest.param("default", 8.0, 2, marks=pytest.mark.sweep),
        # Four heartbeat timeouts long; whatever has begun is kept alive.
        pytest.param("fast-recovery", 4.0, 0),
    ],
)
async def test_a_busy_worker_is_not_a_dead_one(
    workers: Workers,
    engine: TemporalEngine,
    queue: str,
    ledger: Ledger,
    tmp_path: Path,
    recovery: str,
    seconds: float,
    beside: int,
) -> None:
    """
    A tool holds up the event loop while other effects run, and another task comes in: each effect is done once.
    """
    gate, effects = tmp_path / "gate", 3 + beside
    await workers.start(queue, recovery=recovery)
    others = [await engine.start("gated", Content.from_data({"gate": str(gate)})) for _ in range(2)]
    await ledger.until("begun", 2)
    crowd = Content.from_data({"gate": str(gate), "seconds": seconds, "beside": beside})
    crowded = await engine.start("crowded", crowd)
    await ledger.until("begun", 3)
    late = await engine.start("hello", text("Ada"))
    gate.touch()

    ended = [await settled(engine, view.task_id) for view in (crowded, *others, late)]

    assert [view.status for view in ended] == [Status.COMPLETED] * 4
    assert [line.attempt for line in ledger.lines] == [1] * 2 * effects
    assert sorted(ledger.noted("begun")) == sorted(ledger.noted("done"))
    assert len(set(ledger.noted("done"))) == effects
