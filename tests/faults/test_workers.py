"""Workers come and go: nobody is there, one of two is killed, one is asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from refold import Content, InputRejected, Status, TaskState
from refold.engine import NoWorker
from refold.temporal import TemporalEngine
from refold.temporal.client import updates
from tests.faults.processes import Ledger, Workers, until
from tests.temporal.test_task import collected, settled, text

SOON_S = 120.0
"""Long enough for a slow machine; a hang is longer."""


async def test_without_a_worker_every_question_is_answered(
    workers: Workers, engine: TemporalEngine, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    `look` says what is missing, `start` answers `submitted`, `send` says that nobody took it; and when a worker is
    back, the answer sent meanwhile is taken once, and what was started is done.
    """
    monkeypatch.setattr(updates, "UPDATE_PATIENCE", timedelta(seconds=2))
    gone = await workers.start(queue)
    waits = await settled(engine, (await engine.start("asks", text("go"))).task_id)
    await gone.kill()

    alone = TemporalEngine(engine.client, queue, patience=timedelta(seconds=0.5))  # nobody would answer later, either
    async with asyncio.timeout(SOON_S):
        looked = await alone.look(waits.task_id)
    async with asyncio.timeout(SOON_S):
        late = await alone.start("hello", text("Ada"))
    with pytest.raises(NoWorker, match=r"It may still take it later"):
        await alone.send(waits.task_id, text("hello?"), delivery_id="d1")

    assert (looked.lifecycle, looked.status) == (TaskState.PAUSED, Status.INPUT_REQUIRED)
    assert "refold worker" in looked.note
    assert (late.lifecycle, late.status) == (TaskState.PLANNED, Status.SUBMITTED)
    await workers.start(queue)
    await sent_again(engine, waits.task_id)
    done = await settled(engine, waits.task_id)
    assert done.messages[-1].text == "6 characters"
    events = [entry.event.kind for entry in await collected(engine.journal(waits.task_id)) if not entry.refused]
    assert events == ["user_message", "user_message"]
    assert (await settled(engine, late.task_id)).messages[-1].text == "Hello, Ada!"


async def sent_again(engine: TemporalEngine, task_id: str) -> None:
    """Send the same delivery once more, as whoever heard nothing does."""
    with contextlib.suppress(InputRejected):  # the first one was taken as soon as the worker was back: it has ended
        await engine.send(task_id, text("hello?"), delivery_id="d1")


async def test_of_two_workers_one_is_enough(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    One of two is killed with effects under way: they are done by the other, and those of the other not again.
    """
    gate = tmp_path / "gate"
    way = Content.from_data({"gate": str(gate), "count": 2})
    # Leases that a slow machine does not let expire: whoever lives loses no effect.
    first, _ = await asyncio.gather(*(workers.start(queue, recovery="default") for _ in range(2)))
    views = [await engine.start("gated", way) for _ in range(6)]
    await ledger.until("begun", 12)
    await first.kill()
    gate.touch()

    # What the killed one had in its cache is asked there first, until the server gives that up.
    patient = TemporalEngine(engine.client, queue, patience=timedelta(seconds=60))
    ended = [await settled(patient, view.task_id) for view in views]

    assert [view.messages[-1].text for view in ended] == ["through, through"] * 6
    begun, done = ledger.noted("begun"), ledger.noted("done")
    assert sorted(done) == sorted(set(begun)), "each was done once"
    again = [line for line in ledger.lines if line.what == "begun" and line.attempt > 1]
    assert len(begun) == 12 + len(again)
    assert {line.attempt for line in again} <= {2}


async def test_a_worker_that_is_asked_to_leave_finishes_what_it_has(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    SIGTERM: an effect under way is finished within the grace, by the worker that began it, which exits with 0.
    """
    gate = tmp_path / "gate"
    worker = await workers.start(queue)
    view = await engine.start("gated", Content.from_data({"gate": str(gate)}))
    await ledger.until("begun")

    worker.ask_to_stop()
    gate.touch()
    assert await worker.gone() == 0
    await workers.start(queue)
    done = await settled(engine, view.task_id)
    assert done.messages[-1].text == "through"
    assert [line.attempt for line in ledger.lines] == [1, 1]


async def test_a_worker_that_is_asked_to_leave_does_not_stay_for_ever(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    An effect that takes longer than the grace is given up, and done by the next worker under the same id.
    """
    gate = tmp_path / "gate"
    worker = await workers.start(queue, recovery="default", env={"REFOLD_GRACE": "1"})
    view = await engine.start("gated", Content.from_data({"gate": str(gate)}))
    await ledger.until("begun")

    worker.ask_to_stop()
    async with asyncio.timeout(SOON_S):
        assert await worker.gone() == 0
    gate.touch()
    await workers.start(queue, recovery="default")
    async with asyncio.timeout(SOON_S):
        done = await settled(engine, view.task_id)

    assert done.messages[-1].text == "through"
    assert [(line.what, line.attempt) for line in ledger.lines] == [("begun", 1), ("begun", 2), ("done", 2)]
    assert len({line.invocation_id for line in ledger.lines}) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
async def test_a_payment_is_finished_within_the_grace(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path, number: signal.Signals
) -> None:
    """
    SIGTERM, or the end of the worker's terminal, while a plain `def` pays: it is paid once, nobody is asked, and the
    worker exits with 0.
    """
    gate = tmp_path / "gate"
    worker = await workers.start(queue)
    view = await engine.start("pays_once", Content.from_data({"gate": str(gate)}))
    await ledger.until("begun")

    worker.process.send_signal(number)
    gate.touch()
    assert await worker.gone() == 0
    await workers.start(queue)
    done = await settled(engine, view.task_id)

    assert done.messages[-1].text == "paid"
    assert [(line.what, line.attempt) for line in ledger.lines] == [("begun", 1), ("paid", 1)]
    assert "block_on_dependency" not in await moves(engine, view.task_id)


async def test_a_payment_that_takes_longer_is_handed_over(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    The worker leaves at the end of its grace, whatever its thread does; the next one waits until the lease expires,
    asks the probe, and pays. Nobody is asked.
    """
    gate = tmp_path / "gate"
    worker = await workers.start(queue, env={"REFOLD_GRACE": "0.5"})
    view = await engine.start("pays_once", Content.from_data({"gate": str(gate)}))
    await ledger.until("begun")

    worker.ask_to_stop()
    async with asyncio.timeout(SOON_S):
        assert await worker.gone() == 0
    gate.touch()
    await workers.start(queue)
    done = await settled(engine, view.task_id)

    assert done.messages[-1].text == "paid"
    assert ledger.noted("paid") == [f"{view.task_id}/1.1"]
    assert "block_on_dependency" not in await moves(engine, view.task_id)


@pytest.mark.parametrize(
    ("skill", "number"),
    [("pays_once", signal.SIGKILL), ("pays_unseen", signal.SIGKILL), ("pays_unseen", signal.SIGTERM)],
)
async def test_a_payment_that_a_worker_with_another_ledger_takes_over(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path, skill: str, number: int
) -> None:
    """
    A worker is killed, or leaves, while it pays, and the next attempt goes to one that cannot see its receipt: it is
    not paid again. The probe is asked; without a probe a person is told why, and says what came of it.
    """
    gate, receipts = tmp_path / "gate", {name: {"REFOLD_LEDGER": str(tmp_path / name)} for name in ("one", "other")}
    first = await workers.start(queue, env={**receipts["one"], "REFOLD_GRACE": "0.5"})
    view = await engine.start(skill, Content.from_data({"gate": str(gate)}))
    await ledger.until("paid" if skill == "pays_unseen" else "begun")
    other = await workers.start(queue, env=receipts["other"])
    first.process.send_signal(number)
    await first.gone()

    if skill == "pays_unseen":
        look = partial(engine.look, view.task_id)
        blocked = await until(look, lambda seen: seen.lifecycle is TaskState.BLOCKED)
        assert "a worker with another ledger" in str(blocked.pending[0].failure)
        await engine.resolve(view.task_id, outcome="paid", by="ops")
    gate.touch()
    done = await settled(engine, view.task_id)

    assert done.messages[-1].text == "paid"
    assert ledger.noted("paid") == [f"{view.task_id}/1.1"]
    assert "ledgers_differ" in other.log.read_text()


async def test_a_log_that_cannot_be_written_stops_no_task(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, tmp_path: Path
) -> None:
    """
    The disk is full, or nobody reads the worker's stderr any more: its tasks go on, each effect takes place once, and
    it leaves as ever.
    """
    worker = await workers.start(queue, log=Path("/dev/full"))
    (tmp_path / "gate").touch()
    view = await engine.start("pays_once", Content.from_data({"gate": str(tmp_path / "gate")}))
    done = await settled(engine, view.task_id)

    assert done.messages[-1].text == "paid"
    assert [(line.what, line.attempt) for line in ledger.lines] == [("begun", 1), ("paid", 1)]
    worker.ask_to_stop()
    assert await worker.gone() == 0


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("grace_s", "attempts"), [(30, [1, 1]), (5, [1, 2, 2])], ids=["finished", "handed over"])
async def test_a_payment_of_twenty_seconds(
    workers: Workers, engine: TemporalEngine, queue: str, ledger: Ledger, grace_s: int, attempts: list[int]
) -> None:
    """
    As Kubernetes stops a pod: SIGTERM in the middle of a payment of 20 s. With 30 s of grace it is finished; with 5 s
    the worker leaves it, and the next one pays. Either way it is paid once, nobody is asked, and the exit code is 0.
    """
    worker = await workers.start(queue, recovery="default", env={"REFOLD_GRACE": str(grace_s)})
    view = await engine.start("pays_slowly", Content.from_data({"seconds": 20}))
    await ledger.until("begun")
    told_at = asyncio.get_running_loop().time()

    worker.ask_to_stop()
    assert await worker.gone() == 0
    assert asyncio.get_running_loop().time() - told_at < grace_s + SOON_S
    await workers.start(queue, recovery="default")
    done = await settled(engine, view.task_id)

    assert (done.status, done.messages[-1].text) == (Status.COMPLETED, "paid")
    assert ledger.noted("paid") == [f"{view.task_id}/1.1"]
    assert [line.attempt for line in ledger.lines] == attempts
    assert "block_on_dependency" not in await moves(engine, view.task_id)


async def moves(engine: TemporalEngine, task_id: str) -> list[str]:
    """The moves of a task's life."""
    return [move.event.value for entry in await collected(engine.journal(task_id)) for move in entry.moves]
