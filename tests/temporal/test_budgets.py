"""Budgets on a server: what a task and an owner's day have spent, and what the journals say it was."""

from __future__ import annotations

from uuid import uuid4

import pytest

from refold import Content, TaskState
from refold.core.events import ChatResult
from refold.cost import model_calls, total
from refold.temporal import TemporalEngine
from tests.temporal.test_task import settled


async def test_a_budget_of_one_cent_stops_an_agent(engine: TemporalEngine) -> None:
    """
    At a dollar for a thousand tokens the first call is the last; its recorded price equals a hand count.
    """
    view = await engine.start("thrifty", Content.from_text('weigh "tea"'))
    view = await settled(engine, view.task_id)
    entries = [entry async for entry in engine.journal(view.task_id)]
    (usage,) = [one.event.reply.usage for one in entries if isinstance(one.event, ChatResult)]
    cost = total(model_calls(view.task_id, entries))

    assert view.lifecycle is TaskState.FAILED
    assert view.reason.startswith("the budget of 0.01 usd is used up")
    assert cost.usd == pytest.approx((usage.input_tokens + usage.output_tokens) / 1_000)
    assert (cost.calls, cost.listed_calls, cost.unpriced_calls) == (1, 0, 0)


async def test_an_owners_day_holds_over_tasks_and_engines(engine: TemporalEngine) -> None:
    """
    The second task, started through another engine, waits for a person; a grant is for as much again.
    """
    ada, bob = f"ada-{uuid4().hex[:6]}", f"bob-{uuid4().hex[:6]}"
    other = TemporalEngine(engine.client, engine.task_queue, patience=engine.connection.patience)

    first = await engine.start("daily", Content.from_text("One"), owner=ada)
    first = await settled(engine, first.task_id)
    second = await other.start("daily", Content.from_text("Two"), owner=ada)
    second = await settled(other, second.task_id)
    bobs = await settled(other, (await other.start("daily", Content.from_text("Two"), owner=bob)).task_id)

    assert (first.lifecycle, bobs.lifecycle) == (TaskState.DONE, TaskState.DONE)
    assert second.lifecycle is TaskState.PAUSED
    assert second.waiting_for[0].message.startswith("The owner's budget of 0.04 usd for ")
    await other.decide(second.task_id, approved=True, approver="Cy")
    assert (await settled(other, second.task_id)).lifecycle is TaskState.DONE
