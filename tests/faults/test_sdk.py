"""A release of the SDK that has changed what it does not promise: workers go on."""

from __future__ import annotations

from refold import Status
from refold.temporal.data.storage import Folder
from tests.faults.conftest import engine_of
from tests.faults.processes import Workers, until
from tests.temporal.test_task import settled, text

# The inside of the SDK that refold uses, gone when refold is imported; the SDK itself has it.
WITHOUT = """
import sys
import temporalio.client, temporalio.worker, temporalio.worker.workflow_sandbox, temporalio.contrib.pydantic
import temporalio.workflow
inside = {names!r}
sys.modules.update(dict.fromkeys(inside))
import refold.temporal.worker.plugin
from refold.effects import attempt
from refold.temporal.worker.activation import committed
from refold.temporal.worker.sandboxed import sandbox
assert sandbox.SharingModules is None
assert attempt.ActivityHeartbeat is None
assert not committed._KNOWN
assert not committed._RECORDS
import temporalio
for name in inside:
    del sys.modules[name]
sys.argv = ["refold", *sys.argv[1:]]
from refold.cli.app import main
main()
"""
INSIDE = ["temporalio.worker.workflow_sandbox._importer", "temporalio.bridge.proto"]


async def test_a_worker_does_without_the_inside_of_the_sdk(workers: Workers, queue: str) -> None:
    """
    Tasks run to their end, ask, and answer queries; they only share no modules, a busy loop no heartbeat, and their
    histories have no marks. The log says what is missing.
    """
    command = ["-c", WITHOUT.format(names=INSIDE), "worker", "workflows", "activities", "--json", "--with-parent"]
    worker = await workers.launch([*command, "--address", workers.address, "--task-queue", queue])
    engine = await engine_of(workers.address, queue, Folder(workers.folder))

    view = await settled(engine, (await engine.start("research_loop", text("Tides"))).task_id)
    assert view.status is Status.INPUT_REQUIRED
    await engine.send(view.task_id, text("The Atlantic coast."))
    done = await until(lambda: engine.look(view.task_id), lambda view: view.status is not Status.WORKING)
    assert done.status is Status.COMPLETED
    assert await engine.builds(view.task_id) == ()
    assert "sdk_unknown" in worker.log.read_text()
