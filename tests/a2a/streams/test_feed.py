"""What webhooks' receivers are told of a task."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest
from a2a.compat.v0_3.types import Task as Task03
from a2a.types import StreamResponse
from google.protobuf.json_format import ParseDict

from refold import Content
from refold.a2a.streams.feed import WebhookFeed
from refold.engine import Engine, NoWorker, TaskNotFound
from refold.record import TaskRecord
from refold.temporal import TemporalEngine
from refold.testing import FakeEngine
from refold.webhooks import START, Shape, Update
from tests.a2a import skills

TEXT = Content.from_text


async def told(engine: Engine, task_id: str, shape: Shape = "1.0", after: str | None = None) -> list[Update]:
    """All updates of a task that has ended."""
    return [update async for update in WebhookFeed(engine)(task_id, shape, after)]


def kinds(updates: list[Update]) -> list[str]:
    return [next(iter(json.loads(update.body))) for update in updates]


def states(updates: list[Update]) -> list[str]:
    """The state in each update that has one."""
    bodies: list[dict[str, Any]] = [next(iter(json.loads(update.body).values())) for update in updates]
    return [body["status"]["state"] for body in bodies if "status" in body]


async def ended(engine: FakeEngine) -> str:
    """A task that was asked twice, answered, and completed."""
    task = (await engine.start("ask", TEXT("Hi"))).task_id
    await engine.send(task, TEXT("Ada"))
    await engine.send(task, Content.from_data({"number": 3}))
    return task


async def test_a_task_is_told_from_its_start(fake: FakeEngine) -> None:
    """
    The task, then each of its events as a StreamResponse, to the terminal one.
    """
    task = await ended(fake)
    updates = await told(fake, task, after=START)

    assert kinds(updates)[0] == "task"
    assert states(updates)[0] == "TASK_STATE_SUBMITTED"
    assert states(updates).count("TASK_STATE_INPUT_REQUIRED") == 2
    assert states(updates)[-1] == "TASK_STATE_COMPLETED"
    assert len({update.id for update in updates}) == len(updates)
    for update in updates:
        ParseDict(json.loads(update.body), StreamResponse())


async def test_it_goes_on_after_any_cursor(fake: FakeEngine) -> None:
    """
    What follows a cursor is what followed it the first time, under the same ids.
    """
    task = await ended(fake)
    updates = await told(fake, task, after=START)

    for number, update in enumerate(updates[1:], 2):
        assert await told(fake, task, after=update.cursor) == updates[number:]


async def test_a_webhook_for_a_task_that_has_ended_is_told_how(fake: FakeEngine) -> None:
    """
    It gets the task, whole, and nothing more.
    """
    updates = await told(fake, await ended(fake))

    assert kinds(updates) == ["task"]
    assert states(updates) == ["TASK_STATE_COMPLETED"]
    assert await told(fake, json.loads(updates[0].body)["task"]["id"], after=updates[0].cursor) == []


@pytest.mark.parametrize("cursor", ["1.9", "99.1"])
async def test_a_cursor_that_a_reset_took_away_begins_anew(fake: FakeEngine, cursor: str) -> None:
    """
    The receiver gets the task as it is: whoever delivers tries again after any error, so one would come for ever.
    """
    updates = await told(fake, await ended(fake), after=cursor)

    assert kinds(updates) == ["task"]
    assert states(updates) == ["TASK_STATE_COMPLETED"]


async def test_a_webhook_in_the_middle_begins_with_the_task_as_it_is(fake: FakeEngine) -> None:
    """
    Then it is told what follows, over pauses.
    """
    task = (await fake.start("ask", TEXT("Hi"))).task_id
    async with aclosing(WebhookFeed(fake)(task, "1.0", None)) as updates:
        first = await anext(updates)
        assert kinds([first]) == ["task"]
        assert states([first]) == ["TASK_STATE_INPUT_REQUIRED"]
        await fake.send(task, TEXT("Ada"))
        await fake.send(task, Content.from_data({"number": 3}))
        rest = [update async for update in updates]

    assert "task" not in kinds(rest)
    assert states(rest)[-1] == "TASK_STATE_COMPLETED"


@pytest.mark.parametrize("after", [None, START])
async def test_receivers_of_0_3_are_told_the_whole_task(fake: FakeEngine, after: str | None) -> None:
    """
    In 0.3's words, the last time as it ended.
    """
    task = await ended(fake)
    updates = await told(fake, task, "0.3", after)

    tasks = [Task03.model_validate_json(update.body) for update in updates]
    assert [one.status.state.value for one in tasks] == ["completed"]
    assert json.loads(updates[0].body)["contextId"]
    assert await told(fake, task, "0.3", updates[-1].cursor) == []


@pytest.mark.parametrize(("shape", "end"), [("1.0", "TASK_STATE_CANCELED"), ("0.3", "canceled")])
async def test_a_delivery_that_resumes_after_its_task_was_terminated_tells_of_it(
    a2a_engine: TemporalEngine, shape: Shape, end: str
) -> None:
    """
    After any cursor but the first, as often as it resumes, under one id: the task's journal can be read no more, and
    has no entry of its end.
    """
    task = (await a2a_engine.start("ask", TEXT("Hi"))).task_id
    async with aclosing(WebhookFeed(a2a_engine)(task, shape, None)) as updates:
        first = await anext(updates)
        await a2a_engine.client.get_workflow_handle(task).terminate()

    last = await told(a2a_engine, task, shape, first.cursor)
    body = json.loads(last[0].body)
    status = (body["statusUpdate"] if shape == "1.0" else body)["status"]

    assert status["state"] == end
    assert [update.id for update in last] == [f"{first.cursor}-end"]
    assert await told(a2a_engine, task, shape, last[0].cursor) == last


@pytest.mark.parametrize(("shape", "end"), [("1.0", "TASK_STATE_CANCELED"), ("0.3", "canceled")])
async def test_a_receiver_that_knows_a_task_from_its_start_is_told_that_it_was_terminated(
    a2a_engine: TemporalEngine, shape: Shape, end: str
) -> None:
    """
    Under an id of its own: the receiver drops an update whose id it has had, and the first update of a task that
    cannot be read any more is the task under the id of the start.
    """
    task = (await a2a_engine.start("ask", TEXT("Hi"))).task_id
    async with aclosing(WebhookFeed(a2a_engine)(task, "1.0", START)) as updates:
        first = await anext(updates)
        await a2a_engine.client.get_workflow_handle(task).terminate()
    assert first.cursor == START

    last = await told(a2a_engine, task, shape, START)
    body = json.loads(last[-1].body)
    status = (body["statusUpdate"] if shape == "1.0" else body)["status"]

    assert status["state"] == end
    assert (last[0].id, last[-1].id) == (first.id, f"{START}-end")
    assert await told(a2a_engine, task, shape, last[-1].cursor) == last


class Lost(FakeEngine):
    """An engine whose worker may be lost for a moment, in which it knows little of a task."""

    lost = False

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        record = await super().record(task_id)
        lost, self.lost = self.lost, False
        return record.model_copy(update={"seq": 0, "note": "no worker answers", "waits": ()}) if lost else record


async def test_a_receiver_of_0_3_is_told_no_less_than_its_task_is() -> None:
    """
    A worker that is lost after an event is waited for, and the whole task comes then.
    """
    engine = Lost(skills.ALL)
    task = (await engine.start("ask", TEXT("Hi"))).task_id
    async with aclosing(WebhookFeed(engine)(task, "0.3", None)) as updates:
        first = await anext(updates)
        await engine.send(task, TEXT("Ada"))
        engine.lost = True
        with pytest.raises(NoWorker):
            await anext(updates)
    async with aclosing(WebhookFeed(engine)(task, "0.3", first.cursor)) as updates:
        again = Task03.model_validate_json((await anext(updates)).body)

    assert again.status.message is not None
    assert len(again.history or ()) == 4


async def test_a_task_whose_worker_is_away_at_the_start_is_told_whole_later() -> None:
    """
    The feed waits for the worker, and then tells of every event: a task without a worker has not ended.
    """
    engine = Lost(skills.ALL)
    task = (await engine.start("ask", TEXT("Hi"))).task_id
    engine.lost = True
    async with aclosing(WebhookFeed(engine)(task, "1.0", START)) as updates:
        first = [await anext(updates) for _ in range(2)]

    assert states(first)[0] == "TASK_STATE_SUBMITTED"
    assert [update.id for update in first] == ["0.0", "1.1"]


async def test_a_task_that_does_not_exist_is_not_there(fake: FakeEngine) -> None:
    """
    Whoever delivers decides whether it may come.
    """
    with pytest.raises(TaskNotFound):
        await told(fake, "none")
