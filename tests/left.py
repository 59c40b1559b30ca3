"""Fails a file of tests that leaves something of refold's running: its logs would be those of a later test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import CoroutineType
from typing import Any

import pytest

import refold

REFOLD = str(Path(refold.__file__).parent)
PATIENCE_S = 5.0
"""For how long what is ending may go on, in seconds."""


@pytest.fixture(scope="module", autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """What runs on the tests' loop once a file's tests are over is the session's, or was there before."""
    before = asyncio.all_tasks()
    yield
    left = {task for task in asyncio.all_tasks() - before if any(map(_is_refolds, _awaited(task)))}
    if left:
        _, left = await asyncio.wait(left, timeout=PATIENCE_S)
    assert not left, f"still running: {left}"


def _awaited(task: asyncio.Task[Any]) -> Iterator[CoroutineType[Any, Any, Any]]:
    """The coroutines of a task, the innermost last."""
    now: Any = task.get_coro()
    while isinstance(now, CoroutineType):
        yield now
        now = now.cr_await


def _is_refolds(coroutine: CoroutineType[Any, Any, Any]) -> bool:
    return coroutine.cr_code.co_filename.startswith(REFOLD)
