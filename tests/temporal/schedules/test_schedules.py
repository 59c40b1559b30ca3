"""Schedules on a real server: what starts when, under which ids, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import Priority
from temporalio.exceptions import TimeoutError

from refold import Content, InputRejected, Status
from refold.engine import EngineError, Listed, TaskFilter, UnknownSkill
from refold.temporal import (
    Overlap,
    RefoldPlugin,
    ScheduleExists,
    ScheduleNotFound,
    Schedules,
    TemporalEngine,
    Timing,
    connect,
    dev_server,
    make_worker,
)
from refold.temporal.client.connection import connected
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.priority import priority_of
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from refold.temporal.encryption import Encryption
from refold.temporal.schedules import schedules as code
from tests.temporal import skills
from tests.temporal.test_task import collected, settled, text
from tests.waiting import a_moment
from workflows import hello

SELDOM = Timing(every=timedelta(days=3_000))
"""Due once in eight years: not by chance while a test runs."""


@pytest.fixture
async def schedules(engine: TemporalEngine) -> AsyncIterator[Schedules]:
    """The server's schedules; those of the test are deleted."""
    yield engine.schedules
    async for one in engine.schedules.list():
        with contextlib.suppress(ScheduleNotFound):  # the list lags behind
            await engine.schedules.delete(one.id)


async def test_content_that_cannot_be_written_is_refused() -> None:
    """
    Half a surrogate pair, as text that was cut may end in, is refused as where a task is started.
    """
    nowhere: Any = SimpleNamespace(client=None)

    with pytest.raises(InputRejected, match="cannot be written as JSON"):
        await Schedules(nowhere).create("morning", "hello", text("Good morning \ud83d"), SELDOM)


async def test_a_note_that_cannot_be_written_is_refused() -> None:
    """
    As one that was typed in Latin-1 where the system's encoding is UTF-8.
    """
    nowhere: Any = SimpleNamespace(client=None)

    with pytest.raises(InputRejected, match="is no UTF-8 text"):
        await Schedules(nowhere).pause("morning", "closed for caf\udce9")


async def test_a_pause_that_would_never_come_is_refused() -> None:
    """
    The server watches no tasks that start beside one another, so it does not learn that one has failed.
    """
    nowhere: Any = SimpleNamespace(client=None)
    beside = Timing(every=SELDOM.every, overlap=Overlap.ALLOW)

    with pytest.raises(InputRejected, match="would not pause on a failure"):
        await Schedules(nowhere).create("morning", "hello", text("I am Ada"), beside, pause_on_failure=True)


def new_id() -> str:
    return f"s{uuid4().hex[:8]}"


async def listed(schedules: Schedules, id: str, count: int) -> list[Listed]:
    """The tasks of a schedule, once the server's index has so many."""
    while len(runs := await schedules.runs(id)) < count:
        await a_moment()
    return list(runs)


async def test_each_start_is_a_task_of_its_own(engine: TemporalEngine, schedules: Schedules) -> None:
    """
    By the clock and by hand: with its owner and its input, as a batch, found in lists, and no command's id is shared.
    """
    id, owner = new_id(), new_id()
    often = Timing(every=timedelta(seconds=2), overlap=Overlap.ALLOW)
    made = await schedules.create(id, "hello", text("I am Ada"), often, owner=owner, context="tea", started_by="eve")
    first = (await listed(schedules, id, 1))[0].task_id
    await schedules.pause(id, "enough")
    second = await schedules.run_now(id)

    assert (made.times, made.overlap, made.input, made.owner) == ("every 2s", "allow", "I am Ada", owner)
    assert first != second
    assert {first[: len(id) + 3], second[: len(id) + 3]} == {f"{id}-20"}
    commands: list[str] = []
    for task_id in (first, second):
        view = await settled(engine, task_id)
        assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "Hello, I am Ada!")
        given = (await engine.connection.describe(task_id)).raw_info.priority
        assert Priority(priority_key=given.priority_key, fairness_key=given.fairness_key) == priority_of(
            owner, batch=True
        )
        assert (await engine.at(task_id, view.seq)).started_by == ("eve",)
        entries = await collected(engine.journal(task_id))
        commands += [issued.invocation_id for entry in entries for issued in entry.commands]
    assert len(set(commands)) == len(commands) == 2
    found: Sequence[Listed] = ()
    while not {one.task_id for one in found} >= {first, second}:
        found = await engine.find(TaskFilter(owner=owner, context="tea"))
    assert [one.status_at for one in found] == sorted((one.status_at for one in found), reverse=True)
    assert await schedules.of(second) == id
    seen = await schedules.look(id)
    assert (seen.paused, seen.note, seen.last) == (True, "enough", second)


async def test_an_input_that_cannot_be_read_is_said_to_be(server: DevServer, values: Folder) -> None:
    """
    Its key was removed, or is unknown here: no worker without it can read the tasks that the schedule starts.
    """

    async def knowing(**keys: bytes) -> Schedules:
        converter = data_converter(values, Encryption(keys))
        client = await Client.connect(server.address, namespace=server.namespace, data_converter=converter)
        return TemporalEngine(client, "tests").schedules

    id, before = new_id(), await knowing(old=b"o" * 32)
    made = await before.create(id, "hello", text("I am Ada"), SELDOM)
    seen = await (await knowing(new=b"n" * 32)).look(id)
    await before.delete(id)

    assert (made.input, made.unread) == ("I am Ada", "")
    assert seen.input == ""
    assert "'old'" in seen.unread


async def test_starts_by_hand_in_one_second_have_ids_of_their_own(engine: TemporalEngine, schedules: Schedules) -> None:
    """
    The server alone would start a second task under the id of the first, whose effects would count as made.
    """
    id = new_id()
    await schedules.create(id, "hello", text("I am Ada"), Timing(cron=("@daily",), overlap=Overlap.ALLOW))

    ids = await asyncio.gather(*(schedules.run_now(id) for _ in range(3)))

    assert len(set(ids)) == 3
    for task_id in ids:
        await settled(engine, task_id)
    await listed(schedules, id, 3)
    completed = f"WorkflowType = 'hello' AND ExecutionStatus = 'Completed' AND WorkflowId IN {tuple(ids)}"
    while {one.id async for one in engine.client.list_workflows(completed)} != set(ids):
        await a_moment()


async def test_a_paused_schedule_of_every_second_is_started_by_hand(
    engine: TemporalEngine, schedules: Schedules
) -> None:
    """
    Nothing else starts in the second that it takes.
    """
    id = new_id()
    await schedules.create(id, "hello", text("I am Ada"), Timing(every=timedelta(seconds=1)), paused=True)

    task_id = await schedules.run_now(id)

    assert (await settled(engine, task_id)).status is Status.COMPLETED


async def test_a_pause_beside_starts_by_hand_loses_none_of_them(schedules: Schedules) -> None:
    """
    The server alone keeps only the last of those that reach a schedule together.
    """
    id = new_id()
    await schedules.create(id, "hello", text("I am Ada"), Timing(cron=("@daily",), overlap=Overlap.ALLOW))

    first, paused, second = await asyncio.gather(
        schedules.run_now(id), schedules.pause(id, "enough"), schedules.run_now(id)
    )
    seen = await schedules.look(id)

    assert first != second
    assert (paused.paused, seen.paused, seen.note, seen.started) == (True, True, "enough", 2)


async def test_a_process_that_dies_while_it_changes_a_schedule_does_not_keep_others_from_it(
    schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    They wait until its lock has ended by itself. Where one that lives takes too long, they say so.
    """
    id = new_id()
    await schedules.create(id, "hello", text("I am Ada"), SELDOM)
    slow = await schedules._locked(id)
    with monkeypatch.context() as hasty:
        hasty.setattr(code, "LOCKED_WITHIN_S", 0.2)
        with pytest.raises(EngineError, match=f"schedule {id!r} is busy"):
            await schedules.pause(id)
    await slow.terminate()

    with monkeypatch.context() as hasty:
        hasty.setattr(code, "FREED_AFTER", timedelta(seconds=1))
        await schedules._locked(id)  # its process dies here
    await asyncio.gather(*(schedules.pause(id) for _ in range(3)))

    assert (await schedules.look(id)).paused


async def test_while_a_task_is_open_none_starts_beside_it(engine: TemporalEngine, schedules: Schedules) -> None:
    """
    Unless the overlap says so; the refusal names the open task.
    """
    id, beside = new_id(), new_id()
    await schedules.create(id, "talk", text("hello"), SELDOM)
    await schedules.create(beside, "talk", text("hello"), Timing(every=SELDOM.every, overlap=Overlap.ALLOW))

    first = await schedules.run_now(id)
    with pytest.raises(InputRejected, match=f"{first} is open, and its overlap is skip"):
        await schedules.run_now(id)
    several = {await schedules.run_now(beside) for _ in range(2)}

    assert len(several) == 2
    assert (seen := await schedules.look(id)).skipped == 1
    assert seen.waiting == 0
    await asyncio.gather(*(engine.cancel(one) for one in (first, *several)))


async def test_a_schedule_that_a_failure_pauses_is_seen_paused_at_once(
    engine: TemporalEngine, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The server hears of the failure when somebody looks, and answers before: the first look had coming times. Resumed, a
    schedule is seen so, though its last task is still the one that failed.
    """
    id = new_id()
    await schedules.create(id, "uncaught", text("hello"), SELDOM, pause_on_failure=True)

    failed = await schedules.run_now(id)
    assert (await settled(engine, failed)).status is Status.FAILED

    seen = await schedules.look(id)
    assert seen.paused
    assert failed in seen.note
    await schedules.resume(id)
    monkeypatch.setattr(code, "HEARS_WITHIN_S", 3_600.0)  # nothing is waited for any more
    assert not (await schedules.look(id)).paused


async def test_a_start_by_hand_that_waits_says_so_and_has_an_id_of_its_own(
    engine: TemporalEngine, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    At once, and as what it will be: it starts when the open task has ended, and so do all that were sent with it.
    """
    id = new_id()
    await schedules.create(id, "talk", text("hello"), Timing(every=SELDOM.every, overlap=Overlap.QUEUE_ALL))
    monkeypatch.setattr(code, "STARTS_WITHIN_S", 3_600.0)

    first = await schedules.run_now(id)
    told = await asyncio.gather(*(schedules.run_now(id) for _ in range(2)), return_exceptions=True)

    waiting = {str(one).split(" no task now: ")[1].split(" starts once ")[0] for one in told}
    assert len(waiting) == 2
    assert {f"starts once {first} has ended, as its overlap is queue-all"} == {
        str(one)[str(one).index("starts once") :] for one in told
    }
    assert (await schedules.look(id)).waiting == 2
    while (running := (await schedules.look(id)).running) != ():
        await engine.cancel(running[0])
        while (await schedules.look(id)).running == running:
            await a_moment()
    assert {one.task_id for one in await listed(schedules, id, 3)} == {first, *waiting}


async def test_what_waits_for_a_task_that_ends_during_a_pause_is_left_out(
    engine: TemporalEngine, schedules: Schedules
) -> None:
    """
    Though it was due before the pause; a start by hand that waits is not left out.
    """
    id = new_id()
    await schedules.create(id, "talk", text("hello"), Timing(every=timedelta(seconds=1), overlap=Overlap.QUEUE_ONE))
    while not (await schedules.look(id)).waiting:
        await a_moment()
    first = (await schedules.pause(id)).running[0]

    await engine.cancel(first)
    while (seen := await schedules.look(id)).running or seen.waiting:
        await a_moment()
    assert seen.started == 1

    second = await schedules.run_now(id)
    with pytest.raises(InputRejected, match=f"starts once {second} has ended"):
        await schedules.run_now(id)
    await engine.cancel(second)
    while (seen := await schedules.look(id)).running in ((), (second,)):
        await a_moment()
    assert (seen.started, seen.waiting, seen.paused) == (3, 0, True)
    await engine.cancel(seen.running[0])


@pytest.mark.parametrize(
    ("timing", "why"),
    [
        ({"every": timedelta(0)}, "1 s at least"),
        ({"every": timedelta(days=9999)}, "ten years at most"),
        ({"every": timedelta(seconds=90.5)}, "whole seconds, since the server drops the rest; got 90.5 s"),
        ({}, "needs a time"),
        ({"cron": ("0 0 31 2 *",)}, "cron 0 0 31 2 * never comes"),
        ({"cron": ("61 0 * * *",)}, "Minute is not in range"),
        ({"cron": "@daily"}, "cron takes several expressions, and got one as a text; write cron=('@daily',)"),
        ({"cron": ("* * *",)}, "has 3 fields; it takes five"),
        ({"cron": ("0 9 1,15 * 1",)}, "the server only one that is both"),
        ({"cron": ("@every 5s",)}, "is an interval"),
        ({"cron": ("0 0 * * * # x",)}, "begins a comment"),
        ({"cron": ("TZ=UTC 0 0 * * *",)}, "time zone in it"),
        ({"cron": ("@daily",), "timezone": "Mars/One"}, "unknown time zone Mars/One; give a name such as"),
        ({"cron": ("@daily",), "timezone": ""}, "the time zone is '', which names none; give a name such as"),
        ({"cron": ("@daily",), "timezone": "Local"}, "the time zone is 'Local', which names none"),
        ({"every": timedelta(hours=1), "timezone": "Europe/Berlin"}, "an interval has none"),
        ({"cron": ("@daily",) * 21}, "20 cron expressions"),
    ],
)
async def test_a_time_that_cannot_be_is_refused(schedules: Schedules, timing: dict[str, Any], why: str) -> None:
    """
    And no schedule is left behind.
    """
    id = new_id()
    with pytest.raises(InputRejected) as refused:
        await schedules.create(id, "hello", text("I am Ada"), Timing(**timing))

    assert why in str(refused.value)
    with pytest.raises(ScheduleNotFound):
        await schedules.look(id)


async def test_what_no_worker_would_take_is_refused(engine: TemporalEngine, schedules: Schedules) -> None:
    """
    A skill that is not there, an input that does not fit, an id that is taken or none, an input that is too large.
    """
    id = new_id()
    with pytest.raises(UnknownSkill, match="hello"):
        await schedules.create(id, "nobody_serves_this", text("go"), SELDOM)
    with pytest.raises(InputRejected, match="starts from data that fits"):
        await schedules.create(id, "stubborn", Content.from_data({"years": "x"}), SELDOM)
    with pytest.raises(InputRejected, match="at most 16,384 bytes"):
        await schedules.create(id, "hello", text("x" * 20_000), SELDOM)
    for odd in ("", "a b", "../x", "x" * 101, "ü", "a\nb"):
        with pytest.raises(InputRejected, match="a schedule's id has 1 to 100"):
            await schedules.create(odd, "hello", text("go"), SELDOM)
        with pytest.raises(ScheduleNotFound):
            await schedules.delete(odd)
    await schedules.create(id, "hello", text("go"), SELDOM, paused=True)
    with pytest.raises(ScheduleExists):
        await schedules.create(id, "hello", text("go"), SELDOM)
    await schedules.delete(id)
    for verb in (schedules.delete, schedules.look, schedules.pause, schedules.resume, schedules.run_now):
        with pytest.raises(ScheduleNotFound):
            await verb(id)


@pytest.mark.server
async def test_an_interrupted_check_leaves_no_open_task(engine: TemporalEngine) -> None:
    """
    Where no worker answers, the check takes seconds: time for Ctrl-C.
    """
    id = new_id()
    nobody = TemporalEngine(engine.client, f"{id}.nobody")
    creating = asyncio.create_task(nobody.schedules.create(id, "hello", text("I am Ada"), SELDOM))
    running = f"WorkflowId STARTS_WITH '{id}.check-' AND ExecutionStatus = 'Running'"
    while not [one async for one in engine.client.list_workflows(running)]:
        await a_moment()

    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating

    async with asyncio.timeout(20):
        while [one async for one in engine.client.list_workflows(running)]:
            await a_moment()


@pytest.mark.server
async def test_a_killed_check_ends_by_itself(engine: TemporalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Temporal ends it, so that a process that was killed while a worker was asked leaves no task open for ever.
    """
    monkeypatch.setattr(code, "CHECKED_WITHIN", timedelta(seconds=1))
    id = new_id()
    nobody = TemporalEngine(engine.client, f"{id}.nobody")
    creating = asyncio.create_task(nobody.schedules.create(id, "hello", text("I am Ada"), SELDOM))
    checks = f"WorkflowId STARTS_WITH '{id}.check-'"
    while not (found := [one async for one in engine.client.list_workflows(checks)]):
        await a_moment()

    with pytest.raises(WorkflowFailureError) as ended:
        await engine.client.get_workflow_handle(found[0].id).result()
    await creating

    assert isinstance(ended.value.cause, TimeoutError)


@pytest.mark.server
async def test_a_check_is_in_no_list(engine: TemporalEngine, schedules: Schedules) -> None:
    """
    Neither while it runs, nor after it was taken, refused or left without an answer; its deletion takes minutes.
    """
    id = new_id()
    checks = f"WorkflowId STARTS_WITH '{id}.check-'"
    wanted = TaskFilter(begins=f"{id}.check-")

    await schedules.create(id, "hello", text("I am Ada"), SELDOM, paused=True)
    with pytest.raises(InputRejected):
        await schedules.create(f"{id}.check-b", "stubborn", Content.from_data({"years": "x"}), SELDOM)
    nobody = TemporalEngine(engine.client, f"{id}.nobody")
    creating = asyncio.create_task(nobody.schedules.create(f"{id}.check-c", "hello", text("I am Ada"), SELDOM))
    while not [one async for one in engine.client.list_workflows(f"{checks} AND ExecutionStatus = 'Running'")]:
        await a_moment()

    assert (await engine.find(wanted, limit=10), await engine.count(wanted)) == ([], 0)
    await creating
    assert (await engine.find(wanted, limit=10), await engine.count(wanted)) == ([], 0)
    await schedules.delete(id)
    await schedules.delete(f"{id}.check-c")


@pytest.mark.slow
async def test_a_schedule_outlives_its_server(tmp_path: Path) -> None:
    """
    With its tasks; what is due goes on, and a task that no worker has taken is listed, too.
    """
    db = tmp_path / "server.db"
    async with dev_server(db=db) as server:
        engine = await connect(address=server.address)
        plugin = RefoldPlugin([hello, skills], skills.TOOLS, model="scripted:demo")
        client = await connected(address=server.address, plugins=[plugin])
        async with make_worker(client, plugin):
            await engine.schedules.create("tick", "hello", text("I am Ada"), Timing(every=timedelta(seconds=1)))
            before = await settled(engine, (await listed(engine.schedules, "tick", 1))[0].task_id)
    async with dev_server(db=db) as server:
        engine = await connect(address=server.address)
        runs = await listed(engine.schedules, "tick", 2)
        while not (waits := await engine.find(TaskFilter(status=Status.SUBMITTED))):
            await a_moment()
        seen = await engine.schedules.look("tick")

    assert before.status is Status.COMPLETED
    assert before.task_id in {one.task_id for one in runs}
    assert waits[0].task_id.startswith("tick-20")
    assert (seen.times, seen.overlap, seen.paused) == ("every 1s", "skip", False)
