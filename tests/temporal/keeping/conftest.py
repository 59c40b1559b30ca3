"""A server for tests that purge values."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from refold.temporal.dev import DevServer, dev_server
from tests.servers import SETTINGS


@pytest.fixture(scope="module")
async def lone_server() -> AsyncIterator[DevServer]:
    """A server of the module's own: before a stored value is deleted, the history of every task on the server is read,
    and the shared server has the tasks of hundreds of tests."""
    async with dev_server(time_skipping=True, settings=SETTINGS) as running:
        yield running
