"""Marks in the histories of tasks, on a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowHistory, WorkflowUpdateFailedError
from temporalio.worker import Replayer

from refold import Content, Status
from refold.digests import digest_after
from refold.divergence import Difference
from refold.engine import Build
from refold.temporal import RefoldPlugin, TemporalEngine
from refold.temporal.data.marks import Mark, marks_of
from refold.temporal.data.storage import Folder
from refold.temporal.data.wire import Sealed
from tests.temporal.recorded import purchase
from tests.temporal.recorded.deploying import PATIENCE, Site, changed
from tests.temporal.test_task import collected
from tests.temporal.upgrade.sealed_skills import PassesWorkflow
from tests.temporal.worker.activated import CONVERTER, Activated, signaled, updated


async def marks(client: Client, id: str, run_id: str | None = None) -> list[Mark]:
    history = await client.get_workflow_handle(id, run_id=run_id).fetch_history()
    return await marks_of(history.events, client.data_converter)


async def test_each_workflow_task_leaves_a_mark(client: Client, values: Folder) -> None:
    """
    Every entry has a mark: its digest is that of the journal up to it, and it names the build that wrote it.
    """
    site = Site(client, values)
    async with site.deployed(purchase):
        id = await site.bought(3)
        entries = await collected(site.engine.journal(id))
        builds = await site.engine.builds(id)

    found = await marks(client, id)
    assert (await site.engine.look(id)).status is Status.COMPLETED
    assert [mark.seq for mark in found] == [entry.seq for entry in entries]
    assert [mark.digest for mark in found] == [digest_after(entries[:count]) for count in range(1, len(entries) + 1)]
    assert [Build(seq=mark.seq, build_id=mark.build_id) for mark in found] == list(builds)
    assert all(mark.build_id for mark in found)


async def test_the_digest_goes_on_in_a_new_run(client: Client, values: Folder) -> None:
    """
    A task that continues in new runs has one chain of digests, over all its runs.
    """
    site = Site(client, values)
    queue = site.engine.connection.task_queue
    site.engine = TemporalEngine(client, queue, patience=PATIENCE, events_per_run=5)
    async with site.deployed(purchase):
        id = await site.bought(3)
        entries = await collected(site.engine.journal(id))
        builds = await site.engine.builds(id)

    result = await site.engine.record(id)
    assert result.status is Status.COMPLETED
    assert builds[-1].seq == entries[-1].seq
    runs = {mark.seq: mark.digest for mark in await marks(client, id)}
    assert runs[entries[-1].seq] == digest_after(entries)
    assert min(runs) > 1, "it went on in a new run"


@pytest.mark.parametrize("size", [100, 40_000, 300_000])
async def test_words_of_any_size_are_kept(client: Client, values: Folder, size: int) -> None:
    """
    What is said may be long: large words go to storage, and are read from there.
    """
    site = Site(client, values)
    async with site.deployed(purchase):
        id = await site.bought(0, order="x" * size)

    [said] = [one for mark in await marks(client, id) for one in mark.said]
    assert said.artifacts[0].text.endswith("x" * size)


async def test_the_answer_to_a_seal_carries_words_as_others_do() -> None:
    """
    Where a refused signal came along with the request, and the seal waits for an effect, no command carries the words.
    """
    task = Activated(PassesWorkflow, "door")
    task.begin(Content.from_text("north"))

    done = task.activated(6, signaled("nonsense"), updated("seal"))
    [answer] = [
        one.update_response.completed for one in done.successful.commands if one.update_response.HasField("completed")
    ]
    sealed = CONVERTER.payload_converter.from_payload(answer, Sealed)

    assert (sealed.waits, len(sealed.said)) == (("tool pass_door",), 1)


async def found_in(history: WorkflowHistory, plugin: RefoldPlugin) -> Difference | None:
    """What the SDK's replayer finds."""
    result = await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history, raise_on_replay_failure=False)
    assert (result.replay_failure is None) == (plugin.replayed.difference is None)
    return plugin.replayed.difference


async def test_a_history_is_compared_without_a_server(
    client: Client, values: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A replay of a history finds nothing with the code that wrote it, and the entry that differs with other code.
    """
    monkeypatch.syspath_prepend(tmp_path)
    site = Site(client, values)
    async with site.deployed(purchase):
        id = await site.bought(1)
    history = await client.get_workflow_handle(id).fetch_history()
    read = WorkflowHistory.from_json(id, history.to_json())

    own = RefoldPlugin([purchase], [purchase.pay], storage=values)
    other = RefoldPlugin([changed(tmp_path, {"Pay 5 cents": "Pay 500 cents"})], [purchase.pay], storage=values)
    found = await found_in(read, other)

    assert await found_in(read, own) is None
    assert found is not None
    assert (found.task_id, found.seq, found.field) == (id, 2, "messages[1].parts[0].text")
    assert (found.recorded, found.now) == ("Pay 5 cents to the shop?", "Pay 500 cents to the shop?")


async def test_a_signal_that_comes_beside_a_refused_update_is_taken_at_the_same_time_by_a_replay(
    client: Client, values: Folder
) -> None:
    """
    The SDK's core gives a replay the events of two workflow tasks at once, at the time of the second, where the first
    one sent nothing and the second was scheduled for an update.
    """
    site = Site(client, values)
    async with site.deployed(purchase):
        id = await site.bought(0)
        handle = client.get_workflow_handle(id)
        for _ in range(20):
            update = asyncio.create_task(handle.execute_update("decide", {}))
            await handle.signal("nonsense")
            with pytest.raises(WorkflowUpdateFailedError):
                await update
        await site.engine.cancel(id)
        lived = await collected(site.engine.journal(id))

    history = await handle.fetch_history()
    assert await found_in(history, RefoldPlugin([purchase], [purchase.pay], storage=values)) is None
    assert [mark.digest for mark in await marks(client, id)][-1] == digest_after(lived)
