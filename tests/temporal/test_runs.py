"""A task is the same however its runs, caches and messages fall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client

from refold import Content, InputRejected, Status
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.engine import NoWorker, TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.client import journal
from refold.temporal.data.wire import Page, TaskStart
from refold.temporal.worker.task.workflow import SkillWorkflow
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal import skills
from tests.temporal.conftest import PATIENT, failures_of_the_worker, replay_all
from tests.temporal.test_task import RESEARCH_LOOPS, collected, run, settled, text, without_ids
from tests.waiting import a_moment


@pytest.fixture(scope="module")
async def restless(client: Client, plugin: RefoldPlugin) -> AsyncIterator[TemporalEngine]:
    """An engine whose tasks go on in a new run at every quiet point, on a worker that remembers nothing."""
    async with make_worker(client, plugin, task_queue="restless", max_cached_workflows=0):
        yield TemporalEngine(client, "restless", events_per_run=1, patience=PATIENT)
    await replay_all(client, plugin, "restless")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, int], list[str]]:
    """Every snapshot as JSON, by task and entry, noted the moment it is made, replays included."""
    noted: dict[tuple[str, int], list[str]] = {}
    take = SkillWorkflow._take_one

    def noting(self: SkillWorkflow, event: Any, *at: Any) -> Entry:
        entry = take(self, event, *at)
        noted.setdefault((self._now.task_id, entry.seq), []).append(self._now.model_dump_json())
        return entry

    monkeypatch.setattr(SkillWorkflow, "_take_one", noting)
    return noted


def users(task: TaskView | Snapshot) -> list[str]:
    """What the user said, oldest first."""
    return [message.text for message in task.messages if message.role == "user"]


async def runs_of(engine: TemporalEngine, task_id: str) -> int:
    """How many runs a task has had."""
    newest = await engine.connection.describe(task_id)
    run_id, found = newest.run_id, 1
    while run_id != newest.raw_info.first_run_id:
        start = await anext(engine.client.get_workflow_handle(task_id, run_id=run_id).fetch_history_events())
        run_id = start.workflow_execution_started_event_attributes.continued_execution_run_id
        found += 1
    return found


@pytest.mark.parametrize("skill", RESEARCH_LOOPS)
async def test_a_new_run_at_every_quiet_point_changes_nothing(
    engine: TemporalEngine, restless: TemporalEngine, skill: str
) -> None:
    """
    Journal, artifact and status are those of a task that had one run; numbers and ids go on.
    """
    plain = await run(engine, skill, "Tides", "For sailors")
    moved = await run(restless, skill, "Tides", "For sailors")

    assert moved.status is Status.COMPLETED
    assert moved.artifacts == plain.artifacts
    assert await runs_of(restless, moved.task_id) > 5
    journals = [
        without_ids(await collected(one.journal(view.task_id)), view.task_id)
        for one, view in ((engine, plain), (restless, moved))
    ]
    assert journals[0] == journals[1]


@pytest.mark.parametrize("moves", [False, True])
async def test_the_past_is_what_was_live(
    moves: bool, engine: TemporalEngine, restless: TemporalEngine, live: dict[tuple[str, int], list[str]]
) -> None:
    """
    `at` gives for every entry the very snapshot that was live, over all runs, and so does every replay.
    """
    engine = restless if moves else engine
    view = await run(engine, "research_loop_steps", "Tides", "For sailors")

    for seq in range(1, view.seq + 1):
        # A workflow task that the server did not take, because something else came meanwhile, was live for nobody.
        assert (await engine.at(view.task_id, seq)).model_dump_json() == live[view.task_id, seq][-1]


async def test_an_ended_task_is_read_without_a_worker(
    client: Client, plugin: RefoldPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Who comes when all workers are gone still reads task and journal, runs before the last one included. A snapshot
    needs a worker; one that has just stopped is not taken for a slow one.
    """
    engine = TemporalEngine(client, "gone", events_per_run=1, patience=PATIENT)
    async with make_worker(client, plugin, task_queue="gone"):
        done = await run(engine, "research_loop", "Tides", "For sailors")
        canceled = await run(engine, "talk")
        canceled = await engine.cancel(canceled.task_id)

    assert await engine.look(done.task_id) == done
    assert [entry.seq for entry in await collected(engine.journal(done.task_id))] == list(range(1, done.seq + 1))
    assert [entry.seq for entry in await collected(engine.journal(done.task_id, after=5))] == [6, 7, 8]
    assert (await engine.look(canceled.task_id)).status is Status.CANCELED
    assert [entry.event.kind for entry in await collected(engine.journal(canceled.task_id))] == [
        "user_message",
        "cancel_requested",
    ]
    monkeypatch.setattr(journal, "QUERY_PATIENCE", timedelta(seconds=1))
    with pytest.raises(NoWorker, match="no worker answers on task queue 'gone'; start one with"):
        await TemporalEngine(client, "gone", patience=timedelta(seconds=1)).at(done.task_id, 3)


async def test_a_burst_of_signals_loses_none(restless: TemporalEngine) -> None:
    """
    Fifty answers at once, with a new run at every quiet point: each is taken, in order, numbers without a gap.
    """
    view = await run(restless, "counts")
    handle = restless.client.get_workflow_handle(view.task_id)

    await asyncio.gather(*(handle.signal("message", f"answer {n}") for n in range(50)))
    await handle.signal("message", "stop")
    await collected(restless.watch(view.task_id, follow=True))

    view = await restless.look(view.task_id)
    heard = {message.text for message in view.messages if message.role == "user"}
    entries = await collected(restless.journal(view.task_id))
    assert view.status is Status.COMPLETED
    assert heard == {"go", "stop", *(f"answer {n}" for n in range(50))}
    assert [entry.seq for entry in entries] == list(range(1, 53))


@pytest.mark.parametrize(
    "answers", [1_050, pytest.param(9_950, marks=[pytest.mark.sweep, pytest.mark.timeout(LONG_S)])]
)
async def test_whatever_waits_for_a_worker_is_taken(client: Client, plugin: RefoldPlugin, answers: int) -> None:
    """
    However many answers wait, a worker takes them in batches that fit the SDK's deadline, over several workflow tasks;
    what comes after the end is refused, with an entry. A run takes 10,000 signals; the server refuses more.

    The long task is recovered and forked; neither folds its whole journal.
    """
    engine = TemporalEngine(client, "flooded", patience=PATIENT)
    more: dict[str, Any] = {"activities": [skills.existing_activity], "workflows": [skills.ExistingWorkflow]}
    async with make_worker(client, plugin, task_queue="flooded", **more):
        view = await run(engine, "counts")
    handle = client.get_workflow_handle(view.task_id)
    for first in range(0, answers, 50):
        await asyncio.gather(*(handle.signal("message", f"answer {n}") for n in range(first, first + 50)))
    await handle.signal("cancel", "enough")
    await handle.signal("message", "too late")

    async with make_worker(client, plugin, task_queue="flooded", **more):
        await collected(engine.watch(view.task_id, follow=True))
        view, entries = await engine.look(view.task_id), await collected(engine.journal(view.task_id))
        heard = users(view)
        assert set(heard) == {"go", *(f"answer {n}" for n in range(answers))}
        assert [entry.seq for entry in entries] == list(range(1, answers + 4))
        assert [entry.seq for entry in entries if entry.refused] == [answers + 3]
        recovered = await settled(engine, (await engine.recover(view.task_id)).task_id)
        forked = await settled(engine, (await engine.fork(view.task_id, at=answers - 10)).task_id)

        assert users(await engine.at(view.task_id, answers - 10)) == heard[: answers - 10]
        for one, seq in ((recovered, answers + 1), (forked, answers - 10)):
            assert [wait.gate.rpartition("/")[2] for wait in one.waiting_for] == [f"{seq}.1"]
        assert (users(recovered), users(forked)) == (heard, heard[: answers - 10])
        for one in (recovered, forked):
            await engine.send(one.task_id, text("stop"))

    events = (await handle.fetch_history()).events
    assert not failures_of_the_worker(events)
    assert [event for event in events if event.HasField("timer_fired_event_attributes")]
    for one in (recovered, forked):
        assert await entries_given(client, one.task_id) <= 1_000
    await replay_all(client, plugin, "flooded")


async def entries_given(client: Client, task_id: str) -> int:
    """How many entries a recovered or forked task is given to fold."""
    start = await anext(client.get_workflow_handle(task_id).fetch_history_events())
    given = await client.data_converter.decode(start.workflow_execution_started_event_attributes.input.payloads)
    return len((given[0].get("recover") or given[0]["fork"]["journal"])["entries"])


async def works_beside_its_part(engine: TemporalEngine) -> tuple[str, str]:
    """A task that has done all its work, over several runs, and its part, which asks a person all the while."""
    view = await engine.start("keeps_working", text("go"))
    while [entry.event.kind for entry in await collected(engine.journal(view.task_id))].count("tool_result") < 8:
        await a_moment()
    view = await settled(engine, view.task_id)
    assert [wait.slot for wait in view.waiting_for] == ["next"]
    assert await runs_of(engine, view.task_id) > 5
    return view.task_id, view.waiting_for[0].gate.rpartition("/")[0]


async def begun(engine: TemporalEngine, view: TaskView) -> TaskView:
    """The task once its worker has folded what it goes on from, which may take longer than a look waits."""
    while not view.seq:
        await a_moment()
        view = await engine.look(view.task_id)
    return view


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_a_long_life_is_recovered_and_forked(client: Client, plugin: RefoldPlugin) -> None:
    """
    20,000 entries where there is time (REFOLD_SWEEP=all), over several runs. Recovering and forking it fold a bounded
    part of the journal.
    """
    engine = TemporalEngine(client, "long-lives", patience=PATIENT)
    entries = 20_000 if THOROUGH else 6_000
    at = entries * 5 // 9
    async with make_worker(client, plugin, task_queue="long-lives"):
        id = (await run(engine, "counts")).task_id
        handle = client.get_workflow_handle(id)
        before = now = (await handle.describe()).run_id
        for first in range(0, entries, 50):
            await asyncio.gather(*(handle.signal("message", f"answer {n}") for n in range(first, first + 50)))
            # A run takes 10,000 signals, and a task continues in the next one when it has taken what there is.
            while first % 5_000 == 0 < first and (now := (await engine.connection.describe(id)).run_id) == before:
                await a_moment()
            before = now
        await handle.signal("cancel", "enough")
        await collected(engine.watch(id, after=entries, follow=True))

        recovered = await begun(engine, await engine.recover(id))
        forked = await begun(engine, await engine.fork(id, at=at))
        assert (recovered.seq, forked.seq) == (entries + 3, at + 1)
        for view in (recovered, forked):
            assert await entries_given(client, view.task_id) <= 1_000
        assert len(users(recovered)) == entries + 1
        for view in (recovered, forked):
            assert [wait.slot for wait in view.waiting_for] == ["next"]
            await engine.send(view.task_id, text("stop"))
            assert (await settled(engine, view.task_id)).status is Status.COMPLETED
    described = await engine.connection.describe(id)
    assert described.run_id != described.raw_info.first_run_id
    for task_id in (id, recovered.task_id, forked.task_id):
        async for one in client.list_workflows(f"WorkflowId = '{task_id}'"):
            history = await client.get_workflow_handle(task_id, run_id=one.run_id).fetch_history()
            assert not failures_of_the_worker(history.events)


async def test_what_was_canceled_a_moment_ago_recovers(engine: TemporalEngine) -> None:
    """
    A canceled task says that it has ended before its workflow has closed: one workflow task lies between.
    """

    async def canceled_and_recovered() -> str:
        view = await settled(engine, (await run(engine, "counts")).task_id)
        await engine.client.get_workflow_handle(view.task_id).signal("cancel", "enough")
        await collected(engine.watch(view.task_id, after=view.seq, follow=True))
        return (await engine.recover(view.task_id)).task_id

    for task_id in await asyncio.gather(*(canceled_and_recovered() for _ in range(10))):
        view = await engine.look(task_id)
        assert (view.status, [wait.slot for wait in view.waiting_for]) == (Status.INPUT_REQUIRED, ["next"])


async def test_a_task_works_on_while_a_part_waits_for_a_person(restless: TemporalEngine) -> None:
    """
    It continues in new runs, and leaves the part open, which takes answers as before and reports its end.
    """
    task_id, part = await works_beside_its_part(restless)

    await restless.send(task_id, text("more"))
    while (await restless.look(part)).seq < 2:
        await a_moment()
    await settled(restless, part)
    await restless.client.get_workflow_handle(part).signal("message", "stop")
    done = await ended(restless, task_id)

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "28 stopped")
    assert (await restless.look(part)).status is Status.COMPLETED


async def test_a_part_that_an_earlier_run_started_is_canceled_with_its_task(restless: TemporalEngine) -> None:
    """
    As any other part is, with its journal.
    """
    task_id, part = await works_beside_its_part(restless)

    await restless.cancel(task_id)

    assert (await ended(restless, task_id)).status is Status.CANCELED
    assert (await ended(restless, part)).status is Status.CANCELED


async def test_a_part_that_an_earlier_run_started_reports_its_failure(restless: TemporalEngine) -> None:
    """
    The task hears of it as of any other part's.
    """
    task_id, part = await works_beside_its_part(restless)

    await restless.cancel(part)
    failed = await ended(restless, task_id)

    assert (failed.status, "it was canceled from outside" in failed.reason) == (Status.FAILED, True)


async def ended(engine: TemporalEngine, task_id: str) -> TaskView:
    """The task, once its workflow has closed."""
    await asyncio.gather(engine.client.get_workflow_handle(task_id).result(), return_exceptions=True)
    return await engine.look(task_id)


async def test_a_failure_of_an_earlier_run_is_recovered_from(restless: TemporalEngine) -> None:
    """
    The call that failed there is made again, as where the task ended in the same run.
    """
    task_id = (await restless.start("uncaught_beside", text("hi"))).task_id
    for slot, answer in (("name", Content.from_text("Ada")), ("age", Content.from_data({"years": 36}))):
        while [wait.slot for wait in (await restless.look(task_id)).waiting_for] != [slot]:
            await a_moment()
        await restless.send(task_id, answer)
    failed = await ended(restless, task_id)
    assert (failed.reason, await runs_of(restless, task_id) > 1) == ("broken: the account is closed", True)

    recovered = await ended(restless, (await restless.recover(task_id)).task_id)

    events = [entry.event.kind for entry in await collected(restless.journal(recovered.task_id))]
    assert (recovered.reason, events.count("command_failed")) == (failed.reason, 1)


async def test_a_long_sleep_is_slept_through_runs(client: Client, restless: TemporalEngine) -> None:
    """
    A sleep's end is a time, not a duration: a new run does not begin it again.
    """
    view = await restless.start("patient", text("go"))
    while not (await restless.look(view.task_id)).pending:
        await a_moment()

    pending = (await restless.look(view.task_id)).pending
    assert pending[0].command == "sleep sleep"
    assert pending[0].due_at is not None
    snapshot = await restless.at(view.task_id, 1)
    assert pending[0].due_at == snapshot.pending[pending[0].invocation_id].due_at
    await restless.cancel(view.task_id)


async def test_no_entry_is_earlier_than_the_one_before(engine: TemporalEngine) -> None:
    """
    In a new run, too, where the time of the last entry came from a clock that was ahead, as a ledger's may be.
    """
    view = await engine.start("counts", text("go"))
    while not (await engine.look(view.task_id)).waiting_for:
        await a_moment()
    handle = engine.client.get_workflow_handle(view.task_id)
    snapshot = await handle.query("snapshot", result_type=Snapshot)
    await handle.terminate()
    ahead = snapshot.changed({"at": snapshot.at + timedelta(hours=1)})
    queue = engine.connection.task_queue
    await engine.client.start_workflow("counts", TaskStart(snapshot=ahead), id=view.task_id, task_queue=queue)

    handle = engine.client.get_workflow_handle(view.task_id)
    await handle.execute_update("message", "one")
    page = await handle.query("journal", snapshot.seq, result_type=Page)
    await handle.terminate()
    assert [entry.at for entry in page.entries] == [ahead.at]


# --- where nobody is


async def test_a_worker_that_comes_late_finds_everything(client: Client, plugin: RefoldPlugin) -> None:
    """
    What was started without a worker is done when one comes.
    """
    engine = TemporalEngine(client, "late")
    view = await engine.start("hello", text("Ada"))

    async with make_worker(client, plugin, task_queue="late"):
        view = await settled(engine, view.task_id)

    assert view.messages[-1].text == "Hello, Ada!"


async def test_what_was_refused_may_be_sent_again(engine: TemporalEngine) -> None:
    """
    Under the same delivery id, also where it was so large that the task refused it only after it had accepted it.
    """
    view = await settled(engine, (await engine.start("talk", text("go"))).task_id)
    age = Content.from_data({"years": 36, "photo": "x" * 3_000_000})
    with pytest.raises(InputRejected, match="'age'"):
        await engine.send(view.task_id, age, slot="age", delivery_id="d-1")
    await engine.send(view.task_id, text("Ada"))
    await settled(engine, view.task_id)
    await engine.send(view.task_id, age, slot="age", delivery_id="d-1")

    assert (await settled(engine, view.task_id)).status is Status.COMPLETED


async def test_large_input_goes_through_storage(engine: TemporalEngine) -> None:
    """
    Three megabytes arrive, while history stays small.
    """
    view = await engine.start("talk", text("go"))
    view = await settled(engine, view.task_id)
    await engine.send(view.task_id, text("x" * 3_000_000))
    view = await settled(engine, view.task_id)

    assert len(view.messages[-2].text) == 3_000_000
    history = await engine.client.get_workflow_handle(view.task_id).fetch_history()
    assert sum(event.ByteSize() for event in history.events) < 20_000
    await engine.send(view.task_id, Content.from_data({"years": 36}))
