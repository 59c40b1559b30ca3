"""Webhooks on a real server: kept, changed, and delivered to in order whatever happens on the way."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from starlette.responses import Response
from temporalio.activity import ActivityCancellationDetails
from temporalio.client import WorkflowFailureError
from temporalio.service import RPCError, RPCStatusCode
from temporalio.testing import ActivityEnvironment

from refold.core.errors import InputRejected
from refold.effects.webhooks.post import Poster
from refold.effects.webhooks.ssrf import Screen
from refold.engine import TaskNotFound
from refold.temporal import TemporalEngine, TemporalWebhooks
from refold.temporal.webhooks import delivery
from refold.temporal.webhooks.delivery import WebhookDelivery
from refold.temporal.webhooks.names import workflow_id
from refold.webhooks import START, Shape, Update, Webhook
from tests.services.receiver import Receiver
from tests.temporal.client.between import Call, between


class Script:
    """A feed that gives what it is told, task by task.

    Attributes:
        updates: How many there are of each task so far; the task has ended once `ended` holds it.
        asked: From where it was asked to begin.
    """

    def __init__(self) -> None:
        self.updates: dict[str, int] = {}
        self.ended: set[str] = set()
        self.asked: list[str | None] = []
        self._more = asyncio.Condition()

    async def more(self, task_id: str, count: int = 1, *, end: bool = False) -> None:
        async with self._more:
            self.updates[task_id] = self.updates.get(task_id, 0) + count
            self.ended |= {task_id} if end else set()
            self._more.notify_all()

    async def __call__(self, task_id: str, shape: Shape, after: str | None) -> AsyncGenerator[Update, None]:
        self.asked.append(after)
        number = int((after or START).partition(".")[0])
        while True:
            if task_id not in self.updates:
                raise TaskNotFound(task_id)
            while number < self.updates[task_id]:
                number += 1
                place = f"{number}.0"
                yield Update(id=place, cursor=place, body=json.dumps({"n": number, "shape": shape}).encode())
            if task_id in self.ended:
                return
            async with self._more:
                await self._more.wait()


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def task_id() -> str:
    return f"task of 'ours' 100% {uuid4().hex[:8]}"


@pytest.fixture
async def webhooks(engine: TemporalEngine, script: Script) -> AsyncIterator[TemporalWebhooks]:
    poster = Poster(Screen.from_env(loopback=True))
    async with TemporalWebhooks(engine, script, poster, task_queue=f"webhooks-{uuid4().hex[:8]}") as webhooks:
        yield webhooks


def numbers(receiver: Receiver) -> list[int]:
    return [post.json["n"] for post in receiver.taken]


async def ended(engine: TemporalEngine, task_id: str, id: str) -> str:
    outcome: str = await engine.client.get_workflow_handle(workflow_id(task_id, id), result_type=str).result()
    return outcome


async def test_webhooks_are_kept_changed_listed_and_removed(
    webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    At once: what is set is read, what is removed is not, and neither is a mistake to repeat.
    """
    await script.more(task_id, 0)
    other = f"{task_id}/x"
    await script.more(other, 0)
    secret = Webhook(id="ä/b c", url="http://127.0.0.1:9/a", token="t", scheme="Bearer", credentials="c")
    plain = Webhook(id=task_id, url="http://127.0.0.1:9/b")
    assert await webhooks.of_task(task_id) == []
    assert await webhooks.get(task_id, "none") is None

    await webhooks.put(task_id, secret)
    await webhooks.put(task_id, plain)
    await webhooks.put(other, Webhook(id="other's", url="http://127.0.0.1:9/c"))
    assert await webhooks.get(task_id, secret.id) == secret
    assert await webhooks.of_task(task_id) == [plain, secret]

    changed = plain.model_copy(update={"url": "http://127.0.0.1:9/d"})
    await webhooks.put(task_id, changed)
    assert await webhooks.get(task_id, task_id) == changed

    await webhooks.remove(task_id, secret.id)
    await webhooks.remove(task_id, secret.id)
    await webhooks.remove(task_id, "none")
    assert await webhooks.get(task_id, secret.id) is None
    assert await webhooks.known(task_id, secret.id)
    assert not await webhooks.known(task_id, "none")
    assert await webhooks.of_task(task_id) == [changed]

    await webhooks.put(task_id, secret)
    assert await webhooks.of_task(task_id) == [changed, secret]
    with pytest.raises(InputRejected):
        await webhooks.put(task_id, Webhook(id="w", url="http://10.0.0.1/"))
    await script.more(task_id, 0, end=True)
    await script.more(other, 0, end=True)


async def test_a_task_with_the_most_webhooks_takes_no_other(
    webhooks: TemporalWebhooks, script: Script, task_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A check says so before anything is sent; one of them may be changed, or be deleted for another.
    """
    monkeypatch.setattr("refold.temporal.webhooks.webhooks.MOST_OF_A_TASK", 1)
    await script.more(task_id, 0)
    one, other = (Webhook(id=id, url="http://127.0.0.1:9/a") for id in ("one", "other"))
    await webhooks.check(task_id, one)
    await webhooks.put(task_id, one)

    await webhooks.check(task_id, one)
    with pytest.raises(InputRejected, match="takes no more"):
        await webhooks.check(task_id, other)
    with pytest.raises(InputRejected, match="takes no more"):
        await webhooks.put(task_id, other)
    await webhooks.remove(task_id, "one")
    await webhooks.put(task_id, other)


async def test_removed_webhooks_are_asked_nothing(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    Removed or gone: a task that has had thousands of them lists its webhooks, and takes another one, as any task does.
    """
    asked: list[str] = []

    async def counted(rpc: str, call: Call) -> Any:
        asked.append(rpc)
        return await call()

    await script.more(task_id, 1)
    with Receiver(lambda n: Response(status_code=410)) as receiver:
        await webhooks.put(task_id, Webhook(id="gone", url=receiver.url))
        assert await ended(engine, task_id, "gone") == "gone"
    for id in ("removed", "again", "kept"):
        await webhooks.put(task_id, Webhook(id=id, url="http://127.0.0.1:9/a"))
    for id in ("removed", "again"):
        await webhooks.remove(task_id, id)
    await webhooks.put(task_id, Webhook(id="again", url="http://127.0.0.1:9/a"))

    beside = TemporalEngine(between(engine.client, counted), engine.task_queue)
    found = await TemporalWebhooks(beside, script, task_queue=webhooks.task_queue).of_task(task_id)
    assert [one.id for one in found] == ["again", "kept"]
    assert asked.count("query_workflow") == 2
    assert len(asked) == 2 + 1 + 5, "the list, and each id once, that of the task too"
    await script.more(task_id, 0, end=True)
    for id in ("again", "kept"):
        await webhooks.remove(task_id, id)


async def test_an_id_that_the_server_cannot_hold_is_refused(webhooks: TemporalWebhooks, task_id: str) -> None:
    """
    Before the message that it came with is sent; an id of ASCII letters may be as long as any may.
    """
    await webhooks.check(task_id, Webhook(id="x" * 256, url="http://127.0.0.1:9/a"))
    with pytest.raises(InputRejected, match=r"it takes 1,\d\d\d characters of at most 1,000; give a shorter one"):
        await webhooks.check(task_id, Webhook(id="é" * 256, url="http://127.0.0.1:9/a"))


async def test_a_receiver_that_was_away_gets_everything_in_order(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    It refuses, it is down, it is back: each update is taken once, the last one too, and the history is short.
    """
    answers = [503, 200, 500, 200]
    receiver = Receiver(lambda n: Response(status_code=answers[n - 1] if n <= len(answers) else 200))
    with receiver:
        await script.more(task_id, 30)
        await webhooks.put(task_id, Webhook(id="w", url=receiver.url), after=START)
        await receiver.until(lambda receiver: len(receiver.taken) >= 10)
    await script.more(task_id, 30, end=True)
    with receiver:
        assert await ended(engine, task_id, "w") == "delivered"

    # What was on its way when the receiver went down may have been taken without an answer.
    taken = numbers(receiver)
    assert sorted(set(taken)) == list(range(1, 61))
    assert taken == sorted(taken)
    ids = [post.headers["webhook-id"] for post in receiver.posts]
    assert len(set(ids)) == 60
    history = await engine.client.get_workflow_handle(workflow_id(task_id, "w")).fetch_history()
    assert len(history.events) < 20
    assert await webhooks.get(task_id, "w") is not None


async def test_a_change_counts_from_the_next_post(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    The old address gets nothing more, the new one what follows, in the shape it asks for.
    """
    with Receiver() as first, Receiver() as second:
        await script.more(task_id, 2)
        await webhooks.put(task_id, Webhook(id="w", url=first.url, token="one"))
        await first.until(lambda receiver: len(receiver.posts) == 2)
        await webhooks.put(task_id, Webhook(id="w", url=second.url, token="two", shape="0.3"))
        await script.more(task_id, 2, end=True)
        assert await ended(engine, task_id, "w") == "delivered"

    assert numbers(first) == [1, 2]
    assert [post.json for post in second.posts] == [{"n": 3, "shape": "0.3"}, {"n": 4, "shape": "0.3"}]
    assert {post.headers["x-a2a-notification-token"] for post in second.posts} == {"two"}


async def test_nothing_is_posted_after_it_was_removed(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    A receiver that refuses is left alone at once.
    """
    with Receiver(lambda _: Response(status_code=500)) as receiver:
        await script.more(task_id, 1)
        await webhooks.put(task_id, Webhook(id="w", url=receiver.url))
        await receiver.until(lambda receiver: len(receiver.posts) == 1)
        await webhooks.remove(task_id, "w")
        assert await ended(engine, task_id, "w") == "removed"
        # The activity is told when it says how far it came; what it asks before each post has ended already.
        assert await webhooks.get(task_id, "w") is None


async def test_a_removal_while_a_retry_waits_ends_the_delivery(
    engine: TemporalEngine, script: Script, task_id: str
) -> None:
    """
    Its workflow has ended, and a heartbeat is told so: no error that a log should have.
    """
    courier = delivery.Courier(engine.client, script, Poster(Screen.from_env(loopback=True)))
    environment = ActivityEnvironment()
    begun = asyncio.Event()
    environment.on_heartbeat = lambda *_: begun.set()
    running = asyncio.create_task(environment.run(courier.deliver, delivery.Delivery(task_id=task_id, id="w")))
    await begun.wait()

    environment.cancel(cancellation_details=ActivityCancellationDetails(not_found=True))

    await asyncio.wait([running])
    assert type(running.exception()).__name__ == "_CompleteAsyncError"


@pytest.mark.parametrize("removed", [False, True])
async def test_a_change_that_meets_the_end_of_the_delivery_is_sent_again(
    engine: TemporalEngine, script: Script, task_id: str, removed: bool
) -> None:
    """
    The server gives it back, since the workflow had already ended in the workflow task that would have taken it.
    """
    sent = 0

    async def ending(rpc: str, call: Call) -> Any:
        nonlocal sent
        sent += rpc == "execute_multi_operation"
        if rpc == "execute_multi_operation" and sent == (2 if removed else 1):
            words = "Unable to perform workflow execution update due to unexpected workflow task failure."
            raise RPCError(words, RPCStatusCode.FAILED_PRECONDITION, b"")
        return await call()

    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    beside = TemporalEngine(between(engine.client, ending), engine.task_queue)
    webhook = Webhook(id="w", url="http://127.0.0.1:9/a")
    poster = Poster(Screen.from_env(loopback=True))
    async with TemporalWebhooks(beside, script, poster, task_queue=f"webhooks-{uuid4().hex[:8]}") as webhooks:
        await script.more(task_id, 0)
        await webhooks.put(task_id, webhook)
        if removed:
            await webhooks.remove(task_id, "w")
        assert await webhooks.of_task(task_id) == ([] if removed else [webhook])
        await webhooks.remove(task_id, "w")
    gc.collect()
    assert told == []


async def test_a_worker_that_stops_gives_up_a_delivery_whose_end_nobody_takes(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    It is canceled while its workflow does not answer, and does not go on as if the answer were late.
    """
    told = asyncio.Event()

    async def unanswered(rpc: str, call: Call) -> Any:
        if rpc == "update_workflow_execution":
            told.set()
            await asyncio.Event().wait()
        return await call()

    with Receiver(lambda n: Response(status_code=410)) as receiver:
        poster = Poster(Screen.from_env(loopback=True))
        await script.more(task_id, 0)
        await webhooks.put(task_id, Webhook(id="w", url=receiver.url))
        handle = engine.client.get_workflow_handle(workflow_id(task_id, "w"))
        beside = Script()
        await beside.more(task_id)
        courier = delivery.Courier(between(engine.client, unanswered), beside, poster)
        environment = ActivityEnvironment()
        run_id = (await handle.describe()).run_id
        environment.info = replace(environment.info, workflow_id=handle.id, workflow_run_id=run_id)
        running = asyncio.create_task(environment.run(courier.deliver, delivery.Delivery(task_id=task_id, id="w")))
        await told.wait()
        environment.cancel(cancellation_details=ActivityCancellationDetails(worker_shutdown=True))

        with pytest.raises(asyncio.CancelledError):
            await running
        await poster.aclose()
        await webhooks.remove(task_id, "w")


async def test_gone_ends_a_webhook(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    A receiver that answers 410 is forgotten, and may be named anew.
    """
    with Receiver(lambda n: Response(status_code=410 if n == 2 else 204)) as receiver:
        await script.more(task_id, 3, end=True)
        await webhooks.put(task_id, Webhook(id="w", url=receiver.url))
        assert await ended(engine, task_id, "w") == "gone"
        assert await webhooks.of_task(task_id) == []
        assert len(receiver.posts) == 2

        await webhooks.put(task_id, Webhook(id="w", url=receiver.url))
        assert await ended(engine, task_id, "w") == "delivered"
        assert numbers(receiver) == [1, 1, 2, 3]


@pytest.mark.parametrize("status", [410, 500])
async def test_a_refusal_of_the_old_address_ends_no_changed_webhook(
    engine: TemporalEngine,
    webhooks: TemporalWebhooks,
    script: Script,
    task_id: str,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    """
    The change came while the old address was asked: whether it wants no more or the day is over, the new one gets all.
    """
    monkeypatch.setattr(delivery, "GIVEN_UP_AFTER", timedelta(0))
    monkeypatch.setattr(delivery, "TRIED_S", 0.0)
    asked, changed = threading.Event(), threading.Event()

    def refused(n: int) -> Response:
        if n == 1 and status != 410:
            return Response(status_code=status)  # the day begins
        asked.set()
        changed.wait(20)
        return Response(status_code=status)

    with Receiver(refused) as old, Receiver() as new:
        await script.more(task_id, 2, end=True)
        await webhooks.put(task_id, Webhook(id="w", url=old.url))
        await asyncio.to_thread(asked.wait, 20)
        await webhooks.put(task_id, Webhook(id="w", url=new.url))
        changed.set()
        assert await ended(engine, task_id, "w") == "delivered"
    assert numbers(new) == [1, 2]


async def test_only_the_webhook_that_was_refused_ends(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    Not the one that it was changed to by the time at which the refusal arrives.
    """
    old, new = (Webhook(id="w", url=f"http://127.0.0.1:9/{path}") for path in ("old", "new"))
    await script.more(task_id, 0)
    await webhooks.put(task_id, old)
    await webhooks.put(task_id, new)
    handle = engine.client.get_workflow_handle(workflow_id(task_id, "w"))

    for why in ("", "it has taken nothing"):
        assert not await handle.execute_update(WebhookDelivery.end, args=[delivery.digest(old), why])
    assert await webhooks.of_task(task_id) == [new]
    assert await handle.execute_update(WebhookDelivery.end, args=[delivery.digest(new), ""])
    assert await ended(engine, task_id, "w") == "gone"
    assert await webhooks.of_task(task_id) == []


async def test_a_slow_receiver_holds_up_nobody_else(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    One that never answers has its own delivery to wait for.
    """
    with Receiver(slow=True) as slow, Receiver() as quick:
        await script.more(task_id, 50, end=True)
        await webhooks.put(task_id, Webhook(id="slow", url=slow.url))
        await webhooks.put(task_id, Webhook(id="quick", url=quick.url))
        assert await ended(engine, task_id, "quick") == "delivered"
        assert numbers(quick) == list(range(1, 51))
        assert {post.json["n"] for post in slow.posts} == {1}
        await webhooks.remove(task_id, "slow")


async def test_a_webhook_may_be_there_before_its_task(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    It waits for the task to start, and misses nothing.
    """
    with Receiver() as receiver:
        await webhooks.put(task_id, Webhook(id="w", url=receiver.url), after=START)
        await script.more(task_id, 2, end=True)
        assert await ended(engine, task_id, "w") == "delivered"
    assert numbers(receiver) == [1, 2]


async def test_a_delivery_that_begins_late_waits_for_its_task_all_the_same(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    The server's clock is behind, or the queue stood still: by its own clock the delivery has just begun.
    """
    with Receiver() as receiver:
        hook = Webhook(id="w", url=receiver.url)
        await webhooks.put(task_id, hook, after=START)
        poster = Poster(Screen.from_env(loopback=True))
        courier = delivery.Courier(engine.client, script, poster)
        environment = ActivityEnvironment()
        environment.info = replace(
            environment.info,
            workflow_id=workflow_id(task_id, "w"),
            workflow_run_id=None,
            scheduled_time=datetime.now(UTC) - timedelta(hours=1),
        )
        late = delivery.Delivery(task_id=task_id, id="w", after=START)
        running = asyncio.create_task(environment.run(courier.deliver, late))
        while len(script.asked) < 2:  # noqa: ASYNC110 - by the webhook's own delivery, and by the late one
            await asyncio.sleep(0)
        await script.more(task_id, 1, end=True)

        assert await running == "delivered"
        await poster.aclose()
    assert {post.json["n"] for post in receiver.taken} == {1}


async def test_secrets_stay_out_of_what_people_see(
    engine: TemporalEngine, webhooks: TemporalWebhooks, script: Script, task_id: str
) -> None:
    """
    Neither the list of workflows nor a delivery's summary, arguments or result holds any.
    """
    with Receiver() as receiver:
        await script.more(task_id, 1, end=True)
        hook = Webhook(id="w", url=f"{receiver.url}?key=hidden", token="hidden", scheme="Bearer", credentials="hidden")
        await webhooks.put(task_id, hook)
        await ended(engine, task_id, "w")

    handle = engine.client.get_workflow_handle(workflow_id(task_id, "w"))
    history = await handle.fetch_history()
    told = [event for event in history.events if b"hidden" in event.SerializeToString()]
    assert [event.HasField("workflow_execution_update_accepted_event_attributes") for event in told] == [True]
    assert "hidden" not in str((await handle.describe()).raw_description)


async def test_a_gateway_that_has_just_come_back_gives_nothing_up(
    engine: TemporalEngine,
    webhooks: TemporalWebhooks,
    script: Script,
    task_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The receiver refused a post before the outage, which took a day, and comes back a moment after the gateway.
    """
    monkeypatch.setattr(delivery, "GIVEN_UP_AFTER", timedelta(0))
    with Receiver(lambda n: Response(status_code=500 if n < 3 else 204)) as receiver:
        await script.more(task_id, 2, end=True)
        await webhooks.put(task_id, Webhook(id="w", url=receiver.url))

        assert await ended(engine, task_id, "w") == "delivered"
    assert numbers(receiver) == [1, 2]


async def test_a_receiver_that_takes_nothing_for_a_day_is_given_up(
    engine: TemporalEngine,
    webhooks: TemporalWebhooks,
    script: Script,
    task_id: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """
    The workflow fails and says why; the webhook is still listed, and set again it begins anew.
    """
    monkeypatch.setattr(delivery, "GIVEN_UP_AFTER", timedelta(0))
    monkeypatch.setattr(delivery, "TRIED_S", 0.0)
    with Receiver(lambda n: Response(status_code=500 if n < 3 else 204)) as receiver:
        await script.more(task_id, 2, end=True)
        hook = Webhook(id="w", url=f"{receiver.url}?key=hidden", token="hidden")
        await webhooks.put(task_id, hook)
        with pytest.raises(WorkflowFailureError) as failed:
            await ended(engine, task_id, "w")
        assert "127.0.0.1 answered HTTP 500" in str(failed.value.cause)
        assert "hidden" not in str(failed.value.cause)
        assert await webhooks.of_task(task_id) == [hook]

        await webhooks.put(task_id, hook)
        assert await ended(engine, task_id, "w") == "delivered"
    assert numbers(receiver) == [1, 2]
