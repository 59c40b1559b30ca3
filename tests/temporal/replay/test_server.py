"""`refold replay` over a real server: which histories it takes, what Temporal's own tools save, and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from temporalio.client import Client, WorkflowHistory

from refold import Content
from refold.temporal import Choice, RefoldPlugin, Replays, TemporalEngine, histories, make_worker
from refold.temporal.data.storage import Folder
from refold.temporal.dev import DevServer
from refold.temporal.replay.replaying import Replayed
from tests.records.replaying import HISTORIES, VALUES, read
from tests.temporal import changed_before, skills
from tests.temporal.conftest import PATIENT
from tests.temporal.test_task import collected
from tests.waiting import a_moment
from workflows import hello, refund

ROOT = Path(__file__).parents[3]


async def indexed(engine: TemporalEngine, status: str, task_id: str) -> None:
    """Comes back once the server's index says that a task of the engine's queue is so."""
    query = f"TaskQueue = '{engine.task_queue}' AND ExecutionStatus = '{status}' AND WorkflowId = '{task_id}'"
    while not await collected(engine.client.list_workflows(query)):
        await a_moment()


async def replayed(engine: TemporalEngine, values: Folder, **choice: object) -> list[Replayed]:
    """What replays of a choice of histories come to."""
    notes: list[str] = []
    given = histories(Choice(**choice), engine.connection, notes.append)  # type: ignore[arg-type]
    found = [one async for one in Replays([skills], skills.TOOLS, storage=values).each(given)]
    assert notes == []
    return found


async def test_which_histories_are_taken(client: Client, values: Folder) -> None:
    """
    Of a task all runs, oldest first; of open tasks the open run, on this task queue only; the newest tasks.
    """
    engine = TemporalEngine(client, f"replayed-{uuid4().hex[:8]}", events_per_run=1, patience=PATIENT)
    elsewhere = TemporalEngine(client, f"elsewhere-{uuid4().hex[:8]}")
    await elsewhere.start("talk", Content.from_text("Hello"))
    async with make_worker(client, RefoldPlugin([skills], skills.TOOLS, storage=values), task_queue=engine.task_queue):
        ended, waiting = [(await engine.start("talk", Content.from_text("Hello"))).task_id for _ in range(2)]
        for answer in (Content.from_text("Ada"), Content.from_data({"years": 36})):
            await collected(engine.watch(ended))
            await engine.send(ended, answer)
        await collected(engine.watch(ended))
        await collected(engine.watch(waiting))
    await indexed(engine, "Completed", ended)
    await indexed(engine, "Running", waiting)

    runs = await replayed(engine, values, tasks=[ended])
    last = await engine.connection.describe(ended)
    assert len(runs) > 1
    assert runs[-1].run_id == last.run_id
    assert {(one.task_id, one.same, one.compared) for one in runs} == {(ended, True, "entries")}
    opened = await replayed(engine, values, open=True)
    assert [(one.task_id, one.same) for one in opened] == [(waiting, True)]
    assert await replayed(engine, values, open=True, skill="counts") == []
    assert len({one.task_id for one in await replayed(engine, values, recent=1)}) == 1
    both = await replayed(engine, values, recent=10)
    assert {one.task_id for one in both} == {ended, waiting}
    assert all(one.same for one in both)


async def refold(values: Path, *words: str) -> Process:
    """`refold …` in a process of its own."""
    env = {"PYTHONPATH": str(ROOT), "REFOLD_STORAGE": str(values), "PATH": str(Path(sys.executable).parent)}
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "refold.cli", *words, cwd=ROOT, env=env, stdout=PIPE, stderr=PIPE
    )


async def test_before_a_deployment(client: Client, server: DevServer, values: Folder, tmp_path: Path) -> None:
    """
    The open tasks of a task queue with the code that comes; and what `temporal workflow show` saves, without a server.
    """
    engine = TemporalEngine(client, f"deploys-{uuid4().hex[:8]}", patience=PATIENT)
    async with make_worker(client, RefoldPlugin([changed_before], storage=values), task_queue=engine.task_queue):
        task_id = (await engine.start("changed", Content.from_text("Hello"))).task_id
        await collected(engine.watch(task_id))
    await indexed(engine, "Running", task_id)
    where = ["--address", server.address, "--namespace", server.namespace]
    queue = ["--task-queue", engine.task_queue]

    before = ["--module", "tests.temporal.changed_before"]
    fits = await refold(values.path, "replay", "--open", *before, *queue, *where)
    out, err = await fits.communicate()
    assert (fits.returncode, out, err.decode()) == (0, b"", "1 run: 1 as recorded, 0 different, 0 not replayed\n")

    differs = await refold(
        values.path, "replay", "--open", "--json", "--module", "tests.temporal.changed_after", *queue, *where
    )
    out, err = await differs.communicate()
    assert differs.returncode == 1, err
    assert json.loads(out)["divergence"] == {
        "entry": 1,
        "event": "user_message",
        "step": "begin",
        "command": "",
        "field": "",
        "recorded": "question 'who'",
        "now": "model call 'think'",
    }

    temporal = str(Path(sys.executable).parent / "temporal")
    show = [temporal, "workflow", "show", "--workflow-id", task_id, "--output", "json", *where]
    saved = await asyncio.create_subprocess_exec(*show, stdout=PIPE)
    (tmp_path / "task.json").write_bytes((await saved.communicate())[0])
    offline = await refold(values.path, "replay", str(tmp_path), "--module", "tests.temporal.changed_after", "--json")
    again, _ = await offline.communicate()
    assert offline.returncode == 1
    assert json.loads(again) == json.loads(out)


async def test_an_unknown_task(server: DevServer, values: Folder) -> None:
    """
    Named, and exit 2.
    """
    where = ["--address", server.address, "--namespace", server.namespace]
    done = await refold(values.path, "replay", "no-such-task", "--module", "workflows", *where)
    _, err = await done.communicate()

    assert done.returncode == 2
    assert "no-such-task" in err.decode()


@pytest.mark.slow
async def test_control_c(tmp_path: Path) -> None:
    """
    Stops in the middle, with exit code 130 and without a traceback.
    """
    written = read(HISTORIES / "refund.json.gz")[0].to_json()
    for number in range(2000):
        (tmp_path / f"{number:04}.json").write_text(written)
    done = await refold(VALUES, "replay", str(tmp_path), "--module", "workflows", "--json")
    assert done.stdout is not None
    first = json.loads(await done.stdout.readline())
    done.send_signal(signal.SIGINT)
    rest, err = await done.communicate()

    assert first["same"]
    assert len(rest.splitlines()) < 1999
    assert (done.returncode, err.decode()) == (130, "")


async def test_histories_come_one_by_one() -> None:
    """
    The next history is read when the one before was replayed, so that no more than two are held.
    """
    asked: list[str] = []
    done = 0

    async def given() -> AsyncIterator[WorkflowHistory]:
        for name in ["refund", "hello"] * 3:
            asked.append(name)
            assert len(asked) - done <= 2
            yield read(HISTORIES / f"{name}.json.gz")[0]

    async for one in Replays([refund, hello], storage=Folder(VALUES)).each(given()):
        assert one.same
        done += 1

    assert done == len(asked) == 6
