"""A task that is asked to seal goes on in a new run at its next quiet moment, and nobody can tell from its journal."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError, WorkflowHistory
from temporalio.service import RPCError
from temporalio.testing import TimeSkipper
from temporalio.worker import Replayer

from refold import Content, InputRejected, Status
from refold.core.events import CancelRequested
from refold.engine import NoWorker, TaskFilter, TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import dev_server
from refold.temporal.upgrade.sealing import is_fresh, seal
from tests.servers import SETTINGS
from tests.temporal import part_skills, skills
from tests.temporal.client.between import Call, between
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, settled, text, without_ids
from tests.temporal.upgrade import sealed_skills
from tests.temporal.upgrade.sealed_skills import TOOLS, WEEK_S, doors, paid, reached
from tests.waiting import a_moment

QUEUE = "seals"
SOON = timedelta(milliseconds=100)


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker for these skills; what ended in it is replayed at the end."""
    plugin = RefoldPlugin([sealed_skills], TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


async def begun(engine: TemporalEngine, skill: str, said: str) -> str:
    """A task that waits for a person, itself or a part of it."""
    task_id = (await engine.start(skill, text(said))).task_id
    while not (await engine.look(task_id)).waiting_for:
        await a_moment()
    return task_id


async def run_of(engine: TemporalEngine, task_id: str) -> str:
    return str((await engine.connection.describe(task_id)).run_id)


async def in_next_run(engine: TemporalEngine, task_id: str, before: str) -> TaskView:
    """The task, once it has gone on from the run `before`."""
    while await run_of(engine, task_id) == before:
        await a_moment()
    return await engine.look(task_id)


async def test_a_task_at_a_gate_is_sealed_at_once(engine: TemporalEngine) -> None:
    """
    It is asked by one update, and stands as it stood; its journal and effects are those of a task that was not sealed.
    """
    plain, sealed = [await begun(engine, "pays", order) for order in ("plain tea", "sealed tea")]
    before, view = await run_of(engine, sealed), await engine.look(sealed)

    waits = await seal(engine.connection, sealed)

    assert waits == ()
    assert await in_next_run(engine, sealed, before) == view
    assert "waits for a decision" in await details(engine, sealed)
    for task_id in (plain, sealed):
        await engine.decide(task_id, approved=True, approver="ada")
        assert (await settled(engine, task_id)).status is Status.COMPLETED
    told = [str(without_ids(await collected(engine.journal(id)), id)) for id in (plain, sealed)]
    # The gate's digest covers the order.
    plainly, at_once = (re.sub(r"\d+T[\d:.]+Z|'digest': '\w+'", "", one) for one in told)
    assert plainly.replace("plain tea", "sealed tea") == at_once
    assert (paid["plain tea"], paid["sealed tea"]) == (1, 1)


async def test_a_task_that_is_sealed_as_it_is_listed_is_in_the_list(engine: TemporalEngine) -> None:
    """
    Once, as it stands: it has gone on in a new run between the list and the look at it.
    """
    task_id = await begun(engine, "pays", "listed tea")
    before = await run_of(engine, task_id)

    async def sealed_once_listed(rpc: str, call: Call) -> Any:
        answer = await call()
        if rpc == "list_workflow_executions" and await run_of(engine, task_id) == before:
            await seal(engine.connection, task_id)
            await in_next_run(engine, task_id, before)
        return answer

    while not await engine.count(TaskFilter(begins=task_id)):  # the index lags a little
        await a_moment()
    lists = TemporalEngine(between(engine.client, sealed_once_listed), QUEUE, patience=PATIENT)
    found = [one async for one in lists.list(skill="pays") if one.task_id == task_id]
    assert found == [await engine.look(task_id)]


async def details(engine: TemporalEngine, task_id: str) -> str:
    """What the Temporal UI shows of an open task."""
    return str((await engine.client.get_workflow_handle(task_id).query("__temporal_workflow_metadata")).current_details)


async def test_a_seal_waits_for_an_effect_and_says_so(engine: TemporalEngine) -> None:
    """
    `show` says what it waits for; who asks again is told the same. When the effect has ended, the task goes on.
    """
    task_id = (await engine.start("passes", text("north"))).task_id
    await reached["north"].wait()
    before = await run_of(engine, task_id)

    assert await seal(engine.connection, task_id) == ("tool pass_door",)
    assert (await engine.look(task_id)).sealing == ("tool pass_door",)
    assert await seal(engine.connection, task_id) == ("tool pass_door",)
    with pytest.raises(Exception, match="Workflow update failed") as refused:
        await engine.client.get_workflow_handle(task_id).execute_update("seal")
    assert "is being sealed already; the seal waits for: tool pass_door" in str(refused.value.__cause__)

    doors["north"].set()
    view = await in_next_run(engine, task_id, before)
    assert (view.sealing, view.waiting_for[0].message) == ((), "Passed north. And now?")
    await engine.send(task_id, text("home"))
    assert (await settled(engine, task_id)).messages[-1].text == "home"


async def test_a_task_and_its_part_are_sealed_each(engine: TemporalEngine) -> None:
    """
    The whole task is sealed while its part waits at a gate, and the part, too: the decision finds its way.
    """
    task_id = await begun(engine, "whole_of_pays", "a whole tea")
    part = f"{task_id}/1.1"
    runs = [await run_of(engine, id) for id in (task_id, part)]

    for id, before in zip((task_id, part), runs, strict=True):
        await seal(engine.connection, id)
        await in_next_run(engine, id, before)
    assert [wait.asked_by for wait in (await engine.look(task_id)).waiting_for] == [part]
    await engine.decide(task_id, approved=True, approver="ada")

    assert (await settled(engine, task_id)).messages[-1].text == "paid a whole tea, by ada"
    assert paid["a whole tea"] == 1


async def test_a_sealed_part_ends_with_its_task(engine: TemporalEngine) -> None:
    """
    A task that is canceled cancels its part also where that has gone on in a new run, and both end.
    """
    whole = await begun(engine, "whole_of_pays", "part tea")
    part = f"{whole}/1.1"
    before = await run_of(engine, part)
    await seal(engine.connection, part)
    await in_next_run(engine, part, before)

    await engine.cancel(whole, reason="enough")

    for task_id in (part, whole):
        with pytest.raises(WorkflowFailureError):
            await engine.client.get_workflow_handle(task_id).result()
        assert (await engine.look(task_id)).status is Status.CANCELED


async def test_weeks_go_on_through_seals(engine: TemporalEngine) -> None:
    """
    A reminder after two weeks and a deadline after eight are where they were, however often the task is sealed.
    """
    task_id = await begun(engine, "pays", "late tea")
    for weeks in (1, 1.5, 3, 3):
        before = await run_of(engine, task_id)
        await seal(engine.connection, task_id)
        await in_next_run(engine, task_id, before)
        await TimeSkipper(engine.client).fast_forward(
            engine.client.get_workflow_handle(task_id), timedelta(seconds=weeks * WEEK_S)
        )

    view = await settled(engine, task_id)
    kinds = [entry.event.kind for entry in await collected(engine.journal(task_id))]
    assert [kind for kind in kinds if kind != "notified"] == [
        "user_message",
        "reminder_due",
        "gate_timed_out",
        "grace_over",
    ]
    assert (view.status, paid["late tea"]) == (Status.FAILED, 0)


async def test_what_has_ended_is_not_sealed(engine: TemporalEngine) -> None:
    """
    In plain words, as for a task that never was.
    """
    doors["open"].set()
    task_id = await begun(engine, "passes", "open")
    await engine.send(task_id, text("bye"))
    await settled(engine, task_id)

    with pytest.raises(InputRejected, match=r"has ended \(completed\)"):
        await seal(engine.connection, task_id)


async def test_a_sealed_run_is_told_from_one_in_which_something_happened(engine: TemporalEngine) -> None:
    """
    A run is fresh from its seal until its first event; a task's first run never is.
    """
    task_id = await begun(engine, "pays", "fresh tea")
    handle = engine.client.get_workflow_handle(task_id)
    assert not is_fresh(await handle.fetch_history())
    before = await run_of(engine, task_id)

    await seal(engine.connection, task_id)
    await in_next_run(engine, task_id, before)
    assert is_fresh(await handle.fetch_history())

    await handle.signal("decide", {"gate": "none", "digest": "", "decision": "approved", "approver": "eve"})
    assert (await engine.look(task_id)).refused == 1
    assert not is_fresh(await handle.fetch_history())


async def test_nobody_seals_without_a_worker(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Who asks is told that nobody can take the request.
    """
    monkeypatch.setattr("refold.temporal.client.updates.UPDATE_PATIENCE", timedelta(seconds=1))
    engine = TemporalEngine(client, "nobody", patience=timedelta(seconds=1))
    view = await engine.start("pays", Content.from_text("no tea"))

    with pytest.raises(NoWorker, match="no worker answers on task queue 'nobody'"):
        await seal(engine.connection, view.task_id)


async def test_a_skill_can_seal_at_each_pause(engine: TemporalEngine) -> None:
    """
    Each question is in a run of its own, with nothing before it; journal and effects are the same. It costs a run a
    question: 5 events.
    """
    told, cost = {}, {}
    for skill in ("asks_twice", "seals_itself"):
        task_id = await begun(engine, skill, skill)
        for number in (1, 2):
            while [wait.slot for wait in (await engine.look(task_id)).waiting_for] != [f"go on {number}"]:
                await a_moment()
            await engine.send(task_id, text("yes"))
        await settled(engine, task_id)
        histories = await histories_of(engine, task_id)
        told[skill] = str(without_ids(await collected(engine.journal(task_id)), task_id)).replace(skill, "SKILL")
        cost[skill] = [len(one.events) for one in histories]
        assert (paid[f"{skill} 1"], paid[f"{skill} 2"]) == (1, 1)

    assert told["asks_twice"] == told["seals_itself"]
    assert len(cost["seals_itself"]) == 3
    assert sum(cost["seals_itself"]) - sum(cost["asks_twice"]) <= 2 * 5


async def test_a_pause_of_a_part_seals_both(engine: TemporalEngine) -> None:
    """
    The whole task goes on in a new run, too, when its part has asked.
    """
    task_id = await begun(engine, "whole_of_seals_itself", "part")
    for number in (1, 2):
        while [wait.slot for wait in (await engine.look(task_id)).waiting_for] != [f"go on {number}"]:
            await a_moment()
        await engine.send(task_id, text("yes"))
    await settled(engine, task_id)

    assert (paid["part 1"], paid["part 2"]) == (1, 1)
    for id in (task_id, f"{task_id}/1.1"):
        assert len(await histories_of(engine, id)) == 3


async def test_a_part_that_is_answered_as_it_is_sealed(client: Client, values: Folder) -> None:
    """
    What the part asks next reaches the whole task, though the seal and the answer come with one workflow task.
    """
    queue = "seals an answered part"
    engine = TemporalEngine(client, queue, patience=PATIENT)
    plugin = RefoldPlugin([sealed_skills], TOOLS, storage=values)
    async with make_worker(client, plugin, task_queue=queue):
        task_id = await begun(engine, "whole_of_asks_both", "Tea")
    part = client.get_workflow_handle(f"{task_id}/1.1")
    sealing = asyncio.ensure_future(part.execute_update("seal"))
    while not (await part.describe()).raw_description.HasField("pending_workflow_task"):
        await a_moment()
    answering = asyncio.ensure_future(part.execute_update("message", "green"))
    await a_moment()

    async with make_worker(client, plugin, task_queue=queue):
        await asyncio.gather(sealing, answering)
        while [wait.slot for wait in (await engine.look(task_id)).waiting_for] != ["second"]:
            await a_moment()
        await engine.send(task_id, text("cake"))
        assert (await settled(engine, task_id)).messages[-1].text == "green, cake"
    await replay_all(client, plugin, queue)


async def test_the_reason_of_a_cancellation_goes_along(engine: TemporalEngine) -> None:
    """
    Who cancels, and a reason that is encrypted, come before the request; the task may go on in a new run between them.
    """
    task_id = await begun(engine, "pays", "unwanted tea")
    before, handle = await run_of(engine, task_id), engine.client.get_workflow_handle(task_id)
    await handle.signal("cancel_reason", args=["too dear", "ada"])
    await seal(engine.connection, task_id)
    await in_next_run(engine, task_id, before)

    await handle.cancel()

    assert (await settled(engine, task_id)).reason == "too dear"
    [*_, last] = await collected(engine.journal(task_id))
    assert last.event == CancelRequested(reason="too dear", by="ada")


async def histories_of(engine: TemporalEngine, task_id: str) -> list[WorkflowHistory]:
    """The histories of a task that has ended, oldest run first."""
    found: list[WorkflowHistory] = []
    run_id: str | None = (await engine.connection.describe(task_id)).run_id
    while run_id:
        found.insert(0, await engine.client.get_workflow_handle(task_id, run_id=run_id).fetch_history())
        run_id = found[0].events[0].workflow_execution_started_event_attributes.continued_execution_run_id
    return found


async def test_a_seal_waits_for_all_that_came_with_it(client: Client, values: Folder) -> None:
    """
    A task takes what waits for a worker in batches, and none is lost: not even where the last one brings no entry.
    """
    engine = TemporalEngine(client, "seals in batches", patience=PATIENT)
    plugin = RefoldPlugin([skills.CountsWorkflow], skills.TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue="seals in batches"):
        task_id = await begun(engine, "counts", "go")
    before, handle = await run_of(engine, task_id), client.get_workflow_handle(task_id)
    for number in range(50):
        await handle.signal("message", f"answer {number}")
    for _ in range(5):
        await handle.signal("cancel_reason", "none")
    sealing = asyncio.ensure_future(seal(engine.connection, task_id))
    await asyncio.sleep(0)

    async with make_worker(client, plugin, task_queue="seals in batches"):
        await sealing
        view = await in_next_run(engine, task_id, before)
        assert view.seq == 51
        await engine.send(task_id, text("stop"))
        assert (await settled(engine, task_id)).status is Status.COMPLETED
    await replay_all(client, plugin, "seals in batches")


@pytest.mark.parametrize("moved_by", ["its first pause", "a seal", "its length"])
async def test_a_request_to_cancel_is_not_left_behind(client: Client, values: Folder, moved_by: str) -> None:
    """
    It waits for a worker along with what lets the task go on in a new run; the task takes it before.
    """
    queue = f"canceled by {moved_by}"
    restless = 1 if moved_by == "its length" else None
    engine = TemporalEngine(client, queue, patience=PATIENT, events_per_run=restless)
    plugin = RefoldPlugin([sealed_skills, skills.CountsWorkflow], [*TOOLS, *skills.TOOLS], storage=values)
    waiting: list[asyncio.Future[object]] = []
    if moved_by == "its first pause":
        task_id = (await TemporalEngine(client, queue, patience=SOON).start("seals_itself", text("tea"))).task_id
    else:
        async with make_worker(client, plugin, task_queue=queue):
            task_id = await begun(engine, "counts", "go")
    handle = client.get_workflow_handle(task_id)
    if moved_by == "a seal":
        waiting.append(asyncio.ensure_future(handle.execute_update("seal")))
        while not (await handle.describe()).raw_description.HasField("pending_workflow_task"):
            await a_moment()
    elif moved_by == "its length":
        await handle.signal("message", "one")
    await handle.cancel()

    async with make_worker(client, plugin, task_queue=queue):
        assert (await settled(engine, task_id)).status is Status.CANCELED
        await asyncio.gather(*waiting)
    await replay_all(client, plugin, queue)


FEW_SIGNALS = {**SETTINGS, "history.maximumSignalsPerExecution": "4"}


async def test_what_a_part_reports_comes_once_its_task_takes_signals_again(values: Folder) -> None:
    """
    A server refuses more signals to one run than its limit: the part's question and end reach the task's next runs. A
    task that takes none any more is canceled all the same.
    """
    async with dev_server(settings=FEW_SIGNALS) as server:
        client = await Client.connect(server.address, data_converter=data_converter(values))
        plugin = RefoldPlugin([part_skills], part_skills.TOOLS, model="scripted:demo", storage=values)
        async with make_worker(client, plugin, task_queue=QUEUE):
            engine = TemporalEngine(client, QUEUE, patience=PATIENT)
            flooded = await begun(engine, "middle", "coffee")
            await fill(client, flooded)
            canceled = await engine.cancel(flooded, reason="too much", by="ada")
            task_id = await begun(engine, "middle", "tea")
            for slot, said, report in (("size", "large", "child"), ("color", "green", "part_ended")):
                while [wait.slot for wait in (await engine.look(task_id)).waiting_for] != [slot]:
                    await a_moment()
                before = await run_of(engine, task_id)
                await fill(client, task_id)
                await engine.send(task_id, text(said), slot=slot)
                await refused(client, f"{task_id}/1.1", report)
                await seal(engine.connection, task_id)
                await in_next_run(engine, task_id, before)
            done = await settled(engine, task_id)
        part = await client.get_workflow_handle(f"{task_id}/1.1").fetch_history()
    await Replayer(workflows=[], plugins=[plugin]).replay_workflow(part)

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "large green")
    assert (canceled.status, canceled.reason) == (Status.CANCELED, "too much")


async def fill(client: Client, task_id: str) -> None:
    """Send a task as many signals as its run takes."""
    task = client.get_workflow_handle(task_id)
    sending = asyncio.gather(*(task.signal("try_anew") for _ in range(5)))
    with pytest.raises(RPCError, match="limit for signal events"):
        await sending


async def refused(client: Client, part: str, name: str) -> None:
    """Wait until the server has refused this signal of the part."""
    sent: set[int] = set()
    async for event in client.get_workflow_handle(part).fetch_history_events(wait_new_event=True):
        if event.signal_external_workflow_execution_initiated_event_attributes.signal_name == name:
            sent.add(event.event_id)
        if event.signal_external_workflow_execution_failed_event_attributes.initiated_event_id in sent:
            return
