"""What stands around a task on a real server: the command line, the callback, a ledger that several hosts share."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from pydantic import JsonValue
from temporalio.client import Client

from refold import Content, Status, TaskState
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from refold.web.approvals import approval_app, bearer_keys
from tests.services.postgres import postgres as running_postgres
from tests.services.shop import Shop
from tests.temporal import gate_skills
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_gates import until
from tests.temporal.test_task import settled, text

QUEUE = "edges"


@pytest.fixture(scope="module")
def postgres() -> Iterator[None]:
    """A PostgreSQL server that this module's worker keeps its receipts in."""
    with running_postgres() as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("REFOLD_LEDGER", running.url)
        patch.setenv("REFOLD_APPROVAL_KEY", "key-of-the-tests")
        yield


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder, postgres: None) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker; what ended in it is replayed at the end."""
    tools: list[Any] = gate_skills.TOOLS
    plugin = RefoldPlugin([gate_skills], tools, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


async def refold(server: DevServer, values: Folder, *words: str) -> Any:
    """What `refold WORDS --json` prints."""
    where = ["--json", "--address", server.address, "--namespace", server.namespace, "--task-queue", QUEUE]
    env = {**os.environ, "REFOLD_STORAGE": str(values.path)}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "refold.cli", *words, *where, env=env, stdout=pipe, stderr=pipe
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


async def doubted(engine: TemporalEngine, shop: Shop) -> str:
    """A task whose first charge may have been made, and a probe that cannot tell."""
    shop.trouble("/payments", 500)
    shop.trouble("/payments?key", 500)
    view = await engine.start("buys_twice", text(f"E{uuid4().hex[:6]}"))
    await until(engine, view.task_id, TaskState.BLOCKED)
    return view.task_id


async def test_an_operator_decides_on_the_command_line(
    engine: TemporalEngine, server: DevServer, values: Folder, shop: Shop
) -> None:
    """
    `resolve --retry` charges once more, `resolve --outcome` does not; the receipts are in PostgreSQL.
    """
    again = await doubted(engine, shop)
    assert (await refold(server, values, "resolve", again, "--retry", "--as", "ops"))["task_id"] == again
    assert (await settled(engine, again)).status is Status.INPUT_REQUIRED
    assert [paid.amount_cents for paid in shop.ledger] == [100, 200]

    given = await doubted(engine, shop)
    outcome = json.dumps({"payment_id": "by hand", "order_id": "E1", "amount_cents": 100})
    await refold(server, values, "resolve", given, "--outcome", outcome, "--as", "ops")
    assert (await settled(engine, given)).status is Status.INPUT_REQUIRED
    assert [paid.amount_cents for paid in shop.ledger] == [100, 200, 200]


async def test_decisions_over_http(engine: TemporalEngine) -> None:
    """
    A caller decides in its own name, on what it was shown; each refusal has its status.
    """
    plan: JsonValue = {"amounts": [50, 5_000], "approvers": ["ada", "bob"]}
    view = await settled(engine, (await engine.start("gates", Content.from_data(plan))).task_id)
    app = approval_app(engine, bearer_keys({"key-of-ada": "ada", "key-of-eve": "eve"}), may_vouch=set())
    said = {"task_id": view.task_id, "decision": "approved", "digest": view.waiting_for[0].digest}

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://refold") as http:

        async def post(key: str, **body: Any) -> int:
            headers = {"Authorization": f"Bearer {key}"}
            return (await http.post("/approval-callback", json={**said, **body}, headers=headers)).status_code

        assert await post("no-key") == 401
        assert await post("key-of-ada", decision="perhaps") == 422
        assert await post("key-of-ada", approver="bob") == 403
        assert await post("key-of-eve") in (403, 409)
        assert await post("key-of-ada") == 200
        assert await post("key-of-ada") == 409, "the grant for 50 does not pass the gate for 5,000"
        shown = (await engine.look(view.task_id)).waiting_for[0].digest
        assert await post("key-of-ada", digest=shown) == 200

    assert (await settled(engine, view.task_id)).messages[-1].text == "approved by ada, approved by ada"
