"""The order in which a task takes what happens to it: the same while it happens, and in every replay."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from pydantic import JsonValue
from temporalio import activity
from temporalio.api.enums.v1 import PendingWorkflowTaskState, WorkflowTaskFailedCause
from temporalio.client import (
    Client,
    RPCTimeoutOrCancelledError,
    WorkflowFailureError,
    WorkflowHistory,
    WorkflowUpdateFailedError,
)
from temporalio.service import RPCError
from temporalio.worker import Replayer, Worker

from refold import Content, Event
from refold.core.errors import SkillError
from refold.core.events import ActivityResult
from refold.core.fold.journal import Entry
from refold.effects.asking import asked
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from refold.temporal.worker.activation import batches
from refold.temporal.worker.activation.committed import Committed
from refold.temporal.worker.task.workflow import SkillWorkflow
from tests.sweeps import LONG_S, THOROUGH
from tests.temporal import order_skills
from tests.waiting import a_moment

SOON = timedelta(milliseconds=100)
IN_TIME = timedelta(seconds=3)
"""How long a caller waits: an answer that is lost with its worker never comes."""
UNREADABLE = WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_NON_DETERMINISTIC_ERROR
STARTED = PendingWorkflowTaskState.PENDING_WORKFLOW_TASK_STATE_STARTED
NO_ANSWER = (WorkflowUpdateFailedError, RPCTimeoutOrCancelledError, RPCError)
"""Refused, or not answered in time."""


async def at_once(refused: int) -> None:
    """No pause before a refused query is sent again: each comes amid what the task takes in."""


class Mill:
    """Tasks to which things happen while no worker is there, and the workers that then find it all at once."""

    def __init__(self, client: Client, values: Folder, seed: int) -> None:
        self.client = client
        self.queue = f"order-{uuid4().hex[:8]}"
        self.engine = TemporalEngine(client, self.queue)
        self.plugin = RefoldPlugin([order_skills], [order_skills.double], storage=values)
        self.random = Random(seed)
        self.begun: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.let_go: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def hands(self) -> Worker:
        """A worker that ends an activity once the test lets go of its task."""

        @activity.defn(name="hold")
        async def hold() -> None:
            task_id = str(activity.info().workflow_id)
            self.begun[task_id].set()
            await self.let_go[task_id].wait()
            self.let_go[task_id].clear()

        return Worker(self.client, task_queue=order_skills.HANDS, activities=[hold], max_concurrent_activities=10_000)

    def worker(self, **options: Any) -> Worker:
        """A worker of the tasks, which remembers none of them yet."""
        given = {"task_queue": self.queue, "sticky_queue_schedule_to_start_timeout": SOON, **options}
        return make_worker(self.client, self.plugin, **given)

    async def start(self) -> str:
        """A task that stands in its activity."""
        chosen: dict[str, JsonValue] = {"rest_s": self.random.choice([0.0, 0.01]), "part": self.random.random() < 0.3}
        view = await self.engine.start("mingled", Content.from_data(chosen))
        await self.begun[view.task_id].wait()
        return view.task_id

    async def happen(self, task_id: str) -> list[asyncio.Task[Any]]:
        """Some things in some order, each at the server before the next; what nobody has answered yet."""
        handle = self.client.get_workflow_handle(task_id)
        unanswered = []
        for what in self.random.choices(["ask", "let go", "signal", "update"], k=self.random.randint(2, 5)):
            match what:
                case "ask":
                    unanswered.append(
                        asyncio.create_task(asked(partial(handle.query, "status", rpc_timeout=IN_TIME), at_once))
                    )
                case "let go":
                    self.let_go[task_id].set()
                case "signal":
                    await handle.signal("message", "yes")
                case _:
                    unanswered.append(asyncio.create_task(handle.execute_update("message", "yes", rpc_timeout=IN_TIME)))
            await handle.describe()  # by then the server has it
        return unanswered

    async def histories(self, task_ids: list[str]) -> AsyncIterator[WorkflowHistory]:
        """All that the server keeps of the tasks; no worker found that it could not read one."""
        for task_id in task_ids:
            history = await self.client.get_workflow_handle(task_id).fetch_history()
            causes = [event.workflow_task_failed_event_attributes.cause for event in history.events]
            assert UNREADABLE not in causes, task_id
            yield history


# Some 2,000 interleavings where there is time; CI has less.
MANY = 700 if THOROUGH else 100


@pytest.mark.parametrize(
    ("tasks", "batch"),
    [
        pytest.param(12, 1, id="in batches"),
        pytest.param(MANY, batches.BATCH, id="many", marks=[pytest.mark.sweep, pytest.mark.timeout(LONG_S)]),
        pytest.param(MANY, 1, id="many in batches", marks=[pytest.mark.sweep, pytest.mark.timeout(LONG_S)]),
    ],
)
async def test_a_task_takes_events_in_the_order_in_which_a_replay_takes_them(
    hasty_client: Client, values: Folder, tasks: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Queries, activities' ends, timers, parts, signals and updates, in any order, while a worker is lost: no worker
    finds a history that does not fit, and every history can be replayed. So it is where a task takes each of them in
    an activation of its own, and two in a workflow task.
    """
    if batch < batches.BATCH:
        monkeypatch.setattr(batches, "BATCH", batch)
        monkeypatch.setattr(batches, "PER_TASK", 2 * batch)
    mill = Mill(hasty_client, values, seed=tasks)
    async with mill.hands():
        async with mill.worker(max_cached_workflows=0):  # so that the server takes tasks and queries to any worker
            task_ids = [await mill.start() for _ in range(tasks)]
        for _ in range(3):
            unanswered = [await mill.happen(task_id) for task_id in task_ids]
            async with mill.worker():
                for answer in asyncio.as_completed([one for some in unanswered for one in some]):
                    with contextlib.suppress(*NO_ANSWER):
                        await answer
                for task_id in task_ids:
                    await mill.engine.look(task_id)

        # Without the SDK's deadline of two seconds, for which a busy machine may stand still.
        replayer = Replayer(workflows=[], plugins=[mill.plugin], debug_mode=True)
        await replayer.replay_workflows(mill.histories(task_ids), raise_on_replay_failure=True)


class Crowd(Mill):
    """Tasks to which several things happen at once, while their worker has room for one of them."""

    async def crowd(self, task_id: str) -> None:
        """A message and an update, or more; some are refused."""
        handle = self.client.get_workflow_handle(task_id)
        some: dict[str, Callable[[], Awaitable[Any]]] = {
            "signal": lambda: handle.signal("message", "yes"),
            "nonsense": lambda: handle.signal("nonsense"),
            "refused": lambda: handle.execute_update("decide", {}, rpc_timeout=IN_TIME),
            "update": lambda: handle.execute_update("message", "yes", rpc_timeout=IN_TIME),
            "ask": lambda: asked(partial(handle.query, "status", rpc_timeout=IN_TIME), at_once),
        }
        chosen = [some[name]() for name in self.random.choices([*some], [3, 3, 5, 1, 1], k=self.random.randint(1, 4))]
        if self.random.random() < 0.1:
            self.let_go[task_id].set()
        for answer in await asyncio.gather(*chosen, return_exceptions=True):
            assert not isinstance(answer, BaseException) or isinstance(answer, NO_ANSWER)


@pytest.mark.parametrize(
    ("tasks", "rounds", "batch"),
    [
        pytest.param(3, 6, 1, id="in batches"),
        pytest.param(MANY // 10, 20, batches.BATCH, id="many", marks=[pytest.mark.sweep, pytest.mark.timeout(LONG_S)]),
        pytest.param(MANY // 10, 20, 1, id="many in batches", marks=[pytest.mark.sweep, pytest.mark.timeout(LONG_S)]),
    ],
)
async def test_messages_beside_refused_updates_are_taken_when_a_replay_takes_them(
    hasty_client: Client, values: Folder, tasks: int, rounds: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A workflow task of a refused update is in history where a message came beside it. Each entry has the same time in a
    replay: a worker that never forgot the task, one that loads it for each workflow task, and a replay agree.
    """
    if batch < batches.BATCH:
        monkeypatch.setattr(batches, "BATCH", batch)
        monkeypatch.setattr(batches, "PER_TASK", 2 * batch)
    crowd = Crowd(hasty_client, values, seed=rounds)
    async with crowd.hands(), crowd.worker(max_cached_workflows=2):
        task_ids = [await crowd.start() for _ in range(tasks)]
        for _ in range(rounds):
            await asyncio.gather(*(crowd.crowd(task_id) for task_id in task_ids))
        lived = [[entry async for entry in crowd.engine.journal(task_id)] for task_id in task_ids]

    async with crowd.worker():
        again = [[entry async for entry in crowd.engine.journal(task_id)] for task_id in task_ids]
    # An effect may have ended since.
    assert [entries[: len(before)] for entries, before in zip(again, lived, strict=True)] == lived
    replayer = Replayer(workflows=[], plugins=[crowd.plugin], debug_mode=True)
    await replayer.replay_workflows(crowd.histories(task_ids), raise_on_replay_failure=True)


async def test_a_patch_is_none_of_what_is_counted(
    client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A replay is told of it along with what the workflow task brought, and takes as many of that at a time all the same.
    """
    monkeypatch.setattr(batches, "BATCH", 1)
    monkeypatch.setattr(batches, "PER_TASK", 2)
    mill = Mill(client, values, seed=0)
    async with mill.worker(max_cached_workflows=0):
        view = await mill.engine.start("asks_otherwise", Content.from_text("go"))
        while not (view := await mill.engine.look(view.task_id)).waiting_for:
            await a_moment()
    handle = client.get_workflow_handle(view.task_id)
    for answer in ("one", "two", "three", "four", "stop"):
        await handle.signal("message", answer)

    async with mill.worker():
        await handle.result()
        lived = [entry async for entry in mill.engine.journal(view.task_id)]

    assert [entry.patches for entry in lived if entry.patches] == [{"ask otherwise": True}]
    replayer = Replayer(workflows=[], plugins=[mill.plugin])
    await replayer.replay_workflows(mill.histories([view.task_id]), raise_on_replay_failure=True)


async def test_whoever_watches_a_flooded_task_lets_it_work(
    client: Client, values: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A query that comes once a worker has taken what its workflow task brought is answered. A refusal would make the
    worker forget the task, and fold it anew after each workflow task.
    """
    monkeypatch.setattr(batches, "PER_TASK", batches.BATCH)
    mill = Mill(client, values, seed=0)
    async with mill.worker():
        view = await mill.engine.start("asks_again", Content.from_text("go"))
        while not (view := await mill.engine.look(view.task_id)).waiting_for:
            await a_moment()
    handle = client.get_workflow_handle(view.task_id)
    await asyncio.gather(*(handle.signal("message", f"answer {n}") for n in range(600)))
    await handle.signal("message", "stop")
    loads: list[str] = []
    begin = Committed.__init__

    def noting(self: Committed, *args: Any) -> None:
        loads.append(view.task_id)
        begin(self, *args)

    monkeypatch.setattr(Committed, "__init__", noting)

    async with mill.worker():
        while (await handle.describe()).raw_description.pending_workflow_task.state != STARTED:
            pass
        while (await asked(partial(handle.query, "status"), at_once))["status"] != "completed":
            pass

    events = (await handle.fetch_history()).events
    assert len([event for event in events if event.HasField("workflow_task_completed_event_attributes")]) > 10
    assert len(loads) < 5


async def test_a_part_reports_one_question_after_the_other(client: Client, values: Folder) -> None:
    """
    A report leaves once the one before is delivered, so that none overtakes another: the task shows what is asked now.
    """
    mill = Mill(client, values, seed=0)
    async with mill.worker(max_cached_workflows=0):
        view = await mill.engine.start("whole", Content.from_text("go"))
        while not (view := await mill.engine.look(view.task_id)).waiting_for:
            await a_moment()
    part = client.get_workflow_handle(f"{view.task_id}/1.1")
    for answer in range(5):
        await part.signal("message", f"answer {answer}")

    async with mill.worker():
        for task_id in (part.id, view.task_id):
            while [wait.gate for wait in (await mill.engine.look(task_id)).waiting_for] != [f"{part.id}/6.1"]:
                await a_moment()
        await part.signal("message", "stop")
        await client.get_workflow_handle(view.task_id).result()

    names = [event.WhichOneof("attributes") or "" for event in (await part.fetch_history()).events]
    reports = [name.removesuffix("_event_attributes") for name in names if "external" in name]
    sent, delivered = "signal_external_workflow_execution_initiated", "external_workflow_execution_signaled"
    assert (set(reports[::2]), set(reports[1::2])) == ({sent}, {delivered})


@pytest.mark.parametrize(
    ("canceled", "ends_as"),
    [pytest.param(False, "what nobody foresaw", id="alone"), pytest.param(True, "cancelled", id="canceled")],
)
async def test_an_error_in_a_callback_leaves_no_task_waiting(
    client: Client, values: Folder, canceled: bool, ends_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An effect's end that cannot be taken fails the task with the reason. Where a request to cancel comes along with it,
    the task takes that first, and needs the effect no more.
    """
    take = SkillWorkflow._take_one

    def failing(self: SkillWorkflow, event: Event, at: datetime | None = None) -> Entry:
        if isinstance(event, ActivityResult):
            raise SkillError("what nobody foresaw")
        return take(self, event, at)

    monkeypatch.setattr(SkillWorkflow, "_take_one", failing)
    mill = Mill(client, values, seed=0)
    async with mill.hands():
        async with mill.worker(max_cached_workflows=0):
            task_id = await mill.start()
        handle = client.get_workflow_handle(task_id)
        mill.let_go[task_id].set()
        while (await handle.describe()).raw_description.pending_activities:
            await a_moment()
        if canceled:
            await handle.cancel()

        async with mill.worker():
            with pytest.raises(WorkflowFailureError) as ended:
                await handle.result()

    assert ends_as in str(ended.value.cause)
