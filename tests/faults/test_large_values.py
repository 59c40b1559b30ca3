"""Three megabytes, and no place to keep them: an error in words, and a task that is as it was."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest

from refold import Content, InputRejected, Status, TaskState
from refold.core.events import UserMessage
from refold.core.lifecycle import TERMINAL
from refold.engine import PayloadTooLarge, TaskView
from refold.temporal import TemporalEngine
from refold.temporal.data.storage import ENV, Off, StorageUnusable
from refold.temporal.data.wire import TaskStart
from refold.temporal.dev import DevServer
from refold.temporal.upgrade.sealing import seal
from tests.faults.conftest import engine_of
from tests.faults.processes import Ledger, Workers, until
from tests.temporal.test_task import collected, settled, text

SIZE = 3_000_000
LARGE = "x" * SIZE


@pytest.fixture
async def without(workers: Workers, server: DevServer, queue: str) -> TemporalEngine:
    """An engine and a worker, both without storage."""
    await workers.start(queue, env={ENV: "off"})
    return await engine_of(server.address, queue, Off())


async def waiting(engine: TemporalEngine, skill: str, content: Content) -> TaskView:
    """A task that waits for an answer."""
    view = await engine.start(skill, content)
    return await settled(engine, view.task_id)


async def test_what_cannot_be_sent_is_refused_where_it_is_sent(without: TemporalEngine) -> None:
    """
    Storage off: a start, an answer and a signal of three megabytes are refused, naming the setting; a task that waits
    still waits, answers, and takes an answer of a fitting size.
    """
    view = await waiting(without, "asks", text("go"))
    handle = without.client.get_workflow_handle(view.task_id)

    with pytest.raises(PayloadTooLarge, match=r"3,000,\d+ bytes.*REFOLD_STORAGE"):
        await without.start("asks", text(LARGE), task_id="too-large")
    with pytest.raises(PayloadTooLarge, match="REFOLD_STORAGE"):
        await without.send(view.task_id, text(LARGE))
    with pytest.raises(PayloadTooLarge, match="REFOLD_STORAGE"):
        await handle.signal("message", LARGE)

    assert await without.look(view.task_id) == view
    assert len(await collected(without.journal(view.task_id))) == view.seq
    await without.send(view.task_id, text("a word"))
    assert (await settled(without, view.task_id)).messages[-1].text == "6 characters"
    assert (await without.start("asks", text("go"), task_id="too-large")).task_id == "too-large", "no trace was left"


@pytest.mark.parametrize("catch", [True, False])
async def test_a_result_that_cannot_be_kept_is_the_skills_affair(
    without: TemporalEngine, ledger: Ledger, catch: bool
) -> None:
    """
    Storage off: a tool's result of three megabytes fails its command, once; the skill may catch it, or the task fails
    with the reason. Either way it answers.
    """
    view = await waiting(without, "buys", Content.from_data({"size": SIZE, "catch": catch}))
    await without.send(view.task_id, text("yes"))
    ended = await settled(without, view.task_id)

    if catch:
        assert (ended.status, ended.messages[-1].text) == (Status.COMPLETED, "it is well: PayloadTooLarge")
    else:
        assert ended.status is Status.FAILED
        assert "3,000," in ended.reason
        assert "REFOLD_STORAGE" in ended.reason
    assert len(ledger.noted("begun")) == 1
    assert (await without.at(view.task_id, ended.seq)).seq == ended.seq


@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("catch", [True, False])
async def test_a_command_that_cannot_be_sent_is_the_skills_affair(
    without: TemporalEngine, catch: bool, part: bool
) -> None:
    """
    Storage off: an answer of a fitting size, from which the skill makes a command of three megabytes, is taken; the
    command fails, and the skill may catch that, or the task fails with the reason.
    """
    order = Content.from_data({"size": SIZE, "catch": catch, "part": part})
    view = await waiting(without, "repeats", order)
    await without.send(view.task_id, text("x" * (SIZE // 2)))
    # The journal, which holds the command, is too large to be read.
    ended = await until(partial(without.look, view.task_id), lambda found: found.lifecycle in TERMINAL)

    if catch:
        assert (ended.status, ended.messages[-1].text) == (Status.COMPLETED, "it is well: PayloadTooLarge")
    else:
        assert ended.status is Status.FAILED
        assert "REFOLD_STORAGE" in ended.reason


async def test_a_task_that_is_too_large_for_a_new_run_goes_on_in_its_own(without: TemporalEngine) -> None:
    """
    Storage off: a task with a snapshot of more than two megabytes refuses a seal, in words; where a new run is due by
    itself, it stays in its run, takes answers, ends, and can be canceled.
    """
    start = TaskStart(message=UserMessage(content=text("go")), events_per_run=5)
    queue, ids = without.connection.task_queue, [f"listens-{uuid4().hex[:8]}" for _ in range(2)]
    for id in ids:
        await without.client.start_workflow("listens", start, id=id, task_queue=queue)
        for said in ("x" * (SIZE // 5), "x" * (SIZE // 5), "and"):
            await until(partial(without.look, id), lambda found: bool(found.waiting_for))
            await without.send(id, text(said))

    with pytest.raises(InputRejected, match=r"cannot go on in a new run: a value of 2,\d+,\d+ bytes.*REFOLD_STORAGE"):
        await seal(without.connection, ids[0])
    await without.send(ids[0], text("end"))
    await without.cancel(ids[1])

    ended = [await until(partial(without.look, id), lambda found: found.lifecycle in TERMINAL) for id in ids]
    assert [view.status for view in ended] == [Status.COMPLETED, Status.CANCELED]


async def test_without_its_folder_nothing_large_is_sent(engine: TemporalEngine, workers: Workers, queue: str) -> None:
    """
    The folder is missing where the client is: start, answer and signal are refused, naming it; the task still waits,
    and takes the same answer once the folder is there.
    """
    await workers.start(queue)
    view = await waiting(engine, "asks", text("go"))
    away = workers.folder.rename(workers.folder.with_name("away"))

    for refused in (
        lambda: engine.start("asks", text(LARGE)),
        lambda: engine.send(view.task_id, text(LARGE)),
        lambda: engine.client.get_workflow_handle(view.task_id).signal("message", LARGE),
    ):
        with pytest.raises(StorageUnusable, match=r"values: it does not exist; mount its disk, make it .*mkdir -p"):
            await refused()
    assert await engine.look(view.task_id) == view

    away.rename(workers.folder)
    await engine.send(view.task_id, text(LARGE))
    assert (await settled(engine, view.task_id)).messages[-1].text == f"{SIZE} characters"


async def test_a_task_waits_for_its_folder(
    engine: TemporalEngine, workers: Workers, queue: str, ledger: Ledger
) -> None:
    """
    The folder goes away while a tool is at work: the task answers meanwhile, and goes on once the folder is back. The
    tool has run, and does not run again for want of a folder.
    """
    await workers.start(queue)
    view = await waiting(engine, "buys", Content.from_data({"size": SIZE}))
    away = workers.folder.rename(workers.folder.with_name("away"))

    await engine.send(view.task_id, text("yes"))

    async def beats() -> tuple[int, datetime]:
        description = await engine.client.get_workflow_handle(view.task_id).describe()
        (pending,) = description.raw_description.pending_activities
        return pending.attempt, pending.last_heartbeat_time.ToDatetime(UTC)

    await ledger.until("begun")
    _, returned = await beats()
    attempt, _ = await until(beats, lambda beat: beat[1] > returned + timedelta(seconds=2))
    assert attempt == 1, "its worker keeps the result, and is alive"
    looked = await engine.look(view.task_id)
    assert (looked.lifecycle, looked.note) == (TaskState.RUNNING, "")
    assert [pending.command for pending in looked.pending] == ["tool produce"]

    away.rename(workers.folder)
    ended = await settled(engine, view.task_id)
    assert ended.messages[-1].text == f"{SIZE} characters", ended.reason
    assert len(ledger.noted("begun")) == 1
