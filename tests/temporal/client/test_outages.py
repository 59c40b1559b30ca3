"""Whatever the server answers to any one call, callers get refold's errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import UpdateWorkflowExecutionLifecycleStage
from temporalio.api.workflowservice.v1 import (
    RequestCancelWorkflowExecutionResponse,
    UpdateWorkflowExecutionResponse,
)
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from refold import Content, InputRejected
from refold.core.errors import RefoldError
from refold.effects.webhooks.post import Poster
from refold.effects.webhooks.ssrf import Screen
from refold.engine import NoWorker, Taken, TaskFilter
from refold.temporal import TemporalEngine, TemporalWebhooks
from refold.temporal.client.updates import UNPROCESSED
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.encryption import Encryption
from refold.webhooks import Webhook
from tests.temporal.client.between import Call, between
from tests.temporal.test_task import settled
from tests.temporal.webhooks.test_delivery import Script
from tests.waiting import a_moment

T = TypeVar("T")

HELLO = Content.from_text("hello")
SOON = timedelta(milliseconds=400)


async def collected(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """One of each kind; `stands` is one whose workflow tasks fail."""

    waits: str
    canceled: str
    terminated: str
    stands: str


async def waiting(engine: TemporalEngine) -> str:
    view = await engine.start("talk", HELLO)
    return (await settled(engine, view.task_id)).task_id


@pytest.fixture
async def tasks(engine: TemporalEngine, client: Client, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tasks]:
    monkeypatch.setattr("refold.temporal.client.updates.UPDATE_PATIENCE", SOON)  # of the one that stands still
    waits, canceled, terminated = [await waiting(engine) for _ in range(3)]
    await engine.cancel(canceled)
    await client.get_workflow_handle(terminated).terminate()
    stands = await client.start_workflow("nobody_serves_this", id=f"stands-{uuid4().hex[:8]}", task_queue="tests")
    while (await stands.describe()).raw_description.pending_workflow_task.attempt <= 1:
        await a_moment()
    yield Tasks(waits=waits, canceled=canceled, terminated=terminated, stands=stands.id)
    await stands.terminate()


def impatient(engine: TemporalEngine) -> TemporalEngine:
    """For a task that stands still: no worker answers for it, however long one waits."""
    return TemporalEngine(engine.client, engine.connection.task_queue, patience=SOON)


READS: dict[str, Callable[[TemporalEngine, Tasks], Awaitable[Any]]] = {
    "look": lambda engine, tasks: engine.look(tasks.waits),
    "look at one that was canceled": lambda engine, tasks: engine.look(tasks.canceled),
    "look at one that was terminated": lambda engine, tasks: engine.look(tasks.terminated),
    "look at one that stands still": lambda engine, tasks: impatient(engine).look(tasks.stands),
    "send to one that stands still": lambda engine, tasks: impatient(engine).send(tasks.stands, HELLO),
    "record": lambda engine, tasks: engine.record(tasks.waits),
    "record of one that was canceled": lambda engine, tasks: engine.record(tasks.canceled),
    "record of one that was terminated": lambda engine, tasks: engine.record(tasks.terminated),
    "list": lambda engine, tasks: collected(engine.list(limit=3)),
    "find": lambda engine, tasks: engine.find(TaskFilter(), limit=3),
    "count": lambda engine, tasks: engine.count(TaskFilter()),
    "journal": lambda engine, tasks: collected(engine.journal(tasks.waits)),
    "journal of one that was canceled": lambda engine, tasks: collected(engine.journal(tasks.canceled)),
    "journal of one that was terminated": lambda engine, tasks: collected(engine.journal(tasks.terminated)),
    "past": lambda engine, tasks: collected(engine.past(tasks.canceled)),
    "builds": lambda engine, tasks: engine.builds(tasks.canceled),
    "at": lambda engine, tasks: engine.at(tasks.canceled, 1),
    "offspring": lambda engine, tasks: engine.offspring(tasks.canceled),
    "histories": lambda engine, tasks: collected(engine.histories(tasks.canceled)),
    "watch": lambda engine, tasks: collected(engine.watch(tasks.canceled)),
    "cancel one that was canceled": lambda engine, tasks: engine.cancel(tasks.canceled),
}


class Refusing:
    """Refuses the call of this number, and passes the others on."""

    def __init__(self, number: int, status: RPCStatusCode) -> None:
        self.number, self.status = number, status
        self.seen: list[str] = []

    async def __call__(self, rpc: str, call: Call) -> Any:
        self.seen.append(rpc)
        if len(self.seen) == self.number:
            raise RPCError(f"no {rpc} now", self.status, b"")
        return await call()


async def leaks(
    client: Client, queue: str, status: RPCStatusCode, verb: Callable[[TemporalEngine], Awaitable[Any]]
) -> list[str]:
    """The calls of a verb after whose refusal it raises an error that is none of refold's."""
    found, number = [], 0
    while True:
        number += 1
        refusing = Refusing(number, status)
        try:
            await verb(TemporalEngine(between(client, refusing), queue, patience=timedelta(seconds=2)))
        except RefoldError:
            pass
        except Exception as error:  # noqa: BLE001 - that is what the test looks for
            found.append(f"{refusing.seen[-1]}: {error!r}")
        if len(refusing.seen) < number:
            return found


@pytest.mark.parametrize(
    "status", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.NOT_FOUND, RPCStatusCode.PERMISSION_DENIED]
)
async def test_no_call_of_the_server_leaks_its_error(
    engine: TemporalEngine, client: Client, tasks: Tasks, status: RPCStatusCode
) -> None:
    """
    A caller tells an outage from a task that is gone, and shows words that say what to do.
    """
    for name, verb in READS.items():

        async def read(one: TemporalEngine, verb: Callable[[TemporalEngine, Tasks], Awaitable[Any]] = verb) -> None:
            await verb(one, tasks)

        assert await leaks(client, "tests", status, read) == [], name


@pytest.mark.parametrize("status", [RPCStatusCode.UNAVAILABLE, RPCStatusCode.PERMISSION_DENIED])
async def test_a_cancellation_leaks_no_error(engine: TemporalEngine, client: Client, status: RPCStatusCode) -> None:
    """
    Whichever of its calls the server does not answer.
    """

    async def cancel(one: TemporalEngine) -> None:
        await one.cancel(await waiting(engine))

    assert await leaks(client, "tests", status, cancel) == []


async def test_a_task_that_ends_before_it_is_canceled(engine: TemporalEngine, client: Client, values: Folder) -> None:
    """
    Between the look at it and the encrypted reason, which goes before the request: there is nothing to cancel.
    """
    task_id = await waiting(engine)
    codec = Encryption({"one": bytes(range(32))})
    config: dict[str, Any] = {**client.config(), "data_converter": data_converter(values, codec)}

    async def on(rpc: str, call: Call) -> Any:
        if rpc == "signal_workflow_execution":
            await client.get_workflow_handle(task_id).terminate()
        return await call()

    with pytest.raises(InputRejected, match=r"has ended \(canceled\); there is nothing to cancel"):
        await TemporalEngine(between(Client(**config), on), "tests").cancel(task_id, reason="a secret")


async def test_a_task_that_ends_while_it_is_canceled(engine: TemporalEngine, client: Client) -> None:
    """
    The server accepts the request, and the task completes without it: nobody is told that it is canceled.
    """
    task_id = await waiting(engine)
    await engine.send(task_id, HELLO)

    async def on(rpc: str, call: Call) -> Any:
        if rpc == "request_cancel_workflow_execution":
            await engine.send(task_id, Content.from_data({"years": 7}))
            return RequestCancelWorkflowExecutionResponse()
        return await call()

    with pytest.raises(InputRejected, match=r"has ended \(completed\); there is nothing to cancel"):
        await TemporalEngine(between(client, on), "tests").cancel(task_id)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("workflow update was aborted", RPCStatusCode.ABORTED),
        (
            "Unable to perform workflow execution update due to unexpected workflow task failure.",
            RPCStatusCode.FAILED_PRECONDITION,
        ),
    ],
)
async def test_an_update_that_is_given_back_is_sent_a_few_times(
    engine: TemporalEngine, client: Client, words: str, status: RPCStatusCode
) -> None:
    """
    The workflow task of just this update fails each time, and the task looks healthy in between.
    """
    task_id, sent = await waiting(engine), 0

    async def on(rpc: str, call: Call) -> Any:
        nonlocal sent
        if rpc == "update_workflow_execution":
            sent += 1
            raise RPCError(words, status, b"")
        return await call()

    with pytest.raises(NoWorker, match="cannot take the message"):
        await TemporalEngine(between(client, on), "tests").send(task_id, HELLO)
    assert 1 < sent < 10


async def test_an_update_that_a_worker_left_out_is_sent_again(engine: TemporalEngine, client: Client) -> None:
    """
    The server refuses it in the task's place, as where a worker is killed: the task has not refused the message.
    """
    task_id, sent = await waiting(engine), 0

    async def on(rpc: str, call: Call) -> Any:
        nonlocal sent
        sent += rpc == "update_workflow_execution"
        if rpc == "update_workflow_execution" and sent < 3:
            answer = UpdateWorkflowExecutionResponse()
            answer.stage = UpdateWorkflowExecutionLifecycleStage.UPDATE_WORKFLOW_EXECUTION_LIFECYCLE_STAGE_COMPLETED
            answer.outcome.failure.message = "Workflow Update is rejected because it wasn't processed by worker."
            answer.outcome.failure.application_failure_info.type = UNPROCESSED
            return answer
        return await call()

    await TemporalEngine(between(client, on), "tests").send(task_id, HELLO)

    assert sent == 3


@pytest.mark.parametrize(
    ("what", "name"),
    [
        (lambda engine, task_id: engine.send(task_id, HELLO), "message"),
        (lambda engine, task_id: engine.release(task_id, by="ada"), "release"),
    ],
    ids=["send", "release"],
)
async def test_what_a_task_has_taken_is_not_said_to_be_lost(
    engine: TemporalEngine, client: Client, what: Callable[[TemporalEngine, str], Awaitable[Any]], name: str
) -> None:
    """
    The server goes away after the task has taken an update, before the task is looked at: whoever sends it again sends
    it twice.
    """
    task_id = (await engine.start("talk", HELLO, hold=True)).task_id
    if name == "message":
        await engine.release(task_id)
        task_id = (await settled(engine, task_id)).task_id
    taken = False

    async def on(rpc: str, call: Call) -> Any:
        nonlocal taken
        if taken:
            raise RPCError("gone", RPCStatusCode.UNAVAILABLE, b"")
        answer = await call()
        taken = rpc == "update_workflow_execution"
        return answer

    with pytest.raises(Taken, match=rf"{task_id}' has taken the {name}, which is not to be sent again.*gone"):
        await what(TemporalEngine(between(client, on), "tests"), task_id)

    assert (await engine.record(task_id)).seq > (1 if name == "message" else 0)


@pytest.mark.parametrize(
    "what",
    [
        lambda client, task_id: TemporalEngine(client, "tests").send(task_id, HELLO),
        lambda client, task_id: TemporalWebhooks(
            TemporalEngine(client, "tests"), Script(), Poster(Screen.from_env(loopback=True))
        ).put(task_id, Webhook(id="h1", url="http://127.0.0.1:9/h1")),
    ],
    ids=["send", "webhook"],
)
async def test_a_caller_that_is_canceled_while_an_update_waits_ends_as_canceled(
    engine: TemporalEngine, client: Client, what: Callable[[Client, str], Awaitable[Any]]
) -> None:
    """
    The SDK raises an error of its own then, as for an update that nobody takes in time. With no call after it, and by
    `CancelledError`: else `asyncio.timeout` would not raise `TimeoutError`, and Ctrl-C would not end the program.
    """
    task_id, sent, calls = await waiting(engine), asyncio.Event(), list[str]()

    async def on(rpc: str, call: Call) -> Any:
        calls.append(rpc)
        if rpc in ("update_workflow_execution", "execute_multi_operation"):
            sent.set()
            await asyncio.Event().wait()
        return await call()

    asking = asyncio.ensure_future(what(between(client, on), task_id))
    await sent.wait()
    before = len(calls)
    asking.cancel()
    await asyncio.wait([asking])

    assert asking.cancelled()
    assert calls[before:] == []


async def test_who_polls_is_not_made_up(engine: TemporalEngine, client: Client) -> None:
    """
    A client that may not ask who polls a task queue is told so, and not that nobody does.
    """
    task_id = await waiting(engine)

    async def on(rpc: str, call: Call) -> Any:
        if rpc == "query_workflow":
            raise RPCError("late", RPCStatusCode.DEADLINE_EXCEEDED, b"")
        if rpc == "describe_task_queue":
            raise RPCError("not allowed", RPCStatusCode.PERMISSION_DENIED, b"")
        return await call()

    note = (await TemporalEngine(between(client, on), "tests").look(task_id)).note

    assert "the server does not tell whether a worker polls task queue 'tests' (not allowed)" in note
