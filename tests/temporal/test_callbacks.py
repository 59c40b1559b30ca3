"""Callbacks on a real server: the address is made by a worker, and a call to it is taken once, whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx2
import pytest
from starlette.applications import Starlette
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from refold import Status
from refold.callbacks.address import KEY, URL, settings
from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from refold.web.callbacks import callback_routes
from tests.temporal import callback_skills
from tests.temporal.callback_skills import TOOLS, handed
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import asked, settled, text

QUEUE = "callbacks"
SET = {URL: "http://gateway", KEY: "the key of these tests"}


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker for these skills; what ended in it is replayed at the end."""
    plugin = RefoldPlugin([callback_skills], TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


@pytest.fixture
async def http(engine: TemporalEngine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of the gateway's route; workers and gateway have the settings."""
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    app = Starlette(routes=callback_routes(engine, settings()))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://gateway") as client:
        yield client


async def waiting(engine: TemporalEngine) -> TaskView:
    """A task that waits for a call."""
    task_id = (await engine.start("checkout", text("go"))).task_id
    await asked(engine, task_id, "paid")
    return await engine.look(task_id)


async def post(http: httpx2.AsyncClient, url: str, cents: int = 5) -> int:
    return (await http.post(url, json={"amount_cents": cents})).status_code


async def test_of_two_callers_one_answers(engine: TemporalEngine, http: httpx2.AsyncClient) -> None:
    """
    The address is that of the task's own command, so a call says for which task it is.
    """
    view = await waiting(engine)
    url = handed[view.task_id]
    codes = await asyncio.gather(*(post(http, url, n) for n in range(1, 4)))
    done = await settled(engine, view.task_id)

    assert url.startswith("http://gateway/callbacks/")
    assert sorted(codes) == [200, 409, 409]
    assert done.messages[-1].text == f"paid {codes.index(200) + 1}"
    assert await post(http, url) == 409


async def test_a_call_continues_a_recovered_task(engine: TemporalEngine, http: httpx2.AsyncClient) -> None:
    """
    The task that goes on for a failed one asks again, and the address that was given away answers it.
    """
    view = await engine.start("failing_checkout", text("go"))
    assert (await settled(engine, view.task_id)).status is Status.FAILED
    assert await post(http, handed[view.task_id]) == 409
    again = await engine.recover(view.task_id)
    await asked(engine, again.task_id, "paid")

    assert await post(http, handed[view.task_id], 9) == 200
    assert (await settled(engine, again.task_id)).messages[-1].text == "paid 9"


async def test_an_address_that_nobody_calls_expires(engine: TemporalEngine, http: httpx2.AsyncClient) -> None:
    """
    The skill handles it as any question that nobody answered.
    """
    view = await waiting(engine)
    handle = engine.client.get_workflow_handle(view.task_id)
    await TimeSkipper(engine.client).fast_forward(handle, timedelta(hours=1, seconds=1))

    assert (await settled(engine, view.task_id)).messages[-1].text == "no payment: timeout"
    assert await post(http, handed[view.task_id]) == 409


async def test_without_settings_no_address_is_made(engine: TemporalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The task fails and says which are missing.
    """
    for name in SET:
        monkeypatch.delenv(name, raising=False)
    task_id = (await engine.start("checkout", text("go"))).task_id
    view = await settled(engine, task_id)

    assert view.status is Status.FAILED
    assert "set REFOLD_CALLBACK_URL" in view.reason
    assert "set REFOLD_CALLBACK_KEY" in view.reason
