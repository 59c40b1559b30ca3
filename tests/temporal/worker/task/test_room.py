"""Many effects at once, on a real server: as many begin as Temporal takes, and the others after them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import JsonValue
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHistory
from temporalio.worker import Replayer

from refold import Content, Status
from refold.core.commands import CallTool
from refold.core.fold.delivery import MOST_OPEN
from refold.core.fold.wanted import Perform
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.payloads import THRESHOLD_BYTES
from refold.temporal.data.storage import Folder
from refold.temporal.worker.task import room
from tests.sweeps import LONG_S
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import settled
from tests.temporal.worker.task import wide_skills

QUEUE = "wide"


@pytest.fixture(scope="module")
def plugin(values: Folder) -> RefoldPlugin:
    """The skill that asks for many effects."""
    return RefoldPlugin([wide_skills], [wide_skills.length], storage=values)


@pytest.fixture(scope="module")
async def engine(client: Client, plugin: RefoldPlugin) -> AsyncIterator[TemporalEngine]:
    """An engine with a worker."""
    async with make_worker(client, plugin, task_queue=QUEUE, activities=[wide_skills.lengths]):
        yield TemporalEngine(client, QUEUE, patience=PATIENT)


async def histories_of(client: Client, task_id: str) -> list[WorkflowHistory]:
    """Of all runs, oldest first: after so many effects a task goes on in a new one."""
    found: list[WorkflowHistory] = []
    run_id = (await client.get_workflow_handle(task_id).describe()).raw_info.first_run_id
    while run_id:
        found.append(await client.get_workflow_handle(task_id, run_id=run_id).fetch_history())
        run_id = found[-1].events[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return found


async def most_at_once(
    engine: TemporalEngine, plugin: RefoldPlugin, many: int, chars: int, letter: str = "x", args: int = 0
) -> tuple[int, int]:
    """The most effects that were open, and that one workflow task began, in a task that completes and replays."""
    crowd: dict[str, JsonValue] = {"many": many, "chars": chars, "letter": letter, "args": args}
    view = await engine.start("wide_errand", Content.from_data(crowd))
    done = await settled(engine, view.task_id)
    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, str(many * chars * (args or 1)))

    open_now = most_open = begun = most_begun = 0
    for history in await histories_of(engine.client, view.task_id):
        await Replayer(workflows=[], plugins=[plugin]).replay_workflow(history)
        for event in history.events:
            match event.event_type:
                case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                    begun = 0
                case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                    open_now, begun = open_now + 1, begun + 1
                case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                    open_now -= 1
                case _:
                    pass
            most_open, most_begun = max(most_open, open_now), max(most_begun, begun)
    return most_open, most_begun


@pytest.mark.parametrize(
    ("many", "chars", "letter", "args"),
    [(150, 30_000, "x", 0), (150, 10_000, "\u4e2d", 0), (80, 30_000, "x", 2)],
    ids=["letters", "Chinese", "two arguments"],
)
async def test_large_effects_begin_in_several_workflow_tasks(
    engine: TemporalEngine, plugin: RefoldPlugin, many: int, chars: int, letter: str, args: int
) -> None:
    """
    Temporal terminates a workflow that sends more than 4 MB at once: 150 arguments of 30 KB each.
    """
    _, begun = await most_at_once(engine, plugin, many, chars, letter, args)

    assert begun * chars * len(letter.encode()) * (args or 1) < room.MOST_BYTES


ALIKE = st.tuples(st.integers(1, 150), st.sampled_from([1, 1_000, 28_000, 40_000]))


@given(batches=st.lists(st.tuples(st.booleans(), st.lists(ALIKE, max_size=3)), max_size=8))
@example(batches=[(False, [(100, 28_000)]), (True, [(100, 28_000)])])
def test_a_workflow_task_sends_no_more_than_it_may(batches: list[tuple[bool, list[tuple[int, int]]]]) -> None:
    """
    In however many batches a worker takes it: the length of the history is known in the last one alone.
    """
    asked = room.Room(lambda: None)
    at = [1]  # the length of the history
    timers: list[Callable[[object], None]] = []
    info = SimpleNamespace(get_current_history_length=lambda: at[0])
    timer = SimpleNamespace(add_done_callback=timers.append)
    length, sent = 1, 0
    with pytest.MonkeyPatch.context() as patch:
        sdk = SimpleNamespace(info=lambda: info, patched=lambda _: True, sleep=lambda _: None)
        patch.setattr(room, "workflow", sdk)
        patch.setattr(room, "asyncio", SimpleNamespace(ensure_future=lambda _: timer))
        for is_last, sizes in [*batches, (True, [])]:
            at[0] = length if is_last else 0
            asked.count_open(0)
            for size in [size for many, size in sizes for _ in range(many)]:
                command = CallTool(id="pay", name="pay", args={"text": "x" * size})
                if asked.is_free and asked.admit(Perform(invocation_id="T/1.1", command=command, attempt=1)):
                    sent += min(size, THRESHOLD_BYTES)
            assert sent <= room.MOST_BYTES
            if is_last:
                length, sent = length + 3, 0
                while timers:
                    timers.pop()(None)


async def test_no_more_effects_are_open_than_there_is_room_for(
    engine: TemporalEngine, plugin: RefoldPlugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The next one begins when one has come back.
    """
    monkeypatch.setattr(room, "MOST_AT_ONCE", 7)

    opened, _ = await most_at_once(engine, plugin, 40, 10)

    assert opened == 7


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_more_effects_at_once_than_temporal_takes(engine: TemporalEngine, plugin: RefoldPlugin) -> None:
    """
    The server refuses the 2,001st open activity of a workflow, again and again. A worker loads the task in time.
    """
    opened, _ = await most_at_once(engine, plugin, MOST_OPEN, 10)

    assert opened == room.MOST_AT_ONCE
