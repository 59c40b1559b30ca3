"""What a restarted worker does to the storage: it asks whether each value is there, and writes none."""

from __future__ import annotations

from uuid import uuid4

from temporalio.client import Client

from refold import Content, Ctx, Status, Transition, flow_skill, step, tool
from refold.temporal import RefoldPlugin, TemporalEngine, make_worker, workflow_for
from refold.temporal.data.payloads import THRESHOLD_BYTES, data_converter
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import settled, text

LARGE = 50


@tool(effect="idempotent")
async def length(text: str) -> int:
    """How long a text is."""
    return len(text)


@flow_skill(id="large_arguments")
class LargeArguments:
    """Calls a tool with large arguments, and waits."""

    @step(start=True)
    async def begin(self, ctx: Ctx, content: Content) -> Transition:
        texts = (f"{number:08}" * (THRESHOLD_BYTES // 8) for number in range(LARGE))
        await ctx.gather(*(ctx.tool(length, text=one) for one in texts))
        await ctx.ask("more", "Go on?")
        return ctx.complete()


LargeArgumentsWorkflow = workflow_for(LargeArguments)


async def test_a_restarted_worker_stores_no_argument_again(server: DevServer, folder: Folder) -> None:
    """
    It replays the task with all its large arguments, and each file is the one that was written first.
    """
    client = await Client.connect(server.address, data_converter=data_converter(folder))
    engine = TemporalEngine(client, f"restart-{uuid4().hex[:8]}", patience=PATIENT)

    def files() -> set[tuple[str, int]]:
        return {(path.name, path.stat().st_ino) for path in folder.path.rglob("*") if path.is_file()}

    def plugin() -> RefoldPlugin:
        return RefoldPlugin([LargeArguments], [length], storage=folder, sandboxed=False)

    async with make_worker(client, plugin(), task_queue=engine.task_queue):
        task_id = (await engine.start("large_arguments", text("go"))).task_id
        assert (await settled(engine, task_id)).status is Status.INPUT_REQUIRED
    before = files()
    async with make_worker(client, plugin(), task_queue=engine.task_queue):
        again = await engine.look(task_id)

        assert (again.status, again.note) == (Status.INPUT_REQUIRED, "")
        assert files() == before
        assert len(before) == LARGE
        await engine.cancel(task_id)
