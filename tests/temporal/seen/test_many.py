"""Many tasks on a real server have as few series as ten."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import httpx
import pytest
from temporalio.client import Client

from refold import Content
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker, measure
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from tests.seen.recorded import unmeasured
from tests.services.serving import free_port
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal.conftest import PATIENT
from workflows import hello

TASKS = 10_000 if THOROUGH else 500
AT_ONCE = 50


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_many_tasks_have_few_series(server: DevServer, values: Folder) -> None:
    """
    Whatever the tasks, their ids, owners and texts are: refold's and the SDK's series are less than a thousand.
    """
    with unmeasured():
        told = await _told(server, values)

    lines = [line for line in told.splitlines() if not line.startswith("#")]
    assert f'refold_tasks_ended_total{{ending="completed",skill="hello"}} {TASKS}' in lines
    assert len(lines) < 1_000


async def _told(server: DevServer, values: Folder) -> str:
    """The metrics after many tasks."""
    shown = measure(f"127.0.0.1:{free_port()}")
    assert shown is not None
    client = await Client.connect(server.address, data_converter=data_converter(values))
    queue, turn = f"many-{uuid4().hex[:8]}", asyncio.Semaphore(AT_ONCE)
    plugin = RefoldPlugin([hello], model="scripted:demo", storage=values)
    engine = TemporalEngine(client, queue, patience=PATIENT)

    async def one(number: int) -> None:
        async with turn:
            if number % 20:  # as Temporal's own tools start tasks, which takes half as long
                await client.execute_workflow("hello", f"person {number}", id=f"{queue}-{number}", task_queue=queue)
                return
            view = await engine.start("hello", Content.from_text(f"person {number}"), owner=f"owner-{number}")
            await client.get_workflow_handle(view.task_id).result()

    async with make_worker(client, plugin, task_queue=queue):
        await asyncio.gather(*map(one, range(TASKS)))
        async with httpx.AsyncClient(timeout=60) as http:
            return (await http.get(shown)).text
