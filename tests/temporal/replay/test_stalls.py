"""A machine that stands still for a moment while a history is replayed is no difference of the code."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from refold.temporal.replay.stalls import HANGS
from refold.temporal.upgrade.replay_check import ReplayCheck
from refold.temporal.worker.task.workflow import SkillWorkflow
from tests.temporal.replay.changed import each, recorded
from workflows import hello

pytestmark = pytest.mark.slow

STALL_S = 60.0
"""Until the SDK interrupts it: it waits two seconds for an activation, and longer where the machine is busy."""


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The stalls that are to come, one at the first entry of each replay."""
    coming: list[float] = []
    take = SkillWorkflow._take_one

    def late(self: SkillWorkflow, event: Any, *at: Any) -> Any:
        if coming and not self._now.seq:
            until = time.monotonic() + coming.pop()
            while time.monotonic() < until:  # one long sleep would not be interrupted
                time.sleep(0.01)
        return take(self, event, *at)

    monkeypatch.setattr(SkillWorkflow, "_take_one", late)
    return coming


async def test_a_replay_that_was_held_up_is_tried_again(stalls: list[float], tmp_path: Path) -> None:
    """
    So a busy machine finds no change where there is none.
    """
    stalls += [STALL_S] * 2
    [replayed], why = await asyncio.gather(
        each([recorded("hello")], hello, values=tmp_path), ReplayCheck([hello]).why_not(recorded("hello"))
    )

    assert (replayed.problem, replayed.divergence, why, stalls) == ("", None, "", [])


async def test_code_that_hangs_is_named(stalls: list[float], tmp_path: Path) -> None:
    """
    After three tries: the code at hand may do it each time.
    """
    stalls += [STALL_S] * 6
    [replayed], why = await asyncio.gather(
        each([recorded("hello")], hello, values=tmp_path), ReplayCheck([hello]).why_not(recorded("hello"))
    )

    assert (replayed.problem, why, stalls) == (HANGS, HANGS, [])
