"""What a tool reports of its progress: from any thread, the newest only, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from refold.effects import current
from refold.effects.invocation import Invocation, as_current
from refold.effects.progress import EVERY_S, REPORT_BYTES, Report, Reports
from refold.middleware import ProgressPiece


async def after(reports: Reports, *said: Any, thread: bool = False) -> None:
    def add() -> None:
        for one in said:
            reports.add(one)

    if thread:
        worker = Thread(target=add)  # none of the worker's own
        worker.start()
        await asyncio.to_thread(worker.join)
    else:
        add()


@pytest.mark.parametrize("thread", [False, True], ids=["loop", "thread"])
async def test_the_first_at_once_then_the_newest(thread: bool) -> None:
    """
    10,000 reports are one heartbeat now, and one a quarter of a second later.
    """
    sent: list[Report] = []
    later = asyncio.Event()

    def heartbeat(report: Report) -> None:
        sent.append(report)
        if report.said == 9_999:
            later.set()

    reports, began = Reports(2, heartbeat), monotonic()
    await after(reports, *range(10_000), thread=thread)
    took_s = monotonic() - began
    await later.wait()

    assert len(sent) <= 2 + took_s // EVERY_S
    assert (sent[-1].attempt, sent[-1].number) == (2, len(sent))
    assert reports.newest() == sent[-1]


async def test_reports_are_a_quarter_of_a_second_apart() -> None:
    """
    What comes in between is replaced by the newest.
    """
    sent: asyncio.Queue[Report] = asyncio.Queue()
    reports = Reports(1, sent.put_nowait)
    reports.add("one")
    await sent.get()
    began = monotonic()
    await after(reports, "two", "three")

    assert (await sent.get()).said == "three"
    assert monotonic() - began >= EVERY_S * 0.9


def broken() -> Iterator[int]:
    """A value whose own code fails."""
    yield 1
    raise KeyError("two")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        pytest.param({"done": 1}, {"done": 1}, id="data"),
        pytest.param(None, None, id="nothing"),
        pytest.param({1}, [1], id="set"),
        pytest.param(object(), "(a report of type object, which is no JSON)", id="object"),
        pytest.param(broken(), "(a report of type generator, which is no JSON)", id="failing"),
        pytest.param(["x" * 5_000], "(a report of 5,004 bytes; 4,096 are shown at the most)", id="large"),
    ],
)
async def test_what_is_reported_becomes_json(said: Any, shown: Any) -> None:
    """
    Of at most 4 KB; what is none is named.
    """
    sent: asyncio.Queue[Report] = asyncio.Queue()
    Reports(1, sent.put_nowait).add(said)

    assert (await sent.get()).said == shown


@pytest.mark.parametrize("letter", ["x", "ä", "😀"])
async def test_a_long_text_is_cut(letter: str) -> None:
    """
    Between two characters.
    """
    sent: asyncio.Queue[Report] = asyncio.Queue()
    Reports(1, sent.put_nowait).add(letter * 5_000_000)
    said = (await sent.get()).said

    assert isinstance(said, str)
    assert set(said) == {letter, "…"}
    assert len(said.encode()) <= REPORT_BYTES


async def test_nothing_is_sent_after_the_call() -> None:
    """
    A thread that runs on reports to nobody, nor does middleware that held a report back.
    """
    sent: list[Report] = []
    reports = Reports(1, sent.append)
    reports.close()
    await after(reports, "late", thread=True)
    reports.show(ProgressPiece("late"))

    assert sent == []


def test_outside_of_a_worker() -> None:
    """
    A test of a tool receives its reports, or drops them; outside of a call there is nothing to report to.
    """
    seen: list[Any] = []
    about: dict[str, Any] = {
        "task_id": "T",
        "invocation_id": "T/1.1",
        "idempotency_key": "k",
        "attempt": 1,
        "http": None,
    }
    with as_current(Invocation(**about, report=seen.append)):
        current().progress("half")
    with as_current(Invocation(**about)):
        current().progress("half")

    assert seen == ["half"]
    with pytest.raises(RuntimeError, match="knows a call only inside a tool"):
        current().progress("half")
