"""Parts of parts on a real server: questions arrive once and are answered once; a part's queue and timeout."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import pytest
from temporalio.client import Client

from refold import Content, InputRejected, Status
from refold.agent import skill_tool
from refold.core.chat import ToolReturn
from refold.core.events import ChildAsked, UserMessage
from refold.core.fold.journal import Entry
from refold.engine import TaskView
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal import part_skills
from tests.temporal.conftest import PATIENT, replay_all
from tests.temporal.test_task import collected, settled, text

QUEUE = "parts"


@pytest.fixture(scope="module")
async def engine(client: Client, values: Folder) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker; all that ended is replayed."""
    plugin = RefoldPlugin([part_skills], part_skills.TOOLS, model="scripted:demo", storage=values)
    async with make_worker(client, plugin, task_queue=QUEUE):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)
    await replay_all(client, plugin, QUEUE)


async def asks(engine: TemporalEngine, task_id: str, slot: str) -> TaskView:
    """The task, once it asks this."""
    async with aclosing(engine.watch(task_id, follow=True)) as news:
        async for _ in news:
            view = await engine.look(task_id)
            if [wait.slot for wait in view.waiting_for] == [slot]:
                return view
    raise AssertionError(f"{task_id} ended without asking {slot!r}")


async def ended(engine: TemporalEngine, task_id: str) -> TaskView:
    """The task, once it has ended."""
    await collected(engine.watch(task_id, follow=True))
    return await engine.look(task_id)


async def questions(engine: TemporalEngine, task_id: str) -> list[str]:
    """The questions that reached a task from its part, in its journal."""
    entries = await collected(engine.journal(task_id))
    told = [entry.event for entry in entries if entry.event.kind == "child_asked"]
    return [wait.slot for event in told for wait in getattr(event, "waits", ())]


@pytest.mark.parametrize("name", ["plain", "orders:2026@A1+b=1,c"], ids=["plain", "odd"])
async def test_a_question_two_levels_down_arrives_and_is_answered_once(engine: TemporalEngine, name: str) -> None:
    """
    Asked of the whole, by the part of a part; the whole takes one answer and refuses a second.
    """
    task_id = f"{name}-{uuid4().hex[:6]}"
    await engine.start("top", text("tea"), task_id=task_id)
    await asks(engine, task_id, "size")
    await engine.send(task_id, text("large"), slot="size")
    with pytest.raises(InputRejected, match=r"waits for no message now|'size'"):
        await engine.send(task_id, text("small"), slot="size")
    await asks(engine, task_id, "color")
    await engine.send(task_id, text("green"), slot="color")
    done = await ended(engine, task_id)

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "large green")
    assert await questions(engine, task_id) == ["size", "color"]
    assert await questions(engine, f"{task_id}/1.1") == ["size", "color"]


async def test_an_answer_that_a_part_refuses_is_asked_for_again(engine: TemporalEngine) -> None:
    """
    The part was sent what a worker that does not know its type would pass on; the whole is told, and takes another one.
    """
    task_id = (await engine.start("counts_top", text("tea"))).task_id
    gate = (await asks(engine, task_id, "number")).waiting_for[0].gate
    unfit = UserMessage(content=text("many"), gate=gate, delivery_id=gate).model_dump(mode="json", exclude={"kind"})
    await engine.client.get_workflow_handle(f"{task_id}/1.1").signal("message", unfit)
    async with aclosing(engine.watch(task_id, follow=True)) as news:
        async for one in news:
            if isinstance(one, Entry) and isinstance(one.event, ChildAsked) and gate in one.event.refused:
                break
    await engine.send(task_id, text("3"))
    done = await ended(engine, task_id)

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "3")


async def test_a_recovered_task_asks_what_is_not_answered_yet(engine: TemporalEngine) -> None:
    """
    The part of its part goes on where it failed: the first answer stays, the second question arrives once.
    """
    order = f"tea-{uuid4().hex[:6]}"
    part_skills.BROKEN.add(order)
    view = await engine.start("top", text(order))
    await asks(engine, view.task_id, "size")
    await engine.send(view.task_id, text("large"))
    failed = await ended(engine, view.task_id)
    part_skills.BROKEN.clear()

    again = await engine.recover(view.task_id)
    await asks(engine, again.task_id, "color")
    await engine.send(again.task_id, text("green"))
    done = await ended(engine, again.task_id)

    assert failed.status is Status.FAILED
    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "large green")
    assert await questions(engine, again.task_id) == ["color"]


async def test_a_part_that_never_began_begins_in_the_recovery(engine: TemporalEngine) -> None:
    """
    It refused its input, and so left no journal: the recovery asks it again, and so does the recovery of that one, also
    when the task before is purged.
    """
    failed = await ended(engine, (await engine.start("misfits", text("tea"))).task_id)
    for _ in range(2):
        again = await ended(engine, (await engine.recover(failed.task_id)).task_id)
        assert (again.status, again.reason) == (Status.FAILED, failed.reason)
        await collected(engine.purge().run([failed.task_id], dry=False))
        failed = again

    assert "timeout_s" in failed.reason


@pytest.mark.parametrize("meanwhile", ["recovered by itself", "left no journal"])
async def test_a_part_that_its_task_did_without_does_not_matter(engine: TemporalEngine, meanwhile: str) -> None:
    """
    Its failure was handled, so recovery does not send it again, whatever became of it.
    """
    view = await engine.start("does_without", text("tea"))
    await asks(engine, view.task_id, "size")
    part = f"{view.task_id}/1.1"
    if meanwhile == "recovered by itself":
        await engine.cancel(part)
        await asks(engine, (await engine.recover(part)).task_id, "size")
    else:
        await engine.client.get_workflow_handle(part).terminate()
    await asks(engine, view.task_id, "next")
    await engine.cancel(view.task_id)

    again = await engine.recover(view.task_id)

    assert [wait.slot for wait in (await asks(engine, again.task_id, "next")).waiting_for] == ["next"]


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param({"queue": "nobody-serves-this", "timeout_s": 1.0}, id="a-queue-nobody-serves"),
        pytest.param({"timeout_s": 1.0}, id="a-person-who-does-not-answer"),
    ],
)
async def test_a_part_has_a_timeout(engine: TemporalEngine, limits: dict[str, Any]) -> None:
    """
    Then it is canceled, with what it asked, and the step goes on with a failure.
    """
    view = await engine.start("limited", Content.from_data(limits))
    done = await ended(engine, view.task_id)

    assert (done.status, done.waiting_for) == (Status.COMPLETED, ())
    assert done.messages[-1].text == "timeout: it took longer than its timeout allows"


async def test_a_canceled_part_says_which_task_does_not_need_it(engine: TemporalEngine) -> None:
    """
    And says nothing of runs and requests, in whose words the server tells it.
    """
    view = await engine.start("does_without", text("tea"))
    await asks(engine, view.task_id, "size")
    await engine.cancel(view.task_id)

    part = await ended(engine, f"{view.task_id}/1.1")

    assert (part.status, part.reason) == (Status.CANCELED, f"task {view.task_id!r} does not need it any more")


async def test_a_part_in_time_is_not_disturbed(engine: TemporalEngine) -> None:
    """
    On a queue of its own; the timeout does nothing.
    """
    view = await engine.start("limited", Content.from_data({"queue": QUEUE, "timeout_s": 60.0}))
    for slot, said in (("size", "large"), ("color", "green")):
        await asks(engine, view.task_id, slot)
        await engine.send(view.task_id, text(said), slot=slot)
    done = await ended(engine, view.task_id)

    assert done.messages[-1].text == "large green"


async def test_an_agents_part_that_takes_too_long(engine: TemporalEngine) -> None:
    """
    The model reads it as the call's result.
    """
    view = await engine.start("boss", text("Go."))
    done = await settled(engine, view.task_id)
    said = (await engine.at(view.task_id, done.seq)).threads["main"].said

    assert done.status is Status.COMPLETED
    assert [(one.value, one.failed) for one in said if isinstance(one, ToolReturn)] == [
        ("it took longer than its timeout allows", True)
    ]


async def test_a_part_keeps_the_budget_that_it_is_called_with(engine: TemporalEngine) -> None:
    """
    It fails at its second model call, and the model that called it reads why; both are replayed.
    """
    view = await engine.start("payer", text("Go."))
    done = await settled(engine, view.task_id)
    said = (await engine.at(view.task_id, done.seq)).threads["main"].said
    (read,) = [one for one in said if isinstance(one, ToolReturn)]

    assert (done.status, read.failed) == (Status.COMPLETED, True)
    assert "the budget of 1 model_calls, with which the task was called, is used up" in str(read.value)


async def test_a_decision_at_a_part_is_over_for_the_task_that_was_named(engine: TemporalEngine) -> None:
    """
    The part takes it, and tells its parent some moments later: whoever decided, and waits from then on, waits until the
    task stands still again, and not at the gate that was decided.
    """
    view = await engine.start("lets_part_decide", text("tea"))
    for slot in ("first", "second"):
        await asks(engine, view.task_id, slot)
        view = await engine.decide(view.task_id, approved=True, approver="ada")
        assert slot not in [wait.slot for wait in view.waiting_for]
        view = await settled(engine, view.task_id)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, "approved, approved")


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf"), "soon"])
async def test_a_timeout_that_is_none(engine: TemporalEngine, timeout_s: Any) -> None:
    """
    Refused where it is given.
    """
    with pytest.raises((InputRejected, ValueError, TypeError)):
        skill_tool(part_skills.Low, timeout_s=timeout_s)
