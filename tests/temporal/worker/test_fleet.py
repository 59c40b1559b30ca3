"""Workers of two releases on one task queue, as while one is deployed or rolled back; and workers that are full."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any, Self
from uuid import uuid4

import pytest
from temporalio.api.enums.v1 import EventType, PendingActivityState
from temporalio.client import Client, WorkflowExecutionDescription, WorkflowExecutionStatus, WorkflowFailureError

from refold import Content, Status, TaskState, tool
from refold.effects import current
from refold.engine import NoWorker, TaskView, UnknownSkill
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.client.fleet import polling
from refold.temporal.client.fleet.polling import polls_of
from refold.temporal.data.storage import Folder
from refold.temporal.worker import registry
from tests.faults.processes import until
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected, settled, text
from tests.temporal.worker.fleet_skills import FleetErrand, FleetNewcomer, new_tool

SOON = timedelta(seconds=1)
OLD: tuple[Sequence[Any], Sequence[Any]] = ([FleetErrand], [])
NEW: tuple[Sequence[Any], Sequence[Any]] = ([FleetErrand, FleetNewcomer], [new_tool])
IN_TIME_S = 240.0
"""After a second failure the server hears of another one by a timeout only, and pauses ever longer."""


class Fleet:
    """A task queue of its own, and workers of either release that poll it."""

    def __init__(self, client: Client, values: Folder) -> None:
        self.client = client
        self.values = values
        self.queue = f"fleet-{uuid4().hex[:8]}"
        self.engine = TemporalEngine(client, self.queue, patience=PATIENT)

    @asynccontextmanager
    async def workers(
        self, *releases: tuple[Sequence[Any], Sequence[Any]], queue: str | None = None, threads: int = 32
    ) -> AsyncIterator[None]:
        """Workers of these releases inside the block, all of which poll by then."""
        made = [
            make_worker(
                await self.another_client(),
                RefoldPlugin(skills, tools, storage=self.values, threads=threads),
                task_queue=queue or self.queue,
                sticky_queue_schedule_to_start_timeout=SOON,
            )
            for skills, tools in releases
        ]
        running = [asyncio.create_task(worker.run()) for worker in made]
        identities = {worker.config(active_config=True)["identity"] for worker in made}
        try:
            polls = partial(polls_of, self.client, queue or self.queue)
            await until(polls, lambda found: identities <= {one.identity for one in found.pollers})
            yield
        finally:
            await asyncio.gather(*(worker.shutdown() for worker in made))
            await asyncio.gather(*running)

    async def another_client(self) -> Client:
        """A connection like ours: two workers of one connection cannot poll one task queue."""
        return await Client.connect(
            self.client.service_client.config.target_host,
            namespace=self.client.namespace,
            data_converter=self.client.data_converter,
        )

    async def ended(self, task_id: str) -> TaskView:
        """The task, once it has ended, whichever workers take it until then."""
        handle = self.client.get_workflow_handle(task_id)
        await until(
            handle.describe, lambda found: found.status is not WorkflowExecutionStatus.RUNNING, within_s=IN_TIME_S
        )
        return await self.engine.look(task_id)


def _is_started(found: WorkflowExecutionDescription) -> bool:
    started = PendingActivityState.PENDING_ACTIVITY_STATE_STARTED
    return [one.state for one in found.raw_description.pending_activities] == [started]


@pytest.fixture
def fleet(hasty_client: Client, values: Folder) -> Fleet:
    return Fleet(hasty_client, values)


@pytest.mark.parametrize("times", [2, pytest.param(20, marks=pytest.mark.sweep)])
async def test_what_only_the_newer_release_knows_is_left_to_it(fleet: Fleet, times: int) -> None:
    """
    Starts of a new skill, parents of a new skill and calls of a new tool, while half of the workers are old: all are
    done, none was refused, and nothing was deleted.
    """
    errands = [Content.from_data({"skill": "fleet_newcomer"}), Content.from_data({"tool": "new_tool"})]
    async with fleet.workers(OLD, NEW):
        starts = [fleet.engine.start("fleet_newcomer", text("go"), task_id=f"{fleet.queue}-{n}") for n in range(times)]
        more = [fleet.engine.start("fleet_errand", errand) for errand in errands for _ in range(times)]
        started = await asyncio.gather(*starts, *more)
        ended = await asyncio.gather(*(fleet.ended(view.task_id) for view in started))

    assert [(view.status, view.messages[-1].text) for view in ended] == [(Status.COMPLETED, "new")] * 3 * times


async def test_a_start_is_refused_only_where_no_other_worker_may_know_the_skill(fleet: Fleet) -> None:
    """
    One worker that does not know it: refused. Two: left to a third one, and the view says so. A
    tool that neither knows blocks its task, which says what they know, until a worker comes that knows it.
    """
    async with fleet.workers(OLD):
        with pytest.raises(UnknownSkill, match=r"fleet_newcomer.*known here: fleet_errand"):
            await fleet.engine.start("fleet_newcomer", text("go"), task_id=f"{fleet.queue}-refused")
        async with fleet.workers(OLD):
            errand = await fleet.engine.start("fleet_errand", Content.from_data({"tool": "new_tool"}))
            left = await fleet.engine.start("fleet_newcomer", text("go"))

            async def look() -> TaskView:
                return await fleet.engine.look(errand.task_id)

            blocked = await until(look, lambda view: view.lifecycle is TaskState.BLOCKED)
    assert (left.status, left.lifecycle) == (Status.SUBMITTED, TaskState.PLANNED)
    assert "known here: fleet_errand" in left.note
    assert "left to the others" in left.note
    assert "no tool 'new_tool' is registered; there are: none" in str(blocked.pending[0].failure)
    assert blocked.pending[0].due_at is not None

    async with fleet.workers(NEW):
        await fleet.engine.resolve(errand.task_id, retry=True)
        ended = [await fleet.ended(view.task_id) for view in (errand, left)]
    assert [view.messages[-1].text for view in ended] == ["new", "new"]


async def test_a_rollback_fails_no_task_that_has_begun(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    However long its skill is gone: when the skill is back, the task goes on. Who reads its journal meanwhile is told of
    the worker; nothing is wrong with the question.
    """
    async with fleet.workers(NEW):
        view = await settled(fleet.engine, (await fleet.engine.start("fleet_newcomer", text("ask"))).task_id)
    monkeypatch.setattr(registry, "UNSERVED_S", 0.0)
    handle = fleet.client.get_workflow_handle(view.task_id)
    async with fleet.workers(OLD):
        with pytest.raises(NoWorker, match=r"cannot be asked: .*no skill 'fleet_newcomer'"):
            await collected(fleet.engine.journal(view.task_id))
        await handle.signal("message", "hello")

        async def events() -> set[int]:
            return {event.event_type for event in (await handle.fetch_history()).events}

        await until(events, lambda found: EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED in found)
        assert (await handle.describe()).status is WorkflowExecutionStatus.RUNNING

    async with fleet.workers(NEW):
        assert (await fleet.ended(view.task_id)).messages[-1].text == "new"


async def test_a_task_that_nobody_begins_fails_in_the_end(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Not at the first worker that does not know its skill, but once one has seen it for as long as that; it says why.
    """
    monkeypatch.setattr(registry, "UNSERVED_S", 0.5)
    soon: dict[str, Any] = {"id": f"{fleet.queue}-typo", "task_queue": fleet.queue, "task_timeout": SOON}
    async with fleet.workers(OLD):
        handle = await fleet.client.start_workflow("fleet_typo", "go", **soon)
        with pytest.raises(WorkflowFailureError) as failed:
            await asyncio.wait_for(handle.result(), IN_TIME_S)

    assert "no skill 'fleet_typo'" in str(failed.value.cause)
    found = [event.event_type async for event in handle.fetch_history_events()]
    assert EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED in found, "it was left to others first"


async def test_a_skill_may_have_a_queue_of_its_own(fleet: Fleet) -> None:
    """
    A part runs on the queue that its command names, by workers that serve nothing else.
    """
    parts = f"{fleet.queue}-parts"
    async with fleet.workers(OLD), fleet.workers(([FleetNewcomer], []), queue=parts):
        errand = Content.from_data({"skill": "fleet_newcomer", "queue": parts})
        view = await fleet.ended((await fleet.engine.start("fleet_errand", errand)).task_id)

    assert view.messages[-1].text == "new"


@pytest.mark.parametrize("effect", ["tool new_tool", "skill fleet_newcomer"])
async def test_an_effect_whose_queue_nobody_polls_is_named(fleet: Fleet, effect: str) -> None:
    """
    By `look` and `list`, with what to type; no more once a worker serves the queue.
    """
    kind, name = effect.split()
    queue = f"{fleet.queue}-gpu"
    command = f"refold worker --task-queue {queue}"
    why = f"{effect} waits: no worker answers on task queue {queue!r}; start one with `{command}`"
    async with fleet.workers(NEW):
        errand = Content.from_data({kind: name, "queue": queue})
        id = (await fleet.engine.start("fleet_errand", errand, owner=queue)).task_id
        look = partial(fleet.engine.look, id)
        looked = await until(look, lambda view: bool(view.note))
        while not (listed := [view async for view in fleet.engine.list(owner=queue) if view.task_id == id]):
            pass  # the index lags by moments

        assert (looked.lifecycle, looked.note, looked.pending[0].queue) == (TaskState.RUNNING, why, queue)
        assert [view.note for view in listed] == [why]
        async with fleet.workers(NEW, queue=queue):
            ended = await fleet.ended(id)
    assert (ended.status, ended.note) == (Status.COMPLETED, "")


async def test_a_clock_ahead_takes_no_effects_worker_for_gone(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The worker of the task itself has just answered, and its polls tell the server's time.
    """

    class Ahead(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return super().now(tz) + timedelta(seconds=200)

    queue = f"{fleet.queue}-gpu"
    async with fleet.workers(NEW):
        async with fleet.workers(NEW, queue=queue):
            pass
        monkeypatch.setattr(polling, "datetime", Ahead)
        id = (await fleet.engine.start("fleet_errand", Content.from_data({"tool": "new_tool", "queue": queue}))).task_id
        looked = await until(partial(fleet.engine.look, id), lambda view: bool(view.pending))

        assert (looked.pending[0].queue, looked.note) == (queue, "")
        await fleet.engine.cancel(id)


async def test_a_payment_that_waits_for_a_thread_is_not_made_once_its_task_is_canceled(fleet: Fleet) -> None:
    """
    The only thread is busy when the payment arrives; the task is canceled; then the thread is free. The payment of
    another task is made.
    """
    begun, go_on, paid = threading.Event(), threading.Event(), list[str]()

    @tool(effect="read_only")
    def occupy() -> str:
        begun.set()
        assert go_on.wait(300)
        return "done"

    @tool(effect="at_most_once")
    def pay() -> str:
        paid.append(current().task_id)
        return "paid"

    async with fleet.workers(([FleetErrand], [occupy, pay]), threads=1):
        busy = await fleet.engine.start("fleet_errand", Content.from_data({"tool": "occupy"}))
        await asyncio.to_thread(begun.wait)
        views = [await fleet.engine.start("fleet_errand", Content.from_data({"tool": "pay"})) for _ in range(2)]
        for view in views:
            handle = fleet.client.get_workflow_handle(view.task_id)
            await until(handle.describe, _is_started)
        await fleet.engine.cancel(views[0].task_id)
        assert (await fleet.ended(views[0].task_id)).status is Status.CANCELED
        go_on.set()
        ended = [await fleet.ended(view.task_id) for view in (busy, views[1])]

    assert [view.messages[-1].text for view in ended] == ["done", "paid"]
    assert paid == [views[1].task_id]
