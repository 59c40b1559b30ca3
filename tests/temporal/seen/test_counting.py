"""Workers count what happens once, however often they replay it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.runtime import MetricBuffer, Runtime, TelemetryConfig
from temporalio.worker import Worker

from refold import Content, InputRejected, Status, TaskState
from refold.core.fold.journal import Entry
from refold.seen import meters
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.client.index import search
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.search_attributes import STATE, state_since
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from refold.temporal.seen.open_tasks import OpenTasks, in_state, since_before
from tests.seen.recorded import counting
from tests.services.serving import free_port
from tests.temporal import gate_skills, skills
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected, settled, text
from tests.waiting import a_moment

Counts = Counter[tuple[str, ...]]
TOOLS: list[Any] = [*gate_skills.TOOLS]


class Seen:
    """What a runtime of the SDK was given, added up.

    Attributes:
        runtime: The runtime.
        client: A client of it.
    """

    def __init__(self) -> None:
        self._buffer = MetricBuffer(100_000)
        self.runtime = Runtime(telemetry=TelemetryConfig(metrics=self._buffer))
        self.client: Client
        self._counts: Counts = Counter()

    def counts(self, name: str, *labels: str) -> Counts:
        """The sums of a counter so far, by these labels."""
        for update in self._buffer.retrieve_updates():
            has = update.attributes
            key = (update.metric.name, *(f"{label}={value}" for label, value in sorted(has.items())))
            self._counts[key] += int(update.value)
        found: Counts = Counter()
        for (metric, *pairs), value in self._counts.items():
            if metric == name:
                told = dict(pair.split("=", 1) for pair in pairs)
                found[tuple(told[label] for label in labels)] += value
        return +found


@pytest.fixture
async def seen(server: DevServer, values: Folder) -> AsyncIterator[Seen]:
    """A runtime whose metrics the test reads, and a client of it."""
    seen = Seen()
    seen.client = await Client.connect(server.address, data_converter=data_converter(values), runtime=seen.runtime)
    yield seen
    meters.use(None)


def moved(entries: list[Entry]) -> Counts:
    """The moves that a journal has."""
    return Counter((one.from_state.value, one.to_state.value) for entry in entries for one in entry.moves)


async def test_a_task_that_is_always_replayed_is_counted_once(seen: Seen, values: Folder) -> None:
    """
    Workers without a cache replay the task at each step, and each of three workers has part of it; every move, gate and
    refusal of the journal is counted once.
    """
    queue = f"seen-{uuid4().hex[:8]}"
    plugin = RefoldPlugin([gate_skills], TOOLS, storage=values)
    engine = TemporalEngine(seen.client, queue, patience=PATIENT)
    async with make_worker(seen.client, plugin, task_queue=queue, max_cached_workflows=0):
        view = await engine.start("gates", Content.from_data({"amounts": [1, 2, 3]}))
        await settled(engine, view.task_id)
        await engine.decide(view.task_id, approved=True, approver="Ann")
    async with make_worker(seen.client, plugin, task_queue=queue, max_cached_workflows=0):
        await settled(engine, view.task_id)
        await engine.decide(view.task_id, approved=True, approver="Ann")
        with pytest.raises(InputRejected):
            await engine.send(view.task_id, text("go on"))
    async with make_worker(seen.client, plugin, task_queue=queue, max_cached_workflows=0):
        await settled(engine, view.task_id)
        await engine.decide(view.task_id, approved=True, approver="Ann")
        ended = await settled(engine, view.task_id)
        entries = await collected(engine.journal(view.task_id))

    assert ended.status is Status.COMPLETED
    assert seen.counts("refold_transitions", "from", "to") == moved(entries)
    assert seen.counts("refold_waits_opened", "kind") == {("approval",): 3}
    assert seen.counts("refold_tasks_ended", "skill", "ending") == {("gates", "completed"): 1}
    assert seen.counts("refold_refusals", "trigger", "reason") == {("update message", "state"): 1}
    assert seen.counts("refold_invalid_moves", "skill") == {("gates",): 1}


async def test_effects_are_counted_as_they_are_performed(seen: Seen, values: Folder) -> None:
    """
    Each attempt is counted, by what came of it, and so are the retries of the task.
    """
    queue = f"seen-{uuid4().hex[:8]}"
    plugin = RefoldPlugin([skills], skills.TOOLS, model="scripted:demo", storage=values)
    engine = TemporalEngine(seen.client, queue, patience=PATIENT)
    async with make_worker(seen.client, plugin, task_queue=queue):
        view = await engine.start("stubborn", Content.from_data({"key": queue, "failures": 2}))
        await settled(engine, view.task_id)

    found = seen.counts("refold_effects", "name", "outcome")
    assert found == {("flaky", "transient"): 2, ("flaky", "done"): 1}
    assert sum(seen.counts("refold_retries", "skill").values()) == 2


async def test_the_server_knows_since_when_a_task_is_in_its_state(seen: Seen, values: Folder) -> None:
    """
    The search attribute says when the task came to its state, over its steps; the gauges have it, by skill and state,
    and go on without any worker.
    """
    queue = f"seen-{uuid4().hex[:8]}"
    plugin = RefoldPlugin([gate_skills], TOOLS, storage=values)
    engine = TemporalEngine(seen.client, queue, patience=PATIENT)
    began = datetime.now(UTC)
    async with make_worker(seen.client, plugin, task_queue=queue):
        view = await engine.start("gates", Content.from_data({"amounts": [1]}))
        await settled(engine, view.task_id)
        entries = await collected(engine.journal(view.task_id))
    paused = next(entry.at for entry in entries for move in entry.moves if move.to_state is TaskState.PAUSED)
    described = await seen.client.get_workflow_handle(view.task_id).describe()
    untaken = await TemporalEngine(seen.client, f"{queue}-nobody").start("gates", Content.from_data({"amounts": [1]}))

    at = state_since(described.typed_search_attributes)
    assert at is not None
    assert began < at
    assert abs(at - paused) < timedelta(milliseconds=1)
    mine = f"{in_state('paused')} AND {since_before(paused + timedelta(seconds=1), 'paused')}"
    with counting() as kept:
        look = OpenTasks(seen.client, [queue])
        while view.task_id not in {one.id async for one in seen.client.list_workflows(mine)}:
            pass  # the index is a moment behind
        while kept.of("refold_open_tasks", skill="gates", state="untaken") < 1:
            await look.look()
        assert kept.of("refold_open_tasks", skill="gates", state="paused") >= 1
        assert kept.of("refold_oldest_task_seconds", state="paused") >= (datetime.now(UTC) - paused).total_seconds() - 5
        assert kept.of("refold_queue_pollers", queue=queue) > 0
        assert kept.of("refold_open_tasks_asked_at_seconds") > began.timestamp()
    for task_id in (view.task_id, untaken.task_id):
        await seen.client.get_workflow_handle(task_id).terminate()


async def test_a_state_that_no_status_tells_has_its_own_moment(
    seen: Seen, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A2A's status stays *working* while a task runs, retries and is blocked; the server knows since when it retries.
    """
    monkeypatch.setenv("FACTS_URL", f"http://127.0.0.1:{free_port()}")
    queue = f"seen-{uuid4().hex[:8]}"
    plugin = RefoldPlugin([gate_skills], TOOLS, storage=values)
    engine = TemporalEngine(seen.client, queue, patience=PATIENT)
    async with make_worker(seen.client, plugin, task_queue=queue):
        view = await engine.start("waits_for_facts", Content.from_text("tides"))
        handle = seen.client.get_workflow_handle(view.task_id)
        while (now := (await handle.describe()).typed_search_attributes).get(STATE) != TaskState.RETRYING:
            await a_moment()
        entries = await collected(engine.journal(handle.id))
    retrying = next(entry.at for entry in entries for move in entry.moves if move.to_state is TaskState.RETRYING)
    since = state_since(now)
    assert since is not None
    assert abs(since - retrying) < timedelta(milliseconds=1)
    await handle.terminate()


async def test_more_tasks_than_are_listed_are_counted(
    seen: Seen, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Where a state has more tasks than one list holds, they are counted by skill, and the oldest is among the old ones.
    """
    monkeypatch.setattr("refold.temporal.seen.open_tasks.LISTED", 1)
    monkeypatch.setattr("refold.temporal.seen.open_tasks.AGES", (timedelta(days=1), timedelta(0)))
    queue = f"seen-{uuid4().hex[:8]}"
    nobody = TemporalEngine(seen.client, queue, patience=timedelta(milliseconds=100))
    began = [await nobody.start("gates", Content.from_data({"amounts": [1]})) for _ in range(3)]
    with counting() as kept:
        look = OpenTasks(seen.client, [queue])
        while kept.of("refold_open_tasks", skill="gates", state="untaken") < 3:
            await look.look()
        assert kept.of("refold_oldest_task_seconds", state="untaken") > 0
    for view in began:
        await seen.client.get_workflow_handle(view.task_id).terminate()


@workflow.defn(sandboxed=False)
class Onward:
    """Goes on in a new run, on a task queue that nobody polls."""

    @workflow.run
    async def run(self, queue: str) -> None:
        """Goes on at once."""
        workflow.continue_as_new(queue, task_queue=queue)


async def test_a_new_run_that_waits_for_a_worker_is_as_old_as_itself(seen: Seen) -> None:
    """
    Not as old as its task: one that has been running for days is not taken for one that waited for days.
    """
    queue, days = f"seen-{uuid4().hex[:8]}", timedelta(days=3)
    began = search.at_start("onward", datetime.now(UTC) - days, task_id=queue, owner=None, context=None)
    async with Worker(seen.client, task_queue=queue, workflows=[Onward]):
        handle = await seen.client.start_workflow(
            Onward.run, f"{queue}-nobody", id=queue, task_queue=queue, search_attributes=began
        )
        with counting() as kept:
            look = OpenTasks(seen.client, [queue])
            while kept.of("refold_open_tasks", skill="onward", state="untaken") < 1 or not await later(handle):
                await look.look()
            await look.look()
            oldest_s = kept.of("refold_oldest_task_seconds", state="untaken")
    await seen.client.get_workflow_handle(queue).terminate()

    assert oldest_s < days.total_seconds() / 2


async def later(handle: WorkflowHandle[Any, Any]) -> bool:
    """Whether the workflow is in a later run."""
    return (await handle.describe()).run_id != handle.first_execution_run_id
