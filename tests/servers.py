"""The Temporal servers that tests share: at most two in each process, which end when no file needs them any more.

And the order of the tests: those that take longest come first, so that processes which share them end at the same time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from refold.temporal.dev import DevServer, dev_server

SETTINGS = {
    "history.workflowIdReuseMinimalInterval": '"0s"',
    # A workflow that has just closed is else deleted only after a retry, seconds later.
    "history.transferProcessorEnsureCloseBeforeDelete": "false",
    "matching.numTaskqueueWritePartitions": "1",  # the turns of owners hold within a partition
    "history.visibilityProcessorEnsureCloseBeforeDelete": "false",
}
"""Of a server on which nobody waits for what is to come anyway."""

HASTY = {"history.defaultWorkflowTaskTimeout": '"2s"', "history.workflowTaskRetryMaxInterval": '"1s"'}
"""A workflow task that is lost or fails is tried again soon."""

SERVERS = ("server", "hasty_server")
PLACES = ("fault", "server")
"""The order of the files: those with tests of the first mark, those with tests of the second, all others."""

_place = pytest.StashKey[int]()
_running = pytest.StashKey[list[Callable[[], None]]]()


@pytest.fixture(scope="session")
async def server() -> AsyncIterator[DevServer]:
    """A server whose workflows' clocks can be moved by `temporalio.testing.TimeSkipper`."""
    async with dev_server(time_skipping=True, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="session")
async def hasty_server() -> AsyncIterator[DevServer]:
    """A server that takes a workflow task for lost after two seconds instead of ten, for tests in which many are."""
    async with dev_server(time_skipping=True, settings=HASTY) as running:
        yield running


@pytest.hookimpl(trylast=True)  # when all marks are there
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First the files that kill processes, then those that need a server, then all others; of the sweeps, those first
    that may take longest."""
    places: dict[Path, int] = {}
    for item in items:
        place = next((at for at, mark in enumerate(PLACES) if item.get_closest_marker(mark)), len(PLACES))
        places[item.path] = min(place, places.get(item.path, place))
    for item in items:
        item.stash[_place] = places[item.path]
    items.sort(key=lambda item: (places[item.path], -_longest_s(item)))


def _longest_s(item: pytest.Item) -> float:
    limit = item.get_closest_marker("timeout")
    return float(limit.args[0]) if limit is not None and item.get_closest_marker("sweep") else 0.0


@pytest.hookimpl
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest) -> None:
    """Remember the servers that stay for the session."""
    if fixturedef.argname in SERVERS and fixturedef.scope == "session":
        # Always a `SubRequest`, which pytest neither says nor exports.
        end = partial(fixturedef.finish, request)  # type: ignore[arg-type]
        request.config.stash.setdefault(_running, []).append(end)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the servers, with all that was made of them, where files begin that do not need them: each takes a hundredth
    of a core when nobody asks it. A server that is asked for again starts again."""
    if nextitem is not None and nextitem.stash[_place] != item.stash[_place]:
        for end in item.config.stash.setdefault(_running, []):
            end()
        item.config.stash[_running] = []
