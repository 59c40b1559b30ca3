"""Queries that came ahead of a workflow task are sent again, once the task has taken in what came."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    QueryWorkflowInput,
    WorkflowExecutionStatus,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.service import RPCError, RPCStatusCode

from refold.effects.asking import ASK_AGAIN, asked
from refold.temporal import TemporalEngine
from refold.temporal.client.connection import MOMENT_S, QUERY_ATTEMPTS, Connection


async def test_a_query_is_sent_again_once_the_task_has_taken_in_what_came() -> None:
    """
    Each time before it is sent again; any other failure is raised.
    """
    early = [WorkflowQueryFailedError(ASK_AGAIN), WorkflowQueryFailedError(f"{ASK_AGAIN}!")]
    answers: list[str | WorkflowQueryFailedError] = [*early, "done"]
    waited: list[int] = []

    async def ask() -> str:
        answer = answers.pop(0)
        if isinstance(answer, WorkflowQueryFailedError):
            raise answer
        return answer

    async def taken_in(refused: int) -> None:
        waited.append(refused)

    assert await asked(ask, taken_in) == "done"
    assert waited == [1, 2]
    answers.append(WorkflowQueryFailedError("another"))
    with pytest.raises(WorkflowQueryFailedError, match="another"):
        await asked(ask, taken_in)
    assert waited == [1, 2]


class Refusing(Interceptor, OutboundInterceptor):
    """Answers queries as a worker does that is about to take something in, and later as one that fails."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        self.next = next
        return self

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        self.at.append(time.monotonic())
        raise WorkflowQueryFailedError("it fails" if len(self.at) == 3 else ASK_AGAIN)


async def test_the_wait_is_longer_after_each_refusal_while_the_task_has_something_to_take_in(
    engine: TemporalEngine,
) -> None:
    """
    And ends, though nobody takes it in.
    """
    id = f"waits-for-ever-{uuid4().hex[:8]}"
    handle = await engine.client.start_workflow("nobody_serves_this", id=id, task_queue="nobodys")
    refusing = Refusing()
    client = Client(engine.client.service_client, namespace=engine.client.namespace, interceptors=[refusing])

    with pytest.raises(WorkflowQueryFailedError, match="it fails"):
        await Connection(client, "nobodys").query(id, "status", kind=str)
    await handle.terminate()

    first, second, third = refusing.at
    assert second - first >= MOMENT_S
    assert third - second >= 2 * MOMENT_S


class GoneOn(Interceptor, OutboundInterceptor):
    """The task goes on in a new run as often as it is tried to ask it; then a few queries are not answered."""

    def __init__(self, runs: int) -> None:
        self.runs, self.unanswered = runs, 0

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        self.next = next
        return self

    async def query_workflow(self, input: QueryWorkflowInput) -> Any:
        if self.runs:
            self.runs -= 1
            raise WorkflowQueryRejectedError(WorkflowExecutionStatus.CONTINUED_AS_NEW)
        self.unanswered += 1
        if self.unanswered > QUERY_ATTEMPTS:
            return "asked for ever"
        raise RPCError("late", RPCStatusCode.DEADLINE_EXCEEDED, b"")


@pytest.mark.parametrize("runs", range(QUERY_ATTEMPTS + 2))
async def test_a_query_ends_though_the_task_went_on_in_new_runs(engine: TemporalEngine, runs: int) -> None:
    """
    New runs count as attempts, and after the last attempt the first query without an answer is the last.
    """
    id = f"goes-on-{uuid4().hex[:8]}"
    handle = await engine.client.start_workflow("nobody_serves_this", id=id, task_queue="nobodys")
    gone_on = GoneOn(runs)
    client = Client(engine.client.service_client, namespace=engine.client.namespace, interceptors=[gone_on])

    with pytest.raises(RPCError, match="late"):
        await Connection(client, "nobodys").query(id, "status", kind=str, if_open=True)
    await handle.terminate()

    assert gone_on.unanswered == max(QUERY_ATTEMPTS - runs, 1)
