"""What the second attempt of an effect learns of the first one: who may have made it, or left it to others."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio import activity, workflow
from temporalio.api.taskqueue.v1 import PollerInfo
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment
from temporalio.worker import Worker

from refold.core.retry_policy import NOT_READABLE
from refold.effects.attempt import POLL, left_to_others, was_left, workers_beside


@activity.defn
async def leaving(type: str, chars: int) -> bool:
    if activity.info().attempt > 1:
        return await was_left()
    if type == "bug":
        raise ApplicationError("x" * chars, type=type, next_retry_delay=timedelta(milliseconds=10))
    raise left_to_others(type, "x" * chars)


@workflow.defn(sandboxed=False)
class Leaves:
    """An effect whose first worker leaves it to others."""

    @workflow.run
    async def run(self, type: str, chars: int) -> bool:
        return await workflow.execute_activity(
            leaving, args=[type, chars], start_to_close_timeout=timedelta(seconds=20)
        )


@pytest.mark.parametrize(
    ("type", "chars", "left"),
    [
        ("unknown_tool", 10, True),
        ("unknown_tool", 6000, True),
        (NOT_READABLE, 10, True),
        ("bug", 10, False),
        ("bug", 12_000, False),
    ],
)
async def test_an_effect_that_was_left_to_others_is_known_as_such(
    client: Client, type: str, chars: int, left: bool
) -> None:
    """
    Nobody has performed it, so no person is asked about it: also if the failure lists more tools than the server keeps
    of a failure, or if the worker had no key for the effect's input.
    """
    async with Worker(client, task_queue="left", workflows=[Leaves], activities=[leaving]):
        found = await client.execute_workflow(
            Leaves.run, args=[type, chars], id=f"left-{type}-{chars}", task_queue="left"
        )

    assert found is left


async def test_a_worker_that_was_gone_before_an_effect_was_asked_for_did_not_make_it() -> None:
    """
    The server lists workers for five minutes: without this, what polled before a ledger was changed casts doubt.
    """
    environment = ActivityEnvironment()
    asked_for = environment.info.scheduled_time
    polled = {"before": -2 * POLL, "lately": -POLL / 2, "since": POLL}

    async def describe_task_queue(*_: Any, **__: Any) -> Any:
        listed = []
        for identity, when in polled.items():
            listed.append(PollerInfo(identity=identity))
            listed[-1].last_access_time.FromDatetime(asked_for + when)
        return SimpleNamespace(pollers=listed)

    service = SimpleNamespace(describe_task_queue=describe_task_queue)
    environment = ActivityEnvironment(client=cast("Client", SimpleNamespace(workflow_service=service)))
    environment.info = replace(environment.info, scheduled_time=asked_for)

    assert await environment.run(workers_beside) == {"lately", "since"}
