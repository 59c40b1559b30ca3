"""What is kept of ended tasks."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from refold import Status, TaskState
from refold.core.content import Content, Message
from refold.record import TaskRecord
from refold.temporal import TemporalEngine
from refold.temporal.client.record_cache import RecordCache
from tests.temporal.test_task import run

AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(task_id: str, said: str = "x") -> TaskRecord:
    """An ended task that said this."""
    message = Message(role="agent", content=Content.from_text(said), seq=1)
    ended = {"status": Status.COMPLETED, "lifecycle": TaskState.DONE}
    return TaskRecord(task_id=task_id, skill="s", at=AT, status_at=AT, messages=(message,), **ended)


def test_what_was_not_asked_for_longest_goes_first() -> None:
    """
    So that what is kept has a bound; one that is too large is not kept at all.
    """
    kept = RecordCache(most_bytes=8 * len(record("a").model_dump_json()))
    for task_id in "abcdefgh":
        kept.keep("run", record(task_id))
    assert kept.of("a", "run") == record("a")
    kept.keep("run", record("i"))
    kept.keep("run", record("j", "x" * 10_000))

    assert [task_id for task_id in "abcdefghij" if task_id in kept] == list("acdefghi")
    assert 0 < kept.bytes <= kept.most_bytes


def test_another_run_is_another_story() -> None:
    """
    A task that was reset is read again.
    """
    kept = RecordCache()
    kept.keep("run-1", record("a"))

    assert kept.of("a", "run-2") is None


@pytest.mark.server
async def test_an_ended_task_is_read_once(engine: TemporalEngine) -> None:
    """
    Who asks again gets the same, and one question is all it takes.
    """
    view = await run(engine, "caught")
    first = await engine.record(view.task_id)
    assert view.task_id in engine.ended

    assert await engine.record(view.task_id) is first
