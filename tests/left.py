"""Fails a file of tests that leaves something behind: what it logs or counts would be seen by a later test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest

import refold
from refold.seen import meters
from refold.temporal import dev

REFOLD = str(Path(refold.__file__).parent)
PATIENCE_S = 5.0
"""For how long what is ending may go on, in seconds."""


@pytest.fixture(scope="module", autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Once a file's tests are over, refold counts nothing, and what runs on the tests' loop was there before, or
    belongs to a server or worker of the session."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if _is_refolds([*_files(task)])}
    if left:
        _, left = await asyncio.wait(left, timeout=PATIENCE_S)
    assert not left, f"still running: {left}"
    assert not meters.recording(), "a command or a worker in this process set up metrics"


def _files(task: asyncio.Task[Any]) -> Iterator[str]:
    """Where the coroutines of a task are written, the innermost last."""
    now: Any = task.get_coro()
    while isinstance(now, CoroutineType):
        yield now.cr_code.co_filename
        now = now.cr_await


def _is_refolds(files: list[str]) -> bool:
    of_session = not files or "/temporalio/" in files[0] or files[0] == dev.__file__
    return not of_session and any(file.startswith(REFOLD) for file in files)
