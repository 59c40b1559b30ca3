"""The engine for tests is without its workers what the one on Temporal is without them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pydantic import BaseModel
from temporalio.client import Client

from refold.core.errors import RefoldError
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.client import updates
from refold.temporal.data.storage import Folder
from tests.sweeps import LONG_S
from tests.temporal import parity_skills
from tests.temporal.parity import Both, Op, ask, cancel, decide, difference, fork, plain, release, resolve, send, start

QUEUE = "outage"
BEFORE: dict[str, list[Op]] = {
    "waits": [start("p_asks", "go", owner="ada", delivery_id="d0"), send([1], "sizes", delivery_id="d1")],
    "done": [start("p_fetches", "404")],
    "failed": [start("p_rejects", "go", delivery_id="d0"), send("fail", "said", delivery_id="d1")],
    "held": [start("p_asks", "go", hold=True)],
    "delayed": [start("p_asks", "go", start_delay=timedelta(seconds=1_000))],
    "new": [],
}
"""What happens while there is a worker."""

WITHOUT: list[Op] = [
    *(ask(name) for name in ("look", "record", "journal", "past", "offspring")),
    ask("at", 1),
    ask("explain", "draft"),
    fork(1),
    release(),
    resolve(retry=True),
    decide("one"),
    send("x", delivery_id="d1"),
    send("x", delivery_id="d2"),
    cancel(),
]


async def outcome(op: Op, engine: object, task: str) -> object:
    """What a call comes to without a worker: the error's name, or what is returned, whatever its note says."""
    assert op.call is not None
    try:
        found = await op.call(engine, task)
    except RefoldError as error:
        return type(error).__name__
    data = plain(found)
    return {**data, "note": bool(data.get("note"))} if isinstance(found, BaseModel) and "note" in data else data


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_an_outage_is_answered_alike(
    client: Client, values: Folder, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The same results and the same kinds of errors: of tasks that wait, that have ended, that have not begun.
    """
    monkeypatch.setenv("REFOLD_LEDGER", str(tmp_path_factory.mktemp("ledger") / "ledger.db"))
    monkeypatch.setenv("REFOLD_APPROVAL_KEY", "key-of-the-tests")
    monkeypatch.setattr(updates, "UPDATE_PATIENCE", timedelta(seconds=2))
    plugin = RefoldPlugin([parity_skills], parity_skills.TOOLS, model="scripted:demo", storage=values)
    engine = TemporalEngine(client, QUEUE, patience=timedelta(seconds=1))
    tasks = {name: Both(engine, f"outage-{name}") for name in BEFORE}
    async with make_worker(client, plugin, task_queue=QUEUE):
        for name, script in BEFORE.items():
            assert not (why := await tasks[name].play(script)), why
    found: list[str] = []
    for name, both in tasks.items():
        both.fake.worker = False
        for op in [start("p_asks", "go"), *WITHOUT] if name == "new" else WITHOUT:
            here, there = await outcome(op, both.fake, both.task), await outcome(op, engine, both.task)
            if differs := difference(here, there):
                found.append(f"{name}: {op.name}: {differs}")

    assert not found, "\n".join(found)
