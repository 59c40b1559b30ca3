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
        label = self.asked.label
        if label.startswith("fails"):
            return failed(label, ValueError("no"))
        return [label, None] if label.startswith("large") else [label, 0, None]

    def drop(self) -> None:
        pass

    def leave(self) -> None:
        pass


class Code:
    """A task that asks for effects at once, and computes on each outcome until `going` is set.

    Attributes:
        began: The effects that were begun.
        untold: See `Run`.

    Args:
        labels: Of the effects.
    """

    def __init__(self, *labels: str) -> None:
        self.labels = list(labels)
        self.began: list[str] = []
        self.untold: dict[str, Record] = {}
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
    def begin(asked: AskedEffect, *, new: bool) -> Over:
        code.began.append(asked.label)
        return Over(asked)

    return Stretch(code, begin, threads, asyncio.Semaphore())


async def stretches(code: Code, threads: ThreadPool) -> list[list[str]]:
    """What each activity records, until the task waits for nothing."""
    code.going.set()
    found = []
    while code.labels:
        found.append([record[0] for record in await performed(code, threads).records()])
    return found


async def test_each_outcome_on_which_the_code_computes_for_long_has_a_record_of_its_own(
    threads: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Results are found in the ledger again. Failures are recorded nowhere: the next activity has them from the one
    before, and performs none once more.
    """
    monkeypatch.setattr(stretch, "ENOUGH_S", 1e-9)
    code = Code("a", "fails", "b", "fails too")

    assert await stretches(code, threads) == [["a"], ["fails"], ["b"], ["fails too"]]
    assert [code.began.count(one) for one in ("fails", "fails too")] == [1, 1]
    assert code.untold == {}


async def test_what_follows_a_large_result_has_a_record_of_its_own(threads: ThreadPool) -> None:
    """
    The task would take it together with the large one, in one activation. Large ones come one by one anyway.
    """
    code = Code("a", "large", "large too", "b", "fails", "large again")

    assert await stretches(code, threads) == [["a", "large", "large too"], ["b", "fails", "large again"]]
    assert code.began.count("fails") == 1


@pytest.mark.parametrize(
    ("labels", "last"),
    [
        (("large",), ["large"]),
        (("a", "large"), ["large"]),
        (("large", "b"), ["large", None]),
        (("large", "large too"), ["large too", None]),
    ],
)
async def test_workers_of_an_earlier_release_replay_a_large_result_that_comes_alone(
    threads: ThreadPool, labels: tuple[str, ...], last: Record
) -> None:
    """
    After a rollback, too: they would do the same. Only beside other effects they would ask for these at once.
    """
    code = Code(*labels)
    code.going.set()

    assert (await performed(code, threads).records())[-1] == last


async def test_a_record_that_no_replay_could_give_in_time_is_refused(
    threads: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The code computes for longer on one outcome than a replay may.
    """
    code = Code("a", "b")
    code.going.set()
    monkeypatch.setattr(stretch, "thread_time", iter(range(0, 100, 2)).__next__)
    with pytest.raises(TimeoutError, match=r"computed for 2\.0 s \(outcomes: 1\)"):
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
