"""A server that the fault tests share, what a test needs to start workers of its own, and what those workers reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import JsonValue
from temporalio.client import Client
from temporalio.service import RetryConfig

from refold.temporal import TemporalEngine
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, Storage
from refold.temporal.dev import DevServer, dev_server
from refold.testing.crash_sweep import CrashSweep
from refold.testing.crash_worker import crash_worker
from tests.faults.model import Model
from tests.faults.processes import ROOT, Ledger, Workers
from tests.faults.skills import LEDGER
from tests.services import nursery
from tests.services.mail import MailServer
from tests.services.shop import Shop

SERVED = ("workflows", "activities", "tests.faults.sweep_skills")
"""The modules that the workers of a sweep serve."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is here kills processes, and needs a server."""
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.fault)
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[DevServer]:
    """A server of the fault tests' own."""
    async with dev_server() as running:
        yield running


@pytest.fixture
def queue() -> str:
    """A task queue that no other test uses."""
    return f"faults-{uuid4().hex[:8]}"


@pytest.fixture
def values(tmp_path: Path) -> Path:
    """A folder for large values."""
    path = tmp_path / "values"
    path.mkdir()
    return path


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """What the tools of this test did, whichever process they ran in."""
    return Ledger(tmp_path / "ledger")


@pytest.fixture
async def workers(server: DevServer, values: Path, ledger: Ledger) -> AsyncIterator[Workers]:
    """Starts this test's workers, and ends them with it."""
    async with Workers(server.address, values, env={LEDGER: str(ledger.path)}) as workers:
        yield workers


@pytest.fixture
async def engine(server: DevServer, values: Path, queue: str) -> TemporalEngine:
    """An engine of this test's queue, without a worker in this process."""
    return await engine_of(server.address, queue, Folder(values))


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
def env(shop: Shop, mail: MailServer, tmp_path: Path, values: Path, ledger: Ledger) -> dict[str, str]:
    """What the workers are told. Without a model of their own they are there in half the time."""
    return {
        **shop.environment,
        **mail.environment,
        "REFOLD_LEDGER": str(tmp_path / "receipts.db"),
        "REFOLD_STORAGE": str(values),
        "FAULTS_LEDGER": str(ledger.path),
    }


@pytest.fixture
def make_sweep(
    engine: TemporalEngine,
    server: DevServer,
    queue: str,
    shop: Shop,
    mail: MailServer,
    model: Model,
    tmp_path: Path,
) -> Callable[[dict[str, str]], CrashSweep]:
    """A sweep over the application's skills and those of the faults, whose workers are told this."""

    def told() -> JsonValue:
        return {
            "charges": [paid.amount_cents for paid in shop.paid("charge")],
            "refunds": [paid.amount_cents for paid in shop.paid("refund")],
            "mails": [str(message["Subject"]) for message in mail.inbox],
            "model calls": len(model.answered),
        }

    async def start(command: Sequence[str], env: Mapping[str, str]) -> nursery.Child:
        _, _, module, *args = command
        with (tmp_path / "workers.log").open("ab") as log:
            return await nursery.start(module, *args, folder=ROOT, env=env, stderr=log)

    def make(env: dict[str, str]) -> CrashSweep:
        def forget() -> None:
            shop.ledger.clear()
            shop.asked.clear()
            mail.inbox.clear()
            model.begin()
            for suffix in ("", "-wal", "-shm"):  # the next run has the same business keys
                Path(env["REFOLD_LEDGER"] + suffix).unlink(missing_ok=True)

        worker = crash_worker(
            "workflows", "activities", "tests.faults.sweep_skills", address=server.address, task_queue=queue
        )
        return CrashSweep(engine, worker=worker, env=env, before_each=forget, told=told, start=start)

    return make


async def engine_of(address: str, queue: str, storage: Storage, retries: RetryConfig | None = None) -> TemporalEngine:
    """An engine with a storage of its own."""
    client = await Client.connect(address, data_converter=data_converter(storage), retry_config=retries)
    return TemporalEngine(client, queue)
