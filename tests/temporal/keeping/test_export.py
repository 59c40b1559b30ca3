"""Exports of tasks on a real Temporal server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer

from refold import Status
from refold.core.authoring.define import skill_of
from refold.engine import NoWorker
from refold.export import ExportEngine, read_export, verify, written
from refold.export.write import Wanted
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Off
from tests.temporal import skills
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import settled, text

QUEUE = "exports"


@pytest.fixture(scope="module")
async def engine(client: Client, plugin: RefoldPlugin) -> AsyncIterator[TemporalEngine]:
    """An engine whose tasks go on in a new run whenever they can."""
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, events_per_run=1, patience=PATIENT)


async def exported(engine: TemporalEngine, task_id: str, wanted: Wanted) -> list[bytes]:
    return [line async for line in written(engine, task_id, wanted)]


async def counted(engine: TemporalEngine, *said: str) -> str:
    """A task that took these messages and stopped."""
    task_id = f"counts-{uuid4().hex[:6]}"
    await engine.start("counts", text("one"), task_id=task_id)
    for one in (*said, "stop"):
        await settled(engine, task_id)
        await engine.send(task_id, text(one))
    assert (await settled(engine, task_id)).status is Status.COMPLETED
    return task_id


async def test_a_task_of_several_runs_is_exported_whole(engine: TemporalEngine) -> None:
    """
    Each run has its base; the states folded from the file are those that the worker tells.
    """
    task_id = await counted(engine, "two", "three")
    lines = await exported(engine, task_id, Wanted())
    [task] = read_export(lines)
    there = ExportEngine([task], {"counts": skill_of(skills.Counts)})

    assert verify(lines).whole
    assert len(task.bases) > 1
    assert task.entries == [entry async for entry in engine.journal(task_id)]
    assert await there.record(task_id) == await engine.record(task_id)
    for entry in task.entries:
        assert await there.at(task_id, entry.seq) == await engine.at(task_id, entry.seq)


async def test_histories_replay_without_server_and_storage(engine: TemporalEngine) -> None:
    """
    A value that history only refers to is in the file, so that a replayer without storage reads it.
    """
    task_id = await counted(engine, "a long message " * 5_000)
    [task] = read_export(await exported(engine, task_id, Wanted(histories=engine.histories)))
    plugin = RefoldPlugin([skills], skills.TOOLS, model="scripted:demo", storage=Off())

    assert len(task.histories) == len(task.bases) > 1
    for history in task.histories.values():
        recorded = WorkflowHistory.from_json(task_id, history)
        await Replayer(workflows=[], plugins=[plugin], debug_mode=True).replay_workflow(
            recorded, raise_on_replay_failure=True
        )


async def test_a_task_that_temporal_ended_says_so(engine: TemporalEngine) -> None:
    """
    Its entries are all there and do not tell how it ended; the header's note does, and the file verifies.
    """
    task_id = f"counts-{uuid4().hex[:6]}"
    await engine.start("counts", text("one"), task_id=task_id)
    await settled(engine, task_id)
    await engine.client.get_workflow_handle(task_id).terminate("enough")

    lines = await exported(engine, task_id, Wanted())

    assert verify(lines).tasks[0].status == "canceled"
    [task] = read_export(lines)
    assert "Temporal ended it from outside" in task.header.note
    assert task.entries == [entry async for entry in engine.journal(task_id)] != []


async def test_an_open_task_whose_worker_is_too_slow_is_not_exported(engine: TemporalEngine) -> None:
    """
    The view lacks the entries' count then, though the worker has longer to answer for the journal, and answers.
    """
    task_id = f"counts-{uuid4().hex[:6]}"
    await engine.start("counts", text("one"), task_id=task_id)
    await settled(engine, task_id)
    hasty = TemporalEngine(engine.client, QUEUE, patience=timedelta(microseconds=2))

    with pytest.raises(NoWorker, match=f"task '{task_id}' cannot be exported: "):
        await exported(hasty, task_id, Wanted())
    await engine.cancel(task_id)
