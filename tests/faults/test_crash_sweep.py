"""Workers die at every point of a task's way: one charge, one mail, forty model calls, one journal."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pydantic import JsonValue

from refold import Content, Status, TaskState
from refold.engine import Engine, TaskView
from refold.temporal import TemporalEngine
from refold.temporal.dev import DevServer
from refold.testing.crash_sweep import CrashSweep, Kind, Point, SweepFailed
from refold.testing.crash_worker import crash_worker
from tests.faults.model import Model
from tests.faults.processes import Ledger, Workers, until
from tests.services.mail import MailServer
from tests.services.shop import Shop
from tests.temporal.test_task import collected, settled

SWEEP_SKILLS = "tests.faults.sweep_skills"
LONG = [pytest.mark.sweep, pytest.mark.timeout(7_200)]


@pytest.fixture
def shop() -> Iterator[Shop]:
    """The gateway, with a ledger of its own."""
    with Shop() as shop:
        yield shop


@pytest.fixture
def mail() -> Iterator[MailServer]:
    """The mail server."""
    with MailServer() as mail:
        yield mail


@pytest.fixture
def model() -> Iterator[Model]:
    """The model, which counts its calls."""
    with Model() as model:
        yield model


@pytest.fixture
def env(shop: Shop, mail: MailServer, model: Model, tmp_path: Path, values: Path, ledger: Ledger) -> dict[str, str]:
    """What the workers are told."""
    return {
        **shop.environment,
        **mail.environment,
        **model.environment,
        "REFOLD_MODEL": "openai:demo",
        "REFOLD_LEDGER": str(tmp_path / "receipts.db"),
        "REFOLD_STORAGE": str(values),
        "FAULTS_LEDGER": str(ledger.path),
    }


@pytest.fixture
def sweep(
    engine: TemporalEngine,
    server: DevServer,
    queue: str,
    env: dict[str, str],
    shop: Shop,
    mail: MailServer,
    model: Model,
) -> CrashSweep:
    """A sweep over the application's skills and those of the faults."""

    def forget() -> None:
        shop.ledger.clear()
        shop.asked.clear()
        mail.inbox.clear()
        model.begin()
        # Another order, so that no receipt of an earlier run is in the way; what is told names none.
        (Path(env["REFOLD_LEDGER"])).unlink(missing_ok=True)

    def told() -> JsonValue:
        return {
            "charges": [paid.amount_cents for paid in shop.paid("charge")],
            "refunds": [paid.amount_cents for paid in shop.paid("refund")],
            "mails": [str(message["Subject"]) for message in mail.inbox],
            "model calls": len(model.answered),
        }

    worker = crash_worker("workflows", "activities", SWEEP_SKILLS, address=server.address, task_queue=queue)
    return CrashSweep(engine, worker=worker, env=env, before_each=forget, told=told)


def all_points(points: list[Point]) -> Sequence[Point]:
    return points


def some_points(points: list[Point]) -> Sequence[Point]:
    """A few of each kind, around the money and the mail."""
    last = max(point.seq for point in points)
    wanted = [(Kind.BEFORE, 2), (Kind.ENTRY, last // 2), (Kind.PERFORMED, 40), (Kind.AFTER, 40), (Kind.PERFORMED, 78)]
    return [point for kind, seq in wanted for point in points if (point.kind, point.seq) == (kind, seq)]


@pytest.mark.parametrize(
    "points",
    [
        pytest.param(some_points, id="some", marks=pytest.mark.timeout(300)),
        pytest.param(all_points, id="all", marks=LONG),
    ],
)
async def test_forty_steps_however_the_machine_dies(
    sweep: CrashSweep, points: Callable[[list[Point]], Sequence[Point]]
) -> None:
    """
    In every run one charge, one mail, forty model calls, and the same journal.
    """
    errand = {"order_id": "A1", "amount_cents": 4_200, "customer": "ada@example.org"}

    report = await sweep.run("forty_steps", Content.from_data(errand), points=points)

    assert report.outcome.told == {
        "charges": [4_200],
        "refunds": [],
        "mails": ["Order A1"],
        "model calls": 40,
    }
    assert report.points
