"""In which order the server gives out work: the owners in turn, batches last; and where a task's priority goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHandle

from refold import Content, Ctx, Status, Transition, flow_skill, step, tool
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker, workflow_for
from refold.temporal.data.priority import BATCH, KEY_CHARS, priority_of
from refold.temporal.data.storage import Folder
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected, settled, text
from tests.waiting import a_moment

QUEUE = "turns"
performed: list[str] = []
gate = asyncio.Event()


@tool(effect="idempotent")
async def turn(who: str) -> None:
    """Notes who was served, once all are there."""
    await gate.wait()
    performed.append(who)


@flow_skill(id="queues")
class Queues:
    """Calls the one tool."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        await ctx.tool(turn, who=content.text)
        return ctx.complete()


QueuesWorkflow = workflow_for(Queues)


@pytest.fixture
async def narrow(client: Client, values: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine whose worker performs one effect at a time."""
    plugin = RefoldPlugin([Queues], [turn], storage=values, sandboxed=False)
    async with make_worker(client, plugin, task_queue=QUEUE, max_concurrent_activities=1):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)


async def test_owners_take_turns_and_batches_come_last(narrow: TemporalEngine) -> None:
    """
    Who comes after somebody else's burst is served among its first, and a batch after all that people wait for.
    """
    asked = [("batch", True)] * 2 + [("ada", False)] * 12 + [("bob", False)] * 2
    views = [await narrow.start("queues", text(who), owner=who, batch=batch) for who, batch in asked]
    for view in views:
        while not (await narrow.connection.describe(view.task_id)).raw_description.pending_activities:
            await a_moment()
    gate.set()
    for view in views:
        assert (await settled(narrow, view.task_id)).status is Status.COMPLETED

    waited = performed[1:]  # the first one came before the others were there, and was at work
    assert {place for place, who in enumerate(waited) if who == "bob"} <= set(range(6)), waited
    assert waited[-1] == "batch", waited


def priority_in(started: Any) -> tuple[int, str]:
    return started.priority.priority_key, started.priority.fairness_key


async def started(handle: WorkflowHandle[Any, Any]) -> tuple[int, str]:
    """The priority in a run's first event."""
    event = await anext(handle.fetch_history_events())
    return priority_in(event.workflow_execution_started_event_attributes)


async def test_parts_and_later_runs_inherit_a_tasks_priority(engine: TemporalEngine) -> None:
    """
    What a task starts has its priority; an activity has none of its own, which would cost bytes with each.
    """
    expected = (BATCH, priority_of("ada").fairness_key)
    runs = TemporalEngine(engine.client, engine.task_queue, events_per_run=1, patience=PATIENT)
    whole = await runs.start("parent", text("Ada"), owner="ada", batch=True)
    part = engine.client.get_workflow_handle(f"{whole.task_id}/1.1")
    await collected(engine.watch(whole.task_id))

    handle = engine.client.get_workflow_handle(whole.task_id)
    first = (await handle.describe()).raw_info.first_run_id
    assert await started(engine.client.get_workflow_handle(whole.task_id, run_id=first)) == expected
    assert await started(part) == expected

    talk = await runs.start("talk", text("go"), owner="ada", batch=True)
    await engine.send(talk.task_id, text("Ada"))
    again = await engine.connection.describe(talk.task_id)
    assert again.run_id != again.raw_info.first_run_id
    assert await started(engine.client.get_workflow_handle(talk.task_id)) == expected
    for task_id in (whole.task_id, talk.task_id):
        await engine.cancel(task_id)


async def test_what_goes_on_from_a_batch_is_one(engine: TemporalEngine) -> None:
    """
    A recovered or forked task has the priority of the task that it goes on from.
    """
    for batch in (False, True):
        failed = await engine.start("uncaught", text("go"), owner="ada", batch=batch)
        await settled(engine, failed.task_id)
        expected = priority_of("ada", batch=batch)
        for view in (await engine.recover(failed.task_id), await engine.fork(failed.task_id, at=1)):
            handle = engine.client.get_workflow_handle(view.task_id)
            assert await started(handle) == (expected.priority_key or 0, expected.fairness_key)
            await settled(engine, view.task_id)


def test_nobody_reads_an_owner_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The key is a part of a hash with a secret, whatever the owner's name is; all without an owner share none.
    """
    odd = ["ada@example.org", "ada@example.com", "a" * 10_000, "\ud800", "\x00", uuid4().hex]
    keys = [priority_of(one).fairness_key or "" for one in odd]
    monkeypatch.setenv("REFOLD_SEARCH_KEY", "another secret")
    others = {priority_of(one).fairness_key for one in odd}

    assert {len(key) for key in keys} == {KEY_CHARS}
    assert len({*keys, *others}) == 2 * len(odd)
    assert priority_of(None) == priority_of("")
    assert (priority_of(None).fairness_key, priority_of(None).priority_key) == (None, None)
