"""DBOS: a workflow whose steps are recorded in PostgreSQL."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import psycopg
from dbos import DBOS, SetWorkflowID

from bench.peers.work import effect, server


@DBOS.step()
async def step(task: str, number: int) -> str:
    """One step."""
    return effect(task, number)


@DBOS.workflow()
async def paces(task: str, steps: int) -> int:
    """All steps of a task."""
    results = [await step(task, number) for number in range(1, steps + 1)]
    return len(results)


@dataclass(frozen=True, slots=True)
class Side:
    """DBOS, launched."""

    url: str

    async def perform(self, task: str, steps: int) -> None:
        """Start it, or wait for the one that was recovered."""
        with SetWorkflowID(task):
            handle = await DBOS.start_workflow_async(paces, task, steps)
        assert await handle.get_result(polling_interval_sec=0.02) == steps

    async def kept(self, task: str) -> int:
        """The rows of the task and of its steps."""
        total = 0
        async with await psycopg.AsyncConnection.connect(self.url) as connection:
            for table in ("workflow_status", "operation_outputs"):
                rows = await connection.execute(
                    f"SELECT sum(octet_length(t::text)) FROM dbos.{table} t WHERE workflow_uuid = %s", (task,)
                )
                found = await rows.fetchone()
                total += int(found[0]) if found else 0
        return total


@contextlib.asynccontextmanager
async def serving(variant: str) -> AsyncIterator[Side]:
    """DBOS, launched, which goes on with the tasks that a killed process left."""
    url = server("url")
    database = url.replace("://", "+psycopg://")
    # The version of the application is fixed, as in a deployment: otherwise it is a hash of the code.
    DBOS(config={"name": "paces", "system_database_url": database, "application_version": "1", "log_level": "WARNING"})
    DBOS.launch()
    yield Side(url)
