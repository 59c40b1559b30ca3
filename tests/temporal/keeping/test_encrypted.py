"""Exports and purges where everything on the server is encrypted."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer

from refold.export import read_export, verify, written
from refold.export.write import Wanted
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, Off
from refold.temporal.dev import DevServer
from refold.temporal.encryption import Encryption
from tests.temporal import skills
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import settled, text

QUEUE = "secret-exports"
SECRET = "the secret word is tuesday"
LONG = f"{SECRET} " * 3_000

pytestmark = pytest.mark.server


@pytest.fixture
async def engine(lone_server: DevServer, folder: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine and a worker with a key, and a folder of their own."""
    codec = Encryption({"k": bytes(range(32))})
    client = await Client.connect(
        lone_server.address, namespace=lone_server.namespace, data_converter=data_converter(folder, codec)
    )
    plugin = RefoldPlugin([skills], skills.TOOLS, model="scripted:demo", storage=folder, codec=codec)
    async with make_worker(client, plugin, task_queue=QUEUE, activities=[skills.existing_activity]):
        yield TemporalEngine(client, QUEUE, events_per_run=1, patience=PATIENT)


async def test_an_export_is_plain_and_a_purge_leaves_no_file(engine: TemporalEngine, folder: Folder) -> None:
    """
    The export can be read and replayed without the key; nothing of the task stays in the folder after the purge, which
    who has no key, or another one, cannot begin: he could not tell what belongs to the task.
    """
    task_id = f"counts-{uuid4().hex[:6]}"
    await engine.start("counts", text(LONG), task_id=task_id)
    for said in (LONG, "stop"):
        await settled(engine, task_id)
        await engine.send(task_id, text(said))
    await settled(engine, task_id)
    files = [file for file in folder.path.rglob("*") if file.is_file()]
    assert files
    assert not any(SECRET.encode() in file.read_bytes() for file in files)

    lines = [line async for line in written(engine, task_id, Wanted(histories=engine.histories))]
    [task] = read_export(lines)

    assert verify(lines).whole
    assert task.view.messages[0].text == LONG
    plain = RefoldPlugin([skills], skills.TOOLS, model="scripted:demo", storage=Off())
    for history in task.histories.values():
        recorded = WorkflowHistory.from_json(task_id, history)
        await Replayer(workflows=[], plugins=[plain], debug_mode=True).replay_workflow(
            recorded, raise_on_replay_failure=True
        )

    for file in files:
        os.utime(file, (0, 0))
    lacking = {"set REFOLD_CODEC": None, "this id stands for different keys": Encryption({"k": bytes(32)})}
    for said, codec in lacking.items():
        keyless = await Client.connect(
            engine.client.service_client.config.target_host,
            namespace=engine.client.namespace,
            data_converter=data_converter(folder, codec),
        )
        [stays] = [one async for one in TemporalEngine(keyless, QUEUE).purge().run([task_id], dry=False)]
        assert (stays.gone, stays.deleted) == (False, {})
        assert said in stays.left[0].why
    [done] = [one async for one in engine.purge().run([task_id], dry=False)]
    assert (done.gone, done.left, done.deleted["runs"]) == (True, (), len(task.bases))
    assert [file for file in folder.path.rglob("*") if file.is_file()] == []
