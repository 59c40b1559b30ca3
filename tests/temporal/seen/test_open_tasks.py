"""The gauges of open tasks agree with what a server says, however many tasks and skills it has."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest, DescribeTaskQueueResponse
from temporalio.client import Client
from temporalio.common import SearchAttributePair, TypedSearchAttributes
from temporalio.service import RPCError, RPCStatusCode

from refold.seen import metrics
from refold.temporal.data.search_attributes import SKILL
from refold.temporal.seen.open_tasks import AGES, LISTED, MOST_PAUSE_S, OpenTasks, in_state, least_pause_s
from tests.seen.recorded import InMemory, counting
from tests.services.prometheus import rules


class PausedTasks:
    """A server's answers about paused tasks that all began just now; there are no others.

    Attributes:
        skills: The skill of each task, the newest first.
    """

    def __init__(self) -> None:
        self.skills: list[str] = []

    async def list_workflows(self, query: str, *, limit: int, **_: Any) -> AsyncIterator[Any]:
        for skill in self.skills[:limit] if query == in_state("paused") else ():
            found = TypedSearchAttributes([SearchAttributePair(SKILL, skill)])
            yield SimpleNamespace(typed_search_attributes=found, start_time=datetime.now(UTC))

    async def count_workflows(self, query: str, **_: Any) -> Any:
        skill = re.search(rf"{SKILL.name} = '(\w+)'", query)
        found = [one for one in self.skills if skill is None or one == skill[1]]
        return SimpleNamespace(count=len(found) if query.startswith(in_state("paused")) else 0)


def shown(kept: InMemory) -> dict[str, float]:
    """The paused tasks, by skill."""
    return {skill: value for (skill, state), value in kept.all_of("refold_open_tasks").items() if state == "paused"}


async def test_what_is_not_told_apart_falls_again() -> None:
    """
    Skills that no list has shown yet count as `other`, until their tasks have ended.
    """
    server = PausedTasks()
    look = OpenTasks(cast("Client", server), [])
    with counting() as kept:
        server.skills = ["many"] * (LISTED + 1) + ["old"] * 7
        await look.look()
        many = shown(kept)
        server.skills = ["many"] * 2
        await look.look()

    assert many == {"many": LISTED + 1, "other": 7}
    assert shown(kept) == {"many": 2}


async def test_skills_beyond_the_bound_are_added_up() -> None:
    """
    The first ones are told apart, the rest is `other`, also where skills come later; no task is lost.
    """
    server = PausedTasks()
    look = OpenTasks(cast("Client", server), [])
    with counting() as kept:
        server.skills = ["first", "second"]
        await look.look()
        server.skills = [f"skill_{number}" for number in range(LISTED)]
        await look.look()
        listed = shown(kept)
        server.skills *= 2
        await look.look()

    assert sum(listed.values()) == LISTED
    assert len(listed) == metrics.SKILL.most - 1  # the first two skills have no task now
    assert shown(kept) == {skill: 2 * value for skill, value in listed.items()}


@pytest.mark.parametrize("ahead_s", [-3600, 0, 3600])
async def test_workers_count_by_the_clock_of_the_server(ahead_s: int) -> None:
    """
    On a machine whose clock is ahead, or behind, workers that poll are counted, and those that are gone are not.
    """
    began = time.time() - ahead_s
    polled = {"served": [began - 1, began - 60, began - 100], "left": [began - 120], "unknown": []}
    times = {queue: [Timestamp(seconds=int(at)) for at in ats] for queue, ats in polled.items()}

    async def describe(request: DescribeTaskQueueRequest, **_: Any) -> DescribeTaskQueueResponse:
        pollers = [PollerInfo(last_access_time=at) for at in times[request.task_queue.name]]
        return DescribeTaskQueueResponse(pollers=pollers)

    server: Any = PausedTasks()
    server.namespace, server.workflow_service = "default", SimpleNamespace(describe_task_queue=describe)
    with counting() as kept:
        await OpenTasks(server, list(polled)).look()

    counts = kept.all_of("refold_queue_pollers")
    assert {at: count for at, count in counts.items() if count} == {
        ("served", "workflow"): 2,
        ("served", "activity"): 2,
    }


async def test_it_has_looked_once_the_server_was_asked() -> None:
    """
    Not before; and also where the server did not answer, so that nobody waits for one that is away.
    """
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    asked = asyncio.Event()

    async def describe(*_: Any, **__: Any) -> Any:
        asked.set()
        return await answer

    client: Any = SimpleNamespace(
        namespace="default", workflow_service=SimpleNamespace(describe_task_queue=describe)
    )  # of the SDK
    look = OpenTasks(client, ["q"])
    looking = asyncio.create_task(look.run())
    await asked.wait()

    assert not look.looked.is_set()
    answer.set_exception(RPCError("away", RPCStatusCode.UNAVAILABLE, b""))
    async with asyncio.timeout(60):
        await look.looked.wait()
    looking.cancel()


@pytest.mark.parametrize(
    ("took_s", "before_s", "pause_s"),
    [
        pytest.param(0.1, 0.1, 2, id="quick"),
        pytest.param(5, 4, 80, id="slow"),
        pytest.param(15, 15, MOST_PAUSE_S, id="very slow"),
        pytest.param(10, 0.1, 2, id="slow once"),
        pytest.param(0.1, 10, 2, id="quick again"),
    ],
)
def test_a_slow_server_is_asked_more_seldom(took_s: float, before_s: float, pause_s: float) -> None:
    """
    Not after one slow look, under which the server has restarted: what is shown would be minutes old. And never so
    seldom that the alert about open tasks that are unknown fires.
    """
    assert least_pause_s(took_s, before_s) == pytest.approx(pause_s)


def test_the_oldest_of_many_is_looked_for_at_each_threshold() -> None:
    """
    So an alert about the oldest task fires as soon with many tasks in the state as with few.
    """
    asked = [str(rule["expr"]) for rule in rules() if "refold_oldest_task_seconds" in str(rule["expr"])]
    thresholds = {timedelta(seconds=int(one.rpartition("> ")[2])) for one in asked}

    assert len(asked) > 3
    assert thresholds <= set(AGES)
