"""One Temporal server for all tests that need one, and a client to it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from temporalio.client import Client

from refold.temporal.dev import DevServer, dev_server
from refold.temporal.payloads import data_converter
from refold.temporal.storage import Folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the server is marked so."""
    for item in items:
        if "server" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.server)


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[DevServer]:
    """A server whose workflows' clocks can be moved by `temporalio.testing.TimeSkipper`."""
    async with dev_server(time_skipping=True) as running:
        yield running


@pytest.fixture(scope="session")
def values(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Where the session's client keeps large values."""
    return Folder(tmp_path_factory.mktemp("values"))


@pytest.fixture(scope="session")
async def client(server: DevServer, values: Folder) -> Client:
    """A client with refold's data converter."""
    return await Client.connect(server.address, namespace=server.namespace, data_converter=data_converter(values))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """An empty folder of this test's own."""
    return Folder(tmp_path)
