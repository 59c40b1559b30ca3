"""A worker dies in the middle of an effect, or is only too busy to answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from temporalio.api.workflow.v1 import PendingActivityInfo

from refold import Content, LlmResult, Status
from refold.core.lifecycle import TaskState
from refold.engine import Tokens
from refold.temporal import TemporalEngine
from tests.faults.model import Model, Thoughtful
from tests.faults.processes import Ledger, Workers, until
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected, settled, text


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
    SIGKILL inside a model call: attempt 2 carries the same InvocationId and idempotency key, and the task goes on at
    once: its next step does not wait for the lost worker, which had the task in its cache.
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
    history = await engine.client.get_workflow_handle(view.task_id).fetch_history()
    assert not [one for one in history.events if one.HasField("workflow_task_timed_out_event_attributes")]


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
        server.heard = lambda: all(heard.values())
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


async def noticed_after(engine: TemporalEngine, task_id: str) -> tuple[float, int]:
    """The heartbeat timeout in seconds, and the most attempts, that history has of a task's first effect."""
    history = await engine.client.get_workflow_handle(task_id).fetch_history()
    scheduled = next(one for one in history.events if one.HasField("activity_task_scheduled_event_attributes"))
    told = scheduled.activity_task_scheduled_event_attributes
    return told.heartbeat_timeout.ToTimedelta().total_seconds(), told.retry_policy.maximum_attempts


async def test_each_skill_recovers_as_it_says(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    SIGKILL of a worker with four skills. Nobody can say whether it paid: the first skill is told and goes on, the
    second asks a person. The third has five seconds, although its worker says one. The fourth has a profile of its
    own; its call may be repeated, and is.
    """
    skills = ("policies_told", "policies_asks", "policies_patient", "policies_repeats")
    workers.env |= {"REFOLD_LEDGER": str(tmp_path / "ledger.db")}
    modules = ("tests.faults.policy_skills",)
    first = await workers.start(queue, modules=modules)
    started = [(await engine.start(one, Content.from_data({"gate": str(tmp_path / one)}))).task_id for one in skills]
    await ledger.until("begun", len(skills))
    await first.kill()
    (tmp_path / "policies_repeats").touch()
    await workers.start(queue, modules=modules)
    told, asks, _, repeats = started
    goes_on = await settled(engine, told)
    asked = await until(lambda: engine.look(asks), lambda view: view.lifecycle is TaskState.BLOCKED)
    repeated = await settled(engine, repeats)

    assert goes_on.messages[-1].text == "unknown: outcome_unknown"
    assert "NOT known whether pay_blindly took place" in "".join(
        entry.note for entry in await collected(engine.journal(told))
    )
    assert [one.command for one in asked.unresolved] == ["tool pay_blindly"]
    assert (repeated.status, repeated.messages[-1].text) == (Status.COMPLETED, "through")
    assert [await noticed_after(engine, id) for id in started] == [(1, 5), (1, 5), (5, 5), (1, 2)]
    begun = ledger.noted("begun")
    assert [begun.count(f"{id}/1.1") for id in started] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("recovery", "seconds", "beside", "tried"),
    [
        # Effects that the worker was given and could not begin send no heartbeat: they have 5 seconds.
        pytest.param("default", 4.0, 2, {1}, marks=pytest.mark.sweep),
        # Four heartbeat timeouts long; whatever has begun is kept alive, and what has not is not begun any more once
        # the server has given it up: another attempt performs it.
        pytest.param("fast-recovery", 4.0, 0, {1}, marks=pytest.mark.sweep),
        pytest.param("fast-recovery", 4.0, 2, {1, 2, 3, 4, 5, 6}),
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
    tried: set[int],
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

    # Its worker answers nobody while a tool holds the loop.
    patient = TemporalEngine(engine.client, queue, patience=PATIENT)
    ended = [await settled(patient, view.task_id) for view in (crowded, *others, late)]

    assert [view.status for view in ended] == [Status.COMPLETED] * 4
    assert {line.attempt for line in ledger.lines} <= tried
    assert len(ledger.lines) == 2 * effects
    assert sorted(ledger.noted("begun")) == sorted(ledger.noted("done"))
    assert len(set(ledger.noted("done"))) == effects
