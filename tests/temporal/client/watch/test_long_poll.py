"""The long polls of a process: they start together, and lose nothing by it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import History, HistoryEvent
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryRequest, GetWorkflowExecutionHistoryResponse
from temporalio.client import Client

from refold.temporal.client.watch import long_poll
from refold.temporal.client.watch.long_poll import LongPoll, Round

CHANGED = History(events=[HistoryEvent(event_type=EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED)])


class Server:
    """Answers the first poll of each task at once, and each later one when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, bytes]] = []
        self.open: dict[str, asyncio.Future[History]] = {}

    async def get_workflow_execution_history(
        self, request: GetWorkflowExecutionHistoryRequest, *, retry: bool
    ) -> GetWorkflowExecutionHistoryResponse:
        task_id, token = request.execution.workflow_id, request.next_page_token
        self.asked.append((task_id, token))
        if not token:
            return GetWorkflowExecutionHistoryResponse(history=CHANGED, next_page_token=b"1")
        self.open[task_id] = asyncio.get_running_loop().create_future()
        history = await self.open[task_id]
        return GetWorkflowExecutionHistoryResponse(history=history, next_page_token=b"%d" % (int(token) + 1))

    async def turn(self) -> list[tuple[str, bytes]]:
        """What is asked from now until nothing goes on any more."""
        self.asked.clear()
        for _ in range(20):
            await asyncio.sleep(0)
        return self.asked


async def started(server: Server, *task_ids: str) -> list[LongPoll]:
    """A poll of each task, all of one round."""
    client = cast("Client", SimpleNamespace(namespace="default", workflow_service=cast("Any", server)))
    together = Round()
    polls = [LongPoll(client, task_id, together) for task_id in task_ids]
    for poll in polls:
        await poll.start()
        poll.clear()
    await server.turn()
    return polls


async def test_all_polls_start_with_the_one_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    When the server ends one of them without news, all ask again, each from where it was; no tail is woken.
    """
    monkeypatch.setattr(long_poll, "LASTS_S", 0.0)
    monkeypatch.setattr(long_poll, "SOON_S", -1.0)
    server = Server()
    polls = await started(server, "a", "b", "c")

    server.open["b"].set_result(History())

    assert sorted(await server.turn()) == [("a", b"1"), ("b", b"2"), ("c", b"1")]
    assert not any(poll.changed for poll in polls)
    server.open["a"].set_result(CHANGED)
    await server.turn()
    assert [poll.changed for poll in polls] == [True, False, False]
    for poll in polls:
        await poll.close()


async def test_a_poll_that_was_cut_starts_alone() -> None:
    """
    So that a server or a proxy that ends polls at once does not make each of them start all others.
    """
    server = Server()
    polls = await started(server, "a", "b")

    server.open["b"].set_result(History())

    assert await server.turn() == [("b", b"2")]
    for poll in polls:
        await poll.close()


async def test_a_round_has_room_for_so_many() -> None:
    """
    Only polls that are open count.
    """
    server, together = Server(), Round()
    client = cast("Client", SimpleNamespace(namespace="default", workflow_service=cast("Any", server)))
    polls = [LongPoll(client, f"{number}", together) for number in range(long_poll.MOST_TOGETHER)]
    full = []
    for poll in polls:
        full.append(together.full)
        await poll.start()
    full.append(together.full)
    await polls[0].close()
    full.append(together.full)

    assert full == [*(False for _ in polls), True, False]
    for poll in polls:
        await poll.close()
