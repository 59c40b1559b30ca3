"""Listing a caller's tasks over an engine in memory: order, pages, filters, and nobody else's tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from a2a.types import ListTasksRequest, ListTasksResponse, TaskState
from a2a.utils.errors import InvalidParamsError
from hypothesis import given
from hypothesis import strategies as st

from refold import Content
from refold.a2a.tasks.listing import Listing
from refold.record import TaskRecord
from refold.testing import FakeEngine
from tests.a2a import skills
from tests.a2a.conftest import Calls

NAMES = [None, "ada", "x' OR RefoldOwner != 'zz", 'a"b\\', "grâce 🙂\u202e", "o" * 4096, "ada ", "Ada"]
TEXTS = {"ask": "hi", "echo": "hi", "picky": "rude"}


async def engine_with(tasks: Sequence[tuple[str, str | None, int]]) -> FakeEngine:
    """Tasks of skills, of owners, each started some seconds after the one before."""
    engine = FakeEngine(skills.ALL)
    for skill, owner, seconds in tasks:
        engine.clock.advance(seconds)
        await engine.start(skill, Content.from_text(TEXTS[skill]), owner=owner, context=f"c-{owner}")
    return engine


async def pages(engine: FakeEngine, caller: str | None, **asked: Any) -> list[ListTasksResponse]:
    """All pages, to the last one."""
    listing, found = Listing(engine), list[ListTasksResponse]()
    token = ""
    while not found or token:
        found.append(await listing.page(ListTasksRequest(page_token=token, **asked), caller))
        token = found[-1].next_page_token
    return found


class Reads(FakeEngine):
    """Notes which tasks are read."""

    read: list[str]

    async def record(self, task_id: str) -> TaskRecord:
        """See `Engine.record`."""
        self.read.append(task_id)
        return await super().record(task_id)


async def test_tasks_that_no_page_has_room_for_are_not_read() -> None:
    """
    Of large tasks a page shows two or three: not all that it might hold are read for each page.
    """
    engine, count = Reads(skills.ALL), 30
    for _ in range(count):
        await engine.start("ask", Content.from_text("x" * 1_200_000), owner="ada")
    engine.read = []
    found = await pages(engine, "ada", history_length=5)

    assert (len(set(ids(found))), len(ids(found))) == (count, count)
    assert len(engine.read) <= 10 * len(found)


def ids(found: Sequence[ListTasksResponse]) -> list[str]:
    return [task.id for page in found for task in page.tasks]


started = st.lists(
    st.tuples(st.sampled_from(sorted(TEXTS)), st.sampled_from(NAMES), st.integers(0, 2)), min_size=1, max_size=12
)


@given(started, st.sampled_from(NAMES), st.integers(1, 5))
async def test_pages_give_each_task_of_the_caller_once_in_order(
    tasks: list[tuple[str, str | None, int]], caller: str | None, size: int
) -> None:
    """
    The latest change of status first, then by id; whatever the owners are called.
    """
    engine = await engine_with(tasks)
    found = await pages(engine, caller, page_size=size)
    listed = [task for page in found for task in page.tasks]
    own = {view.task_id async for view in engine.list(owner=caller or "")}

    assert sorted(ids(found)) == sorted(own)
    assert len(own) == sum(owner == caller for _, owner, _ in tasks)
    order = [(-task.status.timestamp.ToMicroseconds(), task.id) for task in listed]
    assert order == sorted(order)
    assert all(len(page.tasks) == size for page in found[:-1])
    assert {(page.total_size, page.page_size) for page in found} == {(len(own), size)}


@given(started, st.sampled_from([*TaskState.values()]), st.integers(0, 30))
async def test_filters_keep_what_they_say(tasks: list[tuple[str, str | None, int]], status: Any, after_s: int) -> None:
    """
    By status, by the time since when it is so, and by conversation; all together.
    """
    engine = await engine_with([(skill, "ada", seconds) for skill, _, seconds in tasks])
    everything = (await Listing(engine).page(ListTasksRequest(), "ada")).tasks
    since = min(task.status.timestamp.ToSeconds() for task in everything) + after_s
    request = ListTasksRequest(status=status, context_id="c-ada", status_timestamp_after={"seconds": since})

    found = await Listing(engine).page(request, "ada")

    assert [task.id for task in found.tasks] == [
        task.id
        for task in everything
        if status in (TaskState.TASK_STATE_UNSPECIFIED, task.status.state)
        and task.status.timestamp.ToSeconds() >= since
    ]
    assert found.total_size == len(found.tasks)


async def test_a_page_token_stays_good_while_tasks_come_and_go_on() -> None:
    """
    What is new is in front of the pages that were turned; what was behind stays there.
    """
    engine = await engine_with([("ask", "ada", 1)] * 5)
    listing = Listing(engine)
    first = await listing.page(ListTasksRequest(page_size=2), "ada")
    engine.clock.advance(1)
    await engine.start("ask", Content.from_text("later"), owner="ada")
    await engine.send(first.tasks[0].id, Content.from_text("Ada"))
    rest = await listing.page(ListTasksRequest(page_size=10, page_token=first.next_page_token), "ada")

    assert [task.id for task in first.tasks] == ["ask-5", "ask-4"]
    assert [task.id for task in rest.tasks] == ["ask-3", "ask-2", "ask-1"]


@pytest.mark.parametrize("name", NAMES[1:])
async def test_owners_and_conversations_see_only_themselves(name: str) -> None:
    """
    Whatever a name holds, it is one name: no part of a filter, no pattern, and equal to itself alone.
    """
    engine = FakeEngine(skills.ALL)
    for other in NAMES:
        await engine.start("ask", Content.from_text("hi"), owner=other, context=other)
    (own,) = (await Listing(engine).page(ListTasksRequest(), name)).tasks

    assert (await engine.record(own.id)).owner == name
    assert own.context_id == name
    others = [await Listing(engine).page(ListTasksRequest(context_id=other), name) for other in NAMES[1:]]
    assert [[task.id for task in page.tasks] for page in others] == [
        [own.id] if other == name else [] for other in NAMES[1:]
    ]


@pytest.mark.parametrize(
    "params",
    [
        pytest.param({"page_token": "nonsense"}, id="no-token"),
        pytest.param({"page_token": "eyJ0cyI6bnVsbCwiaWQiOiJhIn0"}, id="a-token-without-a-time"),
        pytest.param({"page_token": "eyJ0cyI6OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTk5LCJpZCI6ImEifQ"}, id="a-token-of-no-time"),
        pytest.param({"page_token": "ÿ"}, id="no-ascii"),
    ],
)
async def test_a_token_that_nobody_gave_out_is_refused(params: dict[str, Any]) -> None:
    """
    It says so; nothing is guessed.
    """
    with pytest.raises(InvalidParamsError, match="pageToken"):
        await Listing(FakeEngine()).page(ListTasksRequest(**params), None)


async def test_listing_over_both_bindings(fake: FakeEngine, gateway: Calls) -> None:
    """
    The same page over JSON-RPC and REST; the token and the sizes are always there, artifacts where they are asked for.
    """
    for text in ("one", "two", "three"):
        await fake.start("echo", Content.from_text(text))
        fake.clock.advance(1)

    rpc = await gateway.result("ListTasks", {"pageSize": 2})
    rest = (await gateway.rest("GET", "/tasks?pageSize=2")).json()
    last = await gateway.result("ListTasks", {"pageToken": rpc["nextPageToken"], "includeArtifacts": True})
    short = await gateway.result("ListTasks", {"historyLength": 0, "status": "TASK_STATE_COMPLETED"})

    assert rpc == rest
    assert [task["id"] for task in rpc["tasks"]] == ["echo-3", "echo-2"]
    assert (rpc["pageSize"], rpc["totalSize"]) == (2, 3)
    assert all("artifacts" not in task for task in rpc["tasks"])
    assert [task["artifacts"][0]["parts"][0]["text"] for task in last["tasks"]] == ["one"]
    assert last["nextPageToken"] == ""
    assert [task.get("history", []) for task in short["tasks"]] == [[], [], []]


async def test_the_interface_of_one_skill_lists_its_tasks(fake: FakeEngine, gateway: Calls) -> None:
    """
    Named as the tenant, in the path or in the request.
    """
    for skill in ("echo", "ask"):
        await fake.start(skill, Content.from_text("hi"))

    by_path = (await gateway.rest("GET", "/ask/tasks")).json()
    by_request = await gateway.result("ListTasks", {"tenant": "ask"})

    assert [[task["id"] for task in page["tasks"]] for page in (by_path, by_request)] == [["ask-2"], ["ask-2"]]
    assert (await gateway.result("ListTasks"))["totalSize"] == 2


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999999999Z", "9999-12-31T23:59:59Z"])
async def test_any_time_can_be_asked_for(fake: FakeEngine, gateway: Calls, time: str) -> None:
    """
    Long ago takes all, far ahead takes none.
    """
    await fake.start("echo", Content.from_text("hi"))

    found = await gateway.result("ListTasks", {"statusTimestampAfter": time})
    assert found["totalSize"] == len(found["tasks"]) == (0 if time.startswith("9999") else 1)


@pytest.mark.parametrize("params", [{"pageSize": 0}, {"pageSize": 101}, {"pageSize": -1}, {"historyLength": -1}])
async def test_sizes_have_bounds(gateway: Calls, params: dict[str, Any]) -> None:
    """
    1 to 100 tasks on a page, and no negative history.
    """
    assert (await gateway.error("ListTasks", params))["code"] == -32602


@pytest.mark.parametrize("status", ["TASK_STATE_LOST", "completed", 42])
async def test_an_unknown_status_lists_nothing(fake: FakeEngine, gateway: Calls, status: str | int) -> None:
    """
    It is an error that names those that there are, over both bindings; not a list of everything.
    """
    await fake.start("echo", Content.from_text("hi"))

    rpc = await gateway.error("ListTasks", {"status": status})
    by_rest = await gateway.rest("GET", f"/tasks?status={status}")

    assert rpc["code"] == -32602
    assert str(status) in rpc["message"]
    assert "TASK_STATE_COMPLETED" in rpc["message"]
    assert by_rest.status_code == 400
    assert (await gateway.result("ListTasks", {"status": "TASK_STATE_UNSPECIFIED"}))["totalSize"] == 1


async def test_a_list_has_its_headers_alone(gateway: Calls) -> None:
    """
    HEAD is GET without the body, as the server makes of every address that is read; the status is checked there, too.
    """
    listed = await gateway.rest("HEAD", "/tasks?status=TASK_STATE_WORKING")
    refused = await gateway.rest("HEAD", "/tasks?status=bogus")

    assert (listed.status_code, refused.status_code) == (200, 400)
