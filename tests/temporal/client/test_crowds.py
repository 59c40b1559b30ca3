"""Many callers of one task at once: their updates are sent in turn, and one look serves all who wait."""

from __future__ import annotations

import asyncio
import traceback
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import RPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from refold import Status, TaskState
from refold.engine import NotConnected, NoWorker, TaskNotFound, TaskView
from refold.temporal import TemporalEngine
from refold.temporal.client.crowds import AT_ONCE, Crowd, Crowds, NoTurn
from tests.temporal.client.between import Call, between
from tests.temporal.test_task import text

SOON = timedelta(milliseconds=400)
REFUSED = ValueError("refused")
AWAY = RPCError("connection refused", RPCStatusCode.UNAVAILABLE, b"")


class Task:
    """Takes updates, and answers each when the test says so."""

    def __init__(self) -> None:
        self.sent: list[asyncio.Future[str]] = []

    async def send(self) -> str:
        self.sent.append(asyncio.get_running_loop().create_future())
        return await self.sent[-1]


async def come(crowd: Crowd, task: Task, updates: int) -> list[asyncio.Task[str]]:
    """Updates that came, one after another, and are sent or wait."""
    came = [asyncio.create_task(crowd.send(task.send)) for _ in range(updates)]
    await asyncio.sleep(0)
    return came


async def test_so_many_updates_are_sent_at_once_and_the_others_in_the_order_they_came() -> None:
    task, crowd = Task(), Crowd()
    came = await come(crowd, task, 3 * AT_ONCE)

    assert len(task.sent) == AT_ONCE
    for number in range(3 * AT_ONCE):
        task.sent[number].set_result(str(number))
        await came[number]
        assert sum(not sent.done() for sent in task.sent) == min(AT_ONCE, 3 * AT_ONCE - number - 1)

    assert [await one for one in came] == [str(number) for number in range(3 * AT_ONCE)]


@pytest.mark.parametrize("silence", [RPCTimeoutOrCancelledError("timeout"), AWAY])
async def test_once_the_task_answers_nobody_no_update_that_waited_is_sent(silence: Exception) -> None:
    """
    Else a thousand callers of a task without a worker waited for one another. Whoever comes later is sent.
    """
    task, crowd = Task(), Crowd()
    came = await come(crowd, task, 3 * AT_ONCE)
    for sent in list(task.sent):
        sent.set_exception(silence)
    ended = await asyncio.gather(*came, return_exceptions=True)
    [later] = await come(crowd, task, 1)
    task.sent[-1].set_result("taken")

    assert ended[:AT_ONCE] == [silence] * AT_ONCE
    assert {type(error) for error in ended[AT_ONCE:]} == {NoTurn}
    assert (len(task.sent), await later) == (AT_ONCE + 1, "taken")


@pytest.mark.parametrize("refused", [False, True])
async def test_a_task_that_answers_somebody_is_sent_the_others(*, refused: bool) -> None:
    """
    A refusal is an answer too.
    """
    task, crowd = Task(), Crowd()
    came = await come(crowd, task, AT_ONCE + 1)
    if refused:
        task.sent[0].set_exception(REFUSED)
    else:
        task.sent[0].set_result("taken")
    await asyncio.gather(came[0], return_exceptions=True)
    task.sent[1].set_exception(AWAY)
    await asyncio.gather(came[1], return_exceptions=True)
    [late] = await come(crowd, task, 1)
    for sent in task.sent[2:]:
        sent.set_result("taken")

    assert [await one for one in (*came[2:], late)] == ["taken"] * AT_ONCE


async def test_a_caller_that_is_canceled_leaves_its_place_to_the_next() -> None:
    """
    The task was not silent.
    """
    task, crowd = Task(), Crowd()
    came = await come(crowd, task, AT_ONCE + 2)
    came[0].cancel()
    came[AT_ONCE].cancel()
    await asyncio.gather(came[0], came[AT_ONCE], return_exceptions=True)
    for sent in task.sent[1:]:
        sent.set_result("taken")

    assert (len(task.sent), await came[-1]) == (AT_ONCE + 1, "taken")
    assert [await one for one in came[1:AT_ONCE]] == ["taken"] * (AT_ONCE - 1)


class Looks:
    """Looks at a task, each of which ends when the test says so."""

    def __init__(self) -> None:
        self.begun: list[asyncio.Future[TaskView]] = []

    async def look(self) -> TaskView:
        self.begun.append(asyncio.get_running_loop().create_future())
        return await self.begun[-1]


def seen(number: int) -> TaskView:
    return TaskView(task_id="t", skill="s", status=Status.WORKING, lifecycle=TaskState.RUNNING, seq=number)


async def asked(crowds: Crowds, looks: Looks, callers: int) -> list[asyncio.Task[TaskView]]:
    """Callers that wait for a look."""
    waiting = [asyncio.create_task(crowds.of("t").look(looks.look)) for _ in range(callers)]
    await asyncio.sleep(0)
    return waiting


@pytest.mark.parametrize("away", [False, True])
async def test_one_look_serves_all_who_asked_before_it_began(*, away: bool) -> None:
    """
    Whoever asks while a look is under way is told what the next one finds, or why it found nothing.
    """
    crowds, looks = Crowds(), Looks()
    alone, *late = await asked(crowds, looks, 4)
    looks.begun[0].set_result(seen(1))
    assert (await alone).seq == 1
    await asyncio.sleep(0)
    if away:
        looks.begun[1].set_exception(NotConnected("away"))
    else:
        looks.begun[1].set_result(seen(2))
    told = await asyncio.gather(*late, return_exceptions=True)

    assert len(looks.begun) == 2
    assert [str(one) if away else one for one in told] == ["away" if away else seen(2)] * 3


async def test_each_caller_is_told_by_an_error_of_its_own() -> None:
    """
    One that is raised again grows by the frames of each who raises it, shows them to the others, and keeps them all.
    """
    crowds, looks = Crowds(), Looks()
    callers = await asked(crowds, looks, 4)
    away = TaskNotFound("t")
    away.__cause__ = AWAY
    looks.begun[0].set_result(seen(1))
    await callers[0]
    await asyncio.sleep(0)
    looks.begun[1].set_exception(away)
    told = await asyncio.gather(*callers[1:], return_exceptions=True)

    assert [(type(one), str(one), vars(one)) for one in told] == [(TaskNotFound, str(away), {"task_id": "t"})] * 3
    assert [one.__cause__ for one in told if isinstance(one, TaskNotFound)] == [AWAY] * 3
    assert len({id(one) for one in (away, *told)}) == 4
    frames = [traceback.extract_tb(one.__traceback__) for one in told if isinstance(one, TaskNotFound)]
    assert [[frame.name for frame in of_one] for of_one in frames] == [["look", "ask", "ask", "look"]] * 3


async def test_a_look_whose_caller_is_canceled_serves_nobody() -> None:
    """
    The next caller looks itself: it asked after an earlier look had begun.
    """
    crowds, looks = Crowds(), Looks()
    [first] = await asked(crowds, looks, 1)
    second, third = await asked(crowds, looks, 2)
    looks.begun[0].set_result(seen(1))
    await first
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    looks.begun[2].set_result(seen(3))

    assert (len(looks.begun), (await third).seq) == (3, 3)


@pytest.mark.parametrize("messages", [60, pytest.param(1_000, marks=[pytest.mark.sweep, pytest.mark.timeout(600)])])
async def test_a_burst_of_messages_to_one_task_is_taken(engine: TemporalEngine, messages: int) -> None:
    """
    The server refuses an update while ten of the task's wait for its worker.
    """
    under_way = most = 0

    async def counted(rpc: str, call: Call) -> Any:
        nonlocal under_way, most
        if rpc != "update_workflow_execution":
            return await call()
        under_way += 1
        most = max(most, under_way)
        try:
            return await call()
        finally:
            under_way -= 1

    many = TemporalEngine(between(engine.client, counted), engine.task_queue)
    task_id = (await many.start("counts", text("0"))).task_id
    await asyncio.gather(*(many.send(task_id, text(f"{n}"), delivery_id=f"d{n}") for n in range(1, messages + 1)))
    view = await engine.look(task_id)

    assert most == AT_ONCE
    assert sorted(int(one.text) for one in view.messages if one.role == "user") == list(range(messages + 1))
    await engine.cancel(task_id)


async def test_a_burst_of_messages_to_a_task_without_a_worker_fails_together(
    engine: TemporalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    In the time that one of them waits. Those that were not sent say so.
    """
    monkeypatch.setattr("refold.temporal.client.updates.UPDATE_PATIENCE", SOON)
    many = TemporalEngine(engine.client, "nobody-polls", patience=SOON)
    task_id = (await many.start("counts", text("0"))).task_id
    sends = (many.send(task_id, text(f"{n}")) for n in range(3 * AT_ONCE))
    ended = await asyncio.gather(*sends, return_exceptions=True)

    assert {type(error) for error in ended} == {NoWorker}
    assert sum("It was not sent" in str(error) for error in ended) == 2 * AT_ONCE
    await engine.client.get_workflow_handle(task_id).terminate()
