"""What `refold dev` sees of the processes that it keeps running."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from refold.cli.supervise import Supervised

ROOT = Path(__file__).parents[2]
NOISY = """
import os

os.write(1, b'{"pid": 1}\\n')
os.write(1, b"begins " + b"x" * 1_000_000 + b" ends\\nshort\\n")
os._exit(3)
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


async def test_a_process_that_cannot_be_kept_running_is_given_up_aloud() -> None:
    """
    Nobody would start it again, so whoever waits for it hears why.
    """
    said: list[str] = []

    async with asyncio.timeout(60), Supervised("worker", ["\0"], said.append) as worker:
        await worker.gave_up.wait()

    assert said == ["the worker cannot be kept running: ValueError: embedded null byte"]
