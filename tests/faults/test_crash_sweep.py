"""Workers die at every point of a task's way: one charge, one mail, forty model calls, one journal."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import JsonValue

from refold import Content, Status, TaskEvent, TaskState
from refold.engine import Engine, TaskView
from refold.temporal import TemporalEngine
from refold.testing.crash_sweep import CrashSweep, Kind, Point, SweepFailed
from tests.faults.conftest import SERVED
from tests.faults.model import Model
from tests.faults.processes import Ledger, Workers, until
from tests.services.shop import Shop
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal.test_task import collected, settled

LONG = [pytest.mark.sweep, pytest.mark.timeout(LONG_S)]


@pytest.fixture
def sweep(make_sweep: Callable[[dict[str, str]], CrashSweep], env: dict[str, str]) -> CrashSweep:
    """One of skills that ask no model."""
    return make_sweep(env)


@pytest.fixture
def asking(make_sweep: Callable[[dict[str, str]], CrashSweep], env: dict[str, str], model: Model) -> CrashSweep:
    """One of skills that ask the model."""
    return make_sweep({**env, **model.environment, "REFOLD_MODEL": "openai:demo"})


def every(step: int) -> Callable[[list[Point]], Sequence[Point]]:
    """All of them where there is time (REFOLD_SWEEP=all takes an hour or more); else one of so many."""
    return lambda points: points if THOROUGH else points[::step]


def some_points(points: list[Point]) -> Sequence[Point]:
    """Around the money, in the middle, and around the mail."""
    return [point for point in points if point.kind is Kind.PERFORMED and point.seq in (40, 78)]


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(some_points, id="some", marks=LONG),
        pytest.param(every(20), id="many", marks=LONG),
    ],
)
async def test_forty_steps_however_the_machine_dies(
    asking: CrashSweep, points: Callable[[list[Point]], Sequence[Point]]
) -> None:
    """
    In every run one charge, one mail, forty model calls, and the same journal.
    """
    errand: JsonValue = {"order_id": "A1", "amount_cents": 4_200, "customer": "ada@example.org"}

    report = await asking.run("forty_steps", Content.from_data(errand), points=points)

    assert report.outcome.told == {
        "charges": [4_200],
        "refunds": [],
        "mails": ["Order A1"],
        "model calls": 40,
    }
    assert report.points


TILL = """Charge order A1.
-> find_order(order_id="A1")
-> charge_card(order_id="A1", amount_cents=4200)
-> send_mail(to="ada@example.org", subject="Order A1", text="Charged.")
-> Charged.
"""


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_an_agent_however_the_machine_dies(asking: CrashSweep, shop: Shop) -> None:
    """
    One charge, one mail, each model call once, whichever of its steps loses its worker.
    """
    shop.order("A1", paid_cents=5_000)

    report = await asking.run("till", Content.from_text(TILL), points=every(3))

    assert report.outcome.told == {"charges": [4_200], "refunds": [], "mails": ["Order A1"], "model calls": 4}
    assert report.points


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_a_loop_of_ones_own_however_the_machine_dies(asking: CrashSweep, shop: Shop) -> None:
    """
    Plan, two views at once, act and check: one refund, one mail, each model call once, and the same journal.
    """
    shop.order("A1", paid_cents=5_000)

    report = await asking.run("careful_till", Content.from_text("A1 cost 5 too much.\n-> Yes."), points=every(7))

    assert report.outcome.told == {"charges": [], "refunds": [500], "mails": ["Order A1"], "model calls": 7}
    assert report.points


def kill_between(points: list[Point]) -> Sequence[Point]:
    """Where the money is moved and nobody knows."""
    return [point for point in points if point.kind is Kind.PERFORMED]


def charges(how: str, gate: str = "") -> Content:
    return Content.from_data({"order_id": f"A{uuid4().hex[:6]}", "how": how, "gate": gate})


async def test_a_gateway_that_ignores_keys_charges_twice_where_nobody_asks_it(sweep: CrashSweep, shop: Shop) -> None:
    """
    `idempotent` is a promise about the receiver: where it does not hold, the sweep shows the second charge.
    """
    shop.honours_keys = False

    with pytest.raises(SweepFailed, match=r"performed 1.1: told differs") as failed:
        await sweep.run("charges", charges("charge_idempotent"), points=kill_between)

    assert "[100, 100]" in str(failed.value)


@pytest.mark.sweep
async def test_a_probe_finds_the_charge(sweep: CrashSweep, shop: Shop) -> None:
    """
    The same gateway, asked before anything is repeated: one charge, wherever the worker dies.
    """
    shop.honours_keys = False

    report = await sweep.run("charges", charges("charge_probed"))

    assert [str(point) for point in report.points] == ["before 1.1", "performed 1.1", "after 1.1", "entry 1"]


async def test_without_a_probe_a_person_is_asked(
    workers: Workers,
    engine: TemporalEngine,
    queue: str,
    env: dict[str, str],
    shop: Shop,
    ledger: Ledger,
    tmp_path: Path,
) -> None:
    """
    `at_most_once`, killed between effect and receipt: blocked, one charge; the operator says what came of it.
    """
    workers.env |= env
    worker = await workers.start(queue, modules=SERVED)
    view = await engine.start("charges", charges("charge_slowly", str(tmp_path / "gate")))
    await until(charged(shop), lambda found: found == 1)
    await worker.kill()
    await workers.start(queue, modules=SERVED)

    blocked = await in_state(engine, view.task_id, TaskState.BLOCKED)
    assert "not known" in str(blocked.pending[0].failure)
    await engine.resolve(view.task_id, outcome=shop.ledger[0].answer, by="ops")  # type: ignore[arg-type]
    done = await settled(engine, view.task_id)

    assert (done.status, len(shop.ledger)) == (Status.COMPLETED, 1)


def charged(shop: Shop) -> Callable[[], Any]:
    async def count() -> int:
        return len(shop.ledger)

    return count


async def in_state(engine: TemporalEngine, task_id: str, state: TaskState) -> TaskView:
    async def look() -> TaskView:
        return await engine.look(task_id)

    return await until(look, lambda view: view.lifecycle is state and view.seq > 0)


@pytest.mark.parametrize("seconds", [pytest.param(3.0, id="3s"), pytest.param(8.0, id="8s", marks=pytest.mark.sweep)])
async def test_a_worker_that_stalls_is_nobodys_affair(
    workers: Workers,
    engine: TemporalEngine,
    queue: str,
    env: dict[str, str],
    shop: Shop,
    ledger: Ledger,
    tmp_path: Path,
    seconds: float,
) -> None:
    """
    SIGSTOP inside an effect, then SIGCONT: one effect, and nobody is asked. The lease outlives the stall: it
    lasts 15 s, and was renewed at most 5 s before.
    """
    workers.env |= env
    gate = tmp_path / "gate"
    stalled = await workers.start(queue, modules=SERVED, recovery="default")
    view = await engine.start("charges", charges("charge_slowly", str(gate)))
    await until(charged(shop), lambda found: found == 1)
    os.kill(stalled.process.pid, signal.SIGSTOP)
    await workers.start(queue, modules=SERVED, recovery="default")
    await stall(seconds)
    gate.touch()
    os.kill(stalled.process.pid, signal.SIGCONT)
    done = await settled(engine, view.task_id)

    assert (done.status, done.reason, len(shop.ledger)) == (Status.COMPLETED, "", 1)
    assert ledger.noted("begun") == ledger.noted("done") == [f"{view.task_id}/1.1"]
    moved = [move.event.value for entry in await collected(engine.journal(view.task_id)) for move in entry.moves]
    assert "block_on_dependency" not in moved


async def stall(seconds: float) -> None:
    """Time that must really pass: a process that is stopped cannot be told what time it is."""
    await asyncio.sleep(seconds)


@pytest.mark.sweep
async def test_five_lost_workers_are_no_reason_to_ask_a_person(
    workers: Workers, engine: TemporalEngine, queue: str, env: dict[str, str], ledger: Ledger, tmp_path: Path
) -> None:
    """
    The task is blocked, and tries again a while later; once a worker lives, it is done.
    """
    gate = tmp_path / "gate"
    workers.env |= env
    view: TaskView | None = None
    for dispatch in range(1, 6):
        worker = await workers.start(queue, modules=SERVED, doomed=view is not None)
        if view is None:
            view = await engine.start("deadly_step", Content.from_text(str(gate)))
        await ledger.until("begun", dispatch)
        await worker.gone()
    assert view is not None
    gate.touch()
    await workers.start(queue, modules=SERVED)
    done = await settled(engine, view.task_id)

    entries = await collected(engine.journal(view.task_id))
    assert done.status is Status.COMPLETED
    assert [move.event for entry in entries for move in entry.moves].count(TaskEvent.BLOCK_ON_DEPENDENCY) == 1
    assert [entry.note for entry in entries if "worker was lost" in entry.note and "; probe 1 at" in entry.note]
    assert len(ledger.noted("begun")) == 6


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_kills_between_effect_and_receipt_in_a_row(asking: CrashSweep, shop: Shop) -> None:
    """
    SIGKILL when the money is refunded and nobody knows, again and again: one refund each.
    """
    shop.order("A1", paid_cents=5_000)

    async def approve(engine: Engine, view: TaskView) -> None:
        await engine.decide(view.task_id, approved=True, approver="ada")

    kills = 50 if THOROUGH else 12

    def again(points: list[Point]) -> Sequence[Point]:
        paying = [point for point in points if point.kind is Kind.PERFORMED][1]
        return [paying] * kills

    report = await asking.run(
        "refund", Content.from_data({"order_id": "A1", "amount_cents": 1_999}), script=approve, points=again
    )

    assert len(report.points) == kills
    assert report.outcome.told == {
        "charges": [],
        "refunds": [1_999],
        "mails": ["Your refund for order A1"],
        "model calls": 1,
    }
