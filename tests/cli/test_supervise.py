"""What `refold dev` sees of the processes that it keeps running."""

from __future__ import annotations

import asyncio
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

    async with asyncio.timeout(60), Supervised("worker", ["noisy"], say, environment=here) as worker:
        await again.wait()
        assert worker.told == {"pid": 1}

    long, short, ended = said[:3]
    assert long.startswith("begins xxx")
    assert long.endswith("x…")
    assert len(long) < 500_000
    assert (short, ended) == ("short", "the worker ended with code 3; starting it again")


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

    async with asyncio.timeout(60), Supervised("worker", ["telling"], print, environment=here) as worker:
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

    async with asyncio.timeout(20), Supervised("worker", ["asking"], print, environment=here) as worker:
        await worker.ready.wait()

    assert worker.told == {"pid": 1, "said": None}


async def test_a_process_that_cannot_be_kept_running_is_given_up_aloud() -> None:
    """
    Nobody would start it again, so whoever waits for it hears why.
    """
    said: list[str] = []

    async with asyncio.timeout(60), Supervised("worker", ["\0"], said.append) as worker:
        await worker.gave_up.wait()

    assert said == ["the worker cannot be kept running: ValueError: embedded null byte"]
