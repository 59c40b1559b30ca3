"""Finding tasks on the server: in order and by page where it sorts nothing, and by filters that hold any text."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from uuid import uuid4

import pytest
from temporalio import workflow
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.workflow.v1 import WorkflowExecutionInfo
from temporalio.client import Client, WorkflowExecution
from temporalio.converter import encode_search_attributes
from temporalio.worker import Worker

from refold import InputRejected, Status
from refold.core.content import as_content
from refold.core.lifecycle import TaskState
from refold.engine import EngineError, Listed, RunGone, TaskFilter
from refold.temporal import TemporalEngine
from refold.temporal.client.index import search
from refold.temporal.data.payloads import data_converter
from refold.temporal.data.storage import Folder, Off
from tests.temporal.test_task import settled
from tests.waiting import a_moment

SPANS_S = (1, 3600, 86_400, 86_400 * 400)


@pytest.mark.parametrize("name", ["RefoldState", "RefoldStatus"])
def test_a_task_in_a_state_of_a_newer_release_hides_no_other(name: str) -> None:
    """
    It counts as working; what its worker answers says more.
    """
    attributes = {"RefoldState": ["running"], "RefoldStatus": ["working"], "BuildIds": ["1"], name: ["newer"]}
    info = WorkflowExecutionInfo(status=WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING)
    encode_search_attributes(attributes, info.search_attributes)
    for key, type in {**dict.fromkeys(attributes, "Keyword"), "BuildIds": "KeywordList"}.items():
        info.search_attributes.indexed_fields[key].metadata["type"] = type.encode()

    listed = search.as_listed(WorkflowExecution._from_raw_info(info, "default", data_converter(Off())))

    assert (listed.lifecycle, listed.status) == (TaskState.RUNNING, Status.WORKING)


async def until_found(engine: TemporalEngine, wanted: TaskFilter, number: int) -> None:
    while await engine.count(wanted) != number:  # visibility lags a little
        await a_moment()


async def turned(engine: TemporalEngine, wanted: TaskFilter, limit: int) -> list[Listed]:
    """All pages."""
    found: list[Listed] = []
    while True:
        page = await engine.find(wanted, after=found[-1].place if found else None, limit=limit)
        found += page
        if len(page) < limit:
            return found


@pytest.fixture(scope="module")
async def spread(client: Client) -> dict[str, datetime]:
    """Tasks that nobody works at, by the time of their status: over years, some at the same moment, some ended."""
    rng = random.Random(7)
    now = datetime.now(UTC)
    times = [now - timedelta(seconds=rng.choice(SPANS_S) * rng.random()) for _ in range(190)]
    times += [times[0]] * 30 + [times[1] + timedelta(microseconds=n) for n in range(20)]
    at = {f"spread-{n:03d}": time for n, time in enumerate(times)}

    async def start(id: str) -> None:
        shown = search.at_start("spread", at[id], task_id=id, owner="ada", context=None)
        await client.start_workflow("spread", id=id, task_queue="nobody", search_attributes=shown)

    for first in range(0, len(at), 40):
        await asyncio.gather(*map(start, list(at)[first : first + 40]))
    await asyncio.gather(*(client.get_workflow_handle(id).terminate() for id in list(at)[:5]))
    engine = TemporalEngine(client)
    await until_found(engine, TaskFilter(skill="spread", status=Status.CANCELED), 5)
    await until_found(engine, TaskFilter(skill="spread"), len(at))
    return at


async def test_the_beginning_of_an_id_is_told_by_upper_case(
    engine: TemporalEngine, spread: dict[str, datetime]
) -> None:
    """
    On the server that `refold dev` starts, too, which takes letters of both cases for the same there.
    """
    found = await turned(engine, TaskFilter(begins="spread-00"), 7)
    assert {one.task_id for one in found} == {id for id in spread if id.startswith("spread-00")}
    assert await engine.find(TaskFilter(begins="Spread-00")) == []


@pytest.mark.parametrize("limit", [3, 50, 100])
async def test_pages_walk_back_in_time(client: Client, spread: dict[str, datetime], limit: int) -> None:
    """
    Each task once, the latest change of status first, then by id; what was ended from outside counts from then.
    """
    wanted = TaskFilter(skill="spread", owner="ada", since=None if limit > 3 else sorted(spread.values())[-60])
    found = await turned(TemporalEngine(client), wanted, limit)
    ended = set(list(spread)[:5])
    expected = {id for id, at in spread.items() if wanted.since is None or at >= wanted.since} | ended

    assert sorted(one.task_id for one in found) == sorted(expected)
    order = [(-one.status_at.timestamp(), one.task_id) for one in found]
    assert order == sorted(order)
    assert {one.task_id for one in found[:5]} == ended
    assert all(one.status_at == spread[one.task_id] for one in found[5:])


async def test_a_second_look_searches_for_no_window(
    client: Client, spread: dict[str, datetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The newest tasks are found where they were found before, without counting; so is one that has come since.
    """
    engine, wanted = TemporalEngine(client), TaskFilter(skill="spread")
    first = await engine.find(wanted, limit=5)
    with monkeypatch.context() as uncounted:
        uncounted.delattr(Client, "count_workflows")
        assert await engine.find(wanted, limit=5) == first

    at = datetime.now(UTC)
    shown = search.at_start("spread", at, task_id="spread-new", owner="eve", context=None)
    handle = await client.start_workflow("spread", id="spread-new", task_queue="nobody", search_attributes=shown)
    await until_found(engine, TaskFilter(skill="spread", owner="eve"), 1)
    assert "spread-new" in [one.task_id for one in await engine.find(wanted, limit=6)]
    await handle.terminate()  # and belongs to nobody whom another test looks for


@pytest.mark.parametrize(
    ("begins", "number"), [("spread-00", 10), ("read-00", 0), ("spread_00", 0), ("spread%", 0), ("s'\\ OR 1", 0)]
)
async def test_tasks_are_found_by_how_their_ids_begin(
    client: Client, spread: dict[str, datetime], begins: str, number: int
) -> None:
    """
    Counted as they are found; what stands for other letters in other languages stands for itself.
    """
    engine, wanted = TemporalEngine(client), TaskFilter(skill="spread", owner="ada", begins=begins)

    assert {one.task_id for one in await engine.find(wanted)} == {id for id in spread if id.startswith(begins)}
    assert await engine.count(wanted) == number


async def test_a_run_that_a_reset_left_behind_is_no_task_of_its_own(client: Client) -> None:
    """
    The task is where it goes on, and is found there alone.
    """
    shown = search.at_start("left", datetime.now(UTC), task_id="left", owner=None, context=None)
    for _ in range(2):
        handle = await client.start_workflow("left", id="left", task_queue="nobody", search_attributes=shown)
        await handle.terminate()
    engine = TemporalEngine(client)
    await until_found(engine, TaskFilter(skill="left", status=Status.CANCELED), 2)

    assert [one.task_id for one in await engine.find(TaskFilter(skill="left"))] == ["left"]
    assert [view.task_id async for view in engine.list(skill="left")] == ["left"]


async def test_what_has_moved_since_then(client: Client) -> None:
    """
    Tasks that began, changed or ended at a time or later are found by it, wherever they stand in the order; one whose
    workflow has closed is over.
    """
    long_ago = datetime.now(UTC) - timedelta(days=9)
    for id in ("stays", "ends"):
        shown = search.at_start("moves", long_ago, task_id=id, owner=None, context=None)
        await client.start_workflow("moves", id=id, task_queue="nobody", search_attributes=shown)
    engine = TemporalEngine(client)
    await until_found(engine, TaskFilter(skill="moves"), 2)
    began = {one.task_id: one.moved_at for one in await engine.find(TaskFilter(skill="moves", moved_since=long_ago))}
    await client.get_workflow_handle("ends").terminate()
    await until_found(engine, TaskFilter(skill="moves", status=Status.CANCELED), 1)
    since = max(began.values()) + timedelta(milliseconds=2)
    moved = await engine.find(TaskFilter(skill="moves", moved_since=since))

    assert set(began) == {"stays", "ends"}
    assert min(began.values()) > long_ago
    assert [(one.task_id, one.over) for one in moved] == [("ends", True)]
    assert [one.over for one in await engine.find(TaskFilter(skill="moves")) if one.task_id == "stays"] == [False]


@workflow.defn(name="not-ours", sandboxed=False)
class NotOurs:
    """A workflow of another program; it returns what its task queue is named after."""

    @workflow.run
    async def run(self, *given: Any) -> Any:
        returned = {"bytes": b"\x00\xff", "text": "done", "object": {"task": None}, "nothing": None}
        return returned[workflow.info().task_queue.rpartition("-")[2]]


async def test_a_lifecycle_that_is_none_is_refused(client: Client) -> None:
    """
    With what it may be, as whatever else does not fit.
    """
    with pytest.raises(InputRejected, match="lifecycle: Input should be 'planned', 'running'"):
        [view async for view in TemporalEngine(client, "tests").list(lifecycle=cast(TaskState, "nope"))]


@pytest.mark.parametrize("returned", ["bytes", "text", "object", "nothing"])
async def test_a_workflow_that_is_no_skills_is_shown_for_what_it_is(client: Client, returned: str) -> None:
    """
    Somebody started it by its name as if it were a skill. What it returned is no task's end, and hides no other task.
    """
    engine = TemporalEngine(client, f"not-ours-{returned}")
    async with Worker(client, task_queue=engine.connection.task_queue, workflows=[NotOurs]):
        id = (await engine.start("not-ours", as_content("Ada"))).task_id
        await client.get_workflow_handle(id).result()

    view = await engine.look(id)
    assert (view.skill, view.status) == ("not-ours", Status.COMPLETED)
    assert "is the result of no skill" in view.note
    await until_found(engine, TaskFilter(skill="not-ours", moved_since=view.updated_at), 1)
    assert view in [listed async for listed in engine.list(skill="not-ours")]
    assert (await engine.record(id)).status is Status.COMPLETED


async def test_a_task_that_a_client_cannot_read_hides_no_other(
    engine: TemporalEngine, client: Client, folder: Folder
) -> None:
    """
    A client with another storage than the workers shows both tasks, and says which value it lacks of the large one.
    """
    owner = f"lister-{uuid4().hex[:8]}"
    ids = [(await engine.start("talk", as_content(said), owner=owner)).task_id for said in ("small", "x" * 40_000)]
    for id in ids:
        await settled(engine, id)
        await engine.cancel(id)
    await until_found(engine, TaskFilter(owner=owner, status=Status.CANCELED), 2)
    config: dict[str, Any] = {**client.config(), "data_converter": data_converter(folder)}

    shown = {view.task_id: view async for view in TemporalEngine(Client(**config), "tests").list(owner=owner)}

    assert [shown[id].status for id in ids] == [Status.CANCELED] * 2
    assert shown[ids[0]].note == ""
    assert "is not in the folder" in shown[ids[1]].note


@pytest.mark.parametrize("owner", ["ada", None])
async def test_a_task_whose_start_a_client_cannot_read_is_not_nobodys(
    client: Client, folder: Folder, owner: str | None
) -> None:
    """
    No worker is there, and the client lacks the value with the owner's name: it neither gives the task to those who
    have none, nor tells the owner that there is no such task. The index says which task is nobody's.
    """
    task_id = f"large-{uuid4().hex[:8]}"
    nobody = TemporalEngine(client, "nobody-reads", patience=timedelta(seconds=1))
    await nobody.start("talk", as_content("x" * 40_000), task_id=task_id, owner=owner)
    config: dict[str, Any] = {**client.config(), "data_converter": data_converter(folder)}
    lacking = TemporalEngine(Client(**config), "nobody-reads", patience=timedelta(seconds=1))

    assert (await nobody.record(task_id)).owner == owner
    if owner is None:
        assert (await lacking.record(task_id)).owner is None
    else:
        with pytest.raises(EngineError, match=f"what task {task_id!r} began with cannot be read, nor whose it is"):
            await lacking.record(task_id)


@pytest.mark.parametrize("lacking", [True, False], ids=["lacking", "away"])
async def test_entries_that_the_storage_lacks_are_gone(
    engine: TemporalEngine, client: Client, folder: Folder, lacking: bool
) -> None:
    """
    Where there is no storage, nobody knows whether they are, and a reader asks again later.
    """
    owner = f"loser-{uuid4().hex[:8]}"
    id = (await engine.start("talk", as_content("small"), owner=owner)).task_id
    await settled(engine, id)
    await engine.cancel(id)
    await until_found(engine, TaskFilter(owner=owner, status=Status.CANCELED), 1)
    config: dict[str, Any] = {**client.config(), "data_converter": data_converter(folder if lacking else Off())}

    with pytest.raises(EngineError, match=f"entries up to .* of task {id!r} cannot be read: the value") as caught:
        _ = [entry async for entry in TemporalEngine(Client(**config), "tests").journal(id)]

    assert isinstance(caught.value, RunGone) == lacking
