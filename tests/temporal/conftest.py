"""One Temporal server for all tests that need one, a client to it, and the services that tasks reach."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHistory
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import Replayer

from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from tests.services.shop import Shop
from tests.temporal import budget_skills, owner_skills, skills
from workflows import hello, react, research_loop, research_loop_steps, research_loop_table

SKILLS = [skills, owner_skills, budget_skills, hello, react, research_loop, research_loop_steps, research_loop_table]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever uses the server is marked so."""
    for item in items:
        if {"server", "hasty_server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)


PATIENT = timedelta(seconds=60)
"""A worker that is there answers in the end, however busy the machine is."""


@pytest.fixture(scope="session")
async def hasty_client(hasty_server: DevServer, values: Folder) -> Client:
    """A client of that server."""
    return await Client.connect(hasty_server.address, data_converter=data_converter(values))


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


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    """The shop and its gateway."""
    with Shop() as shop:
        for name, value in shop.environment.items():
            monkeypatch.setenv(name, value)
        yield shop


@pytest.fixture(scope="session")
async def plugin(values: Folder) -> RefoldPlugin:
    """All skills of the tests and of the application."""
    return RefoldPlugin(
        SKILLS, [*skills.TOOLS, *owner_skills.TOOLS, *budget_skills.TOOLS], model="scripted:demo", storage=values
    )


@pytest.fixture(scope="session")
async def engine(server: DevServer, client: Client, plugin: RefoldPlugin) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker; what ended in it is replayed when the session ends."""
    more: dict[str, Any] = {"activities": [skills.existing_activity], "workflows": [skills.ExistingWorkflow]}
    async with make_worker(client, plugin, task_queue="tests", **more):
        yield TemporalEngine(client, "tests", patience=PATIENT)
    await replay_all(client, plugin, "tests")


async def replay_all(client: Client, plugin: RefoldPlugin, task_queue: str) -> None:
    """Replay the history of every workflow that ended on this queue, with the code as it is."""
    # Without the SDK's deadline of two seconds, for which a busy machine may stand still.
    replayer = Replayer(workflows=[skills.ExistingWorkflow], plugins=[plugin], debug_mode=True)
    ended = f"TaskQueue = '{task_queue}' AND ExecutionStatus != 'Running' AND WorkflowType != 'nobody_serves_this'"

    async def histories() -> AsyncIterator[WorkflowHistory]:
        async for execution in client.list_workflows(ended):
            handle = client.get_workflow_handle(execution.id, run_id=execution.run_id)
            try:
                yield await handle.fetch_history()
            except RPCError as error:  # the list lags behind: a test has deleted this one
                if error.status is not RPCStatusCode.NOT_FOUND:
                    raise

    results = await replayer.replay_workflows(histories(), raise_on_replay_failure=True)
    assert not results.replay_failures


def failures_of_the_worker(events: Sequence[HistoryEvent]) -> list[Failure]:
    """What workers failed a task's workflow tasks with.

    The server itself takes a workflow task back when more events come than it keeps, or one comes with the run's end.
    How long an activation takes is for `bench` to say: on a busy machine the SDK's two seconds may pass.
    """
    failures = [event.workflow_task_failed_event_attributes.failure for event in events]
    return [one for one in failures if one.HasField("application_failure_info") and "TMPRL1101" not in one.message]
