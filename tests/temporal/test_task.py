"""A task on a real Temporal server, from start to end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TypeVar
from uuid import uuid4

import pytest

from refold import Content, InputRejected, Status, TaskState
from refold.core.events import CancelRequested
from refold.core.fold.journal import Entry
from refold.engine import TaskExists, TaskNotFound, TaskView, Tokens, UnknownSkill
from refold.temporal import TemporalEngine
from tests.waiting import a_moment

T = TypeVar("T")
RESEARCH_LOOPS = ["research_loop", "research_loop_steps", "research_loop_table"]


def text(said: str) -> Content:
    return Content.from_text(said)


async def collected(items: AsyncIterator[T]) -> list[T]:
    return [item async for item in items]


async def settled(engine: TemporalEngine, task_id: str) -> TaskView:
    """The task, once it waits or has ended."""
    await collected(engine.watch(task_id))
    return await engine.look(task_id)


async def begun(engine: TemporalEngine, part: str) -> None:
    """Comes back once a part is there, which its parent starts some moments after its own step."""
    while True:
        try:
            await engine.look(part)
        except TaskNotFound:
            await a_moment()
        else:
            return


async def part_of(engine: TemporalEngine, task_id: str) -> str:
    """The first part of a task, once it waits and the task knows."""
    part = f"{task_id}/1.1"
    await begun(engine, part)
    await collected(engine.watch(part))
    await collected(engine.watch(task_id))
    return part


async def asked(engine: TemporalEngine, task_id: str, slot: str) -> None:
    """Comes back once the task asks this."""
    async for _ in engine.watch(task_id, follow=True):
        if [wait.slot for wait in (await engine.look(task_id)).waiting_for] == [slot]:
            return


async def run(engine: TemporalEngine, skill: str, said: str = "go", *answers: str) -> TaskView:
    """The task, after its answers were given."""
    view = await engine.start(skill, text(said))
    view = await settled(engine, view.task_id)
    for answer in answers:
        await engine.send(view.task_id, text(answer))
        view = await settled(engine, view.task_id)
    return view


def without_ids(entries: list[Entry], task_id: str) -> list[object]:
    """What a journal says, whoever says it and whenever."""
    told = [entry.model_dump(mode="json", exclude={"at"}) for entry in entries]
    return [json.loads(json.dumps(entry).replace(task_id, "TASK")) for entry in told]


# --- the main job


@pytest.mark.parametrize("skill", RESEARCH_LOOPS)
async def test_research_goes_to_the_pause_and_past_it(engine: TemporalEngine, skill: str) -> None:
    """
    A research loop drafts, revises, asks a person, and ends with its artifact after three calls of each kind.
    """
    view = await engine.start(skill, text("Tides"))
    paused = await settled(engine, view.task_id)

    assert (paused.status, paused.lifecycle) == (Status.INPUT_REQUIRED, TaskState.PAUSED)
    assert [wait.slot for wait in paused.waiting_for] == ["guidance"]

    await engine.send(view.task_id, text("For sailors"))
    done = await settled(engine, view.task_id)

    assert (done.status, done.lifecycle) == (Status.COMPLETED, TaskState.DONE)
    assert [artifact.name for artifact in done.artifacts] == ["final.txt"]
    assert "For sailors" in str(done.artifacts[0].text)
    journal = await collected(engine.journal(view.task_id))
    assert [command.command.id for entry in journal for command in entry.commands].count("research") == 3
    assert [command.command.id for entry in journal for command in entry.commands].count("critique") == 3


async def test_the_three_styles_give_one_journal(engine: TemporalEngine) -> None:
    """
    Whoever reads the journal cannot tell in which style the skill was written.
    """
    journals = []
    for skill in RESEARCH_LOOPS:
        view = await run(engine, skill, "Tides", "For sailors")
        journals.append(without_ids(await collected(engine.journal(view.task_id)), view.task_id))

    assert journals[0] == journals[1] == journals[2]


async def test_a_task_writes_no_event_that_its_effects_do_not_need(engine: TemporalEngine) -> None:
    """
    A start, three events a workflow task, three an activity, two an answer by update, an upsert each way at the pause.
    """
    view = await run(engine, "research_loop", "Tides", "For sailors")

    history = await engine.client.get_workflow_handle(view.task_id).fetch_history()
    counts: dict[str, int] = {}
    for event in history.events:
        name = event.WhichOneof("attributes") or ""
        counts[name] = counts.get(name, 0) + 1

    assert counts == {
        "workflow_execution_started_event_attributes": 1,
        "workflow_task_scheduled_event_attributes": 8,
        "workflow_task_started_event_attributes": 8,
        "workflow_task_completed_event_attributes": 8,
        "activity_task_scheduled_event_attributes": 6,
        "activity_task_started_event_attributes": 6,
        "activity_task_completed_event_attributes": 6,
        "upsert_workflow_search_attributes_event_attributes": 2,
        "workflow_execution_update_accepted_event_attributes": 1,
        "workflow_execution_update_completed_event_attributes": 1,
        "workflow_execution_completed_event_attributes": 1,
    }


# --- effects


@pytest.mark.parametrize(
    ("skill", "said", "last"),
    [
        pytest.param("adder", "go", "sums: (0, 2, 4, 6, 8)", id="several-tools-at-once"),
        pytest.param("caught", "go", "it is well: the account is closed", id="a-failure-that-is-caught"),
        pytest.param("hello", "Ada", "Hello, Ada!", id="a-model-call"),
        pytest.param("hoarder", "go", "3000000", id="a-large-result"),
    ],
)
async def test_what_a_skill_asks_for_is_done(engine: TemporalEngine, skill: str, said: str, last: str) -> None:
    """
    Each kind of command comes back to the skill that asked.
    """
    view = await run(engine, skill, said)

    assert (view.status, view.messages[-1].text) == (Status.COMPLETED, last)


async def test_a_task_has_parts_of_every_kind(engine: TemporalEngine) -> None:
    """
    Another skill, an existing activity and an existing workflow run at once; the part's questions are the whole's.
    """
    view = await run(engine, "parent")

    assert (view.status, view.lifecycle) == (Status.INPUT_REQUIRED, TaskState.RUNNING)
    assert [wait.slot for wait in view.waiting_for] == ["name"]
    with pytest.raises(InputRejected, match="nothing waits for an answer to 'age'"):
        await engine.send(view.task_id, text("36"), slot="age")
    await engine.send(view.task_id, text("Ada"))
    await asked(engine, view.task_id, "age")
    with pytest.raises(InputRejected, match="must fit Age"):
        await engine.send(view.task_id, text("old"))
    await engine.send(view.task_id, Content.from_data({"years": 36}))
    async for _ in engine.watch(view.task_id, follow=True):
        pass
    view = await engine.look(view.task_id)

    assert view.messages[-1].text == "Ada is 36; 42; Dear Ada"
    assert view.artifacts[0].data == {"years": 36}


async def test_try_later_is_tried_later(engine: TemporalEngine) -> None:
    """
    "Try later" is the lifecycle's affair: two retries are two moves each, and the effect keeps its id.
    """
    key = uuid4().hex
    view = await engine.start("stubborn", Content.from_data({"key": key, "failures": 1}))
    view = await settled(engine, view.task_id)

    moves = [move.event.value for entry in await collected(engine.journal(view.task_id)) for move in entry.moves]
    assert view.reason == ""
    assert view.messages[-1].text == "call 2"
    assert moves == ["start", "transient_error", "retry", "complete"]


# --- mistakes of authors: one task fails, with a reason, and still answers


@pytest.mark.parametrize(
    ("skill", "answers", "reason"),
    [
        pytest.param("uncaught", [], "the account is closed", id="failure-not-caught"),
        pytest.param("raises", ["0"], "bug: ZeroDivisionError", id="raises"),
        pytest.param(
            "watches_clock",
            [],
            "a skill may not use datetime.datetime.now; `refold check` says what to write instead",
            id="reads-the-clock",
        ),
        pytest.param("runs_in_circles", [], "gotos without an await", id="goto-loop"),
        pytest.param("forgets_await", [], "never awaited", id="call-not-awaited"),
        pytest.param("ignores", [], "stalled", id="ignores-its-last-result"),
    ],
)
async def test_a_mistake_fails_one_task(engine: TemporalEngine, skill: str, answers: list[str], reason: str) -> None:
    """
    The reason names the mistake; status, snapshot and journal still answer.
    """
    view = await run(engine, skill, "go", *answers)

    assert view.status is Status.FAILED
    assert reason in view.reason
    assert (await engine.at(view.task_id, view.seq)).reason == view.reason
    assert len(await collected(engine.journal(view.task_id))) == view.seq


# --- bad input: refused, and the task is as it was


async def test_an_unknown_skill_leaves_nothing_behind(engine: TemporalEngine) -> None:
    """
    Starting what nobody serves names what is served, and its id is free at once.
    """
    for _ in range(2):
        with pytest.raises(UnknownSkill, match=r"nobody_serves_this.*research_loop"):
            await engine.start("nobody_serves_this", text("hi"), task_id="unserved")


async def test_a_start_that_does_not_fit_leaves_nothing_behind(engine: TemporalEngine) -> None:
    """
    A payload that breaks the skill's schema is refused, and says where; its id is free at once.
    """
    for _ in range(2):
        with pytest.raises(InputRejected, match="failures"):
            await engine.start("stubborn", Content.from_data({"key": "k"}), task_id="misfit")


async def test_an_id_is_used_once(engine: TemporalEngine) -> None:
    """
    A second start with the same id is refused, while the first runs and after.
    """
    view = await run(engine, "adder")

    with pytest.raises(TaskExists, match=view.task_id):
        await engine.start("adder", text("go"), task_id=view.task_id)


async def test_answers_go_to_who_waits_for_them(engine: TemporalEngine) -> None:
    """
    A reply that breaks the slot's schema, a wrong slot, an ended and an unknown task are refused, in words.
    """
    view = await run(engine, "talk", "go", "Ada")

    with pytest.raises(InputRejected, match=r"'age' must fit Age.*years"):
        await engine.send(view.task_id, Content.from_data({"months": 400}))
    with pytest.raises(InputRejected, match=r"'name'.*open: 'age'"):
        await engine.send(view.task_id, text("Ada"), slot="name")
    assert await engine.look(view.task_id) == view
    await engine.send(view.task_id, Content.from_data({"years": 36}), slot="age")
    with pytest.raises(InputRejected, match="has ended"):
        await engine.send(view.task_id, text("late"))
    with pytest.raises(TaskNotFound, match="no task 'nobody'"):
        await engine.send("nobody", text("hello?"))


async def test_a_signal_that_does_not_fit_is_counted_and_journaled(engine: TemporalEngine) -> None:
    """
    The sender of a signal hears nothing, so the journal does; the task still waits.
    """
    view = await run(engine, "talk", "go", "Ada")
    handle = engine.client.get_workflow_handle(view.task_id)

    await handle.signal("message", {"text": "old", "slot": "age"})
    await handle.signal("message", "nonsense")
    after = await settled(engine, view.task_id)

    assert (after.refused, after.lifecycle) == (2, TaskState.PAUSED)
    refused = [entry.refused for entry in await collected(engine.journal(view.task_id)) if entry.refused]
    assert all("must fit Age" in reason for reason in refused)


async def test_a_delivery_is_taken_once(engine: TemporalEngine) -> None:
    """
    A message that is sent again with its delivery id answers once.
    """
    view = await engine.start("counts", text("go"))

    first = await engine.send(view.task_id, text("one"), delivery_id="d1")
    again = await engine.send(view.task_id, text("one"), delivery_id="d1")

    assert first.seq == again.seq == 2


# --- started and named otherwise


async def test_a_task_is_driven_with_temporal_alone(engine: TemporalEngine) -> None:
    """
    Start and answer are plain values that Temporal's own command line can send; the task is found like any other.
    """
    task_id = f"by-hand-{uuid4().hex[:8]}"
    handle = await engine.client.start_workflow("talk", "hello", id=task_id, task_queue="tests")
    await handle.signal("message", "Ada")
    await asked(engine, task_id, "age")
    await handle.signal("message", {"data": {"years": 36}})
    view = await settled(engine, task_id)

    assert view.messages[-1].text == "Ada is 36"
    listed: list[str] = []
    while task_id not in listed:  # visibility lags a little; the workers of older ones may be gone, and are waited for
        listed = [one.task_id async for one in engine.list(skill="talk", limit=1)]


async def test_a_renamed_skill_keeps_its_tasks(engine: TemporalEngine) -> None:
    """
    A task that was started under a former id goes on with the skill's code.
    """
    view = await run(engine, "used_to_count", "go", "stop")

    assert (view.skill, view.status) == ("counts", Status.COMPLETED)


# --- cancel


async def test_cancel_reaches_what_runs(engine: TemporalEngine) -> None:
    """
    A canceled task ends as canceled, in Temporal too; its tool hears of it; its journal is kept.
    """
    key = uuid4().hex
    view = await engine.start("busy", text(key))
    async for entry in engine.watch(view.task_id):
        assert isinstance(entry, Entry)
        break

    view = await engine.cancel(view.task_id, reason="not needed any more", by="ada")

    assert (view.status, view.reason) == (Status.CANCELED, "not needed any more")
    description = await engine.client.get_workflow_handle(view.task_id).describe()
    assert description.status is not None
    assert description.status.name == "CANCELED"
    last = (await collected(engine.journal(view.task_id)))[-1]
    assert last.event == CancelRequested(reason="not needed any more", by="ada")
    with pytest.raises(InputRejected, match="has ended"):
        await engine.cancel(view.task_id)


async def test_cancel_by_signal_ends_as_canceled(engine: TemporalEngine) -> None:
    """
    Who has only Temporal's own command line cancels with a signal and a reason.
    """
    view = await run(engine, "talk")

    await engine.client.get_workflow_handle(view.task_id).signal("cancel", "enough")
    await collected(engine.watch(view.task_id, follow=True))

    view = await engine.look(view.task_id)
    assert (view.status, view.reason) == (Status.CANCELED, "enough")


async def test_a_part_ends_with_the_whole(engine: TemporalEngine) -> None:
    """
    Canceling a task cancels the tasks it is made of.
    """
    view = await engine.start("parent", text("go"))
    child = await part_of(engine, view.task_id)

    await engine.cancel(view.task_id)
    await collected(engine.watch(child, follow=True))

    assert (await engine.look(child)).status is Status.CANCELED


async def test_a_terminated_workflow_is_a_canceled_task(engine: TemporalEngine) -> None:
    """
    Termination gives the task no last word; the status says what happened, and why parts are missing.
    """
    view = await run(engine, "talk")
    await engine.client.get_workflow_handle(view.task_id).terminate("ops")

    view = await engine.look(view.task_id)

    assert view.status is Status.CANCELED
    assert "from outside" in view.note


# --- lists and streams


async def test_tasks_are_listed_newest_first(engine: TemporalEngine) -> None:
    """
    Filters by skill and lifecycle hold; names that look like queries find nothing.
    """
    first = await run(engine, "caught")
    second = await run(engine, "caught")
    newest = [second.task_id, first.task_id]
    while not {view.task_id async for view in engine.list(skill="caught", lifecycle=TaskState.DONE)} >= {*newest}:
        pass  # visibility lags a little

    listed = [view.task_id async for view in engine.list(skill="caught", lifecycle=TaskState.DONE, limit=2)]
    assert listed == newest
    assert await collected(engine.list(skill="x' OR RefoldSkill != 'zz")) == []


async def test_model_text_is_seen_as_it_comes(engine: TemporalEngine) -> None:
    """
    Who watches a task that streams reads the model's words before the journal has them.
    """
    view = await engine.start("hello", text("Ada"), stream=True)

    seen = await collected(engine.watch(view.task_id))

    said = "".join(item.text for item in seen if isinstance(item, Tokens))
    assert "Hello, Ada!".startswith(said)
    assert [item.seq for item in seen if isinstance(item, Entry)] == [1, 2]
