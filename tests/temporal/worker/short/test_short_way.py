"""Effects within workflow tasks, on a real server: what they leave in history, and what goes another way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, timedelta
from pathlib import Path
from random import Random
from time import time
from types import SimpleNamespace
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from pydantic_core import from_json
from structlog.testing import capture_logs
from temporalio import activity
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.service import RPCError
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor, Replayer, Worker

from refold import Content, DefinitionError, InputRejected, Status
from refold.core.events import CommandFailed, UserMessage
from refold.effects.ledger import store
from refold.effects.ledger.receipts import Ask
from refold.effects.ledger.store import store_of
from refold.effects.short import local, stretch
from refold.effects.short.outcomes import Brought, Outcomes
from refold.effects.short.stretch import ENOUGH_BYTES, STRETCH, Record
from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, Off
from refold.temporal.data.wire import TaskStart
from refold.temporal.encryption import Encryption
from refold.temporal.upgrade.sealing import seal
from refold.temporal.worker.activation import batches
from refold.temporal.worker.task import room
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import settled
from tests.temporal.worker.short import short_skills
from tests.temporal.worker.short.short_skills import TOOLS, calls, gates, glance, hold, moody
from tests.waiting import a_moment
from workflows import hello

Values: TypeAlias = Folder | Off

SECRET = "the secret word is tuesday"


class Site:
    """A task queue, the workers that serve it one after the other, and their ledger."""

    def __init__(self, client: Client, values: Values, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.client, self.values, self.folder = client, values, folder
        self.engine = TemporalEngine(client, f"short-{uuid4().hex[:8]}", patience=PATIENT)
        self.codec: Encryption | None = None
        self._patch = monkeypatch

    def plugin(self, durability: str | None = None, ledger: str = "receipts.db") -> RefoldPlugin:
        self._patch.setenv("REFOLD_LEDGER", str(self.folder / ledger))
        given: dict[str, Any] = {"storage": self.values, "durability": durability, "codec": self.codec}
        return RefoldPlugin([short_skills], TOOLS, model="scripted:demo", **given)

    @asynccontextmanager
    async def worker(
        self, durability: str | None = None, ledger: str = "receipts.db", **options: Any
    ) -> AsyncIterator[Worker]:
        plugin = self.plugin(durability, ledger)
        queue = self.engine.connection.task_queue
        soon = timedelta(milliseconds=100)
        async with make_worker(
            self.client,
            plugin,
            task_queue=queue,
            graceful_shutdown_timeout=timedelta(0),
            sticky_queue_schedule_to_start_timeout=soon,
            **options,
        ) as worker:
            yield worker

    async def without_storage(self) -> None:
        """Keep large values in history, as with `REFOLD_STORAGE=off`."""
        self.values = Off()
        address = self.client.service_client.config.target_host
        namespace, queue = self.client.namespace, self.engine.connection.task_queue
        self.client = await Client.connect(address, namespace=namespace, data_converter=data_converter(self.values))
        self.engine = TemporalEngine(self.client, queue, patience=PATIENT)

    async def start(self, *lines: str, skill: str = "short_errand") -> str:
        view = await self.engine.start(skill, Content.from_text("\n".join(lines)))
        return view.task_id

    async def events(self, task_id: str) -> list[HistoryEvent]:
        history = await self.client.get_workflow_handle(task_id).fetch_history()
        return list(history.events)

    async def kinds(self, task_id: str) -> Counter[str]:
        return Counter(EventType.Name(one.event_type).removeprefix("EVENT_TYPE_") for one in await self.events(task_id))

    async def failed(self, task_id: str) -> list[str]:
        """What its failed workflow tasks said."""
        found = (one.workflow_task_failed_event_attributes.failure.message for one in await self.events(task_id))
        return [message for message in found if message]

    async def until_failed(self, task_id: str) -> str:
        """What its first failed workflow task said, once there is one."""
        while not (failed := await self.failed(task_id)):  # noqa: ASYNC110 - it is the server that knows
            await asyncio.sleep(0.05)
        return failed[0]

    async def pending(self, task_id: str) -> str:
        """What its activities that are tried again failed with."""
        found = (await self.client.get_workflow_handle(task_id).describe()).raw_description
        return "\n".join(one.last_failure.message for one in found.pending_activities)

    async def until_began(self, what: str, times: int = 1) -> None:
        while calls[what] < times:  # noqa: ASYNC110 - a tool counts, which runs in this process
            await asyncio.sleep(0.01)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """An effect goes over soon."""
    monkeypatch.setattr(local, "HOLD_S", 0.3)


@pytest.fixture
def site(client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A queue of the test's own."""
    calls.clear()
    gates.clear()
    monkeypatch.setattr(local, "HOLD_S", 30.0)  # however busy the machine is
    return Site(client, values, tmp_path, monkeypatch)


@pytest.fixture
def hasty_site(hasty_client: Client, site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The same, for tasks whose workflow tasks fail: the next worker takes one once the server has given it up."""
    return Site(hasty_client, site.values, site.folder, monkeypatch)


def said(view: TaskView) -> str:
    return view.messages[-1].text if view.messages else ""


def markers(events: list[HistoryEvent]) -> list[list[Record]]:
    """The outcomes in a history that several effects have in one marker, by the marker."""
    details = [dict(one.marker_recorded_event_attributes.details) for one in events]
    results = [from_json(one["result"].payloads[0].data) for one in details if "result" in one]
    return [result for result in results if isinstance(result, list)]


def records(events: list[HistoryEvent]) -> list[Record]:
    return [record for marker in markers(events) for record in marker]


async def test_a_clock_that_is_ahead_makes_no_timer_longer(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The ledger's, by five hours: the task's time is then that of its newest result, and its timers run from there.
    """
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: time() + 5 * 3600))
    async with site.worker():
        task_id = await site.start("count a", "sleep 0.3", "sleep 0.2", "count b", "sleep 0.1")
        done = await settled(site.engine, task_id)

    timers = [event.timer_started_event_attributes.start_to_fire_timeout for event in await site.events(task_id)]
    assert said(done) == "1 slept slept 1 slept"
    assert {0.3, 0.2, 0.1} <= {one.ToTimedelta().total_seconds() for one in timers}


async def test_many_effects_are_one_workflow_task(site: Site) -> None:
    """
    Twenty tools: no activity, and a history that a worker without the setting replays.
    """
    async with site.worker():
        task_id = await site.start(*[f"count {n}" for n in range(20)])
        done = await settled(site.engine, task_id)

    kinds = await site.kinds(task_id)
    assert (done.status, set(calls.values())) == (Status.COMPLETED, {1})
    assert kinds["ACTIVITY_TASK_SCHEDULED"] == 0
    assert kinds["MARKER_RECORDED"] == kinds["TIMER_STARTED"] + 2
    # Two, and one more each time that a local activity outlasts its workflow task, as on a busy machine.
    assert kinds["WORKFLOW_TASK_COMPLETED"] <= 2 + kinds["MARKER_RECORDED"]
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin("history")]).replay_workflow(history)


async def test_records_are_looked_for_only_where_there_may_be_some(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Once for twenty effects, one after the other: an attempt that lacked the outcome of one has asked for none after it.
    A busy worker's workflow task may be lost, and is performed once more.
    """
    looked: list[str] = []
    look = Outcomes.look

    def counted(self: Outcomes, ask: Ask) -> Brought | None:
        looked.append(ask.invocation_id)
        return look(self, ask)

    monkeypatch.setattr(Outcomes, "look", counted)
    async with site.worker():
        one_by_one = await site.start(*[f"count {n}" for n in range(20)])
        at_once = await site.start("crowd 5")
        ended = [await settled(site.engine, task_id) for task_id in (one_by_one, at_once)]

    assert {view.status for view in ended} == {Status.COMPLETED}
    times = Counter(id.partition("/")[0] for id in looked)
    assert times.keys() == {one_by_one, at_once}
    assert times[one_by_one] < 20
    assert times[at_once] % 5 == 0


async def test_as_many_effects_at_once_as_a_task_asks_for(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    More than are taken in one batch, and in one workflow task: a replay, which is given all outcomes at once, takes
    them as they were taken while they came one by one.
    """
    monkeypatch.setattr(batches, "BATCH", 1)
    monkeypatch.setattr(batches, "PER_TASK", 2)
    async with site.worker():
        task_id = await site.start("crowd 5")
        done = await settled(site.engine, task_id)

    assert said(done) == "5"
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_what_many_effects_bring_is_sent_in_several_workflow_tasks(site: Site) -> None:
    """
    Temporal terminates a workflow that sends more than 4 MB at once: 150 results of 30 KB each.
    """
    async with site.worker():
        task_id = await site.start(*(["large 30000"] * 150))
        done = await settled(site.engine, task_id)

    assert said(done) == " ".join(["30000"] * 150)
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_large_results_without_storage_are_sent_in_several_workflow_tasks(site: Site) -> None:
    """
    One after the other, of 900 KB each: together more than Temporal takes at once. The task completes, though its
    journal is too large to be kept.
    """
    await site.without_storage()
    async with site.worker():
        task_id = await site.start(*(["large 900000"] * 6))
        handle = site.client.get_workflow_handle(task_id)
        while (await handle.describe()).status is WorkflowExecutionStatus.RUNNING:
            await a_moment()

    assert (await handle.describe()).status is WorkflowExecutionStatus.COMPLETED
    history = await handle.fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_a_marker_stays_small(site: Site) -> None:
    """
    Forty results of a kilobyte: several markers, none of which goes to storage, and the results once each.
    """
    async with site.worker():
        task_id = await site.start(*(["large 1000"] * 40))
        done = await settled(site.engine, task_id)

    events = await site.events(task_id)
    sizes = [one.ByteSize() for one in events if one.HasField("marker_recorded_event_attributes")]
    assert said(done) == " ".join(["1000"] * 40)
    assert [record[2] for record in records(events)] == ["x" * 1_000] * 40
    assert 3 < len(sizes) < 40
    assert max(sizes) < ENOUGH_BYTES + 2_000
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_what_the_code_takes_long_for_is_replayed_by_itself(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    A replay is given a whole record at once, and the SDK gives it two seconds: so a record ends with an outcome that
    the task's code has worked on for long.
    """
    monkeypatch.setattr(stretch, "ENOUGH_S", 1e-9)
    async with site.worker():
        done = await settled(site.engine, task_id := await site.start("glance a", "glance b", "crowd 3", "glance c"))

    events = await site.events(task_id)
    assert said(done) == "a b 3 c"
    assert [len(one) for one in markers(events)] == [1] * 6
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_code_that_a_replay_could_not_run_in_time_is_found_at_once(
    hasty_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Not when its worker is restarted, and cannot rebuild the task any more. The outcome is kept for faster code.
    """
    monkeypatch.setattr(stretch, "MOST_S", 0.0)
    async with hasty_site.worker():
        task_id = await hasty_site.start("glance a")
        failed = await hasty_site.until_failed(task_id)
        monkeypatch.setattr(stretch, "MOST_S", 60.0)
        done = await settled(hasty_site.engine, task_id)

    assert "(outcomes: 1), and no worker could replay that" in failed
    assert (said(done), calls["a"]) == ("a", 1)


async def test_what_loses_a_race_is_canceled(site: Site) -> None:
    """
    The task goes on with the call that came first, within the same workflow task.
    """
    with capture_logs() as logs:
        async with site.worker():
            task_id = await site.start("first one", "count after")
            done = await settled(site.engine, task_id)

    assert said(done) == "0 1"
    assert [one["name"] for one in logs if one["event"] == "effect_canceled"] == ["scripted:slow"]
    assert [record[0] for record in records(await site.events(task_id))] == ["1.1 refold.llm", "2.1 tool.count"]
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_what_comes_during_stretches_is_replayed_in_its_order(site: Site) -> None:
    """
    Signals, updates and queries at any moment of 40 effects, in ten tasks at once: a replay finds the same journal.
    """
    chance = Random(7)

    async def disturbed(task_id: str, n: int) -> None:
        await asyncio.sleep(chance.uniform(0, 0.3))
        handle = site.client.get_workflow_handle(task_id)
        with suppress(RPCError, InputRejected):  # it has ended
            match n % 3:
                case 0:
                    await handle.signal("message", f"signal {n}")
                case 1:
                    await site.engine.send(task_id, Content.from_text(f"update {n}"), early=True)
                case _:
                    await site.engine.look(task_id)

    async def errand() -> str:
        task_id = await site.start(*[f"count {n}" for n in range(40)])
        await asyncio.gather(*(disturbed(task_id, n) for n in range(12)))
        return task_id

    async with site.worker():
        ids = await asyncio.gather(*(errand() for _ in range(10)))
        ended = [await settled(site.engine, task_id) for task_id in ids]

    assert {view.status for view in ended} == {Status.COMPLETED}
    came = [entry.event for task_id in ids for entry in [one async for one in site.engine.journal(task_id)]]
    assert len([event for event in came if isinstance(event, UserMessage)]) > 2 * len(ids)  # they were disturbed
    plugin = site.plugin()
    replayer = Replayer(workflows=[], plugins=[plugin])
    for task_id in ids:
        await replayer.replay_workflow(await site.client.get_workflow_handle(task_id).fetch_history())
        assert plugin.replayed.difference is None


async def test_many_results_at_once_are_given_in_one_stretch(site: Site) -> None:
    """
    What goes on at once is in one record, however large, so that no failure among it is lost.
    """
    async with site.worker():
        task_id = await site.start("larges 9000 9000 9000 20000", "count after")
        done = await settled(site.engine, task_id)

    assert said(done) == "47000 1"
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


class Seen(Interceptor):
    """A program's own, which is told of each activity."""

    def __init__(self) -> None:
        self.types: list[str] = []

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        types = self.types

        class Inbound(ActivityInboundInterceptor):
            async def execute_activity(self, input: ExecuteActivityInput) -> Any:
                info = activity.info()
                types.append(f"{info.activity_type} {info.activity_id.rpartition('/')[2]}")
                return await super().execute_activity(input)

        return Inbound(next)


async def test_interceptors_see_each_effect(site: Site) -> None:
    """
    As an activity of its own, with its type and its id, and the activity that performs several beside it.
    """
    seen = Seen()
    async with site.worker(interceptors=[seen]):
        task_id = await site.start("count a", "glance b")
        await settled(site.engine, task_id)

    assert [one for one in seen.types if one.startswith("tool.")] == ["tool.count 1.1", "tool.glance 2.1"]
    assert f"{STRETCH} 1.1" in seen.types


async def test_no_effect_is_performed_again_for_code_that_takes_long(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Results of effects at once are found in the ledger; a failure among them, which no ledger knows, waits for its turn.
    """
    monkeypatch.setattr(stretch, "ENOUGH_S", 1e-9)
    async with site.worker():
        done = await settled(site.engine, task_id := await site.start("crowd 8", "beside_never abcd", "count after"))

    assert said(done) == "8 never 1"
    assert set(calls.values()) == {1}
    assert [len(one) for one in markers(await site.events(task_id))] == [1] * 14
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_code_that_asks_for_something_else_is_found_by_a_replay(site: Site) -> None:
    """
    The record says which effect brought an outcome.
    """
    async with site.worker():
        task_id = await site.start("count a", "count b")
        await settled(site.engine, task_id)
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    [marker] = [one for one in history.events if b"2.1 tool.count" in one.SerializeToString()]
    payload = marker.marker_recorded_event_attributes.details["result"].payloads[0]
    payload.data = payload.data.replace(b"2.1 tool.count", b"2.1 tool.other")

    with pytest.raises(Exception, match=r"TMPRL1100.*2\.1 tool\.other.*2\.1 tool\.count"):
        await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_a_long_effect_goes_over(site: Site, hasty: None) -> None:
    """
    It holds the task for a second; then a regular activity takes it over, and the task can be asked. It runs once.
    """
    async with site.worker():
        task_id = await site.start("count a", "hold gate", "count b")
        await site.until_began("gate")
        view = await site.engine.look(task_id)
        gates["gate"].set()
        done = await settled(site.engine, task_id)

    assert [call.command for call in view.pending] == ["tool hold"]
    assert (said(done), calls["gate"], calls["gate canceled"]) == ("1 open 1", 1, 0)
    scheduled = (one.activity_task_scheduled_event_attributes for one in await site.events(task_id))
    assert [one.activity_type.name for one in scheduled].count("tool.hold") == 1  # others go over on a busy machine


async def test_what_went_over_is_awaited_by_a_run_that_ends(site: Site, hasty: None) -> None:
    """
    An effect that has begun, where the task is to go on in a new run, gets its regular activity in the old one.
    """
    task_id, queue = f"short-{uuid4().hex[:8]}", site.engine.connection.task_queue
    first = UserMessage(content=Content.from_text("hold gate\ncount after"))
    # Fewer events than there are once the timer has fired with which the stretch begins.
    start = TaskStart(message=first, events_per_run=5)
    async with site.worker():
        handle = await site.client.start_workflow("short_errand", start, id=task_id, task_queue=queue)
        await site.until_began("gate")
        view = await site.engine.look(task_id)
        gates["gate"].set()
        done = await settled(site.engine, task_id)

    assert [call.command for call in view.pending] == ["tool hold"]
    assert (said(done), calls["gate"], calls["gate canceled"]) == ("open 1", 1, 0)
    history = await site.client.get_workflow_handle(task_id, run_id=handle.first_execution_run_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_what_went_over_waits_for_no_room(site: Site, hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    It runs, so its regular activity begins also beside as many effects as a task has under way at most.
    """
    monkeypatch.setattr(room, "MOST_AT_ONCE", 1)
    async with site.worker():
        task_id = await site.start("holds one two three")
        await site.until_began("three")
        await site.engine.look(task_id)
        described = (await site.client.get_workflow_handle(task_id).describe()).raw_description
        for gate in ("one", "two", "three"):
            gates[gate].set()
        done = await settled(site.engine, task_id)

    assert [one.activity_type.name for one in described.pending_activities] == ["tool.hold"] * 3
    assert (said(done), calls) == ("open open open", Counter(one=1, two=1, three=1))
    history = await site.client.get_workflow_handle(task_id).fetch_history()
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_a_cancellation_waits_for_a_second_at_most(site: Site, hasty: None) -> None:
    """
    What runs within the workflow task goes over, then hears that it is not wanted; nothing comes after it.
    """
    async with site.worker():
        task_id = await site.start("hold gate", "count never")
        await site.until_began("gate")
        await site.engine.cancel(task_id)
        ended = await settled(site.engine, task_id)
        await site.until_began("gate canceled")

    assert (ended.status, calls["gate"], calls["never"]) == (Status.CANCELED, 1, 0)


async def test_failures_and_retries_are_as_ever(site: Site) -> None:
    """
    A retry is a regular activity; what fails for good, or nobody knows, is told to the skill as it always is.
    """
    async with site.worker():
        task_id = await site.start("moody busy", "moody never", "count after", "large 300000")
        done = await settled(site.engine, task_id)

    assert said(done) == "after 2 never 1 300000"
    assert calls["busy"] == 2
    assert (await site.kinds(task_id))["ACTIVITY_TASK_SCHEDULED"] == 1


async def left_at_an_open_gate(site: Site) -> str:
    """A task whose worker is gone; the next one finds the gate, at which it stands between two effects, open."""
    async with site.worker():
        task_id = await site.start("glance a", "hold gate", "glance b", skill="plain_errand")
        await site.until_began("gate")
        await site.engine.look(task_id)
    gates["gate"] = asyncio.Event()
    gates["gate"].set()
    return task_id


async def test_a_worker_with_another_ledger_performs_nothing(
    hasty_site: Site, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Its workflow task fails with the reason, and a worker with the right ledger goes on.
    """
    task_id = await left_at_an_open_gate(hasty_site)
    monkeypatch.setattr(local, "HOLD_S", 30.0)  # however long that worker takes to open its ledger
    async with hasty_site.worker(ledger="another.db"):
        failed = await hasty_site.until_failed(task_id)
        assert "is not the one that the effects of this task are recorded in" in failed
        assert calls["b"] == 0
    async with hasty_site.worker():
        done = await settled(hasty_site.engine, task_id)

    assert (said(done), calls["a"], calls["b"]) == ("a open b", 1, 1)


async def test_another_ledger_takes_the_place_of_a_lost_one(
    hasty_site: Site, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Once somebody says so; the task goes on, and performs nothing that history has.
    """
    task_id = await left_at_an_open_gate(hasty_site)
    lost = await asyncio.to_thread(store_of(str(hasty_site.folder / "receipts.db")).identity)
    monkeypatch.setattr(local, "HOLD_S", 30.0)  # however long that worker takes to open its ledger
    async with hasty_site.worker(ledger="another.db"):
        assert f"`refold ledger adopt {lost}`" in await hasty_site.until_failed(task_id)
    await asyncio.to_thread(store_of(str(hasty_site.folder / "another.db")).adopt, lost)
    async with hasty_site.worker(ledger="another.db"):
        done = await settled(hasty_site.engine, task_id)

    assert (said(done), calls["a"], calls["b"]) == ("a open b", 1, 1)


async def test_what_went_over_is_not_performed_with_another_ledger(site: Site, hasty: None) -> None:
    """
    The regular activity of an effect that was begun within a workflow task is left to workers that see its record.
    """
    async with site.worker():
        task_id = await site.start("count a", "hold gate", "count b")
        await site.until_began("gate")
        await site.engine.look(task_id)
    gates["gate"] = asyncio.Event()
    gates["gate"].set()
    async with site.worker(ledger="another.db"):
        while "is not the one that the effects of this task are recorded in" not in await site.pending(task_id):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert (calls["gate"], calls["b"]) == (1, 0)
    async with site.worker():
        done = await settled(site.engine, task_id)

    assert (said(done), calls["a"], calls["gate"], calls["b"]) == ("1 open 1", 1, 2, 1)


async def test_what_goes_over_before_the_ledger_is_known_to_be_another(
    hasty_site: Site, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A worker opens its ledger slowly, and the effect has gone over by then: it is left to workers that see the record.
    """
    task_id = await left_at_an_open_gate(hasty_site)
    monkeypatch.setattr(local, "HOLD_S", 0.0)
    async with hasty_site.worker(ledger="another.db"):
        while "is not the one that the effects of this task are recorded in" not in await hasty_site.pending(task_id):  # noqa: ASYNC110 - it is the server that knows
            await asyncio.sleep(0.05)
        assert calls["b"] == 0
    async with hasty_site.worker():
        done = await settled(hasty_site.engine, task_id)

    assert (said(done), calls["a"], calls["b"]) == ("a open b", 1, 1)


@pytest.mark.parametrize(("before", "after"), [("history", "ledger"), ("ledger", "history")])
async def test_a_run_keeps_the_way_that_it_began_with(site: Site, hasty: None, before: str, after: str) -> None:
    """
    A task that was begun by a worker with one setting goes on by a worker with the other one: deploy and rollback.
    """
    async with site.worker(before):
        task_id = await site.start("count a", "hold gate", "count b", skill="plain_errand")
        await site.until_began("gate")
        await site.engine.look(task_id)
    gates.pop("gate").set()
    gates["gate"] = asyncio.Event()
    gates["gate"].set()
    async with site.worker(after):
        done = await settled(site.engine, task_id)

    kinds = await site.kinds(task_id)
    assert (said(done), calls["a"], calls["b"]) == ("1 open 1", 1, 1)
    assert (kinds["ACTIVITY_TASK_SCHEDULED"], kinds["MARKER_RECORDED"] > 0) == (
        (3, False) if before == "history" else (1, True)
    )


async def test_a_tool_says_for_itself(site: Site) -> None:
    """
    `@tool(durability="ledger")` takes the short way in a skill whose other effects do not, and a task without it has
    nothing of it in its history; a worker whose tool says nothing replays it.
    """
    async with site.worker("history"):
        mixed = await site.start("count a", "glance b", "glance c", "count d", "glance e", skill="plain_errand")
        done = await settled(site.engine, mixed)
        without = await site.start("count f", skill="plain_errand")
        await settled(site.engine, without)

    kinds, plain = await site.kinds(mixed), await site.kinds(without)
    assert (said(done), set(calls.values())) == ("1 b c 1 e", {1})
    assert (kinds["ACTIVITY_TASK_SCHEDULED"], plain["MARKER_RECORDED"]) == (2, 0)
    history = await site.client.get_workflow_handle(mixed).fetch_history()
    await Replayer(workflows=[], plugins=[RefoldPlugin([short_skills], storage=site.values)]).replay_workflow(history)


async def test_what_comes_with_the_last_effects_is_answered(site: Site) -> None:
    """
    An update that reaches the worker while the task's last stretch goes on hears that the task has ended.
    """
    async with site.worker():
        task_id = await site.start("hold gate")
        await site.until_began("gate")
        sending = asyncio.create_task(site.engine.send(task_id, Content.from_text("late")))
        await asyncio.sleep(0)
        gates["gate"].set()
        done = await settled(site.engine, task_id)
        with pytest.raises(InputRejected, match=r"ended|completed"):
            await sending

    assert (done.status, calls["gate"]) == (Status.COMPLETED, 1)


async def test_an_update_that_was_held_is_not_left_behind(site: Site) -> None:
    """
    What comes during a stretch is taken after it: an update, too, where what came before it lets the task go on in a
    new run.
    """
    task_id, queue = f"short-{uuid4().hex[:8]}", site.engine.connection.task_queue
    first = UserMessage(content=Content.from_text("hold gate\nask one\nask two"))
    start = TaskStart(message=first, events_per_run=1)
    # Half of that time after the effect began, the task hears of what has come.
    soon = timedelta(seconds=2)
    async with site.worker():
        handle = await site.client.start_workflow(
            "short_errand", start, id=task_id, task_queue=queue, task_timeout=soon
        )
        await site.until_began("gate")
        await handle.signal("message", "before")
        sending = asyncio.create_task(site.engine.send(task_id, Content.from_text("early"), early=True))
        while not (await site.kinds(task_id))["WORKFLOW_EXECUTION_UPDATE_ACCEPTED"]:
            await a_moment()
        gates["gate"].set()
        await sending
        done = await settled(site.engine, task_id)

    assert said(done) == "open before early"


async def test_a_seal_during_a_stretch_is_replayed(site: Site) -> None:
    """
    It is taken after the stretch, like all that comes meanwhile: a part that the stretch has begun is begun by a
    replay, too, which is given the seal at the stretch's beginning.
    """
    task_id, queue = f"short-{uuid4().hex[:8]}", site.engine.connection.task_queue
    start = TaskStart(message=UserMessage(content=Content.from_text("count a\nbeside gate\ncount after")))
    # Half of that time after the effect began, the task hears of what has come.
    soon = timedelta(seconds=2)
    async with site.worker():
        handle = await site.client.start_workflow(
            "short_errand", start, id=task_id, task_queue=queue, task_timeout=soon
        )
        await site.until_began("gate")
        sealing = asyncio.create_task(seal(site.engine.connection, task_id))
        while not (await site.kinds(task_id))["WORKFLOW_EXECUTION_UPDATE_ACCEPTED"]:
            await a_moment()
        gates["gate"].set()
        waits = await sealing
        done = await settled(site.engine, task_id)

    assert (waits, said(done)) == (("skill quick", "tool hold"), "1 gate open 1")
    history = await site.client.get_workflow_handle(task_id, run_id=handle.first_execution_run_id).fetch_history()
    assert history.events[-1].HasField("workflow_execution_continued_as_new_event_attributes")
    await Replayer(workflows=[], plugins=[site.plugin()]).replay_workflow(history)


async def test_the_time_of_each_entry_is_in_history(site: Site) -> None:
    """
    A failure's as the worker says it, and that of a message held meanwhile as the start of a workflow task that no
    local activity has lengthened: what a replay sees does not depend on when a query came.
    """
    async with site.worker():
        task_id = await site.start("moody never", "hold held", "count after")
        await site.until_began("held")
        telling = asyncio.create_task(site.client.get_workflow_handle(task_id).signal("message", "early"))
        gates["held"].set()
        await telling
        await site.client.get_workflow_handle(task_id).result()
        entries = [entry async for entry in site.engine.journal(task_id)]

    events = await site.events(task_id)
    recorded = [record for record in records(events) if record[0] == "1.1 tool.moody"]
    began = [one.event_time.ToDatetime(UTC) for one in events if one.HasField("workflow_task_started_event_attributes")]
    failed = next(entry for entry in entries if isinstance(entry.event, CommandFailed))
    [_, heard] = [entry for entry in entries if isinstance(entry.event, UserMessage)]
    assert [one[1]["details"][1] for one in recorded] == [round(failed.at.timestamp() * 1_000)]
    assert min(abs(heard.at - one) for one in began) < timedelta(milliseconds=1)


async def test_what_the_ledger_holds_is_encrypted(site: Site) -> None:
    """
    With a codec neither the records nor the markers show what an effect was asked for, or what it brought.
    """
    site.codec = Encryption({"k": bytes(range(32))})
    site.engine = TemporalEngine(
        await Client.connect(
            site.client.service_client.config.target_host, data_converter=data_converter(site.values, site.codec)
        ),
        site.engine.connection.task_queue,
        patience=PATIENT,
    )
    site.client = site.engine.client
    async with site.worker():
        task_id = await site.start(f"glance {SECRET}", f"count {SECRET}")
        done = await settled(site.engine, task_id)

    written = b"".join(file.read_bytes() for file in site.folder.glob("receipts.db*"))
    history = b"".join(event.SerializeToString() for event in await site.events(task_id))
    assert (said(done), (await site.kinds(task_id))["ACTIVITY_TASK_SCHEDULED"]) == (f"{SECRET} 2", 0)
    assert b"sealed:" in written
    assert SECRET.encode() not in written + history


@pytest.mark.parametrize(
    ("skills", "tools", "durability"),
    [
        pytest.param([hello], [], "ledger", id="worker"),
        pytest.param([short_skills], [moody, hold], None, id="skill"),
        pytest.param([hello], [glance], None, id="tool"),
    ],
)
def test_a_file_of_one_host_is_refused_before_a_remote_server(
    skills: list[Any], tools: list[Any], durability: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A worker whose records other hosts would not see does not start, whether worker, skill or tool says `ledger`.
    """
    monkeypatch.setenv("REFOLD_LEDGER", str(tmp_path / "receipts.db"))
    ledger = RefoldPlugin(skills, tools, durability=durability).ledger

    assert ledger is not None
    with pytest.raises(DefinitionError, match="a worker on another host would perform effects again"):
        ledger.refuse_remote("temporal.example:7233")


async def test_without_a_ledger_the_regular_way(site: Site) -> None:
    """
    A ledger that cannot be used when the run begins: the task is not held up.
    """
    async with site.worker() as worker:
        while not worker.is_running:
            await a_moment()
        (site.folder / "receipts.db").unlink()
        task_id = await site.start("large 10", "Hello")
        done = await settled(site.engine, task_id)

    assert done.status is Status.COMPLETED
    assert (await site.kinds(task_id))["ACTIVITY_TASK_SCHEDULED"] == 2


def test_a_setting_that_is_none_is_refused() -> None:
    """
    By worker and by skill.
    """
    with pytest.raises(DefinitionError, match="'disk' is neither 'history' nor 'ledger'"):
        RefoldPlugin([short_skills], TOOLS, durability="disk")
