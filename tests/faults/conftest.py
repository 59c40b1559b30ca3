"""A server that the fault tests share, and what a test needs to start workers of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client
from temporalio.service import RetryConfig

from refold.temporal import TemporalEngine
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, Storage
from refold.temporal.dev import DevServer, dev_server
from tests.faults.processes import Ledger, Workers
from tests.faults.skills import LEDGER


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is here kills processes, and needs a server."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
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


async def engine_of(address: str, queue: str, storage: Storage, retries: RetryConfig | None = None) -> TemporalEngine:
    """An engine with a storage of its own."""
    client = await Client.connect(address, data_converter=data_converter(storage), retry_config=retries)
    return TemporalEngine(client, queue)
