"""What `refold dev` sees of the processes that it keeps running."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from refold.cli.supervise import Supervised

ROOT = Path(__file__).parents[2]
NOISY = """
import os, sys

out = sys.__stdout__.fileno()
os.write(out, b'{"pid": 1}\\n')
os.write(out, b"begins " + b"x" * 1_000_000 + b" ends\\nshort\\n")
os._exit(3)
"""


TELLING = """
import json, os, sys
from temporalio.envconfig import ClientConfig

found = ClientConfig.load_client_connect_config()
told = {name: found.get(name) for name in ("target_host", "api_key", "tls")}
told["build"] = os.environ.get("TEMPORAL_WORKER_BUILD_ID")
os.write(sys.__stdout__.fileno(), json.dumps({"pid": 1, "settings": told}).encode() + b"\\n")
os._exit(0)
"""

ASKING = """
import json, os, sys

try:
    said = input("Your name? ")
except EOFError:
    said = None
os.write(sys.__stdout__.fileno(), b"\\n" + json.dumps({"pid": 1, "said": said}).encode() + b"\\n")
os._exit(0)
"""

FORKING = """
import json, os, signal, sys
from pathlib import Path

out = sys.__stdout__.fileno()
if Path("forked").exists():
    os.write(out, b'{"pid": 2}\\n')
    signal.pause()
Path("forked").touch()
if not (child := os.fork()):
    signal.pause()
os.write(out, json.dumps({"pid": 1, "child": child}).encode() + b"\\nlast words\\n")
os.kill(os.getpid(), signal.SIGKILL)
"""

TALKING = """
import os, signal, sys

out = sys.__stdout__.fileno()

def leave(number, frame):
    os.write(out, b"x\\n" * 300_000 + b"last words")
    os._exit(0)

signal.signal(signal.SIGTERM, leave)
os.write(out, b'{"pid": 1}\\n')
signal.pause()
"""


async def test_a_long_line_is_cut_and_a_crash_after_it_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A tool may print a whole page in a line. The worker goes on, what follows is shown, and its end is said.
    """
    (tmp_path / "noisy.py").write_text(NOISY)
    monkeypatch.chdir(tmp_path)
    here = {"PYTHONPATH": str(ROOT)}
    said: list[str] = []
    again = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        if line.endswith("starting it again"):
            again.set()

    async with asyncio.timeout(250), Supervised("worker", ["noisy"], say, environment=here) as worker:
        await again.wait()
        assert worker.told == {"pid": 1}

    long, short, ended = said[:3]
    assert long.startswith("begins xxx")
    assert long.endswith("x…")
    assert len(long) < 500_000
    assert (short, ended) == ("short", "the worker ended with code 3; starting it again")


async def test_a_crash_is_noticed_although_a_child_of_the_process_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A pool of processes that a tool has forked keeps the worker's output open. The next worker is started all the same.
    """
    (tmp_path / "forking.py").write_text(FORKING)
    monkeypatch.chdir(tmp_path)
    here = {"PYTHONPATH": str(ROOT)}
    said: list[str] = []
    back = asyncio.Event()
    first: dict[str, int] = {}

    def say(line: str) -> None:
        said.append(line)
        first.update(worker.told)
        if line == "the worker is back, process 2":
            back.set()

    try:
        async with asyncio.timeout(250), Supervised("worker", ["forking"], say, environment=here) as worker:
            await back.wait()
    finally:
        os.kill(first["child"], signal.SIGKILL)

    assert said == [
        "last words",
        "the worker was killed by SIGKILL; starting it again",
        "the worker is back, process 2",
    ]


async def test_what_a_process_prints_while_it_stops_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    More than a pipe holds: else the process would wait for ever to write, and be killed.
    """
    (tmp_path / "talking.py").write_text(TALKING)
    monkeypatch.chdir(tmp_path)
    here = {"PYTHONPATH": str(ROOT)}
    said: list[str] = []

    async with asyncio.timeout(250), Supervised("worker", ["talking"], said.append, environment=here) as worker:
        await worker.ready.wait()

    assert (len(said), said[-1]) == (300_001, "last words")


async def test_a_process_whose_lines_cannot_be_shown_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The terminal is gone, or the reader of a pipe: nobody would learn what happens.
    """
    (tmp_path / "noisy.py").write_text(NOISY)
    monkeypatch.chdir(tmp_path)
    here = {"PYTHONPATH": str(ROOT)}

    def say(line: str) -> None:
        raise BrokenPipeError

    async with asyncio.timeout(250), Supervised("worker", ["noisy"], say, environment=here) as worker:
        await worker.gave_up.wait()


async def test_a_process_uses_no_other_connection_than_its_options_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The key of Temporal Cloud in this shell would keep a worker from the server of `refold dev`; what the worker's code
    is called stays.
    """
    (tmp_path / "telling.py").write_text(TELLING)
    monkeypatch.chdir(tmp_path)
    for name in ("API_KEY", "ADDRESS", "NAMESPACE", "TLS_CLIENT_CERT_PATH", "PROFILE", "CONFIG_FILE"):
        monkeypatch.setenv(f"TEMPORAL_{name}", "elsewhere")
    monkeypatch.setenv("TEMPORAL_WORKER_BUILD_ID", "build-7")
    here = {"PYTHONPATH": str(ROOT)}

    async with asyncio.timeout(250), Supervised("worker", ["telling"], print, environment=here) as worker:
        await worker.ready.wait()

    assert worker.told["settings"] == {"target_host": None, "api_key": None, "tls": None, "build": "build-7"}


async def test_a_skill_or_tool_that_asks_the_terminal_is_told_that_nobody_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    `input()` fails at once: the pipe by which a process hears of the end of `refold dev` has no answer for it.
    """
    (tmp_path / "asking.py").write_text(ASKING)
    monkeypatch.chdir(tmp_path)
    here = {"PYTHONPATH": str(ROOT)}

    async with asyncio.timeout(250), Supervised("worker", ["asking"], print, environment=here) as worker:
        await worker.ready.wait()

    assert worker.told == {"pid": 1, "said": None}


async def test_a_process_that_cannot_be_kept_running_is_given_up_aloud() -> None:
    """
    Nobody would start it again, so whoever waits for it hears why.
    """
    said: list[str] = []

    async with asyncio.timeout(250), Supervised("worker", ["\0"], said.append) as worker:
        await worker.gave_up.wait()

    assert said == ["the worker cannot be kept running: ValueError: embedded null byte"]
