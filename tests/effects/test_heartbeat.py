"""Heartbeats go on, whatever the event loop is doing."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import RetryPolicy
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

from refold import tool
from refold.core.authoring.cmd import Cmd
from refold.core.commands import CallLlm, CallTool
from refold.effects import current
from refold.effects.activities import Effects
from refold.effects.heartbeat import BEATS_PER_TIMEOUT, Heartbeater

CORE_GRACE_S = 5
"""The SDK's core gives an activity up by itself this long after a heartbeat timeout that it heard nothing in."""

calls: list[int] = []


async def test_a_free_loop_is_asked() -> None:
    """
    The loop sends the heartbeat itself, so that it carries the newest details.
    """
    asked, forced = asyncio.Event(), threading.Event()
    with Heartbeater() as heart, heart.beating(4.0, asked.set, forced.set):
        await asked.wait()

    assert not forced.is_set()


async def test_a_busy_loop_is_passed_over() -> None:
    """
    A loop that does not answer in time gets its heartbeat sent for it.
    """
    forced = threading.Event()
    with Heartbeater() as heart, heart.beating(0.04, lambda: None, forced.set):
        assert forced.wait(60), "the loop is held up right here"


async def test_a_sooner_heartbeat_is_not_late() -> None:
    """
    The thread that waits for an hour is woken for a heartbeat that is due before.
    """
    hour, asked = BEATS_PER_TIMEOUT * 3600.0, asyncio.Event()
    with Heartbeater() as heart, heart.beating(hour, lambda: None, lambda: None):
        with heart.beating(0.04, asked.set, lambda: None):
            await asked.wait()
        again = asyncio.Event()
        with heart.beating(0.04, again.set, lambda: None):
            async with asyncio.timeout(60):
                await again.wait()


async def test_nothing_is_sent_for_what_is_over() -> None:
    """
    Once the block is left, neither the loop nor the thread sends anything.
    """
    sent: list[str] = []
    with Heartbeater() as heart:
        with heart.beating(0.04, lambda: sent.append("asked"), lambda: sent.append("forced")):
            forced = threading.Event()
            with heart.beating(0.04, lambda: None, forced.set):
                forced.wait(60)
        before = list(sent)
        again = asyncio.Event()
        with heart.beating(0.04, again.set, lambda: None):
            await again.wait()

    assert sent == before


async def test_trouble_with_one_leaves_the_others() -> None:
    """
    A heartbeat that fails is logged, and the next one is sent.
    """

    def broken() -> None:
        raise RuntimeError

    forced = threading.Event()
    with Heartbeater() as heart, heart.beating(0.04, broken, broken), heart.beating(0.04, lambda: None, forced.set):
        assert forced.wait(60)
    assert BEATS_PER_TIMEOUT > 2


# --- on a real server


@tool(effect="at_most_once", timeout_s=60)
async def hold_up(seconds: float) -> int:
    """Keep the worker's event loop busy."""
    calls.append(current().attempt)
    time.sleep(seconds)  # noqa: ASYNC251 - a busy loop is the point
    await asyncio.sleep(0)
    return current().attempt


begun = threading.Event()
ended: list[str] = []


@tool(effect="read_only")
async def wait_async() -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        ended.append("async")


@tool(effect="read_only")
def wait_sync() -> None:
    begun.set()
    current().stop.wait(300)
    ended.append("sync")
    raise RuntimeError


@workflow.defn(sandboxed=False)
class OneEffect:
    """Runs one effect as refold's adapter does."""

    @workflow.run
    async def run(self, name: str, command: dict[str, Any], heartbeat_s: float, stream: bool) -> Any:
        return await workflow.execute_activity(
            name,
            args=[command, True] if stream else [command],
            activity_id=f"{workflow.info().workflow_id}/1.1",
            start_to_close_timeout=timedelta(seconds=300),
            heartbeat_timeout=timedelta(seconds=heartbeat_s),
            retry_policy=RetryPolicy(maximum_attempts=3, initial_interval=timedelta(milliseconds=100)),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )


@pytest.fixture(scope="module")
async def client() -> AsyncIterator[Client]:
    """A client of a server of this module's own."""
    binary = Path(sys.executable).parent / "temporal"
    async with await WorkflowEnvironment.start_local(
        data_converter=pydantic_data_converter, dev_server_existing_path=str(binary)
    ) as environment:
        yield environment.client


@pytest.fixture
async def queue(client: Client) -> AsyncIterator[str]:
    """A task queue that a worker with these tools serves."""
    name = str(uuid4())
    async with (
        Effects([hold_up, wait_async, wait_sync]) as effects,
        Worker(
            client,
            task_queue=name,
            workflows=[OneEffect],
            activities=effects.activities,
            max_heartbeat_throttle_interval=timedelta(milliseconds=100),
        ),
    ):
        yield name


def effect(name: str, command: CallTool | CallLlm, heartbeat_s: float = 1, *, stream: bool = False) -> dict[str, Any]:
    return {"workflow": OneEffect.run, "args": [name, command.model_dump(mode="json"), heartbeat_s, stream]}


@pytest.mark.server
async def test_a_busy_loop_is_not_a_dead_worker(client: Client, queue: str) -> None:
    """
    The loop stands still for longer than the heartbeat timeout and the core's own patience together: one call, one
    result.
    """
    calls.clear()
    command = CallTool(id="t", name="hold_up", args={"seconds": 1 + CORE_GRACE_S + 2})

    result = await client.execute_workflow(**effect("tool.hold_up", command), id=str(uuid4()), task_queue=queue)

    assert (result, calls) == (1, [1])


@pytest.mark.server
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_cancellation_travels_by_heartbeat(client: Client, queue: str, kind: str) -> None:
    """
    A tool that never heartbeats itself hears that its task was canceled.
    """
    begun.clear()
    ended.clear()
    command = CallTool(id="t", name=f"wait_{kind}")
    # A busy machine may be late for a heartbeat, but not by so much.
    waits = effect(f"tool.wait_{kind}", command, 5)
    handle = await client.start_workflow(**waits, id=str(uuid4()), task_queue=queue)
    await asyncio.to_thread(begun.wait)
    await handle.cancel()

    with pytest.raises(WorkflowFailureError):
        await handle.result()

    assert ended == [kind]


@pytest.mark.server
async def test_a_reader_sees_the_text_as_it_comes(client: Client, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    The newest text is in the activity's heartbeat, read through `describe`, long before the answer is whole.
    """
    monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "10")
    command = Cmd.llm("research", "Write a draft.", "Tides", model="scripted:demo")
    handle = await client.start_workflow(
        **effect("refold.llm", command, 10, stream=True), id=str(uuid4()), task_queue=queue
    )
    tails: list[dict[str, Any]] = []
    while (described := await handle.describe()).status is not None and described.close_time is None:
        for pending in described.raw_description.pending_activities:
            if pending.heartbeat_details.payloads:
                (tail,) = await client.data_converter.decode_wrapper(pending.heartbeat_details)
                if tail not in tails:
                    tails.append(tail)
        if len(tails) > 2:  # the rest of the answer may come
            monkeypatch.setenv("REFOLD_SCRIPTED_DELAY", "0")
    answer = (await handle.result())["value"]

    assert len(tails) > 2
    assert all(answer[tail["offset"] :].startswith(tail["text"]) for tail in tails)
    assert [len(tail["text"]) for tail in tails] == sorted(len(tail["text"]) for tail in tails)
