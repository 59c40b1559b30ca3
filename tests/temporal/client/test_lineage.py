"""Tasks that branch off from others, on a real Temporal server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from refold import InputRejected, Status
from refold.engine import OffspringView, TaskExists, TaskNotFound
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.client import views
from refold.temporal.client.lineage import earlier_part
from refold.temporal.data.storage import Folder
from tests.services.shop import Shop
from tests.temporal import gate_skills
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, settled, text
from tests.waiting import a_moment

QUEUE = "lineage"
SOON = timedelta(milliseconds=100)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where this module's worker keeps its receipts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_LEDGER", str(tmp_path_factory.mktemp("ledger") / "ledger.db"))
        yield


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder, ledger: None) -> AsyncIterator[TemporalEngine]:
    """An engine whose tasks go on in new runs; what ended in it is replayed at the end."""
    tools: list[Any] = gate_skills.TOOLS
    plugin = RefoldPlugin([gate_skills], tools, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, events_per_run=1, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


async def activities_of(engine: TemporalEngine, task_id: str) -> list[str]:
    """The types of the activities that a task has asked the server for."""
    history = await engine.client.get_workflow_handle(task_id).fetch_history()
    return [
        event.activity_task_scheduled_event_attributes.activity_type.name
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]


async def offspring_of(engine: TemporalEngine, task_id: str, count: int) -> tuple[OffspringView, ...]:
    while len(found := await engine.offspring(task_id)) < count:  # visibility lags a little
        await a_moment()
    return found


async def test_an_open_task_and_its_branches(engine: TemporalEngine, shop: Shop) -> None:
    """
    From an entry of an earlier run: dry, nothing is asked of anybody; live, the same business key is charged anew. The
    task itself goes on, and all of them know each other.
    """
    order = f"L{uuid4().hex[:6]}"
    view = await settled(engine, (await engine.start("buys_twice", text(order))).task_id)
    assert [paid.amount_cents for paid in shop.ledger] == [100, 200]

    dry = await settled(engine, (await engine.fork(view.task_id, at=1)).task_id)
    assert (dry.status, await activities_of(engine, dry.task_id)) == (Status.FAILED, [])
    assert "dry run: tool 'charge_card' was not performed" in dry.reason
    assert len(shop.ledger) == 2

    live = await settled(engine, (await engine.fork(view.task_id, at=1, live=True)).task_id)
    assert (live.status, len(shop.paid("charge"))) == (Status.INPUT_REQUIRED, 4)
    await engine.cancel(live.task_id)
    await asyncio.gather(engine.client.get_workflow_handle(live.task_id).result(), return_exceptions=True)
    assert [paid.payment_id for paid in shop.paid("charge")] == ["P1", "P2"], "its own charges, and no others"

    done = await settled(engine, (await engine.send(view.task_id, text("yes"))).task_id)
    assert done.status is Status.COMPLETED
    found = await offspring_of(engine, view.task_id, 2)
    assert found == tuple(OffspringView(task_id=one.task_id, how="forked", seq=1) for one in (dry, live))
    assert dry.forked_from is not None
    assert (dry.forked_from.task_id, dry.forked_from.seq, dry.forked_from.live) == (view.task_id, 1, False)


async def test_a_branch_from_what_the_task_refused(engine: TemporalEngine, shop: Shop) -> None:
    """
    The branch goes on behind the refused entry, as the task would; its history replays.
    """
    view = await settled(engine, (await engine.start("buys_twice", text(f"L{uuid4().hex[:6]}"))).task_id)
    await engine.client.get_workflow_handle(view.task_id).signal("decide", None)
    while (now := await engine.look(view.task_id)).seq == view.seq:
        await a_moment()

    branch = await engine.fork(view.task_id, at=now.seq, live=True)

    assert [wait.slot for wait in branch.waiting_for] == ["go on"]
    assert (await collected(engine.journal(branch.task_id)))[0].seq == now.seq + 1
    done = await settled(engine, (await engine.send(branch.task_id, text("yes"))).task_id)
    assert done.status is Status.COMPLETED
    await engine.cancel(view.task_id)


async def test_an_ended_task_and_its_branch(engine: TemporalEngine, shop: Shop) -> None:
    """
    The question is open again, and the branch goes on in its own way, with entries of its own; recovering is noted as
    well.
    """
    order = f"L{uuid4().hex[:6]}"
    view = await settled(engine, (await engine.start("buys_twice", text(order))).task_id)
    shop.trouble("/facts", 404)
    failed = await settled(engine, (await engine.send(view.task_id, text("yes"))).task_id)
    assert failed.status is Status.FAILED
    await asyncio.gather(engine.client.get_workflow_handle(view.task_id).result(), return_exceptions=True)

    branch = await engine.fork(view.task_id, at=view.seq, live=True, new_id=f"{view.task_id}-other")
    assert [wait.slot for wait in branch.waiting_for] == ["go on"]
    done = await settled(engine, (await engine.send(branch.task_id, text("yes"))).task_id)
    assert done.status is Status.COMPLETED
    assert (await collected(engine.journal(branch.task_id)))[0].seq == view.seq + 1
    has = f"task '{branch.task_id}' has the entries {view.seq + 1} to {done.seq}, not "
    for seq in (view.seq - 1, done.seq + 1):
        with pytest.raises(InputRejected, match=has + str(seq)):
            await engine.at(branch.task_id, seq)
    again = await settled(engine, (await engine.recover(view.task_id)).task_id)

    found = await offspring_of(engine, view.task_id, 2)
    assert [(one.task_id, one.how) for one in found] == [(branch.task_id, "forked"), (again.task_id, "recovered")]


async def test_a_task_made_from_another_runs_where_that_one_ran(engine: TemporalEngine, shop: Shop) -> None:
    """
    Whichever task queue the caller uses for new tasks, unless the caller names one for this task.
    """
    view = await settled(engine, (await engine.start("buys_twice", text("L1"))).task_id)
    elsewhere = TemporalEngine(engine.client, "nobody", patience=SOON)

    forked = await elsewhere.fork(view.task_id, at=1)
    named = await elsewhere.fork(view.task_id, at=1, task_queue="canary")
    await engine.cancel(view.task_id)
    await over(engine, view.task_id)
    recovered = await elsewhere.recover(view.task_id)

    queues = [(await engine.connection.describe(one.task_id)).task_queue for one in (forked, named, recovered)]
    assert queues == [QUEUE, "canary", QUEUE]
    await engine.client.get_workflow_handle(named.task_id).terminate()
    await engine.cancel(recovered.task_id)


async def test_a_branch_that_cannot_be(engine: TemporalEngine, shop: Shop) -> None:
    """
    Nothing is started, and the error says what there is.
    """
    order = f"L{uuid4().hex[:6]}"
    view = await settled(engine, (await engine.start("buys_twice", text(order))).task_id)

    with pytest.raises(InputRejected, match=f"has the entries 1 to {view.seq}, not 99"):
        await engine.fork(view.task_id, at=99)
    with pytest.raises(InputRejected, match=f"has the entries 1 to {view.seq}, not 0"):
        await engine.fork(view.task_id, at=0)
    with pytest.raises(TaskExists):
        await engine.fork(view.task_id, at=1, new_id=view.task_id)
    with pytest.raises(TaskNotFound):
        await engine.fork("nobody", at=1)
    await asyncio.gather(engine.cancel(view.task_id), return_exceptions=True)
    await asyncio.gather(engine.client.get_workflow_handle(view.task_id).result(), return_exceptions=True)
    with pytest.raises(InputRejected, match=f"ended with entry {view.seq + 1}"):
        await engine.fork(view.task_id, at=view.seq + 1)


# --- parts


async def over(engine: TemporalEngine, task_id: str) -> None:
    await asyncio.gather(engine.client.get_workflow_handle(task_id).result(), return_exceptions=True)


async def test_a_part_that_is_about_to_end_is_awaited(engine: TemporalEngine, shop: Shop) -> None:
    """
    Where its task goes on in a new run, it says what came of it just before it ends: the task may be over by then.
    """
    part = (await settled(engine, (await engine.start("buys_twice", text(f"L{uuid4().hex[:6]}"))).task_id)).task_id
    impatient = TemporalEngine(engine.client, QUEUE, patience=timedelta(seconds=1))

    with pytest.raises(InputRejected, match=f"part '{part}' is not over; recover the task when it is"):
        await earlier_part(impatient.connection, part)
    earlier, _ = await asyncio.gather(earlier_part(engine.connection, part), engine.cancel(part))

    assert earlier is not None
    assert earlier.journal is not None


async def test_a_part_that_failed_goes_on_where_it_was(engine: TemporalEngine, shop: Shop) -> None:
    """
    Under an id of its own: it asks nobody again, and what was undone is done again, once.
    """
    shop.trouble("/facts", 404)
    view = await settled(engine, (await engine.start("orders", text(f"L{uuid4().hex[:6]}"))).task_id)
    await engine.send(view.task_id, text("yes"))
    await over(engine, view.task_id)
    assert (await engine.look(view.task_id)).status is Status.FAILED
    assert (len(shop.ledger), shop.paid("charge")) == (2, [])

    done = await settled(engine, (await engine.recover(view.task_id)).task_id)

    assert (done.status, done.messages[-1].text[:8]) == (Status.COMPLETED, "bought: ")
    assert [paid.amount_cents for paid in shop.paid("charge")] == [100, 200]
    assert len(shop.ledger) == 4
    part = await engine.look(f"{done.task_id}/1.1")
    assert (part.status, part.recovered_from) == (Status.COMPLETED, f"{view.task_id}/1.1")


async def test_a_part_that_was_canceled_asks_again(engine: TemporalEngine, shop: Shop) -> None:
    """
    At the task that goes on; its answer finds the way down.
    """
    view = await settled(engine, (await engine.start("orders", text(f"L{uuid4().hex[:6]}"))).task_id)
    await asyncio.gather(engine.cancel(view.task_id), return_exceptions=True)
    await over(engine, view.task_id)
    await over(engine, f"{view.task_id}/1.1")

    again = await settled(engine, (await engine.recover(view.task_id)).task_id)
    assert [wait.slot for wait in again.waiting_for] == ["go on"]
    done = await settled(engine, (await engine.send(again.task_id, text("yes"))).task_id)

    assert done.status is Status.COMPLETED
    assert len(shop.paid("charge")) == 2


# --- recovered once


async def test_what_goes_on_from_an_earlier_task_of_the_same_id_is_not_the_new_ones(
    engine: TemporalEngine, shop: Shop
) -> None:
    """
    The earlier task was purged. `refold show` of the new one has only the tasks that go on from that one.
    """
    task_id = f"L{uuid4().hex[:6]}"
    forks: list[str] = []
    for number in (1, 2):
        view = await settled(engine, (await engine.start("buys_twice", text(task_id), task_id=task_id)).task_id)
        forks.append((await engine.fork(view.task_id, at=1, new_id=f"{task_id}.f{number}")).task_id)
        await asyncio.gather(engine.cancel(task_id), return_exceptions=True)
        await over(engine, task_id)
        if number == 1:
            await offspring_of(engine, task_id, 1)
            await collected(engine.purge().run([task_id], dry=False))
            while not await views.never_began(engine.connection, task_id):  # the server deletes it in its own time
                await a_moment()

    found = await offspring_of(engine, task_id, 1)

    assert [one.task_id for one in found] == forks[1:]


@pytest.mark.parametrize("mark", ['"', "\\", "\t", "é" * 101])
async def test_a_recovered_task_is_found_whatever_its_id(engine: TemporalEngine, shop: Shop, mark: str) -> None:
    """
    Temporal's own tools take any. The server's index finds no text with a quotation mark, a backslash or a tab; a
    second recovery would charge twice.
    """
    task_id = f"L{uuid4().hex[:6]}{mark}"
    await engine.client.start_workflow("buys_twice", "L1", id=task_id, task_queue=QUEUE)
    await settled(engine, task_id)
    await asyncio.gather(engine.cancel(task_id), return_exceptions=True)
    await over(engine, task_id)

    both = await asyncio.gather(engine.recover(task_id), engine.recover(task_id), return_exceptions=True)
    assert sorted(type(one).__name__ for one in both) in (["InputRejected", "TaskView"], ["TaskExists", "TaskView"])
    with pytest.raises(InputRejected, match=r"was recovered before: .*\.r1. goes on for it"):
        await engine.recover(task_id)

    assert [one.how for one in await offspring_of(engine, task_id, 1)] == ["recovered"]


async def test_a_part_goes_on_with_its_task_or_alone(engine: TemporalEngine, shop: Shop) -> None:
    """
    Whichever is recovered first: with both, the part's effects would be made twice.
    """
    tasks = [await settled(engine, (await engine.start("orders", text("L1"))).task_id) for _ in range(2)]
    for view in tasks:
        await asyncio.gather(engine.cancel(view.task_id), return_exceptions=True)
        await over(engine, view.task_id)
        await over(engine, f"{view.task_id}/1.1")
    whole, part = tasks[0].task_id, f"{tasks[1].task_id}/1.1"

    await engine.recover(whole)
    await engine.recover(part)

    with pytest.raises(InputRejected, match=f"task '{whole}' was recovered before: '{whole}.r1' goes on for it"):
        await engine.recover(f"{whole}/1.1")
    with pytest.raises(InputRejected, match=f"task '{part}' was recovered before: '{part}.r1' goes on for it"):
        await engine.recover(tasks[1].task_id)
