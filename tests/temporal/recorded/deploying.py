"""Deploys: the source of a skill, with some of its text changed, as a module of its own; and a site that runs it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from temporalio.client import Client

from refold import Content
from refold.core.fold.journal import Entry
from refold.core.fold.snapshot import Snapshot
from refold.engine import TaskView
from refold.record import TaskRecord
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker
from refold.temporal.data.storage import Folder
from tests.temporal.recorded import purchase
from tests.temporal.test_task import collected

PATIENCE = timedelta(seconds=10)
"""Long enough for a busy machine; a question that no worker answers is given up after half of it."""


def changed(folder: Path, changes: Mapping[str, str], of: ModuleType = purchase) -> ModuleType:
    """A module with another text; `folder` is on the import path."""
    source = Path(str(of.__file__)).read_text()
    for was, becomes in changes.items():
        assert was in source, was
        source = source.replace(was, becomes)
    name = f"deployed_{uuid4().hex[:8]}"
    (folder / f"{name}.py").write_text(source)
    importlib.invalidate_caches()
    return importlib.import_module(name)


class Site:
    """A task queue of its own.

    Attributes:
        engine: For the queue.
    """

    def __init__(self, client: Client, values: Folder) -> None:
        self.values = values
        self.engine = TemporalEngine(client, f"recorded-{uuid4().hex[:8]}", patience=PATIENCE)

    @asynccontextmanager
    async def deployed(
        self, code: ModuleType, *, client: Client | None = None, build_id: str | None = None
    ) -> AsyncIterator[None]:
        """A worker with this code, and perhaps with a client and a build of its own."""
        plugin = RefoldPlugin([code], [purchase.pay], model="scripted:demo", storage=self.values)
        queue = self.engine.connection.task_queue
        async with make_worker(client or self.engine.client, plugin, task_queue=queue, build_id=build_id):
            yield

    async def bought(self, answers: int, *, order: str = "") -> str:
        """A new task that was approved and answered so often; the order is the task's id if there is none."""
        id = f"order-{uuid4().hex[:8]}"
        await self.engine.start("recorded_purchase", Content.from_text(order or id), task_id=id)
        await self.go_on(id, answers)
        return id

    async def go_on(self, id: str, answers: int) -> TaskView:
        """The task after so many more answers."""
        for _ in range(answers):
            await collected(self.engine.watch(id))
            await self.answer(id)
        await collected(self.engine.watch(id))
        return await self.engine.look(id)

    async def answer(self, id: str) -> None:
        """Grant what is asked, or answer it."""
        [wait] = (await self.engine.look(id)).waiting_for
        if wait.gate_kind is None:
            await self.engine.send(id, Content.from_text("now"))
        else:
            await self.engine.decide(id, wait.gate, approved=True, approver="ada")

    async def seen(self, id: str) -> tuple[TaskView, TaskRecord, list[Entry], Snapshot]:
        """All that people see of a task, without the note on its code, and without the steps' own state."""
        view, record, journal = await asyncio.gather(
            self.engine.look(id), self.engine.record(id), collected(self.engine.journal(id))
        )
        at = await self.engine.at(id, view.seq)
        at, record = at.changed({"state": None}), record.changed({"differs": ""})
        return view.model_copy(update={"note": "", "differs": ""}), record, journal, at
