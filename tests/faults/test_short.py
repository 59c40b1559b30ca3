"""Workers die in the middle of workflow tasks in which effects were performed, and more happens before the next one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from temporalio.client import Client

from refold import Content, Status
from refold.temporal import TemporalEngine
from refold.temporal.client.index import search
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from refold.testing.crash_sweep import CrashSweep, Kind, Point
from tests.faults.model import Model
from tests.faults.processes import Ledger, Workers
from tests.faults.test_crash_sweep import every
from tests.sweeps import LONG_S
from tests.temporal.test_task import collected, settled

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def server(hasty_server: DevServer) -> DevServer:
    """A server that takes a workflow task for lost after two seconds."""
    return hasty_server


@pytest.fixture
async def engine(server: DevServer, queue: str, values: Path) -> TemporalEngine:
    """Over it."""
    client = await Client.connect(server.address, data_converter=data_converter(Folder(values)))
    await search.register(client)
    return TemporalEngine(client, queue)


async def test_nothing_is_spent_twice_whatever_comes_before_the_next_attempt(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    SIGKILL in a workflow task that has performed six effects; a message comes before the next attempt. The effects are
    asked for again with the same arguments and ids, and answered by the ledger; the message comes after them.
    """
    workers.env["REFOLD_LEDGER"] = str(tmp_path / "receipts.db")
    gate = tmp_path / "gate"
    first = await workers.start(queue, modules=("tests.faults.short_skills",))
    view = await engine.start("short_chain", Content.from_text(str(gate)))
    await ledger.until("waits")
    await first.kill()
    await engine.client.get_workflow_handle(view.task_id).signal("message", "is anybody there?")
    gate.touch()
    await workers.start(queue, modules=("tests.faults.short_skills",))
    done = await settled(engine, view.task_id)

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "charged 99")
    noted = Counter(line.what for line in ledger.lines)
    assert {what: times for what, times in noted.items() if times > 1} == {"waits": 2}
    assert len(noted) == 8
    entries = await collected(engine.journal(view.task_id))
    assert [entry.event.kind for entry in entries].index("user_message", 1) > 6


def around_the_money(points: list[Point]) -> Sequence[Point]:
    """Where a card was charged, and nobody knows; and once the next decision is made."""
    return [one for one in points if (one.kind, one.seq) in ((Kind.PERFORMED, 40), (Kind.AFTER, 41))]


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(around_the_money, id="some"),
        pytest.param(every(20), id="all", marks=[pytest.mark.sweep, pytest.mark.timeout(LONG_S)]),
    ],
)
async def test_forty_steps_on_the_short_way(
    make_sweep: Callable[[dict[str, str]], CrashSweep],
    points: Callable[[list[Point]], Sequence[Point]],
    env: dict[str, str],
    model: Model,
) -> None:
    """
    Wherever a worker dies: one charge, one mail, forty model calls, and the journal of the regular way.
    """
    env = {**env, **model.environment, "REFOLD_MODEL": "openai:demo"}
    errand = Content.from_data({"order_id": "A1", "amount_cents": 4_200, "customer": "ada@example.org"})

    regular = await make_sweep(env).run("forty_steps", errand, points=lambda points: [])
    short = await make_sweep({**env, "REFOLD_DURABILITY": "ledger"}).run("forty_steps", errand, points=points)

    told = {"charges": [4_200], "refunds": [], "mails": ["Order A1"], "model calls": 40}
    assert short.outcome.told == told
    assert short.outcome.journal == regular.outcome.journal
    assert short.points
