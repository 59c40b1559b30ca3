"""What an activity of a stretch records of a task whose code computes for long. No server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from refold.effects.ledger.thread_pool import ThreadPool
from refold.effects.short import stretch
from refold.effects.short.stretch import AskedEffect, NextWants, Record, Stretch, failed


@dataclass
class Over:
    """An effect that is over."""

    asked: AskedEffect
    is_over: bool = True
    is_new: bool = True

    async def record(self) -> Record:
        if self.asked.label == "fails":
            return failed(self.asked.label, ValueError("no"))
        return [self.asked.label, 0, None]

    def drop(self) -> None:
        pass

    def leave(self) -> None:
        pass


class Code:
    """A task that asks for effects at once, and computes on each outcome until `going` is set.

    Args:
        labels: Of the effects.
    """

    def __init__(self, *labels: str) -> None:
        self.labels = list(labels)
        self.computes, self.going = threading.Event(), threading.Event()

    def take(self, record: Record | None) -> NextWants:
        if record is None:
            asked = [AskedEffect(label=one, id=one, type="tool.a", args=(), headers={}) for one in self.labels]
            return NextWants(asked=asked)
        self.labels.remove(record[0])
        self.computes.set()
        assert self.going.wait(60)
        return NextWants()


@pytest.fixture
def threads() -> Iterator[ThreadPool]:
    pool = ThreadPool(1, "code")
    yield pool
    pool.close()


def performed(code: Code, threads: ThreadPool) -> Stretch:
    return Stretch(code, lambda asked, new: Over(asked), threads, asyncio.Semaphore())


async def test_a_record_that_no_replay_could_give_in_time_is_refused(
    threads: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Each outcome by itself could be given; but a failure among effects at once is told with all that came before it.
    """
    code = Code("a", "b", "fails")
    code.going.set()
    monkeypatch.setattr(stretch, "ENOUGH_S", 1e-9)
    assert [one[0] for one in await performed(code, threads).records()] == ["a", "b", "fails"]

    monkeypatch.setattr(stretch, "thread_time", iter(range(100)).__next__)
    code.labels = ["a", "b", "fails"]
    with pytest.raises(TimeoutError, match=r"computed for 2\.0 s \(outcomes: 2\)"):
        await performed(code, threads).records()


async def test_an_outcome_on_which_the_code_computes_as_the_worker_stops_is_not_recorded(threads: ThreadPool) -> None:
    """
    The code may compute for longer than a replay may. The ledger has the outcome for the next attempt.
    """
    code = Code("a", "b")
    going = asyncio.create_task(performed(code, threads).records())
    await asyncio.to_thread(code.computes.wait, 60)
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    code.going.set()
