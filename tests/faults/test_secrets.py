"""With a codec nothing that people, models and tools said can be read: in no file, database, ledger or log."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus

from refold import Content, InputRejected, Status, TaskState
from refold.temporal import TemporalEngine, connect, dev_server
from refold.temporal.dev import find_binary
from tests.faults.processes import ROOT, Workers, until
from tests.faults.secret_skills import MANY
from tests.temporal.test_task import asked, settled, text

MARKER = "xanthoma-7261"
OPEN = "not-a-secret"
OLD, NEW = (f"{id}={base64.b64encode(id.encode() * 8).decode()}" for id in ("2025", "2026"))
KEY = "a-key-of-the-web-ui-1234"
QUEUE = "secrets"
MODULES = ("tests.faults.secret_skills",)


def settings(folder: Path, keys: str) -> dict[str, str]:
    """The environment of every process that takes part."""
    return {
        "REFOLD_CODEC": "refold.temporal.encryption:from_env",
        "REFOLD_ENCRYPTION_KEYS": keys,
        "REFOLD_STORAGE": str(folder / "values"),
        "REFOLD_LEDGER": str(folder / "ledger.db"),
    }


def holding(folder: Path, word: str) -> Iterator[str]:
    """The files below a folder that hold a word: as it is, or in base64, wherever it begins there."""
    forms = [word.encode()]
    for before in range(3):
        coded = base64.b64encode(b"\0" * before + word.encode())
        forms.append(coded[4 if before else 0 : -4])
    for path in folder.rglob("*"):
        if path.is_file() and any(form in path.read_bytes() for form in forms):
            yield str(path.relative_to(folder))


def stored(folder: Path) -> set[str]:
    return {path.name for path in (folder / "values").rglob("*") if path.is_file()}


@asynccontextmanager
async def codec_server(environ: dict[str, str]) -> AsyncIterator[str]:
    """`refold codec`, for who has the key; yields its address."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "refold.cli", "codec", "--port", "0", "--json", "--with-parent"),
        cwd=ROOT,
        env={**os.environ, **environ, "REFOLD_CODEC_API_KEYS": f"ui={KEY}"},
        stdin=PIPE,
        stdout=PIPE,
    )
    assert process.stdout is not None
    try:
        yield str(json.loads(await process.stdout.readline())["url"])
    finally:
        process.terminate()
        await process.communicate()


async def temporal(*words: str) -> str:
    """What Temporal's own command line prints."""
    process = await asyncio.create_subprocess_exec(find_binary(), *words, stdout=PIPE, stderr=PIPE)
    out, err = await process.communicate()
    return (out + err).decode()


async def through_everything(engine: TemporalEngine) -> None:
    """The word goes every way that a word can go, up to the question at the end of `OPEN`."""
    task = (await engine.start("discreet", text(MARKER), task_id=OPEN, stream=True, owner="ada")).task_id
    await asked(engine, task, "gate")
    handle = engine.client.get_workflow_handle(task)
    await handle.signal("decide", {"word": MARKER})
    with pytest.raises(InputRejected):
        await engine.decide(task, "gate", approved=True, approver="ada", digest=MARKER)
    await engine.decide(task, "gate", approved=True, approver="ada", comment=f"because of {MARKER}")
    await asked(engine, task, "part")
    await engine.send(task, text(f"{MARKER} indeed"))
    await asked(engine, task, "more")
    failed = await settled(engine, (await engine.start("gives_up", text(MARKER))).task_id)
    assert (failed.status, failed.reason) == (Status.FAILED, f"nothing to do about {MARKER}")
    stuck = (await engine.start("stuck", text(MARKER))).task_id
    await until(lambda: engine.look(stuck), lambda view: view.lifecycle is TaskState.BLOCKED)
    canceled = await engine.cancel(stuck, reason=f"enough of {MARKER}")
    assert (canceled.status, canceled.reason) == (Status.CANCELED, f"enough of {MARKER}")
    assert (await engine.client.get_workflow_handle(stuck).describe()).status is WorkflowExecutionStatus.CANCELED


async def test_no_word_is_left_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Workers, clients, command line and codec server with a key that is changed under a running task: all of them read
    the word, and no file, database, ledger or log holds it. A worker that replays the task stores nothing twice.
    """
    (tmp_path / "values").mkdir()
    before, after = settings(tmp_path, OLD), settings(tmp_path, f"{NEW},{OLD}")
    for name, value in before.items():
        monkeypatch.setenv(name, value)
    async with (
        dev_server(db=tmp_path / "server.db", log=tmp_path / "server.log") as server,
        Workers(server.address, tmp_path) as workers,
    ):
        worker = await workers.start(QUEUE, modules=MODULES, env=before)
        engine = await connect(address=server.address, task_queue=QUEUE)
        await through_everything(engine)
        kept = stored(tmp_path)
        await worker.kill()

        await workers.start(QUEUE, modules=MODULES, env=after)
        monkeypatch.setenv("REFOLD_ENCRYPTION_KEYS", after["REFOLD_ENCRYPTION_KEYS"])
        engine = await connect(address=server.address, task_queue=QUEUE)
        # Its worker may be late with its first answer.
        view = await until(lambda: engine.look(OPEN), lambda view: bool(view.seq))
        assert view.messages[-1].text == f"More of {MARKER}?"
        assert stored(tmp_path) == kept
        await engine.send(OPEN, Content.from_text(f"no more of {MARKER}"))
        done = await settled(engine, OPEN)
        assert (done.status, done.messages[-1].text) == (Status.COMPLETED, f"{MARKER} and no more of {MARKER}")

        history = await engine.client.get_workflow_handle(OPEN).fetch_history()
        failures = [one for one in history.events if one.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_FAILED]
        assert [one.activity_task_failed_event_attributes.failure.message for one in failures] == ["Encoded failure"]
        show = ("workflow", "show", "-w", OPEN, "--address", server.address, "--output", "json")
        assert MARKER not in await temporal(*show)
        async with codec_server(after) as url:
            shown = await temporal(*show, "--codec-endpoint", url, "--codec-auth", f"Bearer {KEY}")
    read = "".join(base64.b64decode(data).decode() for data in re.findall(r'"data": "([A-Za-z0-9+/=]+)"', shown))
    assert {said for said in ("charged for {}", "cannot help with {}") if said.format(MARKER) not in read} == set()
    assert MARKER * MANY in read

    found = {name.removesuffix("-wal") for name in holding(tmp_path, OPEN)}
    assert found >= {"server.db", "ledger.db", "worker-0.log", "worker-1.log"}, "what is not encrypted is found"
    assert list(holding(tmp_path, MARKER)) == []
