"""Random faults: whatever dies, each task ends as it would have, each effect is made once, and nobody is asked.

`make faults SEED=7` runs the long form; without a seed it takes one from the clock. The seed is printed.
"""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from refold import Content, InputRejected, Status, TaskState, skill_of
from refold.core.fold.apply import fold
from refold.core.fold.journal import Entry
from refold.engine import EngineError, TaskExists, TaskView
from refold.temporal import RefoldPlugin, TemporalEngine
from refold.temporal.data.storage import Folder
from refold.testing.strategies import first_of
from tests.faults import errands, errands_new
from tests.faults.errands import Errand, Errands
from tests.faults.errands_new import Insured
from tests.faults.world import World, faults
from tests.services.mail import MailServer
from tests.sweeps import LONG_S

T = TypeVar("T")

SEED = int(os.environ.get("FAULTS_SEED", "1"))
LONG = "FAULTS_SEED" in os.environ  # as `make faults` sets it
TASKS, SECONDS, SERVERS = (200, 90.0, 2) if LONG else (40, 25.0, 1)
ENDED = {TaskState.DONE, TaskState.FAILED}
YES = Content.from_text("yes")
PATIENCE_S = 240.0
"""How long after the last fault every task must have ended."""


@dataclass(slots=True)
class Job:
    """A task, and what one of its clients came to know.

    Attributes:
        seen: The numbers of the entries that its watcher was given, in order.
        view: The task at its end.
        refused: The last error that its client was given.
    """

    task_id: str
    skill: str
    errand: Errand
    seen: list[int] = field(default_factory=list)
    view: TaskView | None = None
    refused: Exception | None = None

    @property
    def expected(self) -> Counter[str]:
        """What the shop's ledger must say of it: each effect once; one that was given back is marked."""
        if self.skill == "insured":
            return Counter({"tip": 1, "ship": 1})
        made = Counter({"charge, voided": 1} if self.errand.fails else {"charge": 1, "ship": 1})
        return made + Counter({"tip": int(self.errand.part)})


def jobs_of(chance: random.Random) -> list[Job]:
    """All the work there is."""

    def one(number: int) -> Job:
        def some(share: float) -> bool:
            return chance.random() < share

        size = 50_000 if some(0.3) else 0
        errand = Errand(order_id=f"A{number}", asks=some(0.3), part=some(0.3), fails=some(0.2), manual=size)
        return Job(f"errand-{number}", "insured" if some(0.2) else "errands", errand)

    return [one(number) for number in range(TASKS)]


async def until_taken(job: Job, ask: Callable[[], Awaitable[T]]) -> T | None:
    """Ask again while nobody answers. None: an earlier try was taken, though its answer was lost."""
    while True:
        try:
            return await ask()
        except (TaskExists, InputRejected) as error:
            job.refused = error
            return None
        except EngineError as error:  # server, worker or storage are away
            job.refused = error
            await asyncio.sleep(0.2)  # whoever is not answered tries again in a moment


async def attend(engine: TemporalEngine, job: Job) -> None:
    """Start a task, watch it from its first entry, answer what it asks, and see it end."""
    content = Content.from_data(job.errand.model_dump(mode="json"))
    await until_taken(job, lambda: engine.start(job.skill, content, task_id=job.task_id))
    while True:
        view = await until_taken(job, lambda: watched(engine, job))
        if view is None or job.seen[-1:] != [view.seq]:
            continue  # more has happened since
        if view.lifecycle in ENDED:
            job.view = view
            return
        if view.waiting_for:
            await until_taken(job, lambda: engine.send(job.task_id, YES, delivery_id="the answer"))


async def watched(engine: TemporalEngine, job: Job) -> TaskView:
    """Watch on from the last entry that was seen, until the task waits or ends."""
    async with aclosing(engine.watch(job.task_id, after=job.seen[-1] if job.seen else 0)) as items:
        async for item in items:
            if isinstance(item, Entry):
                job.seen.append(item.seq)
    return await engine.look(job.task_id)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_nothing_is_lost_twice_or_stuck(tmp_path: Path) -> None:
    """
    Workers, server, database and storage come and go, and the shop lies: all tasks end as they would have.
    """
    chance = random.Random(SEED)
    jobs = jobs_of(chance)
    with tempfile.TemporaryDirectory() as database:
        async with World(SEED, tmp_path, Path(database)) as world:
            attending = []
            async with faults(world, seconds=SECONDS, servers=SERVERS):
                for job in jobs:
                    attending.append(asyncio.create_task(attend(world.engine, job)))
                    await asyncio.sleep(chance.uniform(0, 2 * SECONDS * 0.8 / TASKS))
            await asyncio.wait(attending, timeout=PATIENCE_S)
            report = f"seed {SEED}; faults: {', '.join(world.happened)}"
            assert not (open_ := await not_ended(jobs, attending, world)), f"{report}; not ended:\n" + "\n".join(open_)
            assert not (wrong := wrong_effects(jobs, world)), f"{report}; {wrong}"
            await check_records(jobs, world.engine, report)
            await check_replays(world.engine, world.values)


@pytest.mark.sweep
@pytest.mark.timeout(LONG_S)
async def test_two_hundred_tasks_under_a_kill_every_three_seconds(tmp_path: Path) -> None:
    """
    A worker is killed every 3 s for a minute, and the server twice: all are done, with one charge and one mail each,
    and nobody was asked.
    """
    jobs = [Job(f"billed-{n}", "billed", Errand(order_id=f"A{n}")) for n in range(200)]
    with tempfile.TemporaryDirectory() as database, MailServer() as mail:
        async with World(SEED, tmp_path, Path(database), env=mail.environment) as world:
            killing = asyncio.create_task(world.kill_workers(every_s=3.0, seconds=60.0))
            attending = []
            for number, job in enumerate(jobs):
                attending.append(asyncio.create_task(attend(world.engine, job)))
                await asyncio.sleep(0.25)
                if number in (60, 140):
                    await world.kill_server()
            await killing
            await world.calm()
            await asyncio.wait(attending, timeout=PATIENCE_S)
            assert not (open_ := await not_ended(jobs, attending, world)), "not ended:\n" + "\n".join(open_)
            charged = Counter(paid.order_id for paid in world.shop.ledger)
            asked = [job for job in jobs if await needed_a_person(world.engine, job.task_id)]

    ids = Counter({job.errand.order_id: 1 for job in jobs})
    assert {job.view.status for job in jobs if job.view is not None} == {Status.COMPLETED}
    assert (charged, Counter(message["Subject"] for message in mail.inbox), asked) == (ids, ids, [])


async def needed_a_person(engine: TemporalEngine, task_id: str) -> bool:
    """Whether the task was ever blocked without a time at which it goes on by itself."""
    blocked = [
        entry async for entry in engine.journal(task_id) if any(m.to_state is TaskState.BLOCKED for m in entry.moves)
    ]
    return any(not entry.backoffs for entry in blocked)


async def not_ended(jobs: Sequence[Job], attending: Sequence[asyncio.Task[None]], world: World) -> list[str]:
    """Tasks that have no end, each with what its client was told."""
    found = []
    for job, client in zip(jobs, attending, strict=True):
        if client.cancel():
            found.append(f"{job}\n  " + "\n  ".join(await last_entries(job.task_id, world.engine)))
        elif (error := client.exception()) is not None:
            found.append(f"{job}: {error!r}")
    await asyncio.gather(*attending, return_exceptions=True)
    return found


async def last_entries(task_id: str, engine: TemporalEngine) -> list[str]:
    """What a report shows of a task that has not ended: its last entries and what is pending, and its parts."""
    try:
        view = await engine.look(task_id)
        entries = [entry async for entry in engine.journal(task_id)]
    except EngineError as error:
        return [f"{task_id}: {error}"]
    lines = [f"{task_id} {one.seq} {one.at:%H:%M:%S} {one.event.kind} {one.refused}{one.note}" for one in entries[-3:]]
    for pending in view.pending:
        lines.append(f"{task_id} {view.lifecycle.value} {pending} {view.note}")
        if pending.command.startswith("skill "):
            lines += await last_entries(pending.invocation_id, engine)
    return lines


def wrong_effects(jobs: Sequence[Job], world: World) -> list[str]:
    """Tasks that did not end as they should, or whose effects were not made exactly once."""
    made: dict[str, Counter[str]] = {job.errand.order_id: Counter() for job in jobs}
    for paid in world.shop.ledger:
        made[paid.order_id][paid.kind + (", voided" if paid.voided else "")] += 1
    wrong = []
    for job in jobs:
        assert job.view is not None
        fails = job.errand.fails and job.skill == "errands"
        right = job.view.status is (Status.FAILED if fails else Status.COMPLETED)
        if not right or made[job.errand.order_id] != job.expected:
            found = dict(made[job.errand.order_id])
            wrong.append(
                f"{job.task_id} {job.view.status.value} {job.view.reason!r}: {found}, not {dict(job.expected)}"
            )
    return wrong


async def check_records(jobs: Sequence[Job], engine: TemporalEngine, report: str) -> None:
    """Each journal is whole, folds to the task as it is, and was seen without a gap to the task's end."""
    for job in jobs:
        assert job.view is not None
        entries = [entry async for entry in engine.journal(job.task_id)]
        numbers = [entry.seq for entry in entries]
        assert numbers == list(range(1, len(entries) + 1)), f"{report}; {job.task_id}"
        # After the end come the outcomes of compensations, which a watch does not wait for.
        assert job.seen == numbers[: job.view.seq], f"{report}; {job.task_id} was seen as {job.seen}"
        skill = skill_of({"errands": Errands, "insured": Insured}[job.skill])
        folded = fold(skill, first_of(skill, job.task_id), entries)
        assert (folded.lifecycle, folded.seq) == (job.view.lifecycle, len(entries)), f"{report}; {job.task_id}"


async def check_replays(engine: TemporalEngine, values: Path) -> None:
    """Every history replays with the code at hand."""
    plugin = RefoldPlugin([errands, errands_new], storage=Folder(values))
    # Without the SDK's deadline of two seconds, for which a busy machine may stand still.
    replayer = Replayer(workflows=[], plugins=[plugin], debug_mode=True)

    async def histories() -> AsyncIterator[WorkflowHistory]:
        async for execution in engine.client.list_workflows():
            yield await engine.client.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()

    results = await replayer.replay_workflows(histories(), raise_on_replay_failure=True)
    assert not results.replay_failures
