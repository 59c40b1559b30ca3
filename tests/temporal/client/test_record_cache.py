"""What is kept of tasks that stand still."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from refold import Status, TaskState
from refold.core.content import Content, Message
from refold.record import TaskRecord
from refold.temporal import TemporalEngine
from refold.temporal.client.record_cache import OPEN_S, RecordCache, Standing
from tests.temporal.test_task import run, text

AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(task_id: str, said: str = "x") -> TaskRecord:
    """An ended task that said this."""
    message = Message(role="agent", content=Content.from_text(said), seq=1)
    ended = {"status": Status.COMPLETED, "lifecycle": TaskState.DONE}
    return TaskRecord(task_id=task_id, skill="s", at=AT, status_at=AT, messages=(message,), **ended)


def waiting(task_id: str) -> TaskRecord:
    """An open task that waits for a person."""
    return record(task_id).model_copy(update={"status": Status.INPUT_REQUIRED, "lifecycle": TaskState.PAUSED})


RUN = Standing(run_id="run", events=8)


def test_what_was_not_asked_for_longest_goes_first() -> None:
    """
    So that what is kept has a bound; one that is too large is not kept at all.
    """
    kept = RecordCache(most_bytes=8 * len(record("a").model_dump_json()))
    for task_id in "abcdefgh":
        kept.keep(record(task_id), RUN)
    assert kept.of("a", RUN) == record("a")
    kept.keep(record("i"), RUN)
    kept.keep(record("j", "x" * 10_000), RUN)

    assert [task_id for task_id in "abcdefghij" if task_id in kept] == list("acdefghi")
    assert 0 < kept.bytes <= kept.most_bytes


def test_another_run_is_another_story() -> None:
    """
    A task that was reset is read again.
    """
    kept = RecordCache()
    kept.keep(record("a"), RUN)
    kept.keep(waiting("b"), RUN)

    assert kept.of("a", Standing(run_id="run-2", events=8)) is None
    assert kept.of("b", Standing(run_id="run-2", events=8)) is None


def test_an_open_task_is_as_it_was_until_its_next_event() -> None:
    """
    One more event, or one that a worker has yet to take in, and the task is read again. One that nobody asked about
    before it was read is not given out: an event may have come between.
    """
    kept = RecordCache()
    kept.keep(waiting("a"), RUN)
    kept.keep(waiting("b"), None)

    assert kept.of("a", RUN) == waiting("a")
    assert kept.of("a", Standing(run_id="run", events=9)) is None
    assert kept.of("a", Standing(run_id="run")) is None
    assert "b" in kept
    assert kept.of("b", RUN) is None


def test_an_open_task_is_not_kept_for_long() -> None:
    """
    So that a worker whose code does not fit the task any more can say so. An ended task is kept.
    """
    now = 0.0
    kept = RecordCache(clock=lambda: now)
    kept.keep(record("a"), RUN)
    kept.keep(waiting("b"), RUN)

    now = OPEN_S

    assert "a" in kept
    assert "b" not in kept


@pytest.mark.server
async def test_an_ended_task_is_read_once(engine: TemporalEngine) -> None:
    """
    Who asks again gets the same, and one question is all it takes.
    """
    view = await run(engine, "caught")
    first = await engine.record(view.task_id)
    assert view.task_id in engine.still

    assert await engine.record(view.task_id) is first


@pytest.mark.server
async def test_a_task_that_waits_is_read_from_its_worker_once(engine: TemporalEngine) -> None:
    """
    Who asks often gets the same; what happens to the task is seen at once, by whoever asks next.
    """
    task_id = (await run(engine, "research_loop", "Tides")).task_id
    first = await engine.record(task_id)
    again = await engine.record(task_id)
    assert again == first
    assert await engine.record(task_id) is again

    other = TemporalEngine(engine.client, engine.task_queue)
    await other.send(task_id, text("For sailors"))
    answered = await engine.record(task_id)

    assert answered.seq > again.seq
    assert answered.messages[: len(again.messages)] == again.messages
    assert "For sailors" in [message.content.text for message in answered.messages]
