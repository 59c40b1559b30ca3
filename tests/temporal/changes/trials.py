"""Tasks that stand at a place when other code comes, and what people can read of them, before and after."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from temporalio.client import Client
from temporalio.testing import TimeSkipper

from refold import Content, InputRejected, TaskState
from refold.core.fold.journal import Entry
from refold.engine import NoWorker, TaskView
from refold.temporal import RefoldPlugin, TaskUpgrade, TemporalEngine, make_worker, upgrade_tasks
from refold.temporal.client.errors import NO_REASON
from refold.temporal.data.storage import Folder
from refold.temporal.upgrade.sealing import seal, taken
from tests.temporal.changes import trip
from tests.temporal.changes.rows import PEOPLE, ROWS, Fate, Place, Row
from tests.temporal.conftest import PATIENT
from tests.temporal.recorded.deploying import changed
from tests.temporal.test_task import collected
from tests.temporal.upgrade.sealed_skills import doors, reached
from tests.temporal.upgrade.test_upgrade import make_current

AT_ONCE = 8
LOOK_S = 0.5
AGAIN_S = 0.5
PACE = 1_000.0
PATIENCE = timedelta(seconds=10)
NOT_YET = re.compile(f"no answer came in time|{NO_REASON}")
DAY = timedelta(days=1)
ENDED = {TaskState.DONE, TaskState.FAILED}


@dataclass
class Seen:
    """What people can read of a task at one moment.

    Attributes:
        fate: Whether it goes on.
        note: What is said of it.
        journal: Its entries; None where nobody can read them.
    """

    fate: Fate
    note: str
    journal: list[Entry] | None


@dataclass
class Trial:
    """One task under one row.

    Attributes:
        key: The row's.
        place: Where it stands.
        way: How the new code is deployed.
        before: Its journal before the new code came.
        seen: What was seen of it, stage by stage.
        move: What `refold upgrade` said of it.
        end: How it ended.
    """

    key: str
    place: Place
    way: str
    before: list[Entry] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    move: TaskUpgrade | None = None
    end: TaskView | None = None
    journal: list[Entry] = field(default_factory=list)
    broken: Exception | None = None

    @property
    def row(self) -> Row:
        return ROWS[self.key]

    @property
    def id(self) -> str:
        return f"{self.key}-{self.place}-{self.way}"

    @property
    def fates(self) -> list[Fate]:
        return [one.fate for one in self.seen]


def stands_still(view: TaskView) -> bool:
    """Whether it is said why the task makes no progress."""
    return bool(view.note) and not NOT_YET.search(view.note)


def code_of(folder: Path, keys: Sequence[str], *, new: bool) -> list[ModuleType]:
    """The skill as each row has it before or after its change; each row's skill and tools have names of their own."""
    rows = [(key, ROWS[key]) for key in keys]
    edits: list[Mapping[str, str]] = [
        {**(row.edits if new else {}), "trip": key} for key, row in rows if not (new and row.gone)
    ]
    return [changed(folder, one, of=trip) for one in edits]


class Site:
    """A task queue of its own, with workers of old and new code."""

    def __init__(self, client: Client, values: Folder, folder: Path, keys: Sequence[str]) -> None:
        self.queue = f"changes-{uuid4().hex[:8]}"
        self.engine = TemporalEngine(client, self.queue, patience=PATIENCE)
        self.values = values
        self.code = {name: code_of(folder, keys, new=name == "new") for name in ("old", "new")}

    def tools(self, name: str) -> list[Callable[..., Any]]:
        return [tool for module in self.code[name] for tool in module.TOOLS]

    @asynccontextmanager
    async def worker(self, name: str, deployment: str | None = None) -> AsyncIterator[None]:
        """A worker of the old or new code, which keeps no task in memory: each workflow task is a replay."""
        at = self.engine.client
        own = await Client.connect(
            at.service_client.config.target_host, namespace=at.namespace, data_converter=at.data_converter
        )
        plugin = RefoldPlugin(
            self.code[name], self.tools(name), model="scripted:demo", storage=self.values, sandboxed=False
        )
        async with make_worker(
            own, plugin, task_queue=self.queue, build_id=name, deployment=deployment,
            max_cached_workflows=0, graceful_shutdown_timeout=timedelta(),
        ):  # fmt: skip
            yield

    async def begin(self, trial: Trial) -> None:
        """Start it, and come back once it stands where it should."""
        await self.engine.start(trial.key, Content.from_text(trial.id), task_id=trial.id)
        if trial.place is Place.EFFECT:
            await reached[trial.id].wait()
        else:
            await self.until_it_stands(trial)
        trial.before = await collected(self.engine.journal(trial.id))

    async def until_it_stands(self, trial: Trial) -> None:
        """Come back once the task sleeps, or waits for a person."""
        until = time.monotonic() + PATIENT.total_seconds()
        while True:
            view = await self.engine.look(trial.id)
            if view.waiting_for or any(one.command.startswith("sleep") for one in view.pending):
                return
            assert time.monotonic() < until, view  # a busy machine's worker may be late with every answer
            await asyncio.sleep(LOOK_S)

    async def push(self, trial: Trial) -> None:
        """Bring it what it waits for; nothing if it takes nothing."""
        match trial.place:
            case Place.EFFECT:
                doors[trial.id].set()
            case Place.SLEEP:
                handle = self.engine.client.get_workflow_handle(trial.id)
                await TimeSkipper(self.engine.client).fast_forward(handle, DAY)
            case Place.GATE:
                await self.engine.decide(trial.id, approved=True, approver="ada")
            case Place.QUESTION:
                await self.engine.send(trial.id, Content.from_text("now"))

    async def settled(self, trial: Trial) -> TaskView:
        """The task once it stands still, waits for its last answer, or has ended."""
        until = time.monotonic() + PATIENT.total_seconds()
        while True:
            view = await self.engine.look(trial.id)
            if (
                stands_still(view)
                or view.lifecycle in (*ENDED, TaskState.BLOCKED)
                or [one.slot for one in view.waiting_for] == ["rate"]
            ):
                return view
            assert time.monotonic() < until, view
            await asyncio.sleep(LOOK_S)

    async def see(self, trial: Trial) -> None:
        """Note what has become of it."""
        view = await self.settled(trial)
        try:
            journal = await collected(self.engine.journal(trial.id))
        except (NoWorker, InputRejected):  # the code differs in its commands, so that it cannot be asked
            journal = None
        note = view.note or "; ".join(str(one.failure) for one in view.pending if one.blocked)
        trial.seen.append(Seen(Fate.STILL if note else Fate.ON, note, journal))

    async def push_and_see(self, trial: Trial) -> None:
        """Bring it what it waits for, and note what becomes of it."""
        await self.push_until_taken(trial, or_still=True)
        await self.see(trial)

    async def push_until_taken(self, trial: Trial, *, or_still: bool = False) -> None:
        """Bring it what it waits for, again and again: code that does not fit refuses it, and a busy machine's worker
        may be late. `or_still`: once it stands still, no more.
        """
        while True:
            try:
                await self.push(trial)
            except (NoWorker, InputRejected):
                await asyncio.sleep(AGAIN_S)
                view = await self.engine.look(trial.id)
                if or_still and stands_still(view):
                    return
                if not view.note and [one.slot for one in view.waiting_for] not in (["go"], ["when"]):
                    return  # it was taken all the same
            else:
                return

    async def free(self, trial: Trial) -> None:
        """Bring a task that stood still what it would not take, now that fitting code is back."""
        if trial.place in PEOPLE:
            await self.push_until_taken(trial)
        elif (await self.engine.look(trial.id)).lifecycle is TaskState.BLOCKED:
            with suppress(InputRejected):  # it was just retried by itself: its tool is back
                await self.engine.resolve(trial.id, retry=True)

    async def try_to_finish(self, trial: Trial) -> None:
        """Bring it to its end, if it goes on."""
        with suppress(NoWorker, InputRejected):
            view = await self.settled(trial)
            if not view.note and view.lifecycle not in ENDED:
                await self.engine.send(trial.id, Content.from_text("well"))
                await collected(self.engine.watch(trial.id))
                view = await self.engine.look(trial.id)
            if view.lifecycle in ENDED:
                trial.end, trial.journal = view, await collected(self.engine.journal(trial.id))

    async def finish(self, trial: Trial) -> None:
        """Bring it to its end: the server tries a task that stood still again after some time."""
        until = time.monotonic() + PATIENT.total_seconds()
        while trial.end is None and time.monotonic() < until:
            await self.try_to_finish(trial)
            if trial.end is None:
                await asyncio.sleep(AGAIN_S)

    async def upgrade(self, trials: Sequence[Trial]) -> None:
        """`refold upgrade` in the folder of the new code."""
        ids = {trial.id: trial for trial in trials if trial.broken is None}
        chosen = {"task_ids": list(ids), "pace": PACE}
        async for move in upgrade_tasks(self.engine, self.code["new"], self.tools("new"), **chosen):  # type: ignore[arg-type]
            ids[move.task_id].move = move

    async def seal(self, trial: Trial) -> None:
        """Seal a task, and come back once it goes on in a new run, or waits for its effect."""
        before = (await self.engine.connection.describe(trial.id)).run_id
        if not await seal(self.engine.connection, trial.id):
            await taken(self.engine.connection, trial.id, before, PATIENT)


async def each(trials: Sequence[Trial], do: Callable[[Trial], Awaitable[None]]) -> None:
    """Do something with all, some at a time."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(trial: Trial) -> None:
        async with places:
            if trial.broken is None:
                try:
                    await do(trial)
                except Exception as error:  # noqa: BLE001 - raised again in the trial's own test
                    trial.broken = error

    await asyncio.gather(*map(one, trials))


async def restarted(site: Site, trials: Sequence[Trial]) -> None:
    """Old workers are stopped, new ones started; and back, as a rollback; and forth again."""
    async with site.worker("old"):
        await each(trials, site.begin)
    async with site.worker("new"):
        await each(trials, site.push_and_see)
    async with site.worker("old"):
        await each([one for one in trials if one.fates == [Fate.STILL]], site.free)
        await each([one for one in trials if one.fates == [Fate.ON]], site.see)
        await each([one for one in trials if one.fates != [Fate.ON, Fate.STILL]], site.finish)
    async with site.worker("new"):
        await each([one for one in trials if one.end is None], site.finish)


async def rolled(site: Site, trials: Sequence[Trial]) -> None:
    """New workers beside old ones on one queue; each workflow task goes to either. Then the old ones are gone."""
    async with AsyncExitStack() as old:
        await old.enter_async_context(site.worker("old"))
        await each(trials, site.begin)
        async with site.worker("new"):
            await each(trials, site.push_until_taken)
            await old.aclose()
            await each(trials, site.see)
            await each([one for one in trials if one.fates == [Fate.ON]], site.finish)
    async with site.worker("old"):
        await each([one for one in trials if one.end is None], site.try_to_finish)
        async with site.worker("new"):
            await each([one for one in trials if one.end is None], site.finish)


async def versioned(site: Site, trials: Sequence[Trial]) -> None:
    """Versions of a worker deployment: the old one begins the tasks, the new one is made current, `refold upgrade`."""
    client, deployment = site.engine.client, f"shop-{uuid4().hex[:8]}"
    async with site.worker("old", deployment), site.worker("new", deployment):
        await make_current(client, deployment, "old")
        await each(trials, site.begin)
        await make_current(client, deployment, "new")
        await site.upgrade(trials)
        await each(trials, site.push_and_see)
        await each([one for one in trials if one.fates == [Fate.ON]], site.finish)
        await make_current(client, deployment, "old")
        await each([one for one in trials if one.end is None], site.finish)


async def sealed(site: Site, trials: Sequence[Trial]) -> None:
    """Sealed by the old code, as `refold upgrade --before-deploy` does; then the workers are replaced; and back."""
    async with site.worker("old"):
        await each(trials, site.begin)
        await each(trials, site.seal)
    async with site.worker("new"):
        await each(trials, site.push_and_see)
        await each([one for one in trials if one.fates == [Fate.ON]], site.finish)
    async with site.worker("old"):
        await each([one for one in trials if one.fates == [Fate.STILL]], site.free)
        await each([one for one in trials if one.end is None], site.finish)
