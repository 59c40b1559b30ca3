"""The demo, as `make demo` runs it: a process with a server and workers of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.faults.model import Thoughtful
from tests.services.openai_server import OpenAIServer, Trouble

pytestmark = [pytest.mark.fault, pytest.mark.server]

ROOT = Path(__file__).parents[2]
CALL_S = "0.8"


async def begun(tmp_path: Path, env: Mapping[str, str]) -> Process:
    """The demo, running; what it leaves behind would be in `tmp_path`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REFOLD_", "OPENAI_"))}
    # A server that nobody may touch: the demo has its own.
    foreign = {"TEMPORAL_ADDRESS": "127.0.0.1:1", "TEMPORAL_TLS": "true"}
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "client/demo.py",
        cwd=ROOT,
        env=kept | foreign | {"TMPDIR": str(tmp_path), "COLUMNS": "200"} | dict(env),
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
    )


async def played(tmp_path: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """The demo's exit code, and all that it printed."""
    process = await begun(tmp_path, env)
    async with asyncio.timeout(250):
        out, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode()


def verdict(decision: str, text: str) -> str:
    """What the editor answers."""
    return json.dumps({"decision": decision, "text": text})


def nothing_is_left(tmp_path: Path, told: str) -> None:
    """No folder, and none of the processes that were named."""
    assert list(tmp_path.iterdir()) == []
    pids = [int(pid) for pid in re.findall(r"process (\d+)", told)]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_the_demo_tells_the_whole_story(tmp_path: Path) -> None:
    """
    It loses its worker in the middle of a call, goes on with the same call, waits, is answered, and hands over.
    """
    code, told = await played(tmp_path, {"REFOLD_SCRIPTED_DELAY": CALL_S})

    assert code == 0, told
    assert re.search(r"http://127.0.0.1:\d+/namespaces/default/workflows/research_loop-", told)
    call = re.search(r"in the middle of model call (\S+), attempt 1", told)
    assert call, told
    assert f"the same call, {call[1]}, is now in attempt 2" in told
    assert "it goes on where it was" in told
    assert "the task is now paused" in told
    assert "final.txt" in told
    assert "6 model calls; 5 were made once" in told
    assert "The task is completed" in told
    assert "Draft 1: The tides of the North Sea." in told
    nothing_is_left(tmp_path, told)


@pytest.mark.sweep
async def test_the_demo_runs_against_any_openai_compatible_server(tmp_path: Path) -> None:
    """
    Over HTTP, streaming: the call that dies with its worker is made again under the same key.
    """
    with Thoughtful() as server:
        code, told = await played(tmp_path, {**server.environment, "REFOLD_MODEL": "openai:any"})
        keys = [asked.headers["idempotency-key"] for asked in server.requests]

    assert code == 0, told
    assert "is now in attempt 2" in told
    assert "The task is completed" in told
    assert all(asked.body["stream"] for asked in server.requests)
    assert keys[1] == keys[2]
    assert (len(keys), len(set(keys))) == (7, 6)
    nothing_is_left(tmp_path, told)


@pytest.mark.sweep
async def test_a_model_that_asks_for_ever_is_answered_only_so_often(tmp_path: Path) -> None:
    """
    Each question is answered, up to a number; then the demo cancels its task and ends well.
    """
    with OpenAIServer(repeats=True) as server:
        for number in range(9):
            server.say(f"Draft {number}.", verdict("NeedsHumanInput", f"Question {number}?"))
        code, told = await played(tmp_path, {**server.environment, "REFOLD_MODEL": "openai:any"})

    assert code == 0, told
    assert told.count("a person answered") == 4
    assert "The task is canceled: the demo ends here, after 4 answers" in told
    nothing_is_left(tmp_path, told)


@pytest.mark.sweep
async def test_a_model_that_approves_at_once_ends_the_demo_soon(tmp_path: Path) -> None:
    """
    No question is asked, and the demo says so.
    """
    with OpenAIServer(repeats=True) as server:
        server.say("A fine draft.", verdict("Approved", "Good."))
        code, told = await played(tmp_path, {**server.environment, "REFOLD_MODEL": "openai:any"})

    assert code == 0, told
    assert "A fine draft." in told
    assert "never needed a person" in told


@pytest.mark.sweep
async def test_a_model_that_refuses_fails_the_demo(tmp_path: Path) -> None:
    """
    A wrong key is a failed task, with the reason, and exit code 1.
    """
    with OpenAIServer(repeats=True) as server:
        server.say(Trouble.status(401))
        code, told = await played(tmp_path, {**server.environment, "REFOLD_MODEL": "openai:any"})

    assert code == 1, told
    assert "401" in told
    nothing_is_left(tmp_path, told)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.sweep)])
async def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """
    Ctrl-C, or SIGTERM, in the middle of a call: server, worker and folder go with the demo.
    """
    process = await begun(tmp_path, {"REFOLD_SCRIPTED_DELAY": "60"})
    assert process.stdout is not None
    told = ""
    async with asyncio.timeout(250):
        async for line in process.stdout:
            told += line.decode()
            if "the model writes" in told:
                break
        process.send_signal(number)
        told += (await process.stdout.read()).decode()
        code = await process.wait()

    assert code == 130, told
    assert "Traceback" not in told
    assert "nothing is left behind" in told
    nothing_is_left(tmp_path, told)
